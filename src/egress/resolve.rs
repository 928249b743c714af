//! What a name leads to: looked up once for each connection, refused when any answer is not public; the connection goes
//! to the answers that were checked, so a name cannot change its mind in between.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use channel_api::reach::is_public;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A way to resolve names.
#[async_trait]
pub trait Lookup: Send + Sync + 'static {
    /// The addresses of a name.
    ///
    /// # Errors
    /// When there are none.
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The machine's resolver.
#[derive(Debug)]
pub struct System;

#[async_trait]
impl Lookup for System {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// Why a name leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// One of its addresses is private: one among public ones is an attempt, not an alternative.
    #[error("the name leads to an address that is not public")]
    NotPublic,
    /// It has none.
    #[error("the name was not found")]
    NoSuchName,
}

/// Resolves names and refuses.
pub struct Guard {
    /// Who is asked.
    pub lookup: Arc<dyn Lookup>,
    /// The host was named by the owner and may be anywhere but at a cloud's metadata service.
    pub named: bool,
    /// 198.18.0.0/15 is what a proxy on this machine gives for every name.
    pub fake_ip: bool,
    /// Hosts of the owner's proxies, which may be anywhere.
    pub proxies: Vec<String>,
}

impl Guard {
    /// The addresses of a name, if it may be connected to.
    ///
    /// # Errors
    /// [`Unresolved`].
    pub async fn checked(&self, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        let found = self.lookup.addresses(name).await.map_err(|_| Unresolved::NoSuchName)?;
        if found.is_empty() {
            return Err(Unresolved::NoSuchName);
        }
        let bare = name.trim_end_matches('.');
        if self.proxies.iter().any(|proxy| proxy.trim_end_matches('.').eq_ignore_ascii_case(bare)) {
            return Ok(found);
        }
        let good = |ip: IpAddr| match self.named {
            true => !is_metadata(ip),
            false => is_public(ip) || (self.fake_ip && is_fake(ip)),
        };
        if found.iter().all(|ip| good(*ip)) {
            return Ok(found);
        }
        if !self.named && found.iter().all(|ip| is_fake(*ip)) {
            tracing::warn!(
                "a name leads to 198.18.0.0/15, the range that local proxies make addresses up in: if one runs here, set \
                 `fake_ip = true` in [tools.web_fetch]"
            );
        }
        Err(Unresolved::NotPublic)
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = Self {
            lookup: Arc::clone(&self.lookup),
            named: self.named,
            fake_ip: self.fake_ip,
            proxies: self.proxies.clone(),
        };
        Box::pin(async move {
            let found = guard.checked(name.as_str()).await?;
            Ok(Box::new(found.into_iter().map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}

/// The range in which proxies on this machine make addresses up (Clash, Surge, sing-box).
fn is_fake(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if matches!(ip.octets(), [198, 18..=19, ..]))
}

/// Where clouds hand out a machine's credentials: never fetched, whoever names it.
pub(super) fn is_metadata(ip: IpAddr) -> bool {
    const AWS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    const GOOGLE: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);
    const ALIBABA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
    const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
    const ORACLE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 192);
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local() || [ALIBABA, AZURE, ORACLE].contains(&ip),
        IpAddr::V6(ip) => {
            let link_local = ip.segments()[0] & 0xffc0 == 0xfe80;
            // Compatible, 6to4 and NAT64 forms lead to the same places; nobody names a host of their own that way.
            let carries_v4 = ip.to_ipv4().is_some_and(|v4| !v4.is_unspecified() && u32::from(v4) != 1)
                || ip.segments()[..2] == [0x64, 0xff9b]
                || ip.segments()[0] == 0x2002;
            link_local || carries_v4 || [AWS, GOOGLE].contains(&ip)
        }
    }
}
