//! The way out of one channel: straight, through the proxy that its section names, or through the environment's.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer};
use url::{Host, Url};

/// How long a connection may take to stand: name, proxy and TLS together.
pub(crate) const CONNECT: Duration = Duration::from_secs(15);

/// How a channel reaches the world. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Network {
    proxy: Proxy,
    pub(crate) tls: Arc<ClientConfig>,
    roots: Vec<reqwest::Certificate>,
}

#[derive(Clone)]
enum Proxy {
    None,
    Env,
    Url(Url),
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Env => f.write_str("env"),
            // A password may stand in it.
            Self::Url(url) => write!(f, "{}://{}", url.scheme(), url.host_str().unwrap_or_default()),
        }
    }
}

/// Why a `proxy` or `ca_file` cannot be used. Shows no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Not a proxy address.
    #[error("`proxy` {0}; it is \"none\", \"env\" or an address such as \"socks5h://127.0.0.1:1080\"")]
    BadProxy(String),
    /// The file of certificates.
    #[error("`ca_file` {path}: {why}")]
    BadCa {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Network {
    /// `proxy`: `None` or `none` (straight), `env` (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`), or the address
    /// of one: `http`, `https`, `socks5` (names are resolved here) or `socks5h` (by the proxy). `ca_file`: certificates
    /// (PEM) trusted beside the public ones.
    ///
    /// # Errors
    /// [`NetworkError`], naming the key.
    pub fn new(proxy: Option<&str>, ca_file: Option<&Path>) -> Result<Self, NetworkError> {
        let proxy = match proxy.map(str::trim) {
            None | Some("none") => Proxy::None,
            Some("env") => Proxy::Env,
            Some(text) => Proxy::Url(proxy_url(text).map_err(NetworkError::BadProxy)?),
        };
        let (mut store, mut roots) = (RootCertStore::empty(), Vec::new());
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        if let Some(path) = ca_file {
            let bad = |why: String| NetworkError::BadCa { path: path.display().to_string(), why };
            let pem = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
            for der in certificates(&pem).map_err(bad)? {
                store.add(der.clone()).map_err(|error| bad(error.to_string()))?;
                roots.push(reqwest::Certificate::from_der(&der).map_err(|error| bad(error.to_string()))?);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has the protocol versions that rustls takes for safe")
            .with_root_certificates(store)
            .with_no_client_auth();
        Ok(Self { proxy, tls: Arc::new(tls), roots })
    }

    /// A builder for an HTTP client on this way. A host on this machine is best reached by [`Network::http_to`].
    pub fn http(&self) -> reqwest::ClientBuilder {
        let mut builder = match &self.proxy {
            Proxy::None => reqwest::Client::builder().no_proxy(),
            Proxy::Env => reqwest::Client::builder(),
            Proxy::Url(url) => match reqwest::Proxy::all(url.clone()) {
                Ok(proxy) => reqwest::Client::builder().proxy(proxy),
                // Checked in `new`.
                Err(_) => reqwest::Client::builder().no_proxy(),
            },
        };
        for root in &self.roots {
            builder = builder.add_root_certificate(root.clone());
        }
        builder
    }

    /// The same for calls to one server: one on this machine is reached directly, whatever proxy is set.
    pub fn http_to(&self, url: &Url) -> reqwest::ClientBuilder {
        if url.host().is_some_and(|host| is_loopback(&host)) { self.http().no_proxy() } else { self.http() }
    }

    /// Whether connections to a host go through a proxy, which then looks its name up.
    pub fn is_proxied(&self, host: &str, tls: bool) -> bool {
        self.proxy_to(host, tls).is_some()
    }

    /// The proxy for a host, if its connections go through one.
    pub(crate) fn proxy_to(&self, host: &str, tls: bool) -> Option<Url> {
        if Host::parse(host.trim_matches(['[', ']'])).is_ok_and(|host| is_loopback_owned(&host)) || is_loopback_ip(host)
        {
            return None;
        }
        match &self.proxy {
            Proxy::None => None,
            Proxy::Url(url) => Some(url.clone()),
            Proxy::Env => env_proxy(host, tls, |name| std::env::var(name).ok()),
        }
    }
}

fn proxy_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("is no address ({error})"))?;
    if !matches!(url.scheme(), "http" | "https" | "socks5" | "socks5h") {
        return Err(format!("has the scheme {:?}; http, https, socks5 and socks5h are known", url.scheme()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("names no host".to_owned());
    }
    reqwest::Proxy::all(url.clone()).map_err(|error| format!("cannot be used ({})", error.without_url()))?;
    Ok(url)
}

/// The environment's proxy for a host, as curl reads it: `NO_PROXY` holds names (their subdomains too), addresses or `*`.
fn env_proxy(host: &str, tls: bool, var: impl Fn(&str) -> Option<String>) -> Option<Url> {
    let either = |upper: &str| {
        let value = var(&upper.to_ascii_lowercase()).or_else(|| var(upper))?;
        (!value.trim().is_empty()).then_some(value)
    };
    let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    let spared = either("NO_PROXY").is_some_and(|list| {
        list.split(',')
            .map(|name| name.trim().trim_start_matches('.').to_ascii_lowercase())
            .any(|name| !name.is_empty() && (name == "*" || host == name || host.ends_with(&format!(".{name}"))))
    });
    if spared {
        return None;
    }
    let text = either(if tls { "HTTPS_PROXY" } else { "HTTP_PROXY" }).or_else(|| either("ALL_PROXY"))?;
    let text = text.trim();
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    proxy_url(&text).ok()
}

/// The certificates of a PEM file, one at least.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    use rustls::pki_types::pem::PemObject;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err("there is no certificate in it".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(error.to_string()),
    }
}

fn is_loopback(host: &Host<&str>) -> bool {
    is_loopback_owned(&host.to_owned())
}

fn is_loopback_owned(host: &Host) -> bool {
    match host {
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.is_loopback(),
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
        }
    }
}

fn is_loopback_ip(host: &str) -> bool {
    host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_word_or_an_address_and_what_is_wrong_is_said() {
        for good in
            ["none", "env", "http://10.0.0.1:3128", "socks5h://u:p@[::1]:1080", "socks5://host:1080", "https://p.test"]
        {
            assert!(Network::new(Some(good), None).is_ok(), "{good}");
        }
        for (bad, says) in [("", "address"), ("127.0.0.1:1080", "`proxy`"), ("ftp://x:1", "scheme"), ("yes", "address")]
        {
            let error = Network::new(Some(bad), None).expect_err(bad).to_string();
            assert!(error.contains(says) && error.contains("socks5h://"), "{bad}: {error}");
        }
    }

    #[test]
    fn the_password_of_a_proxy_is_never_shown() {
        let network = Network::new(Some("http://me:hunter2@proxy.test:3128"), None).expect("a proxy");
        let shown = format!("{network:?}");
        assert!(shown.contains("http://proxy.test") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn the_environments_proxy_is_read_as_curl_reads_it() {
        let env = |name: &str| match name {
            "HTTPS_PROXY" => Some("http://upper:1".to_owned()),
            "https_proxy" => Some("lower:2".to_owned()),
            "ALL_PROXY" => Some("socks5://all:3".to_owned()),
            "no_proxy" => Some("spared.test, .inner.test,10.0.0.7".to_owned()),
            _ => None,
        };
        let table = [
            ("discord.test", true, Some("http://lower:2/")),
            ("discord.test", false, Some("socks5://all:3")),
            ("spared.test", true, None),
            ("a.spared.test", true, None),
            ("notspared.test", true, Some("http://lower:2/")),
            ("x.inner.test", true, None),
            ("10.0.0.7", true, None),
        ];
        for (host, tls, expected) in table {
            assert_eq!(env_proxy(host, tls, env).map(|url| url.to_string()).as_deref(), expected, "{host}");
        }
    }

    #[test]
    fn this_machine_is_never_reached_through_a_proxy() {
        let network = Network::new(Some("socks5h://10.0.0.1:1080"), None).expect("a proxy");
        for host in ["127.0.0.1", "localhost", "[::1]", "::1", "a.localhost"] {
            assert_eq!(network.proxy_to(host, true), None, "{host}");
        }
        assert!(network.proxy_to("example.com", true).is_some());
        assert!(network.proxy_to("10.0.0.2", false).is_some());
    }
}
