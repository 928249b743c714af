//! `[server]`: where the gateway listens and for whom.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// `[server]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Where everything is served, `address:port`. Beyond this machine only behind a `trusted_proxy`.
    pub listen: String,
    /// A second listener that serves only `/channels/*`, for platforms and bridges outside; empty = off.
    pub channels_listen: String,
    /// Names besides the loopback ones that a request's `Host` may carry, e.g. `bot.example.org`.
    pub hosts: Vec<String>,
    /// What clients on this machine may do without the token.
    pub local_clients: LocalClients,
    /// Addresses of the reverse proxies in front, which end TLS and whose `X-Forwarded-For` is believed.
    pub trusted_proxy: Vec<IpAddr>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:3002".to_owned(),
            channels_listen: String::new(),
            hosts: Vec::new(),
            local_clients: LocalClients::Token,
            trusted_proxy: Vec::new(),
        }
    }
}

/// What clients on this machine may do without the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalClients {
    /// Nothing: they need the token like everyone.
    Token,
    /// `/api/chat` and `/sse`, in their own session, without effect tools.
    Open,
}

/// What is wrong with a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenProblem {
    /// It is no `address:port`.
    NotAnAddress,
    /// It is open to the network without a proxy that ends TLS. security.md row 1.
    Exposed,
    /// It is the same as the other listener.
    Twice,
}

impl ServerConfig {
    /// The address of `listen`.
    ///
    /// # Errors
    /// [`ListenProblem`]: the gateway does not start.
    pub fn listen_addr(&self) -> Result<SocketAddr, ListenProblem> {
        let addr = parse_addr(&self.listen)?;
        if !addr.ip().to_canonical().is_loopback() && self.trusted_proxy.is_empty() {
            return Err(ListenProblem::Exposed);
        }
        Ok(addr)
    }

    /// The address of `channels_listen`, if it is on. It may be open to the network: each channel's own secret is
    /// mandatory there.
    ///
    /// # Errors
    /// [`ListenProblem`]: the gateway does not start.
    pub fn channels_addr(&self) -> Result<Option<SocketAddr>, ListenProblem> {
        if self.channels_listen.is_empty() {
            return Ok(None);
        }
        let addr = parse_addr(&self.channels_listen)?;
        if addr.port() != 0 && parse_addr(&self.listen) == Ok(addr) {
            return Err(ListenProblem::Twice);
        }
        Ok(Some(addr))
    }
}

fn parse_addr(text: &str) -> Result<SocketAddr, ListenProblem> {
    if let Some(port) = text.strip_prefix("localhost:") {
        let port = port.parse().map_err(|_| ListenProblem::NotAnAddress)?;
        return Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    }
    text.parse().map_err(|_| ListenProblem::NotAnAddress)
}

/// Whether a gateway token is worth its name: at least 32 random bytes in hexadecimal or base64, which no password is.
pub fn is_strong_token(token: &str) -> bool {
    let hex = token.len() >= 64 && token.bytes().all(|b| b.is_ascii_hexdigit());
    let base64 = token.trim_end_matches('=').len() >= 43
        && token.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/-_=".contains(&b));
    let distinct = token.bytes().collect::<std::collections::BTreeSet<_>>().len();
    (hex || base64) && distinct >= 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening(listen: &str, proxies: &[&str]) -> ServerConfig {
        let trusted_proxy = proxies.iter().map(|proxy| proxy.parse().expect("an address")).collect();
        ServerConfig { listen: listen.into(), trusted_proxy, ..ServerConfig::default() }
    }

    #[test]
    fn the_network_is_closed_unless_a_proxy_is_named() {
        let table = [
            ("127.0.0.1:3002", None),
            ("localhost:0", None),
            ("[::1]:80", None),
            ("[::ffff:127.0.0.1]:80", None),
            ("0.0.0.0:80", Some(ListenProblem::Exposed)),
            ("[::]:80", Some(ListenProblem::Exposed)),
            ("192.168.1.2:80", Some(ListenProblem::Exposed)),
            ("127.0.0.1:80a", Some(ListenProblem::NotAnAddress)),
            ("127.0.0.1", Some(ListenProblem::NotAnAddress)),
            ("", Some(ListenProblem::NotAnAddress)),
        ];
        for (listen, problem) in table {
            assert_eq!(listening(listen, &[]).listen_addr().err(), problem, "{listen}");
        }
        assert!(listening("0.0.0.0:80", &["10.0.0.1"]).listen_addr().is_ok());
    }

    #[test]
    fn the_second_listener_is_another_one() {
        let on = |addr: &str| ServerConfig { channels_listen: addr.into(), ..ServerConfig::default() }.channels_addr();
        assert_eq!(on(""), Ok(None));
        assert!(on("0.0.0.0:3003").is_ok());
        assert_eq!(on("localhost:3002"), Err(ListenProblem::Twice));
    }

    #[test]
    fn passwords_are_no_tokens() {
        assert!(is_strong_token("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"));
        assert!(is_strong_token("47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"));
        let zeros = "0".repeat(64);
        for weak in ["", "changeme", "correct horse battery staple and many more words", zeros.as_str()] {
            assert!(!is_strong_token(weak), "{weak}");
        }
    }
}
