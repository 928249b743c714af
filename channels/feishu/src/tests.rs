//! The whole adapter against a platform that behaves as Feishu does.

#[path = "../../../src/tests/support/feishu.rs"]
mod fake;
#[path = "../../../src/tests/support/warnings.rs"]
mod warnings;

mod out;
mod receiving;

use std::{future::Future, sync::Arc};

use channel_api::{Channel, PartId, contract::FakeGateway};
use serde_json::json;

use super::*;
use fake::{APP_ID, APP_SECRET, Feishu as Platform};

/// When the gateway's clock stands.
const NOW: i64 = 1_795_996_800_000;

/// An adapter, its platform and its gateway.
struct Rig {
    platform: Platform,
    gateway: FakeGateway,
    channel: Arc<Feishu>,
}

fn adapter(url: &str, more: &str) -> Arc<Feishu> {
    let section = format!("app_id = '{APP_ID}'\napp_secret = '{APP_SECRET}'\napi_url = '{url}'\n{more}");
    let config: Config = toml::from_str(&section).expect("a config");
    let network = Network::new(None, None).expect("a network");
    Arc::new(Feishu::new("main", &config, &network).expect("an adapter"))
}

impl Rig {
    async fn new(more: &str) -> Self {
        let platform = Platform::start().await;
        let channel = adapter(&platform.url(), more);
        let gateway = FakeGateway::new();
        channel.open(&gateway.context());
        Self { platform, gateway, channel }
    }

    /// Runs the adapter while a test goes on.
    async fn running<T>(&self, test: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            ended = self.channel.run(self.gateway.context()) => panic!("run ended: {ended:?}"),
            done = test => done,
        }
    }

    async fn send(&self, target: &Target, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        self.channel.send(&target.address(self.channel.id()), part, key).await
    }

    /// Sends a whole reply.
    async fn reply(&self, target: &Target, reply: &Reply) -> Vec<Result<Receipt, SendError>> {
        let parts = self.channel.render(reply, Level::Rich);
        let mut done = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            let key = SendKey { seq: u32::try_from(n + 1).expect("few"), last: n + 1 == parts.len(), ..key() };
            done.push(self.send(target, part, &key).await);
        }
        done
    }
}

fn key() -> SendKey {
    SendKey {
        part: PartId::generate(),
        seq: 1,
        last: true,
        in_reply_to: Some("om_1".to_owned()),
        created_at: NOW,
        resend: false,
        replaces: None,
    }
}

fn direct() -> Target {
    Target { chat: "oc_1".to_owned(), direct: true, reply: Some("om_1".to_owned()), ..Target::default() }
}

fn group() -> Target {
    Target { chat: "oc_g".to_owned(), reply: Some("om_1".to_owned()), ..Target::default() }
}

fn thread() -> Target {
    Target { thread: Some("omt_1".to_owned()), ..group() }
}

#[tokio::test]
async fn probe_names_each_thing_that_is_missing() {
    let rig = Rig::new("").await;
    rig.platform.change(|told| told.scopes = vec![("im:message".to_owned(), true), ("im:resource".to_owned(), false)]);
    let found = rig.channel.probe().await;
    let state = |name: &str| found.iter().find(|finding| finding.name == name).map(|finding| finding.state);
    use channel_api::FindingState::{Fine, Unknown, Warning};
    for (name, expected) in [
        ("token", Fine),
        ("bot", Fine),
        ("scope:im:message.p2p_msg:readonly", Fine),
        ("scope:im:message:send_as_bot", Fine),
        ("scope:im:resource", Warning),
        ("scope:cardkit:card:write", Warning),
        ("long_connection", Fine),
        ("event:im.message.receive_v1", Unknown),
    ] {
        assert_eq!(state(name), Some(expected), "{name}");
    }
    let missing = found.iter().find(|finding| finding.name == "scope:im:resource").expect("a finding");
    let fix = missing.fix.as_ref().expect("a fix");
    assert!(fix.en.contains(&format!("/app/{APP_ID}/auth?q=im:resource")) && fix.zh.contains("开通"), "{fix:?}");
    rig.platform.change(|told| told.scopes.clear());
    let found = rig.channel.probe().await;
    assert!(found.iter().any(|finding| finding.state == channel_api::FindingState::Wrong));
    rig.platform.change(|told| told.endpoint_code = 403);
    let found = rig.channel.probe().await;
    let finding = found.iter().find(|finding| finding.name == "long_connection").expect("a finding");
    assert_eq!(finding.state, channel_api::FindingState::Wrong);
    let wrong = format!("app_id = 'cli_1'\napp_secret = 'wrong'\napi_url = '{}'", rig.platform.url());
    let config: Config = toml::from_str(&wrong).expect("a config");
    let network = Network::new(None, None).expect("a network");
    let other = Feishu::new("other", &config, &network).expect("an adapter");
    let found = other.probe().await;
    assert_eq!((found.len(), found[0].name.as_str()), (1, "token"));
    assert!(!format!("{found:?}").contains("wrong'"));
}

#[tokio::test]
async fn a_wrong_secret_stops_the_channel_in_words_that_name_the_cure() {
    let rig = Rig::new("").await;
    for mode in ["ws", "webhook"] {
        let section = format!(
            "app_id = 'cli_1'\napp_secret = 'nope'\napi_url = '{}'\nmode = '{mode}'\nencrypt_key = 'k'",
            rig.platform.url()
        );
        let config: Config = toml::from_str(&section).expect("a config");
        let channel = Feishu::new("main", &config, &Network::new(None, None).expect("a network")).expect("an adapter");
        match channel.run(rig.gateway.context()).await {
            Err(ChannelError::Stop(why)) => assert!(why.contains("`app_secret`") && !why.contains("nope"), "{why}"),
            other => panic!("{mode}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn refusals_of_the_long_connection_are_named() {
    let rig = Rig::new("").await;
    for (code, says) in
        [(1, "busy"), (403, "persistent connection"), (1_000_040_343, "inside"), (1_000_040_350, "too many")]
    {
        rig.platform.change(|told| told.endpoint_code = code);
        let ended = rig.channel.run(rig.gateway.context()).await.expect_err("refused");
        assert!(ended.to_string().contains(says), "{code}: {ended}");
        assert!(!matches!(ended, ChannelError::Stop(_)), "{code}: the console may cure it");
    }
    rig.platform.change(|told| told.endpoint_code = 514);
    assert!(matches!(rig.channel.run(rig.gateway.context()).await, Err(ChannelError::Stop(_))));
}

#[tokio::test]
async fn an_app_without_a_bot_is_told_where_to_click() {
    let rig = Rig::new("").await;
    rig.platform.fault("bot/v3/info", [fake::Fault::Code(400, 11_205, "app do not have bot")]);
    match rig.channel.run(rig.gateway.context()).await {
        Err(ChannelError::RestartAfter(_, why)) => assert!(why.contains("bot ability"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_token_is_asked_for_by_many_callers_and_renewed_in_time() {
    let rig = Rig::new("").await;
    let target = direct();
    let part = rig.channel.render(&Reply::message("hi"), Level::Rich).remove(0);
    let keys: Vec<SendKey> = (0..8).map(|_| key()).collect();
    let sends = keys.iter().map(|key| rig.send(&target, &part, key));
    for done in futures_util::future::join_all(sends).await {
        done.expect("sent");
    }
    assert_eq!(rig.platform.look(|told| told.token_calls), 1, "single flight");
    rig.gateway.clock.advance(Duration::from_secs(7_200 - 30 * 60 - 1));
    rig.send(&target, &part, &key()).await.expect("sent");
    assert_eq!(rig.platform.look(|told| told.token_calls), 1);
    rig.gateway.clock.advance(Duration::from_secs(1));
    rig.send(&target, &part, &key()).await.expect("sent");
    assert_eq!(rig.platform.look(|told| told.token_calls), 2, "less than half an hour was left");
    rig.platform.revoke_token();
    rig.send(&target, &part, &key()).await.expect("sent with a new token");
    assert_eq!(rig.platform.look(|told| told.token_calls), 3);
    rig.platform.fault("/messages", [99_991_663, 99_991_663].map(|code| fake::Fault::Code(400, code, "invalid")));
    let refused = rig.send(&target, &part, &key()).await;
    assert!(matches!(refused, Err(SendError::Retry(_))), "one new token, then no more: {refused:?}");
    assert_eq!(rig.platform.look(|told| told.sent.len()), 11);
    // A token that lives only a minute is used for half of it, not asked for at every call.
    rig.platform.change(|told| told.expire = 60);
    rig.platform.revoke_token();
    for _ in 0..3 {
        rig.send(&target, &part, &key()).await.expect("sent");
    }
    assert_eq!(rig.platform.look(|told| told.token_calls), 5);
}

#[tokio::test]
async fn the_account_is_told_apart_by_its_app() {
    let rig = Rig::new("").await;
    assert_eq!(rig.channel.exclusive().as_deref(), Some(APP_ID));
    assert!(rig.channel.http().is_none(), "the long connection has no route");
    let posted = adapter(&rig.platform.url(), "mode = 'webhook'\nverification_token = 'v'");
    assert!(posted.http().is_some());
    assert_eq!(posted.capabilities().silence_limit, None);
    assert!(!format!("{:?}", rig.channel.config).contains(APP_SECRET));
    let rate = rig.channel.capabilities().per_lane.expect("a pace");
    let in_a_second = rate.burst + u32::try_from(1_000 / rate.every.as_millis()).expect("few");
    assert!(in_a_second <= 5, "five in any second in a chat: {in_a_second}");
}
