//! Which addresses and names belong to the public internet: one judgement for callbacks, downloads and what an agent
//! fetches. Resolves nothing. security.md §3.3 row 16.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is a host of the public internet: not of this machine, a private network, a cloud's metadata
/// service or a block set aside for something else (multicast, documentation, benchmarks, tunnels into IPv4).
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// Whether a name by definition stays on this machine or network, e.g. `localhost`, `nas.local`,
/// `metadata.google.internal`. Capitals and a dot at the end change nothing.
pub fn is_private_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    ["localhost", "localdomain", "local", "internal", "intranet", "lan", "home.arpa", "svc"]
        .iter()
        .any(|private| name.strip_suffix(private).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = matches!(
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
    );
    // Azure's metadata service has an address that looks public and answers inside a machine of Azure alone.
    !special && ip != Ipv4Addr::new(168, 63, 129, 16)
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let s = ip.segments();
    // Addresses that carry an IPv4 one (mapped, compatible, NAT64, 6to4, ISATAP) are never a public host's own.
    let isatap = s[4] & 0xfdff == 0 && s[5] == 0x5efe;
    let carries_v4 = ip.to_ipv4().is_some() || (s[0] == 0x64 && s[1] == 0xff9b) || s[0] == 0x2002 || isatap;
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
            "100.100.100.200",
            "127.0.0.1",
            "168.63.129.16",
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
            "64:ff9b:1::a00:1",
            "2002:7f00:1::",
            "2606:4700::5efe:7f00:1",
            "2606:4700::200:5efe:a00:1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "fd12::1",
            "ff02::1",
            "100::1",
            "2001:db8::1",
            "2001::1",
            "3fff::1",
        ] {
            assert!(!is_public(private.parse().expect("an address")), "{private}");
        }
        for public in ["1.1.1.1", "8.8.8.8", "100.63.0.1", "172.32.0.1", "192.0.1.1", "2606:4700::1111", "2400:3200::1"]
        {
            assert!(is_public(public.parse().expect("an address")), "{public}");
        }
    }

    #[test]
    fn names_that_stay_at_home_are_private() {
        for private in
            ["localhost", "LOCALHOST.", "a.localhost", "nas.local", "metadata.google.internal", "x.home.arpa", "db.svc"]
        {
            assert!(is_private_name(private), "{private}");
        }
        for public in ["example.org", "local.example.org", "notlocalhost.org", "mylan.org", "xlocal", "internal.io"] {
            assert!(!is_private_name(public), "{public}");
        }
    }
}
