//! `[tools.web_fetch]`: the few things an owner may loosen about fetching.

use std::fmt;

use reqwest::Url;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::resolve::is_metadata;

/// `[tools.web_fetch]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct EgressConfig {
    /// The tool exists.
    pub enabled: bool,
    /// How the public internet is reached: `"none"` (directly), `"env"`, or a proxy's address.
    pub proxy: Proxy,
    /// Names may resolve to 198.18.0.0/15, where a proxy on this machine makes addresses up for every name.
    pub fake_ip: bool,
    /// `host:port` of services that are fetched although they are not public. Exact, never a pattern.
    #[serde(deserialize_with = "hosts")]
    pub allow_hosts: Vec<String>,
}

impl Default for EgressConfig {
    fn default() -> Self {
        Self { enabled: true, proxy: Proxy::None, fake_ip: false, allow_hosts: Vec::new() }
    }
}

impl EgressConfig {
    /// The allowed hosts as the URL parser writes them.
    pub fn named_hosts(&self) -> Vec<(String, u16)> {
        self.allow_hosts.iter().filter_map(|written| host_and_port(written)).collect()
    }
}

/// Reads a list of `host:port`.
///
/// # Errors
/// Says which entry is none, or may not be allowed.
pub fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let hosts = Vec::<String>::deserialize(deserializer)?;
    for written in &hosts {
        if host_and_port(written).is_none() {
            return Err(D::Error::custom(format!(
                "`{written}` is not the `host:port` of one service, like `192.168.1.5:8080`; metadata services of clouds \
                 cannot be allowed"
            )));
        }
    }
    Ok(hosts)
}

/// `host:port` as the URL parser writes the host; `None` when it is something else, or a cloud's metadata service.
fn host_and_port(written: &str) -> Option<(String, u16)> {
    let (_, port) = written.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
    let url = Url::parse(&format!("http://{written}/")).ok()?;
    let plain =
        url.path() == "/" && url.query().is_none() && url.fragment().is_none() && !written.contains(['@', '/', '*']);
    let host = url.host_str()?.to_owned();
    let metadata = match url.domain() {
        None => host.trim_matches(['[', ']']).parse().is_ok_and(is_metadata),
        Some(name) => name.trim_end_matches('.') == "metadata.google.internal",
    };
    (plain && !metadata && url.port_or_known_default() == Some(port)).then_some((host, port))
}

/// How the public internet is reached. The address may hold a password: it is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Proxy {
    /// Directly: names are resolved and checked here.
    #[default]
    None,
    /// As `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` say.
    Env,
    /// Through this one.
    Url(String),
}

/// What a proxy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Plain http.
    Http,
    /// https.
    Https,
    /// Both.
    All,
}

const SCHEMES: [&str; 4] = ["http://", "https://", "socks5://", "socks5h://"];

impl Proxy {
    /// The proxies, and the hosts that go without them.
    pub fn resolved(&self, env: impl Fn(&str) -> Option<String>) -> (Vec<(Kind, String)>, Option<String>) {
        let named =
            |name: &str| env(name).or_else(|| env(&name.to_ascii_lowercase())).filter(|value| !value.is_empty());
        match self {
            Self::None => (Vec::new(), None),
            Self::Url(url) => (vec![(Kind::All, url.clone())], None),
            Self::Env => {
                let proxies = [("HTTPS_PROXY", Kind::Https), ("HTTP_PROXY", Kind::Http), ("ALL_PROXY", Kind::All)];
                let full = |url: String| if url.contains("://") { url } else { format!("http://{url}") };
                let proxies = proxies.into_iter().filter_map(|(name, kind)| Some((kind, full(named(name)?)))).collect();
                (proxies, named("NO_PROXY"))
            }
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Env => "Env",
            Self::Url(_) => "Url(***)",
        })
    }
}

impl Serialize for Proxy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::None => "none",
            Self::Env => "env",
            Self::Url(_) => "***",
        })
    }
}

impl<'de> Deserialize<'de> for Proxy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "none" => Ok(Self::None),
            "env" => Ok(Self::Env),
            url if SCHEMES.iter().any(|scheme| url.starts_with(scheme)) && Url::parse(url).is_ok() => {
                Ok(Self::Url(text))
            }
            _ => Err(D::Error::custom(
                "expected \"none\", \"env\" or an address that starts with http://, https://, socks5:// or socks5h://",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_exact_or_refused() {
        for (written, meant) in [
            ("192.168.1.5:8080", ("192.168.1.5", 8080)),
            ("NAS.local:80", ("nas.local", 80)),
            ("[fd12::1]:443", ("[fd12::1]", 443)),
            ("localhost:3000", ("localhost", 3000)),
            ("[::1]:9000", ("[::1]", 9000)),
        ] {
            assert_eq!(host_and_port(written), Some((meant.0.to_owned(), meant.1)), "{written}");
        }
        for wrong in [
            "192.168.1.5",
            "192.168.1.5:0",
            "192.168.1.5:http",
            "*.local:80",
            "http://nas.local:80",
            "nas.local:80/path",
            "a@nas.local:80",
            "nas.local:80?x",
            "169.254.169.254:80",
            "[fd00:ec2::254]:80",
            "[::ffff:169.254.169.254]:80",
            "100.100.100.200:80",
            "metadata.google.internal:80",
            "",
            ":80",
        ] {
            assert_eq!(host_and_port(wrong), None, "{wrong}");
        }
        let parsed = toml::from_str::<EgressConfig>("allow_hosts = [\"*:80\"]");
        assert!(parsed.expect_err("a pattern").to_string().contains("`*:80` is not the `host:port`"));
    }

    #[test]
    fn proxies_are_read_and_never_shown() {
        let parsed = |text: &str| toml::from_str::<EgressConfig>(text).map(|config| config.proxy);
        assert_eq!(parsed(""), Ok(Proxy::None));
        assert_eq!(parsed("proxy = \"env\""), Ok(Proxy::Env));
        let url = parsed("proxy = \"socks5h://u:hush@127.0.0.1:1080\"").expect("an address");
        assert!(!format!("{url:?}").contains("hush"));
        assert!(parsed("proxy = \"127.0.0.1:7890\"").is_err());
        let env = |name: &str| match name {
            "https_proxy" => Some("127.0.0.1:7890".to_owned()),
            "NO_PROXY" => Some("example.org".to_owned()),
            _ => None,
        };
        assert_eq!(
            Proxy::Env.resolved(env),
            (vec![(Kind::Https, "http://127.0.0.1:7890".to_owned())], Some("example.org".to_owned()))
        );
        assert_eq!(Proxy::None.resolved(env), (Vec::new(), None));
    }
}
