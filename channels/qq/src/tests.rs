//! The channel against an in-memory gateway and a platform on loopback: what QQ and the people there see.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::Engine as _;
use bytes::Bytes;
use channel_api::{
    Accepted, Address, Attachment, AttachmentKind, Button, Channel, ChannelError, ChannelKv, FindingState, HttpBody,
    HttpRequest, HttpResponse, InboundKind, IntakeError, Level, Link, Media, PartId, Pulse, Receipt, Reconciled, Reply,
    SendError, SendKey,
    contract::{self, FakeGateway, Platform, SendClass},
};
use channel_socket::Network;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    Config, Qq,
    fake::{self, APP_ID, APP_SECRET, Fault, Told},
    target::{Place, Target},
};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n picture";

fn channel(section: &str) -> Arc<Qq> {
    let config: Config = toml::from_str(section).expect("a section");
    let network = Network::new(None, None).expect("a network");
    Arc::new(Qq::new("main", &config, &network).expect("a channel"))
}

fn offline(mode: &str) -> Arc<Qq> {
    channel(&format!("app_id = '{APP_ID}'\napp_secret = '{APP_SECRET}'\nmode = '{mode}'"))
}

/// One bot on a platform, open but not running.
struct Desk {
    qq: fake::Qq,
    gateway: FakeGateway,
    channel: Arc<Qq>,
    running: JoinSet<Result<(), ChannelError>>,
    /// Of the newest run.
    pulse: Option<Pulse>,
}

impl Desk {
    async fn new(more: &str) -> Self {
        let qq = fake::Qq::start().await;
        let gateway = FakeGateway::new();
        let channel = channel(&format!("{}\n{more}", qq.section()));
        channel.open(&gateway.context());
        Self { qq, gateway, channel, running: JoinSet::new(), pulse: None }
    }

    /// Running and connected.
    async fn running() -> Self {
        let mut desk = Self::new("").await;
        desk.start();
        let greeted = async {
            while desk.link() != Link::Up {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), greeted).await.expect("the bot is connected");
        desk
    }

    fn start(&mut self) {
        let (channel, ctx) = (Arc::clone(&self.channel), self.gateway.context());
        self.pulse = Some(ctx.pulse.clone());
        self.running.spawn(async move { channel.run(ctx).await });
    }

    /// As after a restart of the process: same store, nothing else.
    fn restart(&mut self, more: &str) {
        self.running.abort_all();
        self.gateway.shutdown = CancellationToken::new();
        self.channel = channel(&format!("{}\n{more}", self.qq.section()));
        self.channel.open(&self.gateway.context());
    }

    /// Waits while the clock goes on.
    async fn until(&self, what: &str, condition: impl Fn(&Told) -> bool + Copy) {
        for _ in 0..2_000 {
            let soon = Duration::from_millis(10);
            if tokio::time::timeout(soon, self.qq.until(what, condition)).await.is_ok() {
                return;
            }
            self.gateway.clock.advance(Duration::from_millis(250));
        }
        panic!("waited in vain until {what}: {:#?}", self.qq.look(|told| told.calls.clone()));
    }

    async fn ended(&mut self) -> ChannelError {
        let ended = tokio::time::timeout(Duration::from_secs(30), self.running.join_next()).await;
        let ended = ended.expect("it ends").expect("it ran").expect("no panic");
        ended.expect_err("not because it was told to")
    }

    /// How its connection is said to be.
    fn link(&self) -> Link {
        self.pulse.as_ref().expect("it runs").look().0
    }

    /// An address as of a message that came now.
    fn to(&self, to: Place, msg_id: &str) -> Address {
        let at = self.gateway.context().clock.now_ms();
        let target = Target { to, id: "X".to_owned(), msg_id: Some(msg_id.to_owned()), event_id: None, at };
        target.address(self.channel.id())
    }

    /// Sends every part of a reply once.
    async fn reply(&self, to: &Address, reply: &Reply) -> Vec<Result<Receipt, SendError>> {
        let parts = self.channel.render(reply, Level::Rich);
        let count = parts.len();
        let mut sent = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            sent.push(self.channel.send(to, part, &key(&format!("pt_{}_{n}", reply.text.len()), n + 1 == count)).await);
        }
        sent
    }

    async fn say(&self, to: &Address, text: &str) -> Result<Receipt, SendError> {
        self.reply(to, &Reply::message(text)).await.remove(0)
    }

    fn texts(&self) -> Vec<String> {
        self.qq.look(|told| told.sent.iter().map(|sent| sent.text().to_owned()).collect())
    }

    fn sends(&self) -> usize {
        self.qq.look(|told| told.calls.iter().filter(|call| call.what.ends_with("/messages")).count())
    }
}

fn key(part: &str, last: bool) -> SendKey {
    SendKey { part: PartId::from(part), seq: 1, last, in_reply_to: None, created_at: 0, resend: false, replaces: None }
}

/// A call of QQ as the server hands it over.
fn request(body: &[u8]) -> HttpRequest {
    HttpRequest {
        method: Method::POST,
        path: String::new(),
        query: String::new(),
        headers: HeaderMap::new(),
        body: Bytes::copy_from_slice(body),
        local: false,
    }
}

fn with(mut request: HttpRequest, name: &'static str, value: &str) -> HttpRequest {
    request.headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"));
    request
}

fn signed(body: &[u8], now_ms: i64) -> HttpRequest {
    let time = (now_ms / 1_000).to_string();
    let signature = crate::sign(APP_SECRET, &time, body);
    let request = with(with(request(body), "x-signature-timestamp", &time), "x-signature-ed25519", &signature);
    with(request, "x-bot-appid", APP_ID)
}

async fn handled(channel: &dyn Channel, gateway: &FakeGateway, request: HttpRequest) -> (StatusCode, Value, HeaderMap) {
    let answer: HttpResponse = channel.http().expect("a route").handle(&gateway.context(), request).await;
    let HttpBody::Whole { bytes, .. } = answer.body else { panic!("a whole body") };
    (answer.status, serde_json::from_slice(&bytes).expect("JSON"), answer.headers)
}

fn event(n: u32) -> Vec<u8> {
    let d = fake::Qq::c2c(&format!("m{n}"), "U1", "你好");
    json!({ "op": 0, "id": format!("C2C_MESSAGE_CREATE:{n}"), "t": "C2C_MESSAGE_CREATE", "d": d })
        .to_string()
        .into_bytes()
}

struct Webhooks;

#[async_trait]
impl Platform for Webhooks {
    fn channel(&self) -> Arc<dyn Channel> {
        offline("webhook")
    }

    async fn deliver(&self, gateway: &FakeGateway, channel: &dyn Channel, n: u32) -> bool {
        let request = signed(&event(n), gateway.context().clock.now_ms());
        let (status, body, _) = handled(channel, gateway, request).await;
        status.is_success() && body == json!({ "op": 12, "d": 0 })
    }
}

// The contract.

#[tokio::test]
async fn the_contract_of_reception() {
    contract::check_reception(&Webhooks).await;
}

#[tokio::test]
async fn the_contract_of_shutdown() {
    for mode in ["webhook", "ws"] {
        contract::check_shutdown(offline(mode).as_ref(), &FakeGateway::new()).await;
    }
    let desk = Desk::new("").await;
    contract::check_shutdown(desk.channel.as_ref(), &desk.gateway).await;
}

#[test]
fn the_contract_of_rendering() {
    contract::check_render(offline("ws").as_ref());
}

// The webhook.

#[tokio::test]
async fn rule_1_the_same_event_three_times_is_one_run_and_three_acknowledgements() {
    let (gateway, channel) = (FakeGateway::new(), offline("webhook"));
    let now = gateway.context().clock.now_ms();
    for _ in 0..3 {
        let (status, body, _) = handled(channel.as_ref(), &gateway, signed(&event(1), now)).await;
        assert_eq!((status, body), (StatusCode::OK, json!({ "op": 12, "d": 0 })));
    }
    // The same message under another event's id, as QQ pushes it at times.
    let mut again: Value = serde_json::from_slice(&event(1)).expect("JSON");
    again["id"] = json!("C2C_MESSAGE_CREATE:other");
    assert_eq!(handled(channel.as_ref(), &gateway, signed(again.to_string().as_bytes(), now)).await.0, StatusCode::OK);
    assert_eq!(gateway.intake.events().len(), 1);
}

#[tokio::test]
async fn the_forged_event_of_the_op13_oracle_attack_gets_nowhere() {
    let (gateway, channel) = (FakeGateway::new(), offline("webhook"));
    let forged =
        r#"{"op":0,"id":"X","t":"C2C_MESSAGE_CREATE","d":{"id":"m","content":"pwn","author":{"user_openid":"V"}}}"#;
    let asked = json!({ "op": 13, "d": { "plain_token": forged, "event_ts": "1725442341" } }).to_string();
    let (status, body, _) = handled(channel.as_ref(), &gateway, request(asked.as_bytes())).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(body.get("signature"), None);
    let good =
        json!({ "op": 13, "d": { "plain_token": "Arq0D5A61EgUu4OxUvOp", "event_ts": "1725442341" } }).to_string();
    let (status, body, _) = handled(channel.as_ref(), &gateway, request(good.as_bytes())).await;
    assert_eq!(status, StatusCode::OK);
    assert!(body["signature"].as_str().is_some_and(|signature| signature.starts_with("87befc99c42c651b")), "{body}");
    let tampered = with(signed(good.as_bytes(), gateway.context().clock.now_ms()), "x-signature-timestamp", "1");
    assert_eq!(handled(channel.as_ref(), &gateway, tampered).await.0, StatusCode::UNAUTHORIZED, "if signed, then well");
    assert!(gateway.intake.offered().is_empty());
}

#[tokio::test]
async fn whoever_asks_for_signatures_without_end_does_not_fill_the_log() {
    let (gateway, channel) = (FakeGateway::new(), offline("webhook"));
    let warnings = crate::warnings::Warnings::begin();
    let asked = json!({ "op": 13, "d": { "plain_token": "{", "event_ts": "1725442341" } }).to_string();
    for _ in 0..200 {
        let (status, ..) = handled(channel.as_ref(), &gateway, request(asked.as_bytes())).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
    }
    assert!((1..=10).contains(&warnings.count()), "{}", warnings.count());
}

#[tokio::test]
async fn bad_input_25_an_unsigned_or_wrongly_signed_call_is_401_and_leaves_no_row() {
    let (gateway, channel) = (FakeGateway::new(), offline("webhook"));
    let now = gateway.context().clock.now_ms();
    let body = event(1);
    let mut without_time = signed(&body, now);
    without_time.headers.remove("x-signature-timestamp");
    let mut twice = signed(&body, now);
    twice.headers.append("x-signature-ed25519", HeaderValue::from_static("00"));
    let mut tampered = signed(&body, now);
    tampered.body = event(2).into();
    let cases = [
        request(&body),
        request(b"no json"),
        with(request(&body), "x-signature-ed25519", ""),
        with(signed(&body, now), "x-signature-ed25519", &"0".repeat(128)),
        with(signed(&body, now), "x-signature-timestamp", "17"),
        signed(&body, now - 48 * 60 * 60 * 1_000),
        without_time,
        twice,
        tampered,
    ];
    for case in cases {
        let shown = format!("{case:?}");
        let (status, answer, _) = handled(channel.as_ref(), &gateway, case).await;
        assert_eq!((status, answer), (StatusCode::UNAUTHORIZED, json!({ "error": "unauthorized" })), "{shown}");
    }
    let other = with(signed(&body, now), "x-bot-appid", "999");
    assert_eq!(handled(channel.as_ref(), &gateway, other).await.0, StatusCode::FORBIDDEN);
    assert!(gateway.intake.offered().is_empty());
}

#[tokio::test]
async fn bad_input_26_a_signed_body_that_is_no_event_is_400() {
    let (gateway, channel) = (FakeGateway::new(), offline("webhook"));
    let now = gateway.context().clock.now_ms();
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    for body in ["", "hello", "[]", "null", "{}", deep.as_str(), r#"{"op":0}"#, r#"{"op":"0","t":"x","d":{}}"#] {
        let (status, _, _) = handled(channel.as_ref(), &gateway, signed(body.as_bytes(), now)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{}", &body[..body.len().min(40)]);
    }
    let unknown = signed(br#"{"op":0,"t":"SOMETHING_NEW","d":{"x":1}}"#, now);
    assert_eq!(handled(channel.as_ref(), &gateway, unknown).await.0, StatusCode::OK, "taken and ignored");
    assert!(gateway.intake.offered().is_empty());
    assert!(Webhooks.deliver(&gateway, channel.as_ref(), 1).await, "the next one passes");
}

#[tokio::test]
async fn bad_input_28_29_30_sizes_encodings_and_methods() {
    let (gateway, channel) = (FakeGateway::new(), offline("webhook"));
    let now = gateway.context().clock.now_ms();
    let large = signed(&vec![b' '; 1024 * 1024 + 1], now);
    assert_eq!(handled(channel.as_ref(), &gateway, large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(channel.http().expect("a route").body_limit(), 1024 * 1024);
    let packed = with(signed(&event(1), now), "content-encoding", "gzip");
    assert_eq!(handled(channel.as_ref(), &gateway, packed).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    for method in [Method::GET, Method::PUT] {
        let mut other = signed(&event(1), now);
        other.method = method;
        let (status, _, headers) = handled(channel.as_ref(), &gateway, other).await;
        assert_eq!((status, headers["allow"].as_bytes()), (StatusCode::METHOD_NOT_ALLOWED, &b"POST"[..]));
    }
    let mut elsewhere = signed(&event(1), now);
    elsewhere.path = "/../admin".to_owned();
    assert_eq!(handled(channel.as_ref(), &gateway, elsewhere).await.0, StatusCode::NOT_FOUND);
    assert!(gateway.intake.offered().is_empty());
}

#[tokio::test]
async fn bad_input_31_32_full_and_broken_stores_are_never_acknowledged() {
    let (gateway, channel) = (FakeGateway::new(), offline("webhook"));
    let now = gateway.context().clock.now_ms();
    let cases = [
        (Ok(vec![Accepted::Full(Duration::from_secs(7))]), StatusCode::TOO_MANY_REQUESTS, "7"),
        (Err(IntakeError::Busy(Duration::from_secs(3))), StatusCode::SERVICE_UNAVAILABLE, "3"),
        (Err(IntakeError::Unavailable("disk full".to_owned())), StatusCode::SERVICE_UNAVAILABLE, "5"),
    ];
    for (answer, expected, pause) in cases {
        gateway.intake.answer_next(answer);
        let (status, body, headers) = handled(channel.as_ref(), &gateway, signed(&event(1), now)).await;
        assert_eq!((status, body), (expected, json!({ "op": 12, "d": 1 })));
        assert_eq!(headers["retry-after"], pause);
    }
    assert!(gateway.intake.events().is_empty());
}

#[tokio::test]
async fn an_event_is_stored_even_if_qq_hangs_up() {
    let (gateway, channel) = (FakeGateway::new(), offline("webhook"));
    gateway.intake.close_gate();
    let ctx = gateway.context();
    let request = signed(&event(1), ctx.clock.now_ms());
    {
        let handling = channel.http().expect("a route").handle(&ctx, request);
        tokio::pin!(handling);
        tokio::select! {
            biased;
            _ = &mut handling => panic!("answered before the commit"),
            () = gateway.intake.until_waiting() => {}
        }
    }
    gateway.intake.open_gate();
    gateway.intake.until_stored(1).await;
}

// The gateway.

#[tokio::test]
async fn events_are_stored_with_their_position_and_a_restart_goes_on_behind_it() {
    let mut desk = Desk::running().await;
    assert_eq!(desk.qq.look(|told| told.identified.clone()), [1 << 25 | 1 << 30 | 1 << 12 | 1 << 26]);
    desk.qq.event("C2C_MESSAGE_CREATE", fake::Qq::c2c("m1", "U1", "hi"));
    desk.qq.event("GROUP_AT_MESSAGE_CREATE", fake::Qq::group("m2", "G", "M", "/help"));
    desk.qq.event("AT_MESSAGE_CREATE", fake::Qq::guild("m3", "C", "42", "hi"));
    desk.gateway.intake.until_stored(3).await;
    let events = desk.gateway.intake.events();
    let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(texts, ["hi", "/help", "hi"]);
    let cursors: Vec<String> =
        desk.gateway.intake.batches().into_iter().filter_map(|batch| Some(batch.cursor?.value)).collect();
    assert_eq!(cursors, ["2 session-1", "3 session-1", "4 session-1"]);
    // The gateway commits the position; so does this test.
    desk.gateway.kv.set("session", &cursors[1]).await.expect("stored");
    desk.restart("");
    desk.start();
    desk.qq.until("the session goes on", |told| told.resumed == [3]).await;
    desk.gateway.intake.until_stored(3).await;
    assert_eq!(desk.qq.look(|told| told.identified.len()), 1, "no second session");
}

#[tokio::test]
async fn what_was_not_stored_is_sent_again_after_a_kill() {
    let mut desk = Desk::running().await;
    desk.gateway.intake.close_gate();
    desk.qq.event("C2C_MESSAGE_CREATE", fake::Qq::c2c("m1", "U1", "hi"));
    desk.gateway.intake.until_waiting().await;
    desk.restart("");
    desk.gateway.intake.open_gate();
    desk.start();
    desk.gateway.intake.until_stored(1).await;
    assert_eq!(desk.qq.look(|told| told.resumed.clone()), [1]);
}

#[tokio::test]
async fn a_store_that_refuses_is_asked_again_and_heartbeats_go_on() {
    let desk = Desk::running().await;
    desk.gateway.intake.answer_next(Err(IntakeError::Unavailable("disk full".to_owned())));
    desk.gateway.intake.answer_next(Err(IntakeError::Busy(Duration::from_secs(60))));
    desk.qq.event("C2C_MESSAGE_CREATE", fake::Qq::c2c("m1", "U1", "hi"));
    desk.until("two heartbeats were sent", |told| told.beats.len() >= 2).await;
    desk.gateway.intake.until_stored(1).await;
    assert_eq!(desk.gateway.intake.offered().len(), 3);
    assert_eq!(desk.qq.look(|told| (told.opened, told.beats[0].clone())), (1, json!(2)));
}

#[tokio::test]
async fn rule_2_five_reloads_leave_one_connection_and_one_run() {
    let mut desk = Desk::running().await;
    for n in 2..=6 {
        desk.gateway.shutdown.cancel();
        let ended = desk.running.join_next().await.expect("it ran").expect("no panic");
        assert!(ended.is_ok());
        desk.restart("");
        desk.start();
        desk.qq.until("it is connected again", |told| told.opened == n && told.resumed.len() == n - 1).await;
    }
    desk.qq.until("the old connections are gone", |told| told.open == 1).await;
    desk.qq.event("C2C_MESSAGE_CREATE", fake::Qq::c2c("m1", "U1", "hi"));
    desk.gateway.intake.until_stored(1).await;
    assert_eq!(desk.gateway.intake.offered().len(), 1);
}

#[tokio::test]
async fn two_runs_of_one_bot_take_turns() {
    let mut desk = Desk::running().await;
    desk.start();
    desk.until("time went by", |told| told.beats.len() == 2).await;
    assert_eq!(desk.qq.look(|told| told.opened), 1);
}

#[tokio::test]
async fn a_gateway_that_stops_answering_is_left_and_the_session_goes_on() {
    let desk = Desk::running().await;
    desk.qq.answer_heartbeats(false);
    desk.until("it connected again", |told| told.resumed == [1]).await;
    assert_eq!(desk.qq.look(|told| told.beats.len()), 1, "one unanswered heartbeat is enough");
    desk.qq.answer_heartbeats(true);
    desk.qq.event("C2C_MESSAGE_CREATE", fake::Qq::c2c("m1", "U1", "hi"));
    desk.gateway.intake.until_stored(1).await;
    assert_eq!(desk.link(), Link::Up);
}

#[tokio::test]
async fn a_gateway_that_does_not_greet_is_left() {
    let mut desk = Desk::new("").await;
    desk.qq.greet(false);
    desk.start();
    desk.until("it asked for a second session", |told| told.identified.len() == 2).await;
    assert_ne!(desk.link(), Link::Up);
    desk.qq.greet(true);
    desk.until("it asked for a third", |told| told.identified.len() == 3).await;
    desk.qq.event("C2C_MESSAGE_CREATE", fake::Qq::c2c("m1", "U1", "hi"));
    desk.gateway.intake.until_stored(1).await;
    assert_eq!(desk.link(), Link::Up);
}

#[tokio::test]
async fn words_and_codes_of_the_gateway_are_followed() {
    let desk = Desk::running().await;
    assert_eq!(desk.link(), Link::Up);
    desk.qq.say(json!({ "op": 7 }));
    desk.gateway.clock.until_sleeping(1).await;
    let down = async {
        while desk.link() == Link::Up {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), down).await.expect("the loss is shown");
    assert!(matches!(desk.link(), Link::Down(why) if why.contains("connect again")));
    desk.until("op 7: go on with the session", |told| told.resumed.len() == 1).await;
    desk.qq.close(4009, "timeout");
    desk.until("4009: go on with the session", |told| told.resumed.len() == 2).await;
    desk.qq.say(json!({ "op": 9, "d": true }));
    desk.until("op 9, resumable: go on with the session", |told| told.resumed.len() == 3).await;
    desk.qq.close(4006, "");
    desk.until("4006: a new session", |told| told.identified.len() == 2).await;
    desk.qq.forget_sessions();
    desk.qq.cut();
    desk.until("op 9: a new session", |told| told.resumed.len() == 4 && told.identified.len() == 3).await;
    for noise in [json!(null), json!([1]), json!({ "op": 99 }), json!({ "op": 0 }), json!({ "op": 0, "t": 7, "d": {} })]
    {
        desk.qq.say(noise);
    }
    desk.qq.event("C2C_MESSAGE_CREATE", fake::Qq::c2c("m1", "U1", "hi"));
    desk.gateway.intake.until_stored(1).await;
    assert_eq!(desk.qq.look(|told| told.opened), 7);
}

#[tokio::test]
async fn a_bot_that_may_not_connect_stops_with_words() {
    for (code, words) in [(4914, "sandbox"), (4915, "banned"), (4001, "newer")] {
        let mut desk = Desk::running().await;
        desk.qq.close(code, "");
        let ended = desk.ended().await;
        assert!(matches!(&ended, ChannelError::Stop(said) if said.contains(words)), "{code}: {ended:?}");
    }
}

#[tokio::test]
async fn refused_intents_are_given_up_until_private_chats_and_groups_are_left() {
    let mut desk = Desk::new("intents = 'private'").await;
    desk.qq.refuse_intents(1 << 9 | 1 << 12);
    desk.start();
    desk.until("fewer are asked for", |told| told.identified.len() == 3).await;
    assert_eq!(desk.qq.look(|told| told.identified[2]), 1 << 25 | 1 << 30 | 1 << 26);
    desk.qq.until("it is connected", |told| told.open == 1).await;

    let mut desk = Desk::new("intents = 'chats'").await;
    desk.qq.refuse_intents(1 << 25);
    desk.start();
    desk.until("it asked twice", |told| told.identified.len() == 2).await;
    let ended = desk.ended().await;
    assert!(matches!(&ended, ChannelError::Stop(said) if said.contains("功能配置")), "{ended:?}");
}

#[tokio::test]
async fn wrong_secrets_full_sessions_and_lists_of_addresses_have_their_words() {
    let mut desk = Desk::new("").await;
    desk.qq.fault("token", Fault::Refuse(200, 100_016, "invalid appid or secret"));
    desk.start();
    let ended = desk.ended().await;
    assert!(matches!(&ended, ChannelError::Stop(said) if said.contains("app_secret")), "{ended:?}");
    desk.qq.fault("gateway", Fault::Refuse(401, 11_298, "接口访问源IP不在白名单"));
    desk.start();
    let ended = desk.ended().await;
    assert!(matches!(&ended, ChannelError::RestartAfter(_, said) if said.contains("IP白名单")), "{ended:?}");
    desk.qq.refuse_sessions();
    desk.start();
    let ended = desk.ended().await;
    assert!(matches!(&ended, ChannelError::RestartAfter(pause, _) if pause.as_secs() == 7), "{ended:?}");
}

#[tokio::test]
async fn r13_a_storm_of_reconnects_loses_and_doubles_nothing() {
    let desk = Desk::running().await;
    for n in 1..=30 {
        desk.qq.event("C2C_MESSAGE_CREATE", fake::Qq::c2c(&format!("m{n}"), "U1", "hi"));
        match n % 3 {
            0 => desk.qq.cut(),
            1 => desk.qq.say(json!({ "op": 7 })),
            _ => desk.qq.close(4009, ""),
        }
        desk.until("it is connected again", |told| told.resumed.len() == n && told.open == 1).await;
    }
    desk.gateway.intake.until_stored(30).await;
    let ids: Vec<String> = desk.gateway.intake.events().into_iter().map(|event| event.platform_id).collect();
    assert_eq!(ids, (1..=30).map(|n| format!("m{n}")).collect::<Vec<_>>(), "all, once, in order");
    desk.say(&desk.to(Place::C2c, "m30"), "ok").await.expect("what receives can send");
}

#[tokio::test]
async fn a_press_is_taken_and_then_confirmed() {
    let desk = Desk::running().await;
    desk.qq.event(
        "INTERACTION_CREATE",
        json!({ "id": "i1", "type": 11, "chat_type": 2, "user_openid": "U1", "timestamp": "2026-11-30T08:00:00+08:00",
            "data": { "type": 11, "resolved": { "button_data": "/stop", "button_id": "1" } } }),
    );
    desk.qq.until("it is confirmed", |told| told.confirmed == ["i1"]).await;
    let press = desk.gateway.intake.events().remove(0);
    assert_eq!((press.kind, press.text.as_str(), press.sender.id.as_str()), (InboundKind::Button, "/stop", "U1"));
    desk.say(&press.address, "stopped").await.expect("sent");
    let sent = desk.qq.look(|told| told.sent[0].body.clone());
    assert_eq!(sent["event_id"], "INTERACTION_CREATE:2");
    assert_eq!(sent.get("msg_id"), None);
}

#[tokio::test]
async fn files_are_fetched_at_receipt_and_a_missing_one_is_said() {
    let desk = Desk::running().await;
    desk.gateway.media.put_link("https://multimedia.nt.qq.com.cn/1", PNG);
    let mut message = fake::Qq::c2c("m1", "U1", "look");
    message["attachments"] = json!([
        { "content_type": "image/png", "filename": "a.png", "url": "https://multimedia.nt.qq.com.cn/1" },
        { "content_type": "voice", "filename": "b.amr", "url": "https://10.0.0.1/b" },
        { "content_type": "file", "filename": "c.pdf" },
    ]);
    desk.qq.event("C2C_MESSAGE_CREATE", message);
    desk.gateway.intake.until_stored(1).await;
    let files = desk.gateway.intake.events().remove(0).attachments;
    assert_eq!(files.len(), 3);
    let picture = files[0].media.as_ref().expect("it is there");
    assert_eq!(desk.gateway.media.read(picture).await.as_deref(), Some(PNG));
    assert_eq!((files[1].kind, files[1].media.is_none()), (AttachmentKind::Audio, true));
    assert!(files.iter().skip(1).all(|file| file.unavailable.is_some()));
}

#[tokio::test]
async fn a_strangers_file_is_not_fetched_and_an_admitted_senders_is() {
    let desk = Desk::running().await;
    desk.gateway.intake.want_no_files_of("U2");
    for (id, from) in [("m1", "U2"), ("m2", "U1")] {
        let url = format!("https://multimedia.nt.qq.com.cn/{from}");
        desk.gateway.media.put_link(&url, from.to_owned());
        let mut message = fake::Qq::c2c(id, from, "look");
        message["attachments"] = json!([{ "content_type": "image/png", "filename": "a.png", "url": url }]);
        desk.qq.event("C2C_MESSAGE_CREATE", message);
    }
    desk.gateway.intake.until_stored(2).await;
    let files: Vec<Attachment> = desk.gateway.intake.events().into_iter().flat_map(|event| event.attachments).collect();
    assert!(
        files[0].media.is_none() && files[0].unavailable.as_deref().is_some_and(|why| why.starts_with("not fetched"))
    );
    assert!(files[1].media.is_some() && files[1].unavailable.is_none(), "{files:?}");
    assert_eq!(desk.gateway.media.files(), ["U1"]);
}

// Answers.

#[tokio::test]
async fn rule_3_the_numbers_for_one_message_are_1_2_3() {
    let desk = Desk::new("").await;
    let to = desk.to(Place::Group, "m1");
    let sent = desk.reply(&to, &Reply::message("天气很好。".repeat(1_000))).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let numbers = desk.qq.look(|told| told.sent.iter().map(|sent| sent.seq()).collect::<Vec<_>>());
    assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
    assert!(desk.qq.look(|told| told.sent.iter().all(|sent| sent.body["msg_id"] == "m1" && sent.to == "/v2/groups/X")));
}

#[tokio::test]
async fn rule_4_an_answer_after_a_restart_still_carries_the_message_it_answers() {
    let mut desk = Desk::running().await;
    desk.qq.event("C2C_MESSAGE_CREATE", fake::Qq::c2c("m1", "U1", "hi"));
    desk.gateway.intake.until_stored(1).await;
    let to = desk.gateway.intake.events()[0].address.clone();
    desk.say(&to, "first").await.expect("sent");
    desk.restart("");
    let stored: Address = serde_json::from_str(&serde_json::to_string(&to).expect("JSON")).expect("an address");
    desk.say(&stored, "second one").await.expect("sent");
    let sent = desk.qq.look(|told| told.sent.iter().map(|sent| sent.body.clone()).collect::<Vec<_>>());
    assert_eq!((&sent[1]["msg_id"], &sent[1]["msg_seq"]), (&json!("m1"), &json!(2)));
}

#[tokio::test]
async fn rule_5_after_the_window_no_request_is_made() {
    let desk = Desk::new("").await;
    for (place, minutes) in [(Place::Group, 5), (Place::Channel, 5), (Place::Dm, 5), (Place::C2c, 60)] {
        let to = desk.to(place, "old");
        desk.gateway.clock.advance(Duration::from_secs(minutes * 60));
        let refused = desk.say(&to, "late").await;
        let words = format!("{minutes} minutes");
        assert!(matches!(&refused, Err(SendError::Refused(why)) if why.contains(&words)), "{refused:?}");
    }
    let nothing = Target { to: Place::C2c, id: "X".to_owned(), msg_id: None, event_id: None, at: i64::MAX };
    let refused = desk.say(&nothing.address(desk.channel.id()), "unasked").await;
    assert!(matches!(refused, Err(SendError::Refused(_))), "{refused:?}");
    assert!(desk.qq.look(|told| told.calls.is_empty()), "not even a token");
}

#[tokio::test]
async fn a_late_answer_goes_to_a_newer_message_of_the_conversation() {
    let desk = Desk::running().await;
    desk.qq.event("GROUP_AT_MESSAGE_CREATE", fake::Qq::group("m1", "X", "M", "a hard question"));
    desk.gateway.intake.until_stored(1).await;
    let to = desk.gateway.intake.events()[0].address.clone();
    desk.gateway.clock.advance(Duration::from_secs(6 * 60));
    assert_eq!(SendClass::of(&desk.say(&to, "late").await), SendClass::Refused);
    desk.qq.event("GROUP_AT_MESSAGE_CREATE", fake::Qq::group("m2", "X", "M", "are you there?"));
    desk.gateway.intake.until_stored(2).await;
    desk.say(&to, "the answer at last").await.expect("sent");
    assert_eq!(desk.qq.look(|told| told.sent[0].body["msg_id"].clone()), "m2");
}

#[tokio::test]
async fn rule_6_markdown_that_is_refused_is_sent_as_text_once_and_remembered() {
    let mut desk = Desk::new("").await;
    desk.qq.forbid_markdown();
    desk.say(&desk.to(Place::C2c, "m1"), "**好** `x`").await.expect("sent");
    assert_eq!((desk.texts(), desk.sends()), (vec!["好 x".to_owned()], 2));
    desk.restart("");
    desk.say(&desk.to(Place::Group, "m2"), "**again**").await.expect("sent");
    assert_eq!((desk.texts().pop().as_deref(), desk.sends()), (Some("again"), 3), "remembered over a restart");
    desk.gateway.clock.advance(Duration::from_secs(8 * 24 * 60 * 60));
    desk.say(&desk.to(Place::Group, "m3"), "**later**").await.expect("sent");
    assert_eq!(desk.sends(), 5, "tried again a week later");
    let desk = Desk::new("markdown = 'off'").await;
    desk.say(&desk.to(Place::C2c, "m1"), "**好**").await.expect("sent");
    assert_eq!((desk.texts(), desk.sends()), (vec!["好".to_owned()], 1));
}

#[tokio::test]
async fn rule_7_a_refused_address_is_defused_and_sent_once_more() {
    let desk = Desk::new("").await;
    for (msg, fault) in [
        ("m1", Fault::Refuse(400, 304_003, "url not allowed")),
        ("m2", Fault::Refuse(400, 40_034_028, "请求参数不允许包含url foo.sh")),
    ] {
        desk.qq.fault("send", fault);
        desk.say(&desk.to(Place::C2c, msg), "run foo.sh 1.5 times").await.expect("sent");
        assert_eq!(desk.texts().pop().as_deref(), Some("run foo。sh 1.5 times"));
    }
    assert_eq!(desk.sends(), 4);
    desk.qq.fault("send", Fault::Refuse(400, 304_003, "url not allowed"));
    desk.qq.fault("send", Fault::Refuse(400, 304_003, "url not allowed"));
    let refused = desk.say(&desk.to(Place::C2c, "m3"), "x.org").await;
    assert_eq!((SendClass::of(&refused), desk.sends()), (SendClass::Refused, 6));
}

#[tokio::test]
async fn rule_8_a_held_back_text_becomes_one_short_notice_to_the_same_message() {
    let desk = Desk::new("").await;
    for (msg, text, notice) in [("m1", "不好的话", "内容审核"), ("m2", "bad words", "content review")] {
        desk.qq.fault("send", Fault::Refuse(400, 1, "消息内容违规"));
        let refused = desk.say(&desk.to(Place::C2c, msg), text).await;
        assert!(matches!(&refused, Err(SendError::Refused(why)) if why.contains("was told")), "{refused:?}");
        let sent = desk.qq.look(|told| told.sent.last().cloned()).expect("a notice");
        assert!(sent.text().contains(notice) && sent.body["msg_id"] == msg, "{sent:?}");
    }
    desk.qq.fault("send", Fault::Refuse(400, 1, "消息内容违规"));
    desk.qq.fault("send", Fault::Refuse(400, 1, "消息内容违规"));
    let refused = desk.say(&desk.to(Place::C2c, "m3"), "x").await;
    assert_eq!((SendClass::of(&refused), desk.sends()), (SendClass::Refused, 6), "no notice about the notice");
}

#[tokio::test]
async fn rule_9_status_lines_never_eat_the_answer() {
    let desk = Desk::new("").await;
    let to = desk.to(Place::C2c, "m1");
    for n in 0..6 {
        let status = Reply { kind: channel_api::ReplyKind::Notice, ..Reply::message("s".repeat(n + 1)) };
        let _ = desk.reply(&to, &status).await;
    }
    let last = desk.reply(&to, &Reply::message("the answer")).await;
    assert!(last.iter().all(Result::is_ok), "{last:?}");
    assert!(desk.sends() <= 4, "{} sends", desk.sends());
    assert_eq!(desk.texts().pop().as_deref(), Some("the answer"));
}

#[tokio::test]
async fn a_send_without_an_answer_is_repeated_under_its_number_and_seen_once() {
    for fault in [Fault::DoneThenReset, Fault::Reset] {
        let mut desk = Desk::new("").await;
        let to = desk.to(Place::Group, "m1");
        desk.qq.fault("send", fault);
        let part = desk.channel.render(&Reply::message("once"), Level::Rich).remove(0);
        let unknown = desk.channel.send(&to, &part, &key("pt_1", true)).await;
        assert_eq!(SendClass::of(&unknown), SendClass::Unknown);
        desk.restart("");
        let key = key("pt_1", true);
        let reconciling = desk.channel.reconcile(&to, &part, &key, 0);
        tokio::pin!(reconciling);
        let reconciled = tokio::select! {
            biased;
            found = &mut reconciling => found,
            () = async {
                desk.gateway.clock.until_sleeping(1).await;
                desk.gateway.clock.advance(Duration::from_secs(3));
            } => reconciling.await,
        };
        assert_eq!(reconciled, Reconciled::SafeToRepeat);
        assert_eq!(SendClass::of(&desk.channel.send(&to, &part, &key).await), SendClass::Sent);
        assert_eq!(desk.texts(), ["once"]);
    }
}

#[tokio::test]
async fn what_cannot_be_repeated_is_said_to_be_so() {
    let desk = Desk::new("").await;
    let part = desk.channel.render(&Reply::message("x"), Level::Rich).remove(0);
    let guild = desk.to(Place::Channel, "m1");
    let reconciled = desk.channel.reconcile(&guild, &part, &key("pt_1", true), 0).await;
    assert_eq!(reconciled, Reconciled::CannotTell, "guilds have no numbers");
    let never = desk.channel.reconcile(&desk.to(Place::C2c, "m1"), &part, &key("pt_1", true), 0).await;
    assert_eq!(never, Reconciled::CannotTell, "it has no number");
    let again = SendKey { resend: true, ..key("pt_1", true) };
    desk.channel.send(&guild, &part, &again).await.expect("sent");
    assert!(desk.texts()[0].starts_with("↻"), "{:?}", desk.texts());
}

#[tokio::test]
async fn a_number_that_qq_knows_and_we_do_not_is_passed_over() {
    let desk = Desk::new("").await;
    let to = desk.to(Place::Group, "m1");
    desk.qq.fault("send", Fault::Refuse(400, 40_054_005, "消息被去重，请检查请求msgseq"));
    desk.say(&to, "hello").await.expect("sent");
    assert_eq!(desk.qq.look(|told| told.sent[0].seq()), Some(2));
}

#[tokio::test]
async fn every_refusal_has_its_class() {
    let table = [
        (Fault::Refuse(400, 22_009, "msg limit exceed"), SendClass::RetryAfter(Duration::from_secs(10))),
        (Fault::Refuse(429, 0, "slow"), SendClass::RetryAfter(Duration::from_secs(10))),
        (Fault::Refuse(202, 304_023, "waiting for audit"), SendClass::Sent),
        (Fault::Refuse(200, 304_024, "push message is waiting for audit now"), SendClass::Sent),
        (Fault::Refuse(400, 40_034_024, "msg_id invalid"), SendClass::Refused),
        (Fault::Refuse(200, 100_001, "what"), SendClass::Refused),
        (Fault::Refuse(401, 11_298, "ip"), SendClass::ChannelDown),
        (Fault::Refuse(500, 850_012, "later"), SendClass::Retry),
        (Fault::Body(502, "<html>bad gateway</html>"), SendClass::Retry),
        (Fault::Body(200, "<html>login</html>"), SendClass::Retry),
        (Fault::Reset, SendClass::Unknown),
    ];
    for (n, (fault, expected)) in table.into_iter().enumerate() {
        let desk = Desk::new("").await;
        let shown = format!("{fault:?}");
        desk.qq.fault("send", fault);
        let sent = desk.say(&desk.to(Place::C2c, &format!("m{n}")), "x").await;
        assert_eq!(SendClass::of(&sent), expected, "{shown}");
        assert_eq!(desk.sends(), 1, "{shown}");
    }
    let desk = Desk::new("").await;
    desk.qq.fault("send", Fault::Body(502, "<html>"));
    let sent = desk.say(&desk.to(Place::Channel, "m"), "x").await;
    assert_eq!(SendClass::of(&sent), SendClass::Unknown, "a guild drops no second copy");
}

#[tokio::test]
async fn r12_a_storm_of_rate_limits_ends_with_everything_sent_once_and_in_order() {
    let desk = Desk::new("").await;
    let to = desk.to(Place::Group, "m1");
    let mut waits = 0;
    for n in 1..=4 {
        let reply = Reply::message("x".repeat(n));
        for _ in 0..n {
            desk.qq.fault("send", Fault::Refuse(400, 22_009, "msg limit exceed"));
        }
        while desk.reply(&to, &reply).await.remove(0).is_err() {
            waits += 1;
        }
    }
    assert_eq!((waits, desk.texts()), (10, (1..=4).map(|n| "x".repeat(n)).collect()));
}

#[tokio::test]
async fn r11_a_platform_in_trouble_gets_no_answer_twice() {
    let desk = Desk::new("").await;
    let faults = [Fault::Body(502, "<html>"), Fault::DoneThenReset, Fault::Refuse(429, 0, ""), Fault::Reset];
    for n in 0..20_usize {
        let to = desk.to(Place::C2c, &format!("m{n}"));
        desk.qq.fault("send", faults[n % 4].clone());
        let reply = Reply::message("y".repeat(n + 1));
        for _ in 0..3 {
            if desk.reply(&to, &reply).await.remove(0).is_ok() {
                break;
            }
        }
    }
    assert_eq!(desk.texts(), (1..=20).map(|n| "y".repeat(n)).collect::<Vec<_>>());
}

// Tokens.

#[tokio::test]
async fn one_token_serves_all_who_wait_until_its_last_minute() {
    let desk = Desk::new("").await;
    let places: Vec<Address> = (0..8).map(|n| desk.to(Place::C2c, &format!("m{n}"))).collect();
    let sends = places.iter().map(|to| desk.say(to, "x"));
    let sent = futures_util::future::join_all(sends).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    assert_eq!(desk.qq.look(|told| told.tokens), 1);
    desk.gateway.clock.advance(Duration::from_secs(7200 - 61));
    desk.say(&desk.to(Place::C2c, "n1"), "x").await.expect("sent");
    assert_eq!(desk.qq.look(|told| told.tokens), 1);
    desk.gateway.clock.advance(Duration::from_secs(2));
    desk.say(&desk.to(Place::C2c, "n2"), "x").await.expect("sent");
    assert_eq!(desk.qq.look(|told| told.tokens), 2);
}

#[tokio::test]
async fn a_refused_token_is_replaced_once() {
    let desk = Desk::new("").await;
    desk.say(&desk.to(Place::C2c, "m1"), "x").await.expect("sent");
    desk.qq.revoke_tokens();
    desk.say(&desk.to(Place::C2c, "m2"), "x").await.expect("sent");
    assert_eq!(desk.qq.look(|told| told.tokens), 2);
    desk.qq.fault("send", Fault::Refuse(401, 11_244, "expire"));
    desk.qq.fault("send", Fault::Refuse(401, 11_244, "expire"));
    let down = desk.say(&desk.to(Place::C2c, "m3"), "x").await;
    assert_eq!(SendClass::of(&down), SendClass::ChannelDown);
    assert_eq!(desk.qq.look(|told| told.tokens), 3);
    for (body, expected) in [
        (r#"{"access_token":"t","expires_in":7200}"#, SendClass::ChannelDown),
        (r#"{"code":100007,"message":"appid invalid"}"#, SendClass::ChannelDown),
        ("<html>", SendClass::Retry),
        (r#"{"access_token":""}"#, SendClass::Retry),
        (r#"{"code":100017,"message":"too often"}"#, SendClass::RetryAfter(Duration::from_secs(10))),
    ] {
        let desk = Desk::new("").await;
        desk.qq.fault("token", Fault::Body(200, body));
        desk.qq.fault("token", Fault::Body(200, body));
        let sent = desk.say(&desk.to(Place::C2c, "m4"), "x").await;
        assert_eq!(SendClass::of(&sent), expected, "{body}: {sent:?}");
    }
}

// Files and buttons.

async fn attached(desk: &Desk, kind: AttachmentKind, name: &str, bytes: &'static [u8]) -> Attachment {
    let media = desk.gateway.media.store(Bytes::from_static(bytes), None).await.expect("stored");
    Attachment { kind, media: Some(media), name: Some(name.to_owned()), unavailable: None }
}

#[tokio::test]
async fn pictures_voice_and_files_follow_the_text() {
    let desk = Desk::new("").await;
    let mut reply = Reply::message("here");
    reply.attachments = vec![
        attached(&desk, AttachmentKind::Image, "a.png", PNG).await,
        attached(&desk, AttachmentKind::Audio, "b.silk", b"\x02#!SILK_V3 voice").await,
        attached(&desk, AttachmentKind::Audio, "c.mp3", b"ID3 music").await,
    ];
    let sent = desk.reply(&desk.to(Place::C2c, "m1"), &reply).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let (files, bodies) =
        desk.qq.look(|told| (told.files.clone(), told.sent.iter().map(|sent| sent.body.clone()).collect::<Vec<_>>()));
    let kinds: Vec<u64> = files.iter().map(|file| file.1).collect();
    assert_eq!(kinds, [1, 3, 4], "voice that QQ cannot play goes as a file");
    let picture = base64::engine::general_purpose::STANDARD.decode(&files[0].2).expect("base64");
    assert_eq!(picture, PNG);
    assert_eq!(
        bodies[1],
        json!({ "msg_type": 7, "content": " ", "media": { "file_info": "/v2/users/X#1" },
        "msg_id": "m1", "msg_seq": 2 })
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_sent_becomes_its_name() {
    let desk = Desk::new("").await;
    let mut reply = Reply::message("");
    reply.attachments = vec![attached(&desk, AttachmentKind::File, "a.bin", b"bytes").await];
    let part = desk.channel.render(&reply, Level::Rich).remove(0);
    let to = desk.to(Place::Group, "m1");
    desk.qq.fault("file", Fault::Refuse(400, 304_083, "not this type"));
    desk.channel.send(&to, &part, &key("pt_a", true)).await.expect("sent");
    desk.qq.fault("file", Fault::Reset);
    let retry = desk.channel.send(&to, &part, &key("pt_b", true)).await;
    assert_eq!(SendClass::of(&retry), SendClass::Retry, "nothing is visible yet");
    desk.qq.fault("file", Fault::Reset);
    desk.channel.send(&to, &part, &key("pt_b", true)).await.expect("sent");
    desk.qq.fault("send", Fault::Refuse(400, 304_082, "upload media info fail"));
    desk.channel.send(&to, &part, &key("pt_c", true)).await.expect("sent");
    assert_eq!(desk.texts(), ["[file: a.bin]"; 3]);
    let mut gone = part;
    gone.body["file"]["media"]["source"]["stored"] = json!("99");
    desk.channel.send(&to, &gone, &key("pt_d", true)).await.expect("sent");
    assert_eq!(desk.texts().len(), 4);
}

#[tokio::test]
async fn guilds_get_text_and_pictures_in_one_call_each() {
    let desk = Desk::new("").await;
    let mut reply = Reply::message("**hi**");
    reply.attachments = vec![
        attached(&desk, AttachmentKind::Image, "a.png", PNG).await,
        attached(&desk, AttachmentKind::File, "b.pdf", b"%PDF").await,
    ];
    let sent = desk.reply(&desk.to(Place::Channel, "m1"), &reply).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let bodies = desk.qq.look(|told| told.sent.iter().map(|sent| sent.body.clone()).collect::<Vec<_>>());
    assert_eq!(bodies[0], json!({ "content": "hi", "msg_id": "m1" }));
    assert_eq!(bodies[1]["msg_id"], "m1");
    assert!(bodies[1]["picture_bytes"].as_u64().is_some_and(|bytes| bytes > PNG.len() as u64));
    assert_eq!(bodies[2]["content"], "[file: b.pdf]");
}

#[tokio::test]
async fn buttons_stand_under_markdown_and_nothing_is_lost_without() {
    let desk = Desk::new("").await;
    let mut reply = Reply::message("sure? /yes or /no");
    let button = |label: &str, data: &str| Button { label: label.to_owned(), data: data.to_owned() };
    reply.buttons = vec![vec![button("好", "/yes"), button("不", "/no")]];
    desk.reply(&desk.to(Place::C2c, "m1"), &reply).await.remove(0).expect("sent");
    let body = desk.qq.look(|told| told.sent[0].body.clone());
    let buttons = body.pointer("/keyboard/content/rows/0/buttons").and_then(Value::as_array).expect("a row");
    assert_eq!(buttons[1]["action"]["data"], "/no");
    assert_ne!(buttons[0]["id"], buttons[1]["id"]);
    desk.qq.forbid_markdown();
    desk.reply(&desk.to(Place::C2c, "m2"), &reply).await.remove(0).expect("sent");
    assert_eq!(desk.texts().pop().as_deref(), Some("sure? /yes or /no"));
}

// A look at the account.

#[tokio::test]
async fn a_probe_names_what_is_missing_and_needs_no_open_channel() {
    let qq = fake::Qq::start().await;
    let channel = channel(&qq.section());
    let states = |found: &[channel_api::Finding]| {
        found.iter().map(|finding| (finding.name.clone(), finding.state)).collect::<Vec<_>>()
    };
    let found = channel.probe().await;
    let expected = [
        ("token", FindingState::Fine),
        ("bot", FindingState::Fine),
        ("gateway", FindingState::Fine),
        ("intents", FindingState::Unknown),
        ("published", FindingState::Unknown),
    ];
    assert_eq!(states(&found), expected.map(|(name, state)| (name.to_owned(), state)));
    assert!(found[1].said.zh.contains("小龙虾"));
    qq.fault("token", Fault::Refuse(200, 100_016, "invalid appid or secret"));
    let found = channel.probe().await;
    assert_eq!(states(&found), [("token".to_owned(), FindingState::Wrong)]);
    assert!(!format!("{found:?}").contains(APP_SECRET));
    qq.fault("token", Fault::Refuse(200, 11_298, "ip"));
    let found = channel.probe().await;
    assert!(found[0].fix.as_ref().is_some_and(|fix| fix.zh.contains("IP白名单")), "{found:?}");
    assert_eq!(channel.exclusive().as_deref(), Some(APP_ID));
}
