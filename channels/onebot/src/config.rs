//! The section `[channels.onebot.<account>]`, without the keys that every channel has.

use std::time::Duration;

use channel_api::{Said, Secret};
use http::HeaderValue;
use serde::{Deserialize, Deserializer, de};
use url::{Host, Url};

/// One QQ number.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Who connects to whom.
    #[serde(default)]
    pub mode: Mode,
    /// What both sides know. May be empty only between programs of one machine.
    #[serde(default)]
    pub access_token: Secret,
    /// The key of pushed events' signatures where it is not the token. NapCat and LLOneBot sign with the token.
    #[serde(default)]
    pub secret: Secret,
    /// Where the OneBot implementation waits for us (`mode = "forward"`): `ws://127.0.0.1:3001`.
    #[serde(default)]
    pub url: Option<String>,
    /// Where it takes calls (`mode = "http"`): `http://127.0.0.1:3000`.
    #[serde(default)]
    pub api_url: Option<String>,
    /// The bot's QQ number. Where it is set, no other is let in.
    #[serde(default)]
    pub self_id: Option<Number>,
    /// What happens when someone wants to be the bot's friend.
    #[serde(default)]
    pub friend_requests: Consent,
    /// What happens when someone invites the bot into a group.
    #[serde(default)]
    pub group_invites: Consent,
    /// After how many seconds without an answer one short line says that the work goes on; 0: never.
    #[serde(default = "default_working_line_after")]
    pub working_line_after: u64,
    /// An answer of more characters, or of more than three messages, goes as one merged forward; 0: never.
    #[serde(default = "default_forward_above")]
    pub forward_above: usize,
}

fn default_working_line_after() -> u64 {
    10
}

fn default_forward_above() -> usize {
    4_500
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            access_token: Secret::default(),
            secret: Secret::default(),
            url: None,
            api_url: None,
            self_id: None,
            friend_requests: Consent::default(),
            group_invites: Consent::default(),
            working_line_after: default_working_line_after(),
            forward_above: default_forward_above(),
        }
    }
}

/// Who connects to whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The implementation opens a WebSocket to us.
    #[default]
    Reverse,
    /// We open a WebSocket to the implementation.
    Forward,
    /// The implementation posts events to us, and we call its HTTP API.
    Http,
}

/// To whom a request is granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Consent {
    /// To nobody: it waits for a person.
    #[default]
    Ignore,
    /// To everyone.
    Approve,
    /// To these QQ numbers.
    From(Vec<String>),
}

impl Consent {
    /// Whether it is granted to this number.
    pub fn to(&self, user: &str) -> bool {
        match self {
            Self::Ignore => false,
            Self::Approve => true,
            Self::From(users) => users.iter().any(|known| known == user),
        }
    }
}

impl<'de> Deserialize<'de> for Consent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Word(String),
            List(Vec<Number>),
        }
        let wrong = || de::Error::custom("it is \"ignore\", \"approve\" or a list of QQ numbers");
        match Written::deserialize(deserializer).map_err(|_| wrong())? {
            Written::Word(word) if word == "ignore" => Ok(Self::Ignore),
            Written::Word(word) if word == "approve" => Ok(Self::Approve),
            Written::Word(_) => Err(wrong()),
            Written::List(users) => Ok(Self::From(users.into_iter().map(|user| user.0).collect())),
        }
    }
}

/// A QQ number, written as a number or in quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number(pub String);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        match crate::ids::number(&value) {
            Some(number) if !number.starts_with('-') => Ok(Self(number)),
            _ => Err(de::Error::custom("a QQ number consists of digits")),
        }
    }
}

/// Why no channel can be built. Each names its key; none shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not an address that can be connected to.
    #[error("`{0}` {en}", en = .1.en)]
    BadUrl(&'static str, Said),
    /// A key that this mode needs or does not know.
    #[error("{}", .0.en)]
    Mode(Said),
    /// A token that cannot be one.
    #[error("`{0}` {en}", en = .1.en)]
    BadSecret(&'static str, Said),
    /// The HTTP client could not be built.
    #[error("the HTTP client cannot be built: {0}")]
    Client(String),
}

impl ConfigError {
    /// The same in both languages.
    pub fn said(&self) -> Said {
        let zh = match self {
            Self::BadUrl(key, why) | Self::BadSecret(key, why) => format!("`{key}` {}", why.zh),
            Self::Mode(why) => why.zh.clone(),
            Self::Client(error) => format!("无法创建 HTTP 客户端：{error}"),
        };
        Said::new(self.to_string(), zh)
    }
}

impl Config {
    /// Everything that can be said without asking the implementation.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn check(&self) -> Result<(), ConfigError> {
        // In mode "forward" the token keeps others out of the other side's server, which has its own rules.
        let shortest = if self.mode == Mode::Forward { 0 } else { SHORTEST };
        check_secret("access_token", &self.access_token, shortest)?;
        check_secret("secret", &self.secret, shortest)?;
        match self.mode {
            Mode::Reverse => {
                if self.url.is_some() || self.api_url.is_some() {
                    return Err(ConfigError::Mode(Said::new(
                        "`url` and `api_url` have no use in mode \"reverse\": the OneBot side connects to us; \
                         choose mode = \"forward\" or \"http\", or remove them",
                        "`url` 和 `api_url` 在 mode = \"reverse\" 下没有用处：此时由 OneBot 一侧连接本程序；\
                         请改用 mode = \"forward\" 或 \"http\"，或删除它们",
                    )));
                }
            }
            Mode::Forward => {
                self.forward_url()?;
            }
            Mode::Http => {
                self.api()?;
            }
        }
        Ok(())
    }

    /// Where to connect in mode "forward".
    pub(crate) fn forward_url(&self) -> Result<Url, ConfigError> {
        let Some(url) = &self.url else {
            return Err(ConfigError::Mode(Said::new(
                "mode = \"forward\" needs `url`, the address of the OneBot side's WebSocket server: \"ws://127.0.0.1:3001\"",
                "mode = \"forward\" 需要 `url`，即 OneBot 一侧 WebSocket 服务端的地址：\"ws://127.0.0.1:3001\"",
            )));
        };
        let url = self.address("url", url, ["ws", "wss"])?;
        match url.path().trim_end_matches('/').rsplit('/').next() {
            Some("api" | "event") => Err(ConfigError::BadUrl(
                "url",
                Said::new(
                    "ends with /api or /event, which carries only half; leave that out",
                    "以 /api 或 /event 结尾，这样只能用到一半功能；请去掉结尾这段",
                ),
            )),
            _ => Ok(url),
        }
    }

    /// Where calls go in mode "http", with a slash at its end.
    pub(crate) fn api(&self) -> Result<Url, ConfigError> {
        let Some(url) = &self.api_url else {
            return Err(ConfigError::Mode(Said::new(
                "mode = \"http\" needs `api_url`, the address of the OneBot side's HTTP server: \"http://127.0.0.1:3000\"",
                "mode = \"http\" 需要 `api_url`，即 OneBot 一侧 HTTP 服务端的地址：\"http://127.0.0.1:3000\"",
            )));
        };
        let mut url = self.address("api_url", url, ["http", "https"])?;
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        Ok(url)
    }

    fn address(&self, key: &'static str, text: &str, schemes: [&str; 2]) -> Result<Url, ConfigError> {
        let [bare, secure] = schemes;
        let bad = |en: String, zh: String| ConfigError::BadUrl(key, Said::new(en, zh));
        let url = Url::parse(text.trim())
            .map_err(|error| bad(format!("is no address: {error}"), format!("不是有效的地址：{error}")))?;
        if !schemes.contains(&url.scheme()) {
            return Err(bad(
                format!("must begin with {bare}:// or {secure}://"),
                format!("必须以 {bare}:// 或 {secure}:// 开头"),
            ));
        }
        let Some(host) = url.host() else { return Err(bad("names no host".to_owned(), "没有主机名".to_owned())) };
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err(bad(
                "holds a name, a password or a `?`; the token goes into `access_token`".to_owned(),
                "里有用户名、密码或 `?`；令牌请写在 `access_token` 里".to_owned(),
            ));
        }
        if self.access_token.is_empty() && !is_loopback(&host) {
            return Err(ConfigError::BadSecret(
                "access_token",
                Said::new("is empty, and the other side is not on this machine", "为空，而对方不在本机上"),
            ));
        }
        if url.scheme() == bare && !is_near(&host) {
            return Err(bad(
                format!("must begin with {secure}://: the token would cross the network unprotected"),
                format!("必须以 {secure}:// 开头，否则令牌会在网络上明文传输"),
            ));
        }
        Ok(url)
    }

    /// The silence before the working line, if there is one.
    pub(crate) fn working_line(&self) -> Option<Duration> {
        (self.working_line_after > 0).then(|| Duration::from_secs(self.working_line_after))
    }
}

/// The shortest secret that keeps others out of an address of ours, in bytes.
const SHORTEST: usize = 16;

fn check_secret(key: &'static str, secret: &Secret, shortest: usize) -> Result<(), ConfigError> {
    let text = secret.expose();
    let bad = |en: &str, zh: &str| Err(ConfigError::BadSecret(key, Said::new(en, zh)));
    if text.starts_with("${") {
        return bad("is a variable without a value", "是一个没有值的变量");
    }
    if !text.is_empty() && text.trim().is_empty() {
        return bad("is blank", "只有空白");
    }
    if text.chars().any(char::is_whitespace) {
        return bad("has white space in it", "里有空白字符");
    }
    if text.len() > 512 || HeaderValue::from_str(text).is_err() {
        return bad("cannot be sent in a header: use letters and digits", "无法放进请求头：请只用字母和数字");
    }
    if !text.is_empty() && text.len() < shortest {
        return bad(
            "is too short: 16 characters at least, the same on both sides; make one with `openssl rand -hex 32`",
            "太短：至少 16 个字符，两边要一致；可用 `openssl rand -hex 32` 生成",
        );
    }
    Ok(())
}

pub(crate) fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.is_loopback(),
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
        }
    }
}

/// Whether a host is this machine or on a private network: a name without a dot is a container's or a neighbour's.
fn is_near(host: &Host<&str>) -> bool {
    is_loopback(host)
        || match host {
            Host::Ipv4(ip) => ip.is_private() || ip.is_link_local(),
            Host::Ipv6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
            Host::Domain(name) => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                !name.contains('.') || [".local", ".internal", ".lan"].iter().any(|end| name.ends_with(end))
            }
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_chinese(text: &str) -> bool {
        text.chars().any(|c| matches!(c, '一'..='鿿'))
    }

    fn check(text: &str) -> String {
        match toml::from_str::<Config>(text) {
            Err(error) => error.message().to_owned(),
            Ok(config) => match config.check() {
                Ok(()) => "fine".to_owned(),
                Err(error) => {
                    let said = error.said();
                    assert_eq!(said.en, error.to_string());
                    assert!(is_chinese(&said.zh), "not in Chinese: {said:?}");
                    said.en
                }
            },
        }
    }

    #[test]
    fn a_section_that_cannot_work_says_which_key_and_what_to_do() {
        for (text, says) in [
            ("", "fine"),
            ("access_token = 'a'", "16 characters"),
            ("access_token = '0123456789abcde'", "16 characters"),
            ("access_token = '0123456789abcdef'", "fine"),
            ("mode = 'http'\napi_url = 'http://[::1]:3000/'\nsecret = 'short'", "`secret` is too short"),
            ("mode = 'forward'\nurl = 'ws://127.0.0.1:3001'", "fine"),
            ("mode = 'forward'\nurl = 'ws://napcat:3001'\naccess_token = 'abc'", "fine"),
            ("mode = 'http'\napi_url = 'http://[::1]:3000/'", "fine"),
            ("self_id = 10001\nfriend_requests = 'approve'\ngroup_invites = [10001, '10002']", "fine"),
            ("mode = 'forward'", "needs `url`"),
            ("mode = 'http'", "needs `api_url`"),
            ("url = 'ws://127.0.0.1:3001'", "choose mode"),
            ("mode = 'forward'\nurl = 'http://127.0.0.1:3001'", "ws:// or wss://"),
            ("mode = 'forward'\nurl = 'ws://127.0.0.1:3001/event'", "only half"),
            ("mode = 'forward'\nurl = 'ws://127.0.0.1:3001/?access_token=x'", "`access_token`"),
            ("mode = 'forward'\nurl = 'ws://napcat:3001'", "not on this machine"),
            ("mode = 'http'\napi_url = 'http://onebot.example.org'\naccess_token = '0123456789abcdef'", "unprotected"),
            ("mode = 'backward'", "backward"),
            ("access_token = ' '", "blank"),
            ("access_token = 'a b'", "white space"),
            ("access_token = '${NAPCAT_TOKEN}'", "without a value"),
            ("access_token = 12345", "in quotes"),
            ("friend_requests = 'yes'", "\"approve\""),
            ("group_invites = ['bob']", "QQ numbers"),
            ("self_id = 'bob'", "digits"),
            ("acess_token = 'x'", "unknown field `acess_token`"),
        ] {
            let said = check(text);
            assert!(said.contains(says), "{text:?}: {said}");
            assert!(!said.contains("12345"), "shows the token: {said}");
        }
        let shown = format!("{:?}", toml::from_str::<Config>("access_token = 'hush-hush'"));
        assert!(!shown.contains("hush"), "{shown}");
    }

    #[test]
    fn every_error_is_said_in_chinese_too() {
        // The others are made by the sections above, and `check` looks at each.
        let said = ConfigError::Client("x".to_owned()).said();
        assert!(is_chinese(&said.zh) && said.en.starts_with("the HTTP client"), "{said:?}");
    }

    #[test]
    fn requests_are_granted_to_nobody_everyone_or_a_list() {
        let consent = |text: &str| toml::from_str::<Config>(text).expect("a section").friend_requests;
        assert!(!consent("").to("1"));
        assert!(consent("friend_requests = 'approve'").to("1"));
        assert!(consent("friend_requests = [1]").to("1") && !consent("friend_requests = [1]").to("11"));
    }
}
