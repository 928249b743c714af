//! Which addresses a callback may reach: the address is checked where it is resolved, and the connection goes to the
//! checked address, so a name cannot change its mind in between. security.md §3.3 row 16.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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
        Host::Domain(name) => {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            ["localhost", "local", "internal", "intranet", "lan", "home.arpa"]
                .iter()
                .any(|private| name == *private || name.ends_with(&format!(".{private}")))
        }
    }
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !matches!(
        (a, b, c),
        (0 | 10 | 127 | 224..=255, _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (192, 168, _)
            | (198, 18..=19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    )
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let s = ip.segments();
    // Addresses that carry an IPv4 one (mapped, compatible, NAT64, 6to4) are never a public host's own.
    let carries_v4 = ip.to_ipv4().is_some() || (s[0] == 0x64 && s[1] == 0xff9b) || s[0] == 0x2002;
    // Only 2000::/3 is global unicast; within it Teredo, documentation and benchmarking are not.
    let global = s[0] & 0xe000 == 0x2000;
    let special = (s[0] == 0x2001 && (s[1] < 0x200 || s[1] == 0xdb8)) || (s[0] == 0x3fff && s[1] < 0x1000);
    global && !special && !carries_v4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        for private in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "64:ff9b::808:808",
            "2002:7f00:1::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(!is_public(private.parse().expect("an address")), "{private}");
        }
        for public in ["1.1.1.1", "8.8.8.8", "100.63.0.1", "172.32.0.1", "192.0.1.1", "2606:4700::1111", "2400:3200::1"]
        {
            assert!(is_public(public.parse().expect("an address")), "{public}");
        }
    }

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
