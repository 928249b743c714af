//! `[skills.hubs]`: which hubs are asked for skills, in which order, and how they are reached.

use std::{collections::BTreeMap, net::IpAddr};

use reqwest::Url;
use serde::{Deserialize, Serialize};

use crate::{egress::Proxy, secrets::Secret};

/// `[skills.hubs]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct HubsConfig {
    /// Hubs by name, the first that answers wins: presets and those of `own`. Empty = none is asked.
    pub order: Vec<String>,
    /// How hubs and code hosts are reached: `"none"` (directly), `"env"`, or a proxy's address.
    pub proxy: Proxy,
    /// Hubs of the owner's, `[skills.hubs.own.<name>]`. One with the name of a preset replaces it.
    pub own: BTreeMap<String, OwnHub>,
}

impl Default for HubsConfig {
    fn default() -> Self {
        let order = ["clawhub", "clawhub-cn"].map(str::to_owned).to_vec();
        Self { order, proxy: Proxy::Env, own: BTreeMap::new() }
    }
}

/// `[skills.hubs.own.<name>]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OwnHub {
    /// Its address, before `/api/v1`.
    pub url: String,
    /// Its token, if it wants one.
    #[serde(default, skip_serializing)]
    pub token: Option<Secret>,
}

impl PartialEq for OwnHub {
    fn eq(&self, other: &Self) -> bool {
        let same_token = match (&self.token, &other.token) {
            (Some(one), Some(two)) => one.matches(two.expose().as_bytes()),
            (None, None) => true,
            _ => false,
        };
        self.url == other.url && same_token
    }
}

/// The hubs that need no configuration: ClawHub, its mirror in mainland China, and the public SkillHub of iFLYTEK, which
/// speaks ClawHub's API (openclaw-parity.md §4.5 and §4.6). None of them was tried live.
pub const PRESETS: [(&str, &str); 3] = [
    ("clawhub", "https://clawhub.ai"),
    ("clawhub-cn", "https://cn.clawhub-mirror.com"),
    ("skillhub", "https://skill.xfyun.cn"),
];

/// Where a hub is.
#[derive(Clone, Debug)]
pub struct Address {
    /// Before `/api/v1`.
    pub url: Url,
    /// Its token.
    pub token: Option<Secret>,
}

impl Address {
    /// Whether it is on this machine or in a private network, by its address as written.
    pub fn is_private(&self) -> bool {
        is_private(&self.url)
    }
}

fn is_private(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.segments()[0] & 0xfe00 == 0xfc00,
        // A name without a dot is a machine or a container beside us.
        Err(_) => {
            !host.contains('.') || host.ends_with(".local") || host.ends_with(".localhost") || host.ends_with(".lan")
        }
    }
}

impl HubsConfig {
    /// Every hub there is, by name. Addresses that are none are left out; [`HubsConfig::wrong`] names them.
    pub fn addresses(&self) -> BTreeMap<String, Address> {
        let presets = PRESETS
            .iter()
            .filter_map(|(name, url)| Some(((*name).to_owned(), Address { url: Url::parse(url).ok()?, token: None })));
        let mut all: BTreeMap<String, Address> = presets.collect();
        for (name, hub) in &self.own {
            if let Some(url) = address(&hub.url) {
                all.insert(name.clone(), Address { url, token: hub.token.clone() });
            }
        }
        all
    }

    /// The first thing that cannot be: the key below `skills.hubs`, and the words it should be one of (`None` = it should be
    /// an address).
    pub fn wrong(&self) -> Option<(Vec<String>, Option<String>)> {
        if let Some((name, _)) = self.own.iter().find(|(_, hub)| address(&hub.url).is_none()) {
            return Some((vec!["own".to_owned(), name.clone(), "url".to_owned()], None));
        }
        let known = self.addresses();
        let unknown = self.order.iter().any(|name| !known.contains_key(name));
        unknown.then(|| (vec!["order".to_owned()], Some(known.into_keys().collect::<Vec<_>>().join(", "))))
    }
}

/// A hub's address: https, or plain http in a private network; no name and password in it, no query.
fn address(text: &str) -> Option<Url> {
    let url = Url::parse(text.trim()).ok()?;
    let is_plain =
        url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    let is_safe = url.scheme() == "https" || (url.scheme() == "http" && is_private(&url));
    (is_plain && is_safe && url.host_str().is_some_and(|host| !host.is_empty())).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hubs_are_presets_and_the_owners_own() {
        let config: HubsConfig = toml::from_str(
            "order = [\"home\", \"clawhub\"]\nproxy = \"none\"\n[own.home]\nurl = \"http://192.168.1.5:8080/\"\ntoken = \"clh_1234567\"",
        )
        .expect("it is fine");
        let known = config.addresses();
        assert_eq!(known.keys().collect::<Vec<_>>(), ["clawhub", "clawhub-cn", "home", "skillhub"]);
        assert!(known["home"].is_private() && !known["clawhub"].is_private());
        assert_eq!(config.wrong(), None);
        assert!(!format!("{config:?}").contains("clh_") && !toml::to_string(&config).expect("text").contains("clh_"));
        let wrong =
            |text: &str| toml::from_str::<HubsConfig>(text).expect("it is TOML").wrong().expect("it is wrong").0;
        assert_eq!(wrong("order = [\"clawhup\"]"), ["order"]);
        for url in ["http://hub.example.com", "ftp://x", "https://me:pw@hub.test", "hub", "https://x?y", "file:///x"] {
            assert_eq!(wrong(&format!("[own.x]\nurl = \"{url}\"")), ["own", "x", "url"], "{url}");
        }
        assert_eq!(HubsConfig::default().wrong(), None);
    }
}
