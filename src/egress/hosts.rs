//! The hosts that are open to a sandboxed command: read as people write them, compared as the URL parser writes them. Pure.
//!
//! `example.org`, `*.example.org` (names below it, not itself) or `example.org:8443`; without a port 80 and 443 are meant.
//! design.md §10, security.md §3.4.

use std::net::IpAddr;

use channel_api::reach::{is_private_name, is_public};
use reqwest::Url;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::resolve::is_metadata;

/// The longest entry, in bytes. A name has at most 253.
const LONGEST: usize = 300;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// As the URL parser writes it, without a dot at the end.
    name: String,
    /// Names below it are meant, not itself.
    below: bool,
    port: Option<u16>,
    anywhere: bool,
}

/// Who wrote an entry down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The owner: its name may lead into a private network when its port is named too.
    Owner,
    /// The owner, as the value of a skill's variable (`HA_URL`): it may be anywhere.
    OwnersValue,
    /// A skill's author: only what anybody sees to be private (`10.0.0.5`, `ha.local`) may lead there. A public name that
    /// leads into a private network is the author's doing, not what the owner saw and allowed.
    Skill,
}

impl Host {
    /// Reads an entry; `None` when it is none, or a cloud's metadata service.
    pub fn read(written: &str, by: By) -> Option<Self> {
        let written = written.trim();
        let (below, rest) = match written.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, written),
        };
        if rest.is_empty() || rest.len() > LONGEST || rest.contains(['/', '@', '*', '?', '#', '\\', ' ', '%']) {
            return None;
        }
        let after = &rest[rest.rfind(']').map_or(0, |end| end + 1)..];
        let port = match after.split_once(':') {
            None => None,
            Some((_, port)) => Some(port.parse().ok().filter(|port| *port > 0)?),
        };
        let url = Url::parse(&format!("http://{rest}/")).ok()?;
        let (name, ip) = plain(&url)?;
        let metadata = match ip {
            Some(ip) => is_metadata(ip),
            None => name == "metadata.google.internal",
        };
        // `*.org` or `*.1.2.3.4` is no domain of anybody.
        if metadata || (below && (ip.is_some() || !name.contains('.'))) {
            return None;
        }
        let seen = ip.map_or_else(|| is_private_name(&name) || !name.contains('.'), |ip| !is_public(ip));
        let anywhere = !below
            && match by {
                By::OwnersValue => true,
                By::Owner => seen || port.is_some(),
                By::Skill => seen,
            };
        Some(Self { name, below, port, anywhere })
    }

    /// The host of an address that the owner gave as a skill's variable; `None` when it is no address of a web server.
    pub fn of_value(value: &str) -> Option<Self> {
        let value = value.trim();
        let (scheme, _) = value.split_once("://")?;
        let usual = match scheme.to_ascii_lowercase().as_str() {
            "http" | "ws" => 80,
            "https" | "wss" => 443,
            _ => return None,
        };
        let url = Url::parse(value).ok()?;
        let (name, _) = plain(&url)?;
        Self::read(&format!("{name}:{}", url.port().unwrap_or(usual)), By::OwnersValue)
    }

    /// Whether it means this host, as [`plain`] gives it, at this port.
    fn means(&self, name: &str, port: u16) -> bool {
        let same = match self.below {
            true => name.strip_suffix(&self.name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            false => name == self.name,
        };
        same && self.port.map_or(matches!(port, 80 | 443), |named| named == port)
    }
}

/// How a host is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Where it leads must be public.
    Public,
    /// It may be in a private network.
    Anywhere,
}

/// Whether and how a host is open at a port. `name` as [`plain`] gives it.
pub fn opened(hosts: &[Host], name: &str, port: u16) -> Option<Open> {
    let meaning = hosts.iter().filter(|host| host.means(name, port));
    meaning.map(|host| if host.anywhere { Open::Anywhere } else { Open::Public }).max_by_key(|open| *open as u8)
}

/// The host of an address in the one form that is compared, and the address it is, if it is one.
pub fn plain(url: &Url) -> Option<(String, Option<IpAddr>)> {
    let host = url.host_str()?;
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    match url.domain() {
        None => Some((name, Some(host.trim_matches(['[', ']']).parse().ok()?))),
        Some(_) => (!name.is_empty()).then_some((name, None)),
    }
}

/// Reads a list of the owner's.
///
/// # Errors
/// Says which entry is none, or may not be opened.
pub fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let hosts = Vec::<String>::deserialize(deserializer)?;
    match hosts.iter().find(|written| Host::read(written, By::Owner).is_none()) {
        None => Ok(hosts),
        Some(wrong) => Err(D::Error::custom(format!(
            "`{wrong}` is no host: write `example.org`, `*.example.org` or `nas.local:5000`; metadata services of clouds \
             cannot be opened"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(written: &str, by: By, url: &str) -> Option<Open> {
        let url = Url::parse(url).expect("an address");
        let (name, _) = plain(&url).expect("a host");
        opened(&[Host::read(written, by).expect("an entry")], &name, url.port_or_known_default().expect("a port"))
    }

    #[test]
    fn an_entry_opens_exactly_what_it_names() {
        use By::{Owner, OwnersValue, Skill};
        let table = [
            ("example.org", Owner, "https://example.org/", Some(Open::Public)),
            ("Example.ORG.", Owner, "http://EXAMPLE.org./x", Some(Open::Public)),
            ("example.org", Owner, "http://example.org:8080/", None),
            ("example.org", Owner, "https://a.example.org/", None),
            ("example.org", Owner, "https://notexample.org/", None),
            ("example.org", Owner, "https://example.org.evil.test/", None),
            ("*.example.org", Owner, "https://a.b.example.org/", Some(Open::Public)),
            ("*.example.org", Owner, "https://example.org/", None),
            ("*.example.org", Owner, "https://xexample.org/", None),
            ("*.example.org:8443", Owner, "https://a.example.org:8443/", Some(Open::Public)),
            ("*.example.org:8443", Owner, "https://a.example.org/", None),
            ("nas.example.org:5000", Owner, "http://nas.example.org:5000/", Some(Open::Anywhere)),
            ("nas.example.org:5000", Skill, "http://nas.example.org:5000/", Some(Open::Public)),
            ("10.0.0.5:8123", Skill, "http://10.0.0.5:8123/", Some(Open::Anywhere)),
            ("10.0.0.5:8123", Skill, "http://0x0a000005:8123/", Some(Open::Anywhere)),
            ("10.0.0.5:8123", Skill, "http://10.0.0.6:8123/", None),
            ("homeassistant.local:8123", Skill, "http://homeassistant.local:8123/", Some(Open::Anywhere)),
            ("1.1.1.1", Skill, "https://1.1.1.1/", Some(Open::Public)),
            ("[fd12::1]:80", Owner, "http://[fd12:0::1]/", Some(Open::Anywhere)),
            ("例子.测试", Owner, "https://xn--fsqu00a.xn--0zwm56d/", Some(Open::Public)),
            ("x.example.org:443", OwnersValue, "https://x.example.org/", Some(Open::Anywhere)),
        ];
        for (written, by, url, expected) in table {
            assert_eq!(how(written, by, url), expected, "{written} {url}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for wrong in [
            "",
            "*",
            "*.org",
            "*.10.0.0.1",
            "a.*.org",
            "http://example.org",
            "example.org/path",
            "user@example.org",
            "example.org:0",
            "example.org:http",
            "example.org:",
            "::1",
            "169.254.169.254",
            "0xa9fea9fe:80",
            "[fd00:ec2::254]:80",
            "[::ffff:169.254.169.254]",
            "metadata.google.internal",
            "METADATA.google.internal.",
            "a b",
        ] {
            assert_eq!(Host::read(wrong, By::Owner), None, "{wrong}");
        }
        assert_eq!(Host::read(&"a".repeat(400), By::Owner), None);
    }

    #[test]
    fn a_variables_address_opens_its_own_host_and_port() {
        let means = |value: &str, name: &str, port| Host::of_value(value).map(|host| host.means(name, port));
        assert_eq!(means("http://192.168.1.7:8123", "192.168.1.7", 8123), Some(true));
        assert_eq!(means("https://ha.example.org/", "ha.example.org", 443), Some(true));
        assert_eq!(means("https://ha.example.org/", "ha.example.org", 80), Some(false));
        assert_eq!(means("https://user:pw@ha.example.org/api", "ha.example.org", 443), Some(true));
        for not in
            ["eyJhbGciOi", "postgres://db.internal/x", "file:///etc/passwd", "http://", "http://169.254.169.254/"]
        {
            assert_eq!(Host::of_value(not), None, "{not}");
        }
    }
}
