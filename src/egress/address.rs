//! What an address may look like: scheme, port and host, judged before anything is resolved or connected to. Pure.

use std::net::IpAddr;

use channel_api::reach::{is_private_name, is_public};
use reqwest::Url;

use super::EgressError;

/// The most bytes of an address.
pub const LONGEST: usize = 4_096;

/// Ports from 1024 up where no web page is served and a plain `GET` may do harm: databases, queues, remote control,
/// chat, mail and the ports that browsers refuse. Below 1024 only 80 and 443 are taken.
const SERVICE_PORTS: &[u16] = &[
    1080, 1099, 1433, 1434, 1521, 1719, 1720, 1723, 1883, 2049, 2181, 2375, 2376, 2377, 2379, 2380, 3128, 3306, 3389,
    3659, 4045, 4190, 4369, 5060, 5061, 5432, 5433, 5671, 5672, 5900, 5901, 5984, 5985, 5986, 6000, 6379, 6380, 6443,
    6566, 6660, 6661, 6662, 6663, 6664, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 7000, 7001, 7199, 8500, 8600, 9042,
    9092, 9160, 9200, 9300, 9418, 10080, 10250, 10255, 11211, 15672, 26257, 27017, 27018, 27019, 50070, 61616,
];

/// How a host is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// On the public internet, guarded.
    Public,
    /// The owner named it: directly, wherever it is.
    Named,
}

/// What decides about an address besides its form.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Hosts and ports the owner named.
    pub named: Vec<(String, u16)>,
    /// Names may resolve to 198.18.0.0/15.
    pub fake_ip: bool,
    /// Hosts of proxies: reached by the client itself, never for others.
    pub proxies: Vec<String>,
}

/// Reads an address as somebody wrote it; one without a scheme is taken for https.
///
/// # Errors
/// [`EgressError::Address`] with what to write instead.
pub fn parse(written: &str) -> Result<Url, EgressError> {
    let written = written.trim();
    if written.len() > LONGEST {
        return Err(EgressError::Address("The address is too long."));
    }
    let parsed = match Url::parse(written) {
        Err(_) if !written.contains("://") && written.contains('.') => Url::parse(&format!("https://{written}")),
        parsed => parsed,
    };
    let wrong = "This is not a web address. Write it in full, like `https://example.org/page`.";
    let mut url = parsed.map_err(|_| EgressError::Address(wrong))?;
    url.set_fragment(None);
    Ok(url)
}

impl Rules {
    /// Whether this address may be fetched at all, and how.
    ///
    /// # Errors
    /// [`EgressError::Address`], [`EgressError::NotPublic`].
    pub fn admit(&self, url: &Url) -> Result<Way, EgressError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(EgressError::Address("Only http and https addresses can be fetched."));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EgressError::Address("An address with a user name or password in it is not fetched."));
        }
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(EgressError::Address("The address has no host."));
        };
        if self.named.iter().any(|(name, at)| *at == port && same_host(name, host)) {
            return Ok(Way::Named);
        }
        let public = match url.domain() {
            // The parser has brought every notation of an IPv4 address, full-width digits included, to the usual one.
            None => host.trim_matches(['[', ']']).parse().is_ok_and(is_public),
            Some(name) => is_public_host(name, None) && !self.proxies.iter().any(|proxy| same_host(proxy, name)),
        };
        if !public {
            return Err(EgressError::NotPublic);
        }
        if !is_web_port(port) {
            return Err(EgressError::Address("This port is not fetched: it is not one of the web."));
        }
        Ok(Way::Public)
    }
}

/// Whether pages may be fetched from this port.
fn is_web_port(port: u16) -> bool {
    matches!(port, 80 | 443) || (port >= 1024 && SERVICE_PORTS.binary_search(&port).is_err())
}

/// Whether a host can be one of the public internet: an address that is public, or a name with a dot in it and of no
/// private kind.
pub fn is_public_host(name: &str, ip: Option<IpAddr>) -> bool {
    let bare = name.trim_end_matches('.');
    ip.map_or_else(|| bare.contains('.') && !is_private_name(bare), is_public)
}

/// Both as the parser gives them.
fn same_host(one: &str, other: &str) -> bool {
    one.trim_end_matches('.').eq_ignore_ascii_case(other.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_sorted_and_judged() {
        assert!(SERVICE_PORTS.is_sorted());
        for good in [80, 443, 3000, 8000, 8080, 8443, 65_535] {
            assert!(is_web_port(good), "{good}");
        }
        for bad in [0, 1, 22, 25, 53, 110, 445, 1023, 2375, 3306, 5432, 6379, 11_211, 27_017] {
            assert!(!is_web_port(bad), "{bad}");
        }
    }

    #[test]
    fn an_address_without_a_scheme_means_https() {
        assert_eq!(parse(" example.org/a#b ").map(|url| url.to_string()).as_deref(), Ok("https://example.org/a"));
        assert!(parse("no address").is_err());
        assert!(parse(&format!("https://example.org/{}", "a".repeat(5_000))).is_err());
    }

    #[test]
    fn public_addresses_are_admitted_and_named_ones_by_host_and_port() {
        let rules = Rules {
            named: vec![("192.168.1.5".to_owned(), 8080), ("nas.local".to_owned(), 80)],
            proxies: vec!["proxy.example.org".to_owned()],
            ..Rules::default()
        };
        let way = |url: &str| parse(url).and_then(|url| rules.admit(&url));
        for public in [
            "https://example.org",
            "http://EXAMPLE.org.:8080/a?b=c",
            "https://例子.测试/",
            "https://1.1.1.1/",
            "https://[2606:4700::1111]/",
            "https://wttr.in/北京?format=3",
        ] {
            assert_eq!(way(public), Ok(Way::Public), "{public}");
        }
        for named in
            ["http://192.168.1.5:8080/x", "https://0xc0a80105:8080", "http://NAS.local./", "http://nas.local:80"]
        {
            assert_eq!(way(named), Ok(Way::Named), "{named}");
        }
        for not in [
            "http://192.168.1.5:8081",
            "http://192.168.1.5",
            "http://192.168.1.6:8080",
            "https://nas.local",
            "http://x.nas.local",
            "https://proxy.example.org./",
        ] {
            assert_eq!(way(not), Err(EgressError::NotPublic), "{not}");
        }
        for wrong in [
            "ftp://example.org/",
            "file:///etc/passwd",
            "gopher://example.org:70/",
            "data:text/html,x",
            "javascript:alert(1)",
            "https://user@example.org/",
            "https://user:pw@example.org/",
            "https://:pw@example.org/",
            "http://example.org:22/",
            "http://example.org:6379/",
            "http://example.org:0/",
        ] {
            assert!(matches!(way(wrong), Err(EgressError::Address(_))), "{wrong}: {:?}", way(wrong));
        }
    }
}
