//! `[mcp.servers.<name>]`: which servers of the Model Context Protocol there are, how each is reached, and for whom its
//! tools are.

use std::collections::BTreeMap;

use globset::{Glob, GlobSet, GlobSetBuilder};
use http::{HeaderName, HeaderValue};
use reqwest::Url;
use serde::Deserialize;

use crate::{
    egress::{Proxy, hosts},
    lang::{self, Lang},
    policy::Role,
    secrets::Secret,
};

/// The longest a call may be allowed to take, in seconds.
const LONGEST: u64 = 3_600;

/// `[mcp]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpConfig {
    /// `[mcp.servers.<name>]`.
    pub servers: BTreeMap<String, ServerConfig>,
}

/// `[mcp.servers.<name>]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// The program and its arguments, for a server that is started here and spoken to over stdin and stdout.
    pub command: Vec<String>,
    /// What the program gets in its environment besides the search path, the home folder and the language.
    pub env: BTreeMap<String, Secret>,
    /// Where the program starts, relative to the configuration file; `None` = a folder of its own below `data/mcp`.
    pub cwd: Option<String>,
    /// How well the program has to be confined; where that cannot be had, it is not started.
    pub sandbox: crate::confinement::Wanted,
    /// Whether the program may reach the network.
    pub network: bool,
    /// The hosts that are open to the program while it may not: `example.org`, `*.example.org`, `nas.local:5000`.
    #[serde(deserialize_with = "hosts::list")]
    pub hosts: Vec<String>,
    /// What the program may read besides its own installation, relative to the configuration file.
    pub read: Vec<String>,
    /// Folders the program may change besides the one it starts in, relative to the configuration file.
    pub write: Vec<String>,
    /// The address, for a server that is reached over (streamable) HTTP. May hold a key in its query.
    pub url: Option<Secret>,
    /// Headers of every request, e.g. `Authorization`.
    pub headers: BTreeMap<String, Secret>,
    /// How the public internet is reached.
    pub proxy: Proxy,
    /// The address is on this machine or in a private network: reached directly, and plain http is allowed.
    pub private: bool,
    /// Which of its tools there are, as globs over the server's own names.
    pub tools: Vec<String>,
    /// The least role that may use its tools.
    pub least: Role,
    /// Its word is taken for what a tool only reads. Otherwise every call counts as one that changes something.
    pub trust_hints: bool,
    /// What becomes of the first list of tools.
    pub approve: Approve,
    /// Seconds a call may take.
    pub timeout_s: u64,
    /// Off: it is neither started nor asked.
    pub enabled: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            sandbox: crate::confinement::Wanted::Auto,
            network: false,
            hosts: Vec::new(),
            read: Vec::new(),
            write: Vec::new(),
            url: None,
            headers: BTreeMap::new(),
            proxy: Proxy::None,
            private: false,
            tools: vec!["*".to_owned()],
            least: Role::Trusted,
            trust_hints: false,
            approve: Approve::Ask,
            timeout_s: 60,
            enabled: true,
        }
    }
}

/// Who approves the first list of a server's tools. Later changes are always the owner's to approve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approve {
    /// The owner, with `crawfish mcp approve`.
    #[default]
    Ask,
    /// Whatever the server shows first is taken.
    First,
}

/// What is wrong with a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The server's name.
    Name,
    /// Neither `command` nor `url`, or both.
    Reach,
    /// The address.
    Url,
    /// Plain http over the internet.
    Plain,
    /// A pattern of `tools`.
    Glob,
    /// A header.
    Header,
    /// `least`.
    Least,
    /// `timeout_s`.
    Timeout,
}

impl Wrong {
    /// What is wrong and what to write instead.
    pub fn text(self, lang: Lang) -> String {
        match self {
            Self::Name => lang::mcp_bad_name(lang),
            Self::Reach => lang::mcp_bad_reach(lang),
            Self::Url => lang::mcp_bad_url(lang),
            Self::Plain => lang::mcp_bad_plain(lang),
            Self::Glob => lang::mcp_bad_glob(lang),
            Self::Header => lang::mcp_bad_header(lang),
            Self::Least => lang::mcp_bad_least(lang),
            Self::Timeout => lang::mcp_bad_timeout(lang, LONGEST),
        }
    }
}

impl McpConfig {
    /// What is wrong, with the path below `[mcp]`.
    pub fn wrong(&self) -> Vec<(Vec<String>, Wrong)> {
        let mut all = Vec::new();
        for (name, server) in &self.servers {
            let at = |key: &str| {
                let path = ["servers", name, key].into_iter().filter(|part| !part.is_empty());
                path.map(str::to_owned).collect::<Vec<_>>()
            };
            if !is_good_name(name) {
                all.push((at(""), Wrong::Name));
            }
            all.extend(server.wrong().map(|(key, wrong)| (at(key), wrong)));
        }
        all
    }
}

/// The name is part of the tools' names and of a file's: short, and in small letters.
fn is_good_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    (1..=32).contains(&name.len()) && name.chars().all(good) && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

impl ServerConfig {
    fn wrong(&self) -> Option<(&'static str, Wrong)> {
        let program = self.command.first().is_some_and(|program| !program.trim().is_empty());
        if program == self.url.is_some() {
            return Some(("", Wrong::Reach));
        }
        if self.url.is_some() {
            match self.address() {
                None => return Some(("url", Wrong::Url)),
                Some(url) if url.scheme() == "http" && !self.private => return Some(("url", Wrong::Plain)),
                Some(_) => {}
            }
        }
        if self.parsed_headers().is_none() {
            return Some(("headers", Wrong::Header));
        }
        if self.wanted().is_none() {
            return Some(("tools", Wrong::Glob));
        }
        if self.least < Role::Member {
            return Some(("least", Wrong::Least));
        }
        (!(1..=LONGEST).contains(&self.timeout_s)).then_some(("timeout_s", Wrong::Timeout))
    }

    /// Its address, when it is one.
    pub fn address(&self) -> Option<Url> {
        let url = Url::parse(self.url.as_ref()?.expose().trim()).ok()?;
        let plain = url.username().is_empty() && url.password().is_none() && url.has_host();
        (matches!(url.scheme(), "http" | "https") && plain).then_some(url)
    }

    /// Its headers; `None` when one cannot be sent, or is the protocol's own.
    pub fn parsed_headers(&self) -> Option<Vec<(HeaderName, HeaderValue)>> {
        const OWN: [&str; 7] = [
            "accept",
            "content-type",
            "content-length",
            "host",
            "last-event-id",
            "mcp-protocol-version",
            "mcp-session-id",
        ];
        let header = |(name, value): (&String, &Secret)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            // A key alone is meant as one.
            let value = match value.expose().trim() {
                key if name == http::header::AUTHORIZATION && !key.contains(' ') => format!("Bearer {key}"),
                value => value.to_owned(),
            };
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(true);
            (!OWN.contains(&name.as_str())).then_some((name, value))
        };
        self.headers.iter().map(header).collect()
    }

    /// Which of its tools are wanted; `None` when a pattern is none.
    pub fn wanted(&self) -> Option<GlobSet> {
        let mut globs = GlobSetBuilder::new();
        for glob in &self.tools {
            globs.add(Glob::new(glob).ok()?);
        }
        globs.build().ok()
    }

    /// How it is reached, without anything secret.
    pub fn shown(&self) -> String {
        match self.address() {
            Some(url) => url.origin().ascii_serialization(),
            None => shown_words(&self.command),
        }
    }
}

/// A command line without the keys in it: what stands behind an option, an assignment or in an address that is called like
/// one, and words that look like one.
fn shown_words(words: &[String]) -> String {
    const HIDDEN: &str = "***";
    let is_key = |name: &str| {
        let name = name.to_ascii_lowercase().replace(['-', '_', '.'], "");
        ["key", "token", "secret", "password", "passwd", "auth", "authorization", "bearer", "credential", "cookie"]
            .iter()
            .any(|word| name.ends_with(word) || (word.len() > 4 && name.contains(word)))
            || matches!(name.as_str(), "pat" | "pw" | "pass")
    };
    let mut shown = Vec::new();
    let mut hide_next = false;
    for word in words {
        let is_option = word.starts_with('-');
        if std::mem::take(&mut hide_next) && !is_option {
            // `Authorization: Bearer x` in one word and `Bearer x` in two.
            hide_next = matches!(word.to_ascii_lowercase().as_str(), "bearer" | "basic");
            shown.push(HIDDEN.to_owned());
            continue;
        }
        hide_next = false;
        let cut = word.find(['=', ':']).filter(|at| is_key(&word[..*at]));
        shown.push(match cut {
            Some(at) if at + 1 < word.len() => format!("{}{HIDDEN}", &word[..=at]),
            Some(_) => {
                hide_next = true;
                word.clone()
            }
            None if is_option && is_key(word) => {
                hide_next = true;
                word.clone()
            }
            None if looks_like_key(word) => HIDDEN.to_owned(),
            None => shown_address(word).unwrap_or_else(|| word.clone()),
        });
    }
    shown.join(" ")
}

/// An address in a command without its user, its query and what its path may hold of a key.
fn shown_address(word: &str) -> Option<String> {
    let at = [
        "https://",
        "http://",
        "wss://",
        "ws://",
        "postgres://",
        "postgresql://",
        "mysql://",
        "redis://",
        "mongodb://",
    ]
    .iter()
    .find_map(|scheme| word.find(scheme))?;
    let url = Url::parse(&word[at..]).ok()?;
    let is_bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if is_bare && !url.path().split('/').any(looks_like_key) {
        return None;
    }
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    Some(format!("{}{}://{}{port}/…", &word[..at], url.scheme(), url.host_str()?))
}

/// Long, of letters and digits mixed, and no path, package or address.
fn looks_like_key(word: &str) -> bool {
    let is_known = ["sk-", "ghp_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA", "hf_", "clh_", "eyJ"]
        .iter()
        .any(|head| word.starts_with(head) && word.len() >= 16);
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '=' | '~');
    let has = |kind: fn(&char) -> bool| word.chars().any(|c| kind(&c));
    let is_mixed = has(char::is_ascii_digit) && has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase);
    let is_hex = word.len() >= 32 && word.chars().all(|c| c.is_ascii_hexdigit());
    is_known || is_hex || (word.len() >= 24 && word.chars().all(is_word) && is_mixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<(String, Wrong)> {
        let config: McpConfig = toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        config.wrong().into_iter().map(|(path, wrong)| (path.join("."), wrong)).collect()
    }

    #[test]
    fn a_section_says_what_is_wrong_with_it() {
        for (text, expected) in [
            ("[servers.time]\ncommand = [\"uvx\", \"mcp-server-time\"]", None),
            (
                "[servers.hub]\nurl = \"https://mcp.example.com/mcp?key=1\"\nheaders = { Authorization = \"Bearer x\" }",
                None,
            ),
            ("[servers.own]\nurl = \"http://127.0.0.1:9000/mcp\"\nprivate = true", None),
            ("[servers.Time]\ncommand = [\"x\"]", Some(("servers.Time", Wrong::Name))),
            ("[servers.t]", Some(("servers.t", Wrong::Reach))),
            ("[servers.t]\ncommand = [\"x\"]\nurl = \"https://a.b\"", Some(("servers.t", Wrong::Reach))),
            ("[servers.t]\nurl = \"ftp://a.b\"", Some(("servers.t.url", Wrong::Url))),
            ("[servers.t]\nurl = \"https://me:pw@a.b\"", Some(("servers.t.url", Wrong::Url))),
            ("[servers.t]\nurl = \"http://a.b/mcp\"", Some(("servers.t.url", Wrong::Plain))),
            ("[servers.t]\ncommand = [\"x\"]\ntools = [\"[\"]", Some(("servers.t.tools", Wrong::Glob))),
            (
                "[servers.t]\ncommand = [\"x\"]\nheaders = { Accept = \"y\" }",
                Some(("servers.t.headers", Wrong::Header)),
            ),
            ("[servers.t]\ncommand = [\"x\"]\nleast = \"stranger\"", Some(("servers.t.least", Wrong::Least))),
            ("[servers.t]\ncommand = [\"x\"]\ntimeout_s = 0", Some(("servers.t.timeout_s", Wrong::Timeout))),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(at, wrong)| (at.to_owned(), wrong)).collect();
            assert_eq!(wrong(text), expected, "{text}");
        }
        assert!(toml::from_str::<McpConfig>("[servers.t]\ncomand = []").is_err());
    }

    #[test]
    fn what_is_shown_of_a_server_holds_no_key() {
        let config: ServerConfig = toml::from_str("url = \"https://mcp.example.com/a?key=hush\"").expect("good");
        assert_eq!(config.shown(), "https://mcp.example.com");
        assert!(!format!("{config:?}").contains("hush"));
        for (command, shown) in [
            ("uvx mcp-server-time --local-timezone UTC", "uvx mcp-server-time --local-timezone UTC"),
            ("npx -y @scope/server@1.2.3 /srv/data", "npx -y @scope/server@1.2.3 /srv/data"),
            ("x --api-key hush --port 80", "x --api-key *** --port 80"),
            ("x --api-key=hush y", "x --api-key=*** y"),
            ("x --token hush", "x --token ***"),
            ("x --access_token hush", "x --access_token ***"),
            ("x -e API_KEY=hush img", "x -e API_KEY=*** img"),
            ("x --header Authorization:hush", "x --header Authorization:***"),
            ("x --header Authorization: Bearer hush", "x --header Authorization: *** ***"),
            ("npx mcp-remote https://a.example/mcp?key=hush", "npx mcp-remote https://a.example/…"),
            ("x postgresql://me:hush@db:5432/all", "x postgresql://db:5432/…"),
            ("x sk-hush0123456789abcdef", "x ***"),
            ("x https://a.example/mcp", "x https://a.example/mcp"),
            ("python3 -m server --keyboard us", "python3 -m server --keyboard us"),
        ] {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(shown_words(&words), shown);
        }
        let one = ["x", "-H", "Authorization: Bearer hush"].map(str::to_owned);
        assert_eq!(shown_words(&one), "x -H Authorization:***");
    }
}
