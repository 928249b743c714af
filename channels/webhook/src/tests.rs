//! The channel against an in-memory gateway and a real receiver on loopback: what a bridge sees.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use axum::{Router, body::Body, extract::State, response::Response, routing::post};
use bytes::Bytes;
use channel_api::{
    Accepted, Address, Channel, ChannelContext, ConversationKind, HttpBody, HttpRequest, HttpResponse, IgnoredReason,
    IntakeError, LiveEvent, MediaSource, PartId, QueueMode, Receipt, Reconciled, Reply, Secret, SendError, SendKey,
    Settled,
    contract::{self, FakeGateway, Platform, SendClass},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet};

use crate::{Config, Webhook, auth, config::Secrets};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const TOKEN: &str = "a-token-for-curl-0001";

fn config(text: &str) -> Config {
    toml::from_str(text).expect("the test's config is well-formed")
}

fn signed_config() -> Config {
    Config { secret: Some(Secrets::One(Secret::from(SECRET))), ..Config::default() }
}

fn hook(config: Config) -> Arc<Webhook> {
    Arc::new(Webhook::new("bridge", config, reqwest::Client::builder()).expect("the test's config is good"))
}

/// A request as the server hands it over.
struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Call {
    fn post(body: impl Into<Bytes>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        Self { method: Method::POST, path: String::new(), headers, body: body.into() }
    }

    fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), headers: HeaderMap::new(), body: Bytes::new() }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header's value"));
        self
    }

    /// Signed as a bridge signs: with its `webhook-id`, at this wall time.
    fn signed(self, id: &str, now_ms: i64) -> Self {
        let keys = signed_config().keys().expect("a good secret");
        let now_s = now_ms / 1_000;
        let signature = auth::sign(&keys.outgoing, id, now_s, &self.body);
        self.with("webhook-id", id).with("webhook-timestamp", &now_s.to_string()).with("webhook-signature", &signature)
    }

    fn bearing(self) -> Self {
        self.with("authorization", &format!("Bearer {TOKEN}"))
    }

    async fn to(self, hook: &Webhook, ctx: &ChannelContext) -> HttpResponse {
        let Self { method, path, headers, body } = self;
        let request = HttpRequest { method, path, query: String::new(), headers, body, local: true };
        let endpoint = hook.http().expect("a webhook has a route");
        endpoint.handle(ctx, request).await
    }
}

/// An answer as its caller reads it; reading confirms that it was written.
struct Seen {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

fn read(response: HttpResponse) -> Seen {
    let HttpBody::Whole { bytes, written } = response.body else { panic!("a stream where one body was expected") };
    if let Some(written) = written {
        let _ = written.send(());
    }
    let body = serde_json::from_slice(&bytes).expect("every answer is JSON");
    Seen { status: response.status.as_u16(), headers: response.headers, body }
}

fn hello(id: &str) -> Value {
    json!({
        "v": 1, "id": id, "conversation": { "id": "room-1", "type": "direct" }, "sender": { "id": "u1" },
        "text": "hello",
    })
}

fn message(id: &str) -> Call {
    Call::post(hello(id).to_string()).bearing()
}

/// A channel that runs, with its gateway.
struct Bridge {
    gateway: FakeGateway,
    ctx: ChannelContext,
    hook: Arc<Webhook>,
    tasks: JoinSet<()>,
}

impl Bridge {
    /// Runs until the test ends.
    async fn start(config: Config) -> Self {
        let (gateway, hook) = (FakeGateway::new(), hook(config));
        let ctx = gateway.context();
        let mut tasks = JoinSet::new();
        let (running, its_ctx) = (hook.clone(), ctx.clone());
        tasks.spawn(async move { running.run(its_ctx).await.expect("run ends well") });
        hook.until_running().await;
        Self { gateway, ctx, hook, tasks }
    }

    async fn with_token() -> Self {
        Self::start(Config { token: Some(Secret::from(TOKEN)), ..Config::default() }).await
    }

    async fn call(&self, call: Call) -> Seen {
        read(call.to(&self.hook, &self.ctx).await)
    }

    /// Calls in a task of its own.
    fn calling(&self, call: Call) -> Calling {
        let (hook, ctx) = (self.hook.clone(), self.ctx.clone());
        let (tx, rx) = tokio::sync::oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = tx.send(call.to(&hook, &ctx).await);
        });
        Calling { answer: rx, _tasks: tasks }
    }

    /// Waits until `count` callers watch.
    async fn until_watched(&self, count: usize) {
        self.gateway.settlements.until(|state| state.watches >= count).await;
    }

    fn answer(&self, id: &str, text: &str) -> Vec<PartId> {
        self.gateway.settlements.answer(id, self.hook.as_ref(), text, 1_795_996_801_000)
    }
}

/// A call under way; dropping it is the caller going away.
struct Calling {
    answer: tokio::sync::oneshot::Receiver<HttpResponse>,
    _tasks: JoinSet<()>,
}

impl Calling {
    async fn response(self) -> HttpResponse {
        self.answer.await.expect("the call is answered")
    }

    async fn seen(self) -> Seen {
        read(self.response().await)
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

// --- what the contract asks of every adapter -------------------------------------------------------------------------

struct SignedBridge;

#[async_trait]
impl Platform for SignedBridge {
    fn channel(&self) -> Arc<dyn Channel> {
        hook(signed_config())
    }

    async fn deliver(&self, gateway: &FakeGateway, channel: &dyn Channel, n: u32) -> bool {
        use channel_api::Clock;
        let id = format!("m-{n}");
        let call = Call::post(hello(&id).to_string()).signed(&id, gateway.clock.now_ms());
        let request = HttpRequest {
            method: call.method,
            path: String::new(),
            query: String::new(),
            headers: call.headers,
            body: call.body,
            local: true,
        };
        let response = channel.http().expect("a route").handle(&gateway.context(), request).await;
        response.status.is_success()
    }
}

#[tokio::test]
async fn reception_keeps_the_contract() {
    contract::check_reception(&SignedBridge).await;
}

#[tokio::test]
async fn shutdown_keeps_the_contract() {
    contract::check_shutdown(SignedBridge.channel().as_ref(), &FakeGateway::new()).await;
}

#[test]
fn render_keeps_the_contract() {
    contract::check_render(SignedBridge.channel().as_ref());
}

// --- who may post ----------------------------------------------------------------------------------------------------

#[tokio::test]
async fn nothing_unproven_comes_in_and_every_refusal_reads_the_same() {
    let bridge = Bridge::start(signed_config()).await;
    let now = bridge.ctx.clock.now_ms();
    let body = hello("m-1").to_string();
    let calls = [
        Call::post(body.clone()),
        Call::post(body.clone()).bearing(),
        Call::post(body.clone()).with("webhook-signature", ""),
        Call::post(body.clone()).signed("m-1", now).with("webhook-signature", "v1,AAAA"),
        Call::post(body.clone()).signed("m-1", now - 301_000),
        Call::post(body.clone()).signed("m-1", now + 301_000),
        Call::post(body.clone()).signed("m-1", now - 900_000),
        // Re-serialised after signing.
        Call { body: format!("{body} ").into(), ..Call::post(body.clone()).signed("m-1", now) },
        // Not even parsed.
        Call::post("{broken"),
        Call::get("/messages/m-1"),
    ];
    let mut texts = Vec::new();
    for call in calls {
        let seen = bridge.call(call).await;
        assert_eq!(seen.status, 401, "{}", seen.body);
        texts.push(seen.body.to_string());
    }
    texts.dedup();
    assert_eq!(texts.len(), 1, "one text for every reason");
    assert!(bridge.gateway.intake.offered().is_empty());
    assert_eq!(bridge.call(Call::post(body).signed("m-1", now)).await.status, 202);
}

#[test]
fn without_a_usable_secret_there_is_no_channel() {
    for text in ["", "token = ''", "secret = '  '", "secret = 'whsec_c2hvcnQ='", "token = 'short'"] {
        assert!(Webhook::new("bridge", config(text), reqwest::Client::builder()).is_err(), "{text}");
    }
}

#[tokio::test]
async fn row_08_a_replay_is_one_message() {
    let bridge = Bridge::start(signed_config()).await;
    let now = bridge.ctx.clock.now_ms();
    for n in 0..2 {
        let seen = bridge.call(Call::post(hello("m-1").to_string()).signed("m-1", now)).await;
        assert_eq!((seen.status, seen.body["duplicate"].as_bool()), (202, (n == 1).then_some(true)));
    }
    assert_eq!(bridge.gateway.intake.events().len(), 1);
}

// --- what comes in ---------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_full_body_becomes_an_inbound() {
    let bridge = Bridge::with_token().await;
    let body = json!({
        "v": 1, "id": "m-1", "future": { "field": [1] }, "metadata": { "x": 1 },
        "conversation": { "id": "room#1", "type": "group", "title": "Kitchen", "thread_id": "t%1" },
        "sender": { "id": "u1", "name": "Ann\u{0}a", "is_bot": false },
        "text": "你好 \u{0} there", "mentioned": true,
        "reply_to": { "id": "m-0", "text": "before", "sender_id": "bot" },
        "attachments": [
            { "kind": "image", "data": "aGk=", "mime": "image/png", "name": "a.png" },
            { "kind": "file", "url": "https://example.com/a.pdf", "mime": "application/pdf", "size": 12 },
            { "kind": "file", "url": "file:///etc/passwd" },
            { "kind": "image", "url": "http://10.0.0.1/a.png", "name": "b.png" },
        ],
        "timestamp": "2026-11-30T08:00:00+08:00",
    });
    bridge.gateway.media.put_link("https://example.com/a.pdf", Bytes::from_static(b"%PDF-"));
    let seen = bridge.call(Call::post(body.to_string()).bearing()).await;
    assert_eq!((seen.status, seen.body), (202, json!({ "ok": true, "id": "m-1", "status": "accepted" })));
    let [event]: [_; 1] = bridge.gateway.intake.events().try_into().expect("one event");
    assert_eq!(event.channel.as_str(), "webhook:bridge");
    assert_eq!((event.platform_id.as_str(), event.text.as_str()), ("m-1", "你好 \u{fffd} there"));
    assert_eq!(event.fingerprint.as_deref(), Some(auth::sha256_hex(body.to_string().as_bytes()).as_str()));
    assert_eq!(event.conversation.kind, ConversationKind::Group);
    assert_eq!(event.conversation.thread.as_deref(), Some("t%1"));
    assert_eq!(event.address.lane, "group:room%231#t%251");
    assert_eq!(event.address.data, body["conversation"]);
    assert_eq!(event.at, Some(1_795_996_800_000));
    assert!(event.mentions_us && !event.hold && event.queue.is_none());
    assert_eq!(event.reply_to.and_then(|reply| reply.text).as_deref(), Some("before"));
    let media: Vec<_> = event.attachments.iter().map(|a| a.media.as_ref().map(|m| m.source.clone())).collect();
    let stored = |name: &str| Some(MediaSource::Stored(name.to_owned()));
    assert_eq!(media, [stored("0"), stored("1"), None, None], "links are fetched at receipt");
    assert_eq!(event.attachments[0].media.as_ref().and_then(|m| m.mime.as_deref()), Some("image/png"));
    assert!(event.attachments[2..].iter().all(|file| file.unavailable.is_some()));
    let kept = [Bytes::from_static(b"hi"), Bytes::from_static(b"%PDF-")];
    assert_eq!(bridge.gateway.media.files(), kept);
}

#[tokio::test]
async fn a_strangers_files_are_neither_stored_nor_fetched_and_an_admitted_senders_are() {
    let bridge = Bridge::with_token().await;
    bridge.gateway.intake.want_no_files_of("u2");
    for (id, sender) in [("m-1", "u2"), ("m-2", "u1")] {
        let url = format!("https://example.com/{sender}");
        bridge.gateway.media.put_link(&url, Bytes::from(sender));
        let mut body = hello(id);
        body["sender"]["id"] = json!(sender);
        body["attachments"] = json!([{ "data": "aGk=", "mime": "image/png" }, { "url": url }]);
        assert_eq!(bridge.call(Call::post(body.to_string()).bearing()).await.status, 202);
        if sender == "u2" {
            assert!(bridge.gateway.media.files().is_empty());
        }
    }
    let events = bridge.gateway.intake.events();
    for file in &events[0].attachments {
        let why = file.unavailable.as_deref().unwrap_or_default();
        assert!(file.media.is_none() && why.starts_with("not fetched"), "{file:?}");
    }
    assert!(events[1].attachments.iter().all(|file| file.media.is_some()), "{:?}", events[1].attachments);
    assert_eq!(bridge.gateway.media.files(), [Bytes::from_static(b"hi"), Bytes::from_static(b"u1")]);
}

#[tokio::test]
async fn a_group_message_addresses_us_only_when_it_says_so() {
    let bridge = Bridge::with_token().await;
    let mut body = hello("m-1");
    body["conversation"]["type"] = json!("group");
    bridge.call(Call::post(body.to_string()).bearing()).await;
    bridge.call(message("m-2")).await;
    let addressed: Vec<bool> = bridge.gateway.intake.events().iter().map(|event| event.mentions_us).collect();
    assert_eq!(addressed, [false, true]);
}

#[tokio::test]
async fn bad_bodies_get_their_answer_and_the_next_good_one_passes() {
    let bridge = Bridge::with_token().await;
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let deep_field = format!("{{\"id\":\"m\",\"x\":{deep}}}");
    for body in
        ["", "{", "not json", "[]", "null", "5", "\"text\"", "{\"id\":\"\\ud800\"}", &deep, &deep_field, "\u{feff}{}"]
    {
        let seen = bridge.call(Call::post(body.to_owned()).bearing()).await;
        assert_eq!((seen.status, &seen.body["error"]["code"]), (400, &json!("bad_json")), "{body:.40}");
    }
    let seen = bridge.call(Call::post(&b"{\"text\":\"\xff\"}"[..]).bearing()).await;
    assert_eq!(seen.status, 400);

    let wrong: &[(&str, Value)] = &[
        ("/v", json!(2)),
        ("/id", json!(5)),
        ("/id", json!("")),
        ("/id", json!("x".repeat(129))),
        ("/id", json!("a\nb")),
        ("/id", Value::Null),
        ("/conversation", json!("room")),
        ("/conversation/id", json!(7)),
        ("/conversation/id", Value::Null),
        ("/conversation/type", json!("room")),
        ("/sender", json!([])),
        ("/sender/id", Value::Null),
        ("/sender/is_bot", json!("no")),
        ("/text", json!(5)),
        ("/text", json!("")),
        ("/mentioned", json!("yes")),
        ("/reply_to", json!("m-0")),
        ("/attachments", json!({})),
        ("/attachments/0", json!([5])),
        ("/attachments/0", json!([{ "kind": "image" }])),
        ("/attachments/0/kind", json!([{ "kind": "hologram", "url": "https://example.com" }])),
        ("/attachments/0/data", json!([{ "data": "!!" }])),
        ("/attachments/0/size", json!([{ "url": "https://example.com", "size": -1 }])),
        ("/timestamp", json!("yesterday")),
        ("/timestamp", json!(5)),
    ];
    for (pointer, value) in wrong {
        let mut body = hello("m-1");
        let path: Vec<&str> = pointer.split('/').skip(1).collect();
        match path.as_slice() {
            ["attachments", ..] => body["attachments"] = value.clone(),
            [field] => body[*field] = value.clone(),
            [outer, inner] => body[*outer][*inner] = value.clone(),
            _ => panic!("the table holds no such pointer"),
        }
        let seen = bridge.call(Call::post(body.to_string()).bearing()).await;
        assert_eq!(seen.status, 422, "{pointer} = {value}: {}", seen.body);
        let told = text(&seen.body["error"]["pointer"]);
        // A list where an object belongs has no field of that name.
        assert!(told == *pointer || (*pointer == "/sender" && told == "/sender/id"), "{pointer}: {}", seen.body);
    }
    let type_only = bridge.call(Call::post("{broken").bearing().with("content-encoding", "gzip")).await;
    assert_eq!(type_only.status, 415);
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=gbk", "application/jsonx"]
    {
        let mut call = Call::post(hello("m-1").to_string()).bearing();
        call.headers.insert("content-type", HeaderValue::from_str(kind).expect("a value"));
        assert_eq!(bridge.call(call).await.status, 415, "{kind}");
    }
    let huge = Call::post(vec![b' '; 1024 * 1024 + 1]).bearing();
    assert_eq!(bridge.call(huge).await.status, 413);
    assert!(bridge.gateway.intake.offered().is_empty());
    assert_eq!(bridge.call(message("m-1")).await.status, 202);
}

#[tokio::test]
async fn the_ids_of_body_and_headers_must_be_the_same() {
    let bridge = Bridge::start(signed_config()).await;
    let now = bridge.ctx.clock.now_ms();
    let body = hello("m-1").to_string();
    let other = Call::post(body.clone()).signed("m-2", now);
    assert_eq!(bridge.call(other).await.status, 422);
    let key = Call::post(body.clone()).signed("m-1", now).with("idempotency-key", "m-9");
    assert_eq!(bridge.call(key).await.status, 422);
    let twice =
        Call::post(body.clone()).signed("m-1", now).with("idempotency-key", "m-1").with("idempotency-key", "m-1");
    assert_eq!(bridge.call(twice).await.status, 422);
    let mut without = hello("m-1");
    without["id"] = Value::Null;
    let header_only = Call::post(without.to_string()).signed("m-3", now);
    assert_eq!(bridge.call(header_only).await.body["id"], json!("m-3"));
    let same = Call::post(body).signed("m-1", now).with("idempotency-key", "m-1");
    assert_eq!(bridge.call(same).await.status, 202);
}

#[tokio::test]
async fn methods_and_paths_that_are_not_there() {
    let bridge = Bridge::with_token().await;
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::HEAD, Method::OPTIONS] {
        for bearing in [false, true] {
            let call = Call { method: method.clone(), ..message("m-1") };
            let call = if bearing { call.bearing() } else { call };
            let seen = bridge.call(call).await;
            assert_eq!((seen.status, seen.headers["allow"].to_str().ok()), (405, Some("POST")), "{method}");
        }
    }
    assert_eq!(bridge.call(Call { path: "/messages/m-1".to_owned(), ..message("m-1") }).await.status, 405);
    for path in ["/hook/../admin", "//hook/../admin", "/messages", "/messages/", "/x"] {
        assert_eq!(bridge.call(Call::get(path).bearing()).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn what_the_intake_says_is_what_the_bridge_hears() {
    let bridge = Bridge::with_token().await;
    let pause = Duration::from_secs(7);
    let ignored = |reason| Ok(vec![Accepted::Ignored(reason)]);
    let table = [
        (Ok(vec![Accepted::Conflict]), 409, "id_conflict", None),
        (Ok(vec![Accepted::Full(pause)]), 429, "queue_full", Some("7")),
        (Err(IntakeError::Busy(pause)), 503, "unavailable", Some("7")),
        (Err(IntakeError::Unavailable("disk full: /secret/path".to_owned())), 503, "unavailable", Some("5")),
        (ignored(IgnoredReason::SenderNotAllowed), 403, "sender_not_allowed", None),
        (ignored(IgnoredReason::GroupNotAllowed), 403, "sender_not_allowed", None),
        (ignored(IgnoredReason::Disabled), 403, "sender_not_allowed", None),
        (ignored(IgnoredReason::Blocked), 403, "sender_not_allowed", None),
        (Ok(vec![]), 503, "unavailable", Some("5")),
    ];
    for (answer, status, code, retry) in table {
        for prefer in ["respond-async", "wait=5"] {
            bridge.gateway.intake.answer_next(answer.clone());
            let seen = bridge.call(message("m-1").with("prefer", prefer)).await;
            assert_eq!((seen.status, &seen.body["error"]["code"]), (status, &json!(code)), "{answer:?}");
            assert_eq!(seen.headers.get("retry-after").and_then(|value| value.to_str().ok()), retry);
            assert!(!seen.body.to_string().contains("/secret/path"), "{}", seen.body);
        }
    }
    bridge.gateway.intake.answer_next(ignored(IgnoredReason::NotAddressed));
    let seen = bridge.call(message("m-1").with("prefer", "wait=5")).await;
    let expected = json!({ "ok": true, "id": "m-1", "status": "ignored", "reason": "not_addressed" });
    assert_eq!((seen.status, seen.body), (202, expected));
}

#[tokio::test]
async fn the_same_id_with_another_body_is_a_conflict() {
    let bridge = Bridge::with_token().await;
    assert_eq!(bridge.call(message("m-1")).await.status, 202);
    let mut other = hello("m-1");
    other["text"] = json!("something else");
    assert_eq!(bridge.call(Call::post(other.to_string()).bearing()).await.status, 409);
}

#[tokio::test]
async fn foreign_bodies_are_read_through_the_map() {
    let map = "token = 'a-token-for-curl-0001'\n[map]\ntext = '/event/msg'\nid = '/event/id'\nsender_id = '/event/from/0'\n\
               conversation_type = '/event/is~1group'";
    let bridge = Bridge::start(config(map)).await;
    let foreign = json!({ "event": { "msg": "hi", "id": 9_007_199_254_740_993_u64, "from": [42], "is/group": true } });
    assert_eq!(bridge.call(Call::post(foreign.to_string()).bearing()).await.status, 202);
    let event = bridge.gateway.intake.events().remove(0);
    assert_eq!((event.platform_id.as_str(), event.text.as_str()), ("9007199254740993", "hi"));
    assert_eq!((event.sender.id.as_str(), event.conversation.id.as_str()), ("42", "42"));
    assert_eq!(event.conversation.kind, ConversationKind::Group);

    let wrong = json!({ "event": { "msg": "hi", "id": 1.5, "from": [42] } });
    let seen = bridge.call(Call::post(wrong.to_string()).bearing()).await;
    assert_eq!((seen.status, text(&seen.body["error"]["pointer"])), (422, "/event/id"));
    let missing = json!({ "event": { "msg": "hi", "id": 2 } });
    let seen = bridge.call(Call::post(missing.to_string()).bearing()).await;
    assert_eq!((seen.status, text(&seen.body["error"]["pointer"])), (422, "/event/from/0"));
}

#[tokio::test]
async fn a_foreign_body_without_any_id_is_a_message_of_its_own() {
    let bridge = Bridge::start(config("token = 'a-token-for-curl-0001'\nmap = { text = '/content' }")).await;
    let call = || Call::post(r#"{"content":"hi"}"#).bearing();
    assert_eq!(bridge.call(call()).await.status, 202);
    bridge.gateway.clock.advance(Duration::from_secs(1));
    assert_eq!(bridge.call(call()).await.status, 202);
    let events = bridge.gateway.intake.events();
    assert_eq!(events.len(), 2);
    assert!(events[0].platform_id.starts_with("sha256:"));
    assert_eq!((events[0].sender.id.as_str(), events[0].conversation.id.as_str()), ("default", "default"));
}

proptest! {
    #[test]
    fn no_body_makes_the_parser_panic(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
        let id = channel_api::ChannelId::new("webhook", "bridge");
        let _ = crate::inbound::inbound(&id, None, &HeaderMap::new(), &raw, 0);
    }

    #[test]
    fn no_field_makes_the_parser_panic(
        field in "(id|text|sender|conversation|attachments|reply_to|mentioned|timestamp|v)",
        value in "(null|true|-1|1e300|\"\"|\"x\"|\\[\\]|\\{\\}|\\[\\{\\}\\]|\\{\"id\":\\[1\\]\\}|\\[\\{\"url\":\"x\"\\}\\])",
    ) {
        let id = channel_api::ChannelId::new("webhook", "bridge");
        let mut body = hello("m-1");
        body[&field] = serde_json::from_str(&value).expect("the table is JSON");
        let _ = crate::inbound::inbound(&id, None, &HeaderMap::new(), body.to_string().as_bytes(), 0);
    }
}

// --- answers in place ------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_caller_that_waits_gets_the_answer_and_only_then_it_is_sent() {
    let bridge = Bridge::with_token().await;
    let calling = bridge.calling(message("m-1").with("prefer", "wait=30"));
    bridge.until_watched(1).await;
    let event = bridge.gateway.intake.events().remove(0);
    assert!(event.hold);
    assert_eq!(event.queue, Some(QueueMode::Followup));
    let parts = bridge.answer("m-1", "Hi **there**");
    let response = calling.response().await;
    assert!(bridge.gateway.settlements.look(|state| state.handed_over.is_empty()), "not before it was written");
    let seen = read(response);
    assert_eq!(seen.status, 200);
    assert_eq!(seen.headers["preference-applied"].to_str().ok(), Some("wait=30"));
    assert_eq!(
        seen.body,
        json!({
            "ok": true, "id": "m-1", "status": "done", "messages": [{
                "v": 1, "type": "message", "id": parts[0], "conversation": { "id": "room-1", "type": "direct" },
                "in_reply_to": "m-1", "seq": 1, "final": true, "text": "Hi **there**", "format": "markdown",
                "timestamp": "2026-11-30T00:00:01Z",
            }],
        })
    );
    let inbox = bridge.gateway.settlements.id_of("m-1").expect("stored");
    bridge.gateway.settlements.until(|state| !state.handed_over.is_empty()).await;
    bridge.gateway.settlements.look(|state| {
        assert_eq!(state.handed_over, [(inbox.clone(), parts.clone())]);
        assert!(state.released.is_empty());
    });
}

#[tokio::test]
async fn an_answer_that_was_not_written_is_given_back() {
    let bridge = Bridge::with_token().await;
    let calling = bridge.calling(message("m-1").with("prefer", "wait=30"));
    bridge.until_watched(1).await;
    bridge.answer("m-1", "Hi");
    drop(calling.response().await);
    bridge.gateway.settlements.until(|state| state.released.len() == 1).await;
    assert!(bridge.gateway.settlements.look(|state| state.handed_over.is_empty()));
}

#[tokio::test]
async fn a_caller_that_goes_away_gives_the_answer_back() {
    let bridge = Bridge::with_token().await;
    let calling = bridge.calling(message("m-1").with("prefer", "wait=30"));
    bridge.until_watched(1).await;
    drop(calling);
    bridge.gateway.settlements.until(|state| state.released.len() == 1).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_during_the_commit_gives_the_answer_back() {
    let bridge = Bridge::with_token().await;
    bridge.gateway.intake.close_gate();
    let calling = bridge.calling(message("m-1").with("prefer", "wait=30"));
    bridge.gateway.intake.until_waiting().await;
    drop(calling);
    bridge.gateway.intake.open_gate();
    bridge.gateway.settlements.until(|state| state.released.len() == 1).await;
}

#[tokio::test]
async fn after_its_time_the_caller_hears_202_and_the_work_goes_on() {
    let bridge = Bridge::with_token().await;
    let calling = bridge.calling(message("m-1").with("prefer", "wait=30"));
    bridge.gateway.clock.until_sleeping(1).await;
    bridge.gateway.clock.advance(Duration::from_secs(30));
    let seen = calling.seen().await;
    assert_eq!((seen.status, seen.body), (202, json!({ "ok": true, "id": "m-1", "status": "accepted" })));
    bridge.gateway.settlements.until(|state| state.released.len() == 1).await;
}

#[tokio::test]
async fn at_a_shutdown_waiting_callers_hear_202_and_run_ends() {
    let mut bridge = Bridge::with_token().await;
    let calling = bridge.calling(message("m-1").with("prefer", "wait=120"));
    bridge.until_watched(1).await;
    bridge.gateway.shutdown.cancel();
    assert_eq!(calling.seen().await.status, 202);
    bridge.gateway.settlements.until(|state| state.released.len() == 1).await;
    bridge.tasks.join_next().await.expect("run is there").expect("run ends well");
    let late = bridge.call(message("m-2").with("prefer", "wait=5")).await;
    assert_eq!((late.status, late.headers.contains_key("retry-after")), (503, true));
}

#[tokio::test]
async fn a_duplicate_joins_the_wait_and_a_later_one_gets_the_same_messages() {
    let bridge = Bridge::with_token().await;
    let first = bridge.calling(message("m-1").with("prefer", "wait=30"));
    bridge.until_watched(1).await;
    let second = bridge.calling(message("m-1").with("prefer", "wait=10"));
    bridge.until_watched(2).await;
    let third = bridge.calling(message("m-1").with("prefer", "wait=10"));
    bridge.until_watched(3).await;
    // One gives up; the others still get it in place.
    drop(third);
    let waiting = bridge.call(message("m-1")).await;
    let expected = json!({ "ok": true, "id": "m-1", "status": "accepted", "duplicate": true });
    assert_eq!((waiting.status, waiting.body), (202, expected));
    bridge.answer("m-1", "Hi");
    let (first, second) = (first.seen().await, second.seen().await);
    let later = bridge.call(message("m-1").with("prefer", "wait=30")).await;
    assert_eq!((first.status, second.status, later.status), (200, 200, 200));
    assert_eq!(first.body["duplicate"], Value::Null);
    assert_eq!(second.body["duplicate"], json!(true));
    assert_eq!(second.body["messages"], first.body["messages"]);
    assert_eq!(later.body, second.body);
    let done = bridge.call(message("m-1")).await;
    let expected = json!({ "ok": true, "id": "m-1", "status": "done", "duplicate": true });
    assert_eq!((done.status, done.body), (202, expected));
    bridge.gateway.settlements.until(|state| state.handed_over.len() == 3).await;
    assert!(bridge.gateway.settlements.look(|state| state.released.is_empty()));
    assert_eq!(bridge.gateway.intake.events().len(), 1);
}

#[tokio::test]
async fn silence_failure_and_merging_are_ends_too() {
    let bridge = Bridge::with_token().await;
    let table = [
        (Settled { silent: Some("no_reply".to_owned()), ..Settled::default() }, "silent", json!("no_reply")),
        (
            Settled { failed: Some("the model is gone".to_owned()), ..Settled::default() },
            "failed",
            json!("the model is gone"),
        ),
        (Settled { merged_into: Some("in_x".into()), ..Settled::default() }, "merged_into", json!("in_x")),
    ];
    for (n, (settled, key, value)) in table.into_iter().enumerate() {
        let id = format!("m-{n}");
        let calling = bridge.calling(message(&id).with("prefer", "wait=30"));
        bridge.until_watched(n + 1).await;
        bridge.gateway.settlements.show(&id, &LiveEvent::Settled(settled));
        let seen = calling.seen().await;
        let mut expected = json!({ "ok": true, "id": id, "status": "done", "messages": [] });
        expected[key] = value;
        assert_eq!((seen.status, seen.body), (200, expected.clone()));
        assert_eq!(bridge.call(Call::get(&format!("/messages/{id}")).bearing()).await.body, expected);
    }
}

#[tokio::test]
async fn a_message_can_be_asked_for() {
    let bridge = Bridge::start(signed_config()).await;
    let now = bridge.ctx.clock.now_ms();
    let poll = || Call::get("/messages/m/1").signed("poll-1", now);
    assert_eq!(bridge.call(poll()).await.status, 404);
    bridge.call(Call::post(hello("m/1").to_string()).signed("m/1", now)).await;
    let waiting = bridge.call(poll()).await;
    assert_eq!((waiting.status, &waiting.body["status"]), (202, &json!("accepted")));
    let parts = bridge.answer("m/1", "Hi");
    let done = bridge.call(poll()).await;
    assert_eq!((done.status, &done.body["status"]), (200, &json!("done")));
    assert_eq!((&done.body["messages"][0]["id"], &done.body["messages"][0]["text"]), (&json!(parts[0]), &json!("Hi")));
    assert_eq!(bridge.call(Call::get("/messages/m/1").bearing()).await.status, 401);
    let row = bridge.gateway.settlements.id_of("m/1").expect("stored");
    let by_row = Call::get(&format!("/messages/{row}")).signed("poll-2", now);
    assert_eq!(bridge.call(by_row).await.status, 404, "the id of a row is no key");
}

#[tokio::test]
async fn the_reply_profile_is_one_json_in_and_one_json_out() {
    let bridge = Bridge::start(config(
        "token = 'a-token-for-curl-0001'\nprofile = 'reply'\nmap = { text = '/content', id = '/id' }",
    ))
    .await;
    let call = |id: &str| Call::post(json!({ "content": "hi", "id": id }).to_string()).bearing();
    let calling = bridge.calling(call("m-1"));
    bridge.until_watched(1).await;
    bridge.answer("m-1", "Hi there");
    let seen = calling.seen().await;
    assert_eq!((seen.status, seen.body), (200, json!({ "reply": "Hi there" })));

    let calling = bridge.calling(call("m-2"));
    bridge.until_watched(2).await;
    let silent = Settled { silent: Some("no_reply".to_owned()), ..Settled::default() };
    bridge.gateway.settlements.show("m-2", &LiveEvent::Settled(silent));
    assert_eq!(calling.seen().await.body, json!({ "reply": "" }));

    bridge.gateway.intake.answer_next(Ok(vec![Accepted::Ignored(IgnoredReason::NotAddressed)]));
    let seen = bridge.call(call("m-3")).await;
    assert_eq!((seen.status, &seen.body["reply"]), (200, &json!("")));
    assert_eq!(bridge.call(call("m-4").with("prefer", "respond-async")).await.status, 202);
}

// --- streams ---------------------------------------------------------------------------------------------------------

/// The chunks of a stream, as its caller reads them.
struct Stream(tokio::sync::mpsc::Receiver<Bytes>);

impl Stream {
    fn of(response: HttpResponse) -> Self {
        assert_eq!(response.status.as_u16(), 200);
        assert_eq!(response.headers["content-type"].to_str().ok(), Some("text/event-stream"));
        match response.body {
            HttpBody::Stream(chunks) => Self(chunks),
            HttpBody::Whole { .. } => panic!("a whole body where a stream was expected"),
        }
    }

    async fn next(&mut self) -> String {
        let chunk = self.0.recv().await.expect("the stream goes on");
        String::from_utf8(chunk.to_vec()).expect("UTF-8")
    }

    /// One event: its name, its number, its data.
    async fn event(&mut self) -> (String, u64, Value) {
        let chunk = self.next().await;
        let mut lines = chunk.strip_suffix("\n\n").expect("an event ends with an empty line").lines();
        let mut field = |name: &str| {
            let line = lines.next().unwrap_or_default();
            line.strip_prefix(name).unwrap_or_else(|| panic!("{name} in {line}")).to_owned()
        };
        let (name, number, data) = (field("event: "), field("id: "), field("data: "));
        (name, number.parse().expect("a number"), serde_json::from_str(&data).expect("JSON"))
    }
}

#[tokio::test]
async fn a_stream_shows_the_work_and_ends_with_done() {
    let bridge = Bridge::with_token().await;
    let calling = bridge.calling(message("m-1").with("accept", "text/event-stream"));
    bridge.until_watched(1).await;
    let mut stream = Stream::of(calling.response().await);
    bridge.gateway.clock.until_sleeping(1).await;
    bridge.gateway.clock.advance(Duration::from_secs(15));
    assert_eq!(stream.next().await, ": ping\n\n");
    bridge.gateway.settlements.show("m-1", &LiveEvent::Started);
    let (name, number, data) = stream.event().await;
    assert_eq!((name.as_str(), number, &data["in_reply_to"]), ("typing", 1, &json!("m-1")));
    bridge.gateway.settlements.show("m-1", &LiveEvent::Text("Hi\n\nth".to_owned()));
    let (name, number, data) = stream.event().await;
    assert_eq!((name.as_str(), number, &data["text"]), ("message.update", 2, &json!("Hi\n\nth")));
    let parts = bridge.answer("m-1", "Hi\n\nthere");
    let (name, number, data) = stream.event().await;
    assert_eq!((name.as_str(), number, &data["id"], &data["final"]), ("message", 3, &json!(parts[0]), &json!(true)));
    assert!(bridge.gateway.settlements.look(|state| state.handed_over.is_empty()));
    let (name, number, data) = stream.event().await;
    assert_eq!((name.as_str(), number), ("done", 4));
    assert_eq!(data, json!({ "ok": true, "id": "m-1", "status": "done" }));
    assert_eq!(stream.next().await, ": end\n\n");
    bridge.gateway.settlements.until(|state| state.handed_over.len() == 1).await;
    assert!(stream.0.recv().await.is_none(), "the stream ends");
}

#[tokio::test]
async fn a_stream_that_breaks_gives_the_answer_back_whenever_it_breaks() {
    for taken in 0..3 {
        let bridge = Bridge::with_token().await;
        let calling = bridge.calling(message("m-1").with("accept", "text/event-stream"));
        bridge.until_watched(1).await;
        let mut stream = Stream::of(calling.response().await);
        if taken > 0 {
            bridge.answer("m-1", "Hi");
        }
        for _ in 0..taken {
            stream.next().await;
        }
        // The next chunk is on its way, and never taken.
        while taken > 0 && stream.0.is_empty() {
            tokio::task::yield_now().await;
        }
        drop(stream);
        bridge.gateway.settlements.until(|state| state.released.len() == 1).await;
        assert!(bridge.gateway.settlements.look(|state| state.handed_over.is_empty()), "after {taken} events");
    }
}

#[tokio::test]
async fn a_stream_that_cannot_begin_is_an_ordinary_refusal() {
    let bridge = Bridge::with_token().await;
    bridge.gateway.intake.answer_next(Err(IntakeError::Busy(Duration::from_secs(1))));
    assert_eq!(bridge.call(message("m-1").with("accept", "text/event-stream")).await.status, 503);
}

// --- callbacks -------------------------------------------------------------------------------------------------------

/// A receiver on loopback: records what it gets and answers by script, 200 `{}` after it.
struct Receiver {
    address: SocketAddr,
    state: Arc<ReceiverState>,
    _tasks: JoinSet<()>,
}

/// Status, headers and body of an answer.
type Scripted = (u16, Vec<(&'static str, String)>, String);

#[derive(Default)]
struct ReceiverState {
    got: Mutex<Vec<(HeaderMap, Bytes)>>,
    script: Mutex<VecDeque<Scripted>>,
    count: watch::Sender<usize>,
}

impl Receiver {
    async fn start() -> Self {
        let state = Arc::new(ReceiverState::default());
        let app = Router::new().route("/hook", post(receive)).with_state(state.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, app).await.expect("the receiver serves") });
        Self { address, state, _tasks: tasks }
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    fn answers(&self, status: u16, headers: &[(&'static str, &str)], body: &str) {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.state.script.lock().expect("not poisoned").push_back((status, headers, body.to_owned()));
    }

    fn got(&self) -> Vec<(HeaderMap, Bytes)> {
        self.state.got.lock().expect("not poisoned").clone()
    }

    fn bodies(&self) -> Vec<Value> {
        self.got().iter().map(|(_, body)| serde_json::from_slice(body).expect("JSON")).collect()
    }
}

async fn receive(State(state): State<Arc<ReceiverState>>, headers: HeaderMap, body: Bytes) -> Response {
    state.got.lock().expect("not poisoned").push((headers, body));
    state.count.send_modify(|count| *count += 1);
    let next = state.script.lock().expect("not poisoned").pop_front();
    let (status, headers, body) = next.unwrap_or((200, Vec::new(), "{}".to_owned()));
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(Body::from(body)).expect("a response")
}

fn to_receiver(receiver: &Receiver) -> Config {
    Config { callback_url: Some(receiver.url()), allow_private_callback: true, ..signed_config() }
}

fn room() -> Address {
    let data = json!({ "id": "room-1", "type": "direct" });
    Address { channel: channel_api::ChannelId::new("webhook", "bridge"), lane: "direct:room-1".to_owned(), data }
}

fn key(part: &str) -> SendKey {
    SendKey {
        part: PartId::from(part),
        seq: 1,
        last: true,
        in_reply_to: Some("m-1".to_owned()),
        created_at: 1_795_996_801_000,
        resend: false,
        replaces: None,
    }
}

async fn send(bridge: &Bridge, part: &str, text: &str) -> Result<Receipt, SendError> {
    let [rendered]: [_; 1] = bridge
        .hook
        .render(&Reply::message(text), channel_api::Level::Rich)
        .try_into()
        .expect("a short text is one part");
    bridge.hook.send(&room(), &rendered, &key(part)).await
}

/// A short text in the place of a preview.
async fn replace(bridge: &Bridge, part: &str, preview: &str, text: &str) -> Result<Receipt, SendError> {
    let [rendered]: [_; 1] = bridge
        .hook
        .render(&Reply::message(text), channel_api::Level::Rich)
        .try_into()
        .expect("a short text is one part");
    let key = SendKey { replaces: Some(preview.to_owned()), ..key(part) };
    bridge.hook.send(&room(), &rendered, &key).await
}

#[tokio::test]
async fn a_callback_is_signed_and_the_same_on_every_try() {
    let receiver = Receiver::start().await;
    let bridge = Bridge::start(to_receiver(&receiver)).await;
    receiver.answers(500, &[], "");
    receiver.answers(200, &[], r#"{"id":"ext-7"}"#);
    assert_eq!(SendClass::of(&send(&bridge, "pt_1", "你好").await), SendClass::Retry);
    bridge.gateway.clock.advance(Duration::from_secs(400));
    let receipt = send(&bridge, "pt_1", "你好").await.expect("the second try is taken");
    assert_eq!(receipt.platform_id.as_deref(), Some("ext-7"));
    let [(first, first_body), (second, second_body)]: [_; 2] = receiver.got().try_into().expect("two tries");
    assert_eq!((first_body.clone(), &first["webhook-id"]), (second_body.clone(), &second["webhook-id"]));
    assert_eq!(first["webhook-id"], "pt_1");
    assert_ne!(first["webhook-timestamp"], second["webhook-timestamp"], "the time is each try's own");
    let keys = signed_config().keys().expect("a good secret");
    let now = bridge.ctx.clock.now_ms();
    assert!(auth::authenticate(&keys, &second, &second_body, now).is_ok());
    assert!(auth::authenticate(&keys, &first, &first_body, now).is_err(), "too old by then");
    assert_eq!(
        serde_json::from_slice::<Value>(&second_body).expect("JSON"),
        json!({
            "v": 1, "type": "message", "id": "pt_1", "conversation": { "id": "room-1", "type": "direct" },
            "in_reply_to": "m-1", "seq": 1, "final": true, "text": "你好", "format": "markdown",
            "timestamp": "2026-11-30T00:00:01Z",
        })
    );
}

#[tokio::test]
async fn answers_are_classified_redirects_are_not_followed_and_410_ends_it() {
    let receiver = Receiver::start().await;
    let elsewhere = Receiver::start().await;
    let bridge = Bridge::start(to_receiver(&receiver)).await;
    receiver.answers(302, &[("location", &elsewhere.url())], "");
    receiver.answers(429, &[("retry-after", "9")], "");
    receiver.answers(404, &[], "");
    receiver.answers(204, &[], "");
    receiver.answers(200, &[], "<html>not json</html>");
    receiver.answers(410, &[], "");
    let expected = [
        SendClass::Retry,
        SendClass::RetryAfter(Duration::from_secs(9)),
        SendClass::Refused,
        SendClass::Sent,
        SendClass::Sent,
        SendClass::ChannelDown,
        SendClass::ChannelDown,
    ];
    for (n, class) in expected.into_iter().enumerate() {
        assert_eq!(SendClass::of(&send(&bridge, &format!("pt_{n}"), "hi").await), class, "answer {n}");
    }
    assert_eq!(receiver.got().len(), 6, "after 410 nothing is posted");
    assert!(elsewhere.got().is_empty(), "the redirect was not followed");
    assert_eq!(
        bridge
            .hook
            .reconcile(&room(), &bridge.hook.render(&Reply::message("x"), channel_api::Level::Rich)[0], &key("pt_1"), 0)
            .await,
        Reconciled::SafeToRepeat
    );
}

#[tokio::test]
async fn nobody_at_home_is_a_retry_and_names_no_secret_of_the_url() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let url = format!("http://{address}/hook?key=very-secret");
    let bridge =
        Bridge::start(Config { callback_url: Some(url), allow_private_callback: true, ..signed_config() }).await;
    match send(&bridge, "pt_1", "hi").await {
        Err(SendError::Retry(told)) => assert!(!told.contains("very-secret"), "{told}"),
        other => panic!("expected a retry, got {other:?}"),
    }
}

#[tokio::test]
async fn an_answer_that_never_comes_is_a_retry_because_the_receiver_knows_copies() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/hook", listener.local_addr().expect("bound"));
    let bridge =
        Bridge::start(Config { callback_url: Some(url), allow_private_callback: true, ..signed_config() }).await;
    let cut = async {
        use tokio::io::AsyncReadExt;
        let (mut peer, _) = listener.accept().await.expect("a connection");
        let mut seen = Vec::new();
        while !seen.ends_with(b"}") {
            let read = peer.read_buf(&mut seen).await.expect("the request comes");
            assert!(read > 0, "the whole request comes");
        }
    };
    let (sent, ()) = tokio::join!(send(&bridge, "pt_1", "hi"), cut);
    assert_eq!(SendClass::of(&sent), SendClass::Retry);
}

#[tokio::test]
async fn a_receiver_on_this_machine_is_reached_without_the_proxy() {
    let receiver = Receiver::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let nowhere = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let proxy = reqwest::Proxy::all(nowhere).expect("a proxy");
    let hook = Webhook::new("bridge", to_receiver(&receiver), reqwest::Client::builder().proxy(proxy));
    let hook = hook.expect("the test's config is good");
    hook.remember(&FakeGateway::new().context());
    let part = hook.render(&Reply::message("hi"), channel_api::Level::Rich).remove(0);
    hook.send(&room(), &part, &key("pt_1")).await.expect("posted past the proxy");
    assert_eq!(receiver.got().len(), 1);
}

#[tokio::test]
async fn a_caller_that_does_not_read_does_not_hold_up_a_shutdown() {
    let mut bridge = Bridge::with_token().await;
    let calling = bridge.calling(message("m-1").with("prefer", "wait=30"));
    bridge.until_watched(1).await;
    bridge.answer("m-1", "Hi");
    let unread = calling.response().await;
    bridge.gateway.shutdown.cancel();
    bridge.gateway.clock.until_sleeping(2).await;
    bridge.gateway.clock.advance(Duration::from_secs(1));
    bridge.tasks.join_next().await.expect("run is there").expect("run ends well");
    assert_eq!(bridge.gateway.settlements.look(|state| state.released.len()), 1);
    drop(unread);
}

#[tokio::test]
async fn without_a_callback_a_part_is_sent_at_once_and_kept_for_polls() {
    let bridge = Bridge::with_token().await;
    assert_eq!(send(&bridge, "pt_1", "hi").await.expect("kept"), Receipt::default());
}

#[tokio::test]
async fn previews_are_closed_by_the_final_message_on_every_try_of_it() {
    let receiver = Receiver::start().await;
    let bridge = Bridge::start(Config { previews: true, ..to_receiver(&receiver) }).await;
    let live = bridge.hook.live().expect("previews are on");
    let preview = live.begin(&room(), "Hi").await.expect("posted");
    live.update(&room(), &preview, "Hi th").await.expect("posted");
    receiver.answers(500, &[], "");
    assert!(replace(&bridge, "pt_1", &preview.id, "Hi there").await.is_err());
    replace(&bridge, "pt_1", &preview.id, "Hi there").await.expect("posted");
    send(&bridge, "pt_2", "More").await.expect("posted");
    live.drop_preview(&room(), &preview).await;
    let shown: Vec<(Value, Value, Value)> = receiver
        .bodies()
        .into_iter()
        .map(|body| (body["type"].clone(), body["target_id"].clone(), body["final"].clone()))
        .collect();
    let target = json!(preview.id);
    let update = |last| (json!("message.update"), target.clone(), json!(last));
    let plain = |last| (json!("message"), Value::Null, json!(last));
    let delete = (json!("message.delete"), target.clone(), json!(false));
    assert_eq!(shown, [plain(false), update(false), update(true), update(true), plain(true), delete]);
    assert!(bridge.hook.capabilities().edits);
    assert!(hook(to_receiver(&receiver)).live().is_none(), "only where the config asks for them");
}

#[tokio::test]
async fn files_leave_with_their_bytes() {
    use channel_api::{Attachment, AttachmentKind, Media, MediaRef};
    let receiver = Receiver::start().await;
    let bridge = Bridge::start(to_receiver(&receiver)).await;
    let stored = bridge.gateway.media.store(Bytes::from_static(b"hi"), Some("text/plain".to_owned())).await;
    let gone = MediaRef { source: MediaSource::Stored("99".to_owned()), mime: None, size: None };
    let file = |media, name: &str| Attachment {
        kind: AttachmentKind::File,
        media: Some(media),
        name: Some(name.to_owned()),
        unavailable: None,
    };
    let mut reply = Reply::message("");
    reply.attachments = vec![file(stored.expect("stored"), "a.txt"), file(gone, "b.txt")];
    let [part]: [_; 1] = bridge.hook.render(&reply, channel_api::Level::Rich).try_into().expect("one part");
    bridge.hook.send(&room(), &part, &key("pt_1")).await.expect("posted");
    assert_eq!(
        receiver.bodies()[0]["attachments"],
        json!([
            { "kind": "file", "name": "a.txt", "mime": "text/plain", "size": 2, "data": "aGk=" },
            { "kind": "file", "name": "b.txt", "unavailable": "the file is no longer kept" },
        ])
    );
}
