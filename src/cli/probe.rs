//! A look at channels from outside: what their platforms say of the account, and whether names lead where they should.
//! Opens no store, so that it works beside a running gateway.

use std::{net::IpAddr, time::Duration};

use channel_api::{ChannelId, Finding, FindingState, GATEWAY_ADDRESS, Said};
use tokio::time::timeout;

use crate::{
    channels::{self, BuildChannel},
    config::{ChannelSection, Loaded},
    http::config::ServerConfig,
    lang::Lang,
};

/// How long an adapter may look.
const LOOK: Duration = Duration::from_secs(45);
/// How long a name may take.
const NAME: Duration = Duration::from_secs(5);

/// What was found out about one channel.
pub async fn look(loaded: &Loaded, id: &ChannelId, section: &ChannelSection) -> Vec<Finding> {
    let built = channels::network(&section.policy, |path| loaded.path(path)).and_then(|network| {
        let (settings, policy) = (&section.settings, &section.policy);
        channels::build(&BuildChannel { id, settings, policy, network: &network })
    });
    let channel = match built {
        Ok(channel) => channel,
        Err(why) => {
            let fix = Said::new("Correct its section in the configuration.", "请修改配置文件中的对应部分。");
            return vec![Finding::wrong("section", why, fix)];
        }
    };
    let (mut findings, asked) = tokio::join!(names(id, section), timeout(LOOK, channel.probe()));
    match asked {
        Ok(asked) => findings.extend(asked),
        Err(_) => findings.push(Finding::unknown(
            "time",
            Said::new(
                format!("it could not be found out within {} seconds", LOOK.as_secs()),
                format!("{} 秒内没有查完", LOOK.as_secs()),
            ),
            Said::new("Check the connection, or set `proxy`; then try again.", "请检查网络或设置 `proxy` 后再试。"),
        )),
    }
    if findings.is_empty() {
        findings.push(Finding::fine("section", "there is no platform to ask", "没有可查询的平台"));
    }
    fill_in(&mut findings, &address(&loaded.config.server));
    findings
}

/// Whether it says only that this kind of channel has no platform.
pub fn is_nobody_to_ask(finding: &Finding) -> bool {
    finding.name == "section" && finding.state == FindingState::Fine
}

/// The host and port at which platforms and bridges reach the channels; `HOST` where every address of this machine is
/// listened at.
pub fn address(server: &ServerConfig) -> String {
    let listen = if server.channels_listen.is_empty() { &server.listen } else { &server.channels_listen };
    listen.replace("0.0.0.0", "HOST").replace("[::]", "HOST")
}

/// Puts the gateway's address where an adapter left room for it.
fn fill_in(findings: &mut [Finding], address: &str) {
    for finding in findings {
        for said in [Some(&mut finding.said), finding.fix.as_mut()].into_iter().flatten() {
            said.en = said.en.replace(GATEWAY_ADDRESS, address);
            said.zh = said.zh.replace(GATEWAY_ADDRESS, address);
        }
    }
}

/// Whether the names of the platform's servers lead anywhere, and are not those that a proxy makes up.
pub async fn names(id: &ChannelId, section: &ChannelSection) -> Vec<Finding> {
    // Names are looked up here unless a proxy does it.
    let here = match section.policy.proxy.as_deref() {
        None | Some("none") => true,
        Some(proxy) => proxy.starts_with("socks5://"),
    };
    let mut findings = Vec::new();
    for host in channels::hosts(id, &section.settings).into_iter().filter(|_| here) {
        let found = timeout(NAME, tokio::net::lookup_host((host.as_str(), 443))).await;
        let addresses: Vec<IpAddr> = match found {
            Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
            _ => Vec::new(),
        };
        findings.extend(named(id, &host, &addresses));
    }
    findings
}

/// What there is to say about a name that leads to these addresses.
fn named(id: &ChannelId, host: &str, addresses: &[IpAddr]) -> Option<Finding> {
    let section = format!("[channels.{}.{}]", id.kind(), id.account());
    let fix = Said::new(
        format!(
            "Set `proxy = \"socks5h://127.0.0.1:PORT\"` in {section}, with your proxy's port: it then finds the names."
        ),
        format!("请在 {section} 中设置 `proxy = \"socks5h://127.0.0.1:端口\"`（填代理的端口），由代理解析域名。"),
    );
    if addresses.is_empty() {
        let said = Said::new(format!("{host} is not found from here"), format!("在这台机器上解析不到 {host}"));
        return Some(Finding::wrong("dns", said, fix));
    }
    let made_up = addresses.iter().find(|ip| is_made_up(**ip))?;
    let said = Said::new(
        format!(
            "your proxy's fake-IP mode answers for {host} ({made_up}): it works only while the proxy catches such traffic"
        ),
        format!("代理的 fake-IP 模式替 {host} 给出了地址（{made_up}）：只有代理接管流量时才能连通"),
    );
    Some(Finding::warning("dns", said, fix))
}

/// 198.18.0.0/15, set aside for tests of networks (RFC 2544) and used by proxies in fake-IP mode.
fn is_made_up(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.octets()[0] == 198 && matches!(ip.octets()[1], 18 | 19),
        IpAddr::V6(_) => false,
    }
}

/// Whether a look found what keeps the channel from working.
pub fn is_wrong(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.state == FindingState::Wrong)
}

/// A finding as lines.
pub fn lines(finding: &Finding, lang: Lang) -> String {
    let mark = match finding.state {
        FindingState::Fine => "✓",
        FindingState::Warning => "!",
        FindingState::Wrong => "✗",
        FindingState::Unknown => "?",
    };
    let mut text = format!("{mark} {}{}{}", finding.name, lang.colon(), lang.of(&finding.said));
    if let Some(fix) = &finding.fix {
        text.push_str(&format!("\n    → {}", lang.of(fix)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_addresses_and_lost_names_are_told_with_what_to_do() {
        let id = ChannelId::new("telegram", "main");
        let said = |addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
            named(&id, "api.telegram.org", &addresses)
        };
        for good in [&["149.154.167.220"][..], &["198.17.255.255"], &["198.20.0.1"], &["2001:67c:4e8:f004::9"]] {
            assert_eq!(said(good), None, "{good:?}");
        }
        for bad in ["198.18.0.1", "198.19.255.255", "::ffff:198.18.3.4"] {
            let found = said(&["149.154.167.220", bad]).expect(bad);
            let text = lines(&found, Lang::En);
            assert_eq!(found.state, FindingState::Warning);
            assert!(text.contains("fake-IP") && text.contains("[channels.telegram.main]"), "{text}");
        }
        let lost = said(&[]).expect("it is told");
        assert!(is_wrong(std::slice::from_ref(&lost)) && lines(&lost, Lang::Zh).contains("解析不到"));
    }

    #[tokio::test]
    async fn the_address_in_a_finding_is_that_of_the_configuration() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("config.toml");
        let section = "[channels.onebot.main]\naccess_token = \"0123456789abcdef0123456789abcdef\"\n";
        for (server, url) in [
            ("", "ws://127.0.0.1:3002/channels/onebot/main "),
            ("[server]\nlisten = \"127.0.0.1:4000\"\n", "ws://127.0.0.1:4000/channels/onebot/main "),
            ("[server]\nchannels_listen = \"0.0.0.0:3003\"\n", "ws://HOST:3003/channels/onebot/main "),
        ] {
            std::fs::write(&file, format!("{server}{section}")).expect("written");
            let mut env = crate::config::Env::default();
            env.insecure_perms = true;
            let loaded = crate::config::load(Some(&file), &env).expect("accepted");
            let id = ChannelId::new("onebot", "main");
            let found = look(&loaded, &id, &loaded.config.channels[&id]).await;
            let text: String = found.iter().map(|finding| lines(finding, Lang::En)).collect();
            assert!(text.contains(url) && !text.contains(GATEWAY_ADDRESS), "{text}");
        }
    }

    #[tokio::test]
    async fn names_are_the_proxys_where_it_finds_them() {
        let section = |proxy: Option<&str>| ChannelSection {
            policy: crate::intake::access::ChannelPolicy { proxy: proxy.map(str::to_owned), ..Default::default() },
            settings: toml::from_str("api_url = \"https://no.such.name.invalid\"").expect("a section"),
        };
        let id = ChannelId::new("telegram", "main");
        assert!(is_wrong(&names(&id, &section(None)).await));
        assert!(is_wrong(&names(&id, &section(Some("socks5://127.0.0.1:1"))).await));
        assert_eq!(names(&id, &section(Some("socks5h://127.0.0.1:1"))).await, []);
        assert_eq!(names(&id, &section(Some("http://127.0.0.1:1"))).await, []);
    }
}
