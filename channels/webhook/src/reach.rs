//! Which addresses a callback may reach: the address is checked where it is resolved, and the connection goes to the
//! checked address, so a name cannot change its mind in between. security.md §3.3 row 16.

use std::net::{IpAddr, SocketAddr};

use channel_api::reach::{is_private_name, is_public};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Host;

/// Resolves names; refuses the guarded one if any of its addresses is private.
pub struct Resolver {
    /// The callback's host; other names (a proxy's) are not ours to judge. `None`: nothing is guarded.
    guarded: Option<String>,
}

impl Resolver {
    pub fn new(guarded: Option<&str>) -> Self {
        Self { guarded: guarded.map(|name| name.trim_end_matches('.').to_ascii_lowercase()) }
    }

    fn guards(&self, name: &str) -> bool {
        self.guarded.as_deref().is_some_and(|guarded| name.trim_end_matches('.').eq_ignore_ascii_case(guarded))
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guards = self.guards(name.as_str());
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let found = if guards { all_public(found)? } else { found };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The addresses, if every one of them is public: one private among them is an attempt, not an alternative.
fn all_public(found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, PrivateAddress> {
    match found.iter().find(|address| !is_public(address.ip())) {
        Some(address) => Err(PrivateAddress(address.ip())),
        None => Ok(found),
    }
}

/// The name of a callback leads to a private address.
#[derive(Debug, thiserror::Error)]
#[error("the callback's name leads to the private address {0}")]
struct PrivateAddress(IpAddr);

/// The host cannot be public: a private literal, or a name that by definition stays on this machine or network.
pub fn is_private_host(host: &Host<&str>) -> bool {
    match host {
        Host::Ipv4(ip) => !is_public(IpAddr::V4(*ip)),
        Host::Ipv6(ip) => !is_public(IpAddr::V6(*ip)),
        Host::Domain(name) => is_private_name(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_private_address_among_public_ones_spoils_the_name() {
        let address = |text: &str| SocketAddr::new(text.parse().expect("an address"), 0);
        assert!(all_public(vec![address("1.2.3.4"), address("127.0.0.1")]).is_err());
        assert!(all_public(vec![address("1.2.3.4")]).is_ok());
    }

    #[tokio::test]
    async fn the_guarded_name_is_refused_and_others_resolve() {
        let name = || "localhost".parse::<Name>().expect("a name");
        assert!(Resolver::new(Some("LOCALHOST.")).resolve(name()).await.is_err());
        let found: Vec<_> = Resolver::new(None).resolve(name()).await.map(Iterator::collect).expect("resolves");
        assert!(!found.is_empty());
    }
}
