//! The HTTP side over a real socket, against events in memory and an intake that answers what a test says.

use std::{collections::HashMap, sync::Arc, time::Duration};

use channel_api::{Accepted, Clock, InboxId, Intake, IntakeError};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::fake::{Door, Echo, Rows};
use super::{
    Access, Http, Limits,
    config::{LocalClients, ServerConfig},
    routes, web,
};
use crate::{
    agent::Agents,
    channels::{Channels, Entry},
    clock::SystemClock,
    data_dir::TOKEN,
    intake::{
        access::{AccessConfig, ChannelPolicy},
        pairing,
    },
    journal::{Journal, LiveRow},
    session::SessionKey,
    store::{AccessRows, AccessStore, Store},
    supervisor::Health,
    upkeep::Ready,
};

mod fake;
mod listings;
mod sockets;

const GOOD: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const NEW: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";
const MAIN: &str = "agent:main:main";
/// Nothing here takes this long.
const SOON: Duration = Duration::from_secs(20);

struct Gateway {
    url: String,
    channels_url: String,
    client: Client,
    dir: tempfile::TempDir,
    rows: Arc<Rows>,
    door: Arc<Door>,
    journal: Journal,
    ready: Ready,
    health: Health,
    stopping: CancellationToken,
    abort: CancellationToken,
    written: tokio::sync::Mutex<mpsc::UnboundedReceiver<bool>>,
    tasks: JoinSet<()>,
}

async fn gateway() -> Gateway {
    start(ServerConfig::default(), Limits { wrong_token: Duration::ZERO, ..Limits::default() }).await
}

async fn start(config: ServerConfig, limits: Limits) -> Gateway {
    let (rows, door) = (Arc::new(Rows::default()), Arc::new(Door::default()));
    start_on(config, limits, Journal::new(), (rows.clone(), door.clone()), |channels| {
        let access = access_on(rows.clone(), channels);
        (rows, door, access)
    })
    .await
}

/// Who may write, on a store in which nobody was let in or shut out yet.
fn access_on(store: Arc<dyn AccessStore>, channels: &Channels) -> Arc<pairing::Access> {
    let clock = Arc::new(SystemClock::new());
    Arc::new(pairing::Access::with(&AccessRows::default(), store, channels.clone(), clock, pairing::Reach::default()))
}

/// A gateway on a store and an intake of the caller's own; `fakes` are those that tests look into.
async fn start_on(
    config: ServerConfig,
    limits: Limits,
    journal: Journal,
    fakes: (Arc<Rows>, Arc<Door>),
    parts: impl FnOnce(&Channels) -> (Arc<dyn Store>, Arc<dyn Intake>, Arc<pairing::Access>),
) -> Gateway {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join(TOKEN), GOOD).expect("it can be written");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (told, written) = mpsc::unbounded_channel();
    let echo = Echo::new(told);
    let access = AccessConfig::default();
    let mut entries = vec![Entry::new(echo.clone(), ChannelPolicy::default(), &access, false)];
    for (channel, policy, owner) in web::channels(&config) {
        entries.push(Entry::new(channel, policy, &access, owner));
    }
    let channels = Channels::new(entries);
    let (store, intake, access) = parts(&channels);
    let context = fake::context(intake.clone(), clock.clone());
    let (ready, health, stopping) = (Ready::default(), Health::default(), CancellationToken::new());
    let rows = Arc::clone(&store) as Arc<dyn crate::store::LedgerStore>;
    let zone = jiff::tz::TimeZone::UTC;
    let ledger = crate::ledger::Ledger::new(rows, clock.clone(), zone, Default::default(), Default::default());
    let ledger = Arc::new(ledger);
    let http = Arc::new(Http {
        initiative: None,
        config,
        data_dir: dir.path().to_owned(),
        intake,
        channels,
        contexts: HashMap::from([(echo.id.clone(), context)]),
        running: crate::inbox::Running::default(),
        work: crate::inbox::WakeUp::default(),
        store,
        journal: journal.clone(),
        health: health.clone(),
        agents: Agents::new([]),
        memories: crate::memory::Memories::default(),
        access,
        turned_away: Default::default(),
        halt: Default::default(),
        ledger,
        doors: crate::config::doors::doors(&Default::default(), crate::lang::Lang::En),
        clock,
        ready: ready.clone(),
        stopping: stopping.clone(),
        redactor: crate::secrets::Redactor::default(),
    });
    let main = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let second = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().expect("it listens"));
    let (main_url, channels_url) = (url(&main), url(&second));
    let mut tasks = JoinSet::new();
    let abort = CancellationToken::new();
    tasks.spawn(http.serve_within(main, Some(second), abort.clone(), limits));
    let client = Client::builder().no_proxy().timeout(SOON).build().expect("a client");
    let written = tokio::sync::Mutex::new(written);
    let (rows, door) = fakes;
    let url = main_url;
    Gateway { url, channels_url, client, dir, rows, door, journal, ready, health, stopping, abort, written, tasks }
}

impl Gateway {
    fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = method.parse().expect("a method");
        self.client.request(method, format!("{}{path}", self.url))
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.request("GET", path)
    }

    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.request("POST", path).json(body)
    }

    fn host(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// One event of a task.
    fn add(&self, task: &str, kind: &str, data: Value) -> i64 {
        self.rows.add(&self.journal, task, MAIN, kind, data, false)
    }

    fn delta(&self, task: &str, text: &str) {
        self.journal.live(LiveRow {
            seq: None,
            task: InboxId::from(task.to_owned()),
            session: SessionKey::from(MAIN.to_owned()),
            kind: "text_delta".to_owned(),
            data: json!({ "text": text }),
        });
    }

    /// Logs a browser in: its cookie and its CSRF token.
    async fn log_in(&self) -> (String, String) {
        let answer = sent(self.post("/api/login", &json!({ "token": GOOD })).header("origin", &self.url)).await;
        assert_eq!(answer.status(), 200);
        let cookie = answer.headers()["set-cookie"].to_str().expect("text").to_owned();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let csrf = answer.json::<Value>().await.expect("JSON")["csrf"].as_str().expect("a CSRF token").to_owned();
        (cookie.split(';').next().unwrap_or_default().to_owned(), csrf)
    }

    async fn was_written(&self) -> bool {
        let mut told = self.written.lock().await;
        let told = timeout(SOON, told.recv()).await.expect("it is told soon");
        told.expect("the channel lives")
    }
}

async fn sent(request: RequestBuilder) -> Response {
    request.send().await.expect("an answer")
}

async fn status(request: RequestBuilder) -> u16 {
    sent(request).await.status().as_u16()
}

async fn code(request: RequestBuilder) -> (u16, String) {
    let answer = sent(request).await;
    let status = answer.status().as_u16();
    let body: Value = answer.json().await.expect("a JSON error");
    assert_eq!(body["success"], false);
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// An address of a route's pattern.
fn example(path: &str) -> String {
    path.replace("{kind}", "echo")
        .replace("{account}", "one")
        .replace("{*rest}", "x")
        .replace("{name}", "chat.js")
        .replace("{key}", "agent:main:main")
        .replace("{id}", "tn_1")
}

/// Reads a stream of events until `count` of them came; those without a number have `null` as `id`.
struct Events(Response, String);

impl Events {
    async fn open(request: RequestBuilder) -> Self {
        let answer = sent(request).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut events = Self(answer, String::new());
        // The greeting: from here on nothing is missed.
        while !events.1.contains(": hello\n\n") {
            events.more().await;
        }
        events
    }

    async fn more(&mut self) -> bool {
        let chunk = timeout(SOON, self.0.chunk()).await.expect("it comes soon").unwrap_or_default();
        if let Some(chunk) = &chunk {
            self.1.push_str(std::str::from_utf8(chunk).expect("UTF-8"));
        }
        chunk.is_some()
    }

    async fn next(&mut self) -> Option<(Option<i64>, Value)> {
        loop {
            while let Some((event, rest)) = self.1.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.1 = rest;
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                if let Some(data) = field("data: ") {
                    let id = field("id: ").map(|id| id.parse().expect("a number"));
                    return Some((id, serde_json::from_str(&data).expect("JSON")));
                }
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// The next events as `id type text-or-result`.
    async fn lines(&mut self, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for _ in 0..count {
            let (id, event) = self.next().await.expect("an event");
            let id = id.map_or("-".to_owned(), |id| id.to_string());
            let text = ["text", "result"].iter().find_map(|key| event[*key].as_str()).unwrap_or_default();
            let replace = if event["replace"] == true { "!" } else { "" };
            lines.push(
                format!("{id} {}{replace} {text}", event["type"].as_str().unwrap_or_default()).trim_end().to_owned(),
            );
        }
        lines
    }
}

fn bearer(request: RequestBuilder, token: &str) -> RequestBuilder {
    request.bearer_auth(token)
}

// ---- the door ----

#[test]
fn two_listeners_full_of_connections_leave_files_to_open() {
    for (files, expected) in [(Some(1024), 384), (Some(65_536), 1024), (None, 1024), (Some(64), 16), (Some(0), 1)] {
        assert_eq!(Limits::default().within(files).connections, expected, "{files:?}");
    }
}

#[tokio::test]
async fn every_route_is_closed_but_the_public_ones() {
    let gateway = gateway().await;
    gateway.ready.started();
    let mut open = Vec::new();
    for route in routes() {
        let method = route.method.as_ref().map_or("POST", |method| method.as_str());
        let path = example(route.path);
        let without = status(gateway.request(method, &path).json(&json!({}))).await;
        let wrong = status(bearer(gateway.request(method, &path).json(&json!({})), NEW)).await;
        match route.access {
            Access::Public | Access::Channel => {
                open.push(format!("{method} {}", route.path));
            }
            // Off here, as it is unless somebody switches it on.
            Access::Hooks => assert_eq!((without, wrong), (404, 404), "{method} {path}"),
            Access::Token | Access::Local => {
                assert_eq!(without, 401, "{method} {path}");
                // The first ten wrong ones are 401 themselves.
                assert!(wrong == 401 || wrong == 429, "{method} {path}: {wrong}");
            }
        }
    }
    assert_eq!(
        open,
        [
            "GET /healthz",
            "GET /readyz",
            "POST /channels/{kind}/{account}",
            "POST /channels/{kind}/{account}/{*rest}",
            "GET /",
            "GET /assets/{name}",
            "POST /api/login",
        ]
    );
    // What no line opens is closed, whatever its method.
    assert_eq!(status(gateway.request("DELETE", "/api/chat")).await, 401);
    assert_eq!(status(bearer(gateway.request("DELETE", "/api/chat").json(&json!({})), GOOD)).await, 405);
    assert_eq!(status(gateway.get("/nothing")).await, 404);
    assert_eq!(status(gateway.get("/channels/webhook//hook/../admin")).await, 404);
}

#[tokio::test]
async fn every_answer_carries_the_protecting_headers() {
    let gateway = gateway().await;
    let mut addresses: Vec<(String, String)> = routes()
        .into_iter()
        .map(|route| (route.method.map_or("POST".to_owned(), |method| method.to_string()), example(route.path)))
        .collect();
    addresses.push(("GET".into(), "/nothing".into()));
    addresses.push(("PUT".into(), "/healthz".into()));
    for (method, path) in addresses {
        let (cookie, csrf) = gateway.log_in().await;
        let request =
            gateway.request(&method, &path).json(&json!({})).header("cookie", cookie).header("x-csrf-token", csrf);
        let answer = sent(request).await;
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let policy = header("content-security-policy");
        for directive in [
            "default-src 'self'",
            "script-src 'self'",
            "object-src 'none'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(directive), "{method} {path}: {policy}");
        }
        assert_eq!(
            ["cache-control", "x-content-type-options", "referrer-policy", "x-frame-options"].map(header),
            ["no-store", "nosniff", "no-referrer", "DENY"],
            "{method} {path}"
        );
        assert!(answer.headers().get("access-control-allow-origin").is_none());
    }
}

#[tokio::test]
async fn another_name_for_this_machine_gets_nothing() {
    let gateway = gateway().await;
    for route in routes() {
        let method = route.method.as_ref().map_or("POST", |method| method.as_str());
        let request = gateway.request(method, &example(route.path)).json(&json!({}));
        let refused = code(bearer(request, GOOD).header("host", "evil.test")).await;
        assert_eq!(refused, (421, "wrong_host".into()), "{}", route.path);
    }
    let name =
        start(ServerConfig { hosts: vec!["bot.example.org".into()], ..ServerConfig::default() }, Limits::default())
            .await;
    assert_eq!(status(name.get("/healthz").header("host", "bot.example.org")).await, 200);
    // The second listener has no such rule: platforms call it by any name.
    let second = format!("{}/channels/echo/one", gateway.channels_url);
    assert_eq!(status(gateway.client.post(second).header("host", "evil.test").body("x")).await, 200);
}

#[tokio::test]
async fn the_second_listener_serves_channels_alone() {
    let gateway = gateway().await;
    for path in ["/", "/healthz", "/api/me", "/sse", "/api/chat", "/assets/chat.js"] {
        let request = gateway.client.get(format!("{}{path}", gateway.channels_url));
        assert_eq!(status(bearer(request, GOOD)).await, 404, "{path}");
    }
}

#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    let gateway = gateway().await;
    let (cookie, csrf) = gateway.log_in().await;
    let chat = |origin: &str| {
        let request = gateway.post("/api/chat", &json!({ "message": "hello" }));
        request.header("cookie", &cookie).header("x-csrf-token", &csrf).header("origin", origin)
    };
    let same = gateway.url.clone();
    assert_eq!(status(chat(&same)).await, 200);
    for origin in [
        "null",
        "http://localhost.evil.com",
        "http://evil.test",
        "http://127.0.0.1",
        "file://",
        "",
        &format!("{same}0"),
    ] {
        assert_eq!(status(chat(origin)).await, 403, "{origin}");
    }
    // A page that cannot read the answer may still ask: by the browser's own word it is another's.
    let image = gateway.get("/sse").header("cookie", &cookie).header("sec-fetch-site", "cross-site");
    assert_eq!(status(image.header("sec-fetch-mode", "no-cors").header("sec-fetch-dest", "image")).await, 403);
    // A link from elsewhere opens the page.
    let link = gateway.get("/").header("sec-fetch-site", "cross-site");
    assert_eq!(status(link.header("sec-fetch-mode", "navigate").header("sec-fetch-dest", "document")).await, 200);
    // A token in a page's request is no pass: pages log in.
    assert_eq!(status(bearer(gateway.get("/api/me").header("origin", &same), GOOD)).await, 401);
}

#[tokio::test]
async fn a_browser_logs_in_changes_things_with_its_csrf_header_and_logs_out() {
    let gateway = gateway().await;
    let (cookie, csrf) = gateway.log_in().await;
    let chat = || gateway.post("/api/chat", &json!({ "message": "hello" })).header("cookie", &cookie);
    assert_eq!(code(chat()).await, (403, "csrf".into()));
    assert_eq!(code(chat().header("x-csrf-token", "0".repeat(64))).await, (403, "csrf".into()));
    assert_eq!(status(chat().header("x-csrf-token", &csrf)).await, 200);
    let me: Value = sent(gateway.get("/api/me").header("cookie", &cookie)).await.json().await.expect("JSON");
    assert_eq!(me["csrf"], csrf.as_str());
    // A form cannot say JSON.
    let form = gateway.request("POST", "/api/chat").header("cookie", &cookie).header("x-csrf-token", &csrf);
    let form = form.header("content-type", "application/x-www-form-urlencoded").body("message=hello");
    assert_eq!(status(form).await, 415);
    assert_eq!(status(gateway.request("POST", "/api/login").body(format!(r#"{{"token":"{GOOD}"}}"#))).await, 415);
    // Changed by a digit, it is no session of ours.
    let forged = cookie.replacen("=1", "=2", 1);
    assert_ne!(forged, cookie);
    assert_eq!(status(gateway.get("/api/me").header("cookie", forged)).await, 401);
    let logout = gateway.post("/api/logout", &json!({})).header("cookie", &cookie).header("x-csrf-token", &csrf);
    assert_eq!(status(logout).await, 200);
    assert_eq!(status(gateway.get("/api/me").header("cookie", &cookie)).await, 401);
}

#[tokio::test]
async fn guessing_ends_soon_and_never_locks_the_owner_out() {
    let gateway = gateway().await;
    for n in 0..10 {
        let guess = json!({ "token": format!("{n}{}", &NEW[1..]), "deviceToken": n });
        assert_eq!(status(gateway.post("/api/login", &guess)).await, 401);
    }
    assert_eq!(code(gateway.post("/api/login", &json!({ "token": NEW }))).await, (429, "too_many_attempts".into()));
    let refused = sent(bearer(gateway.get("/api/me"), NEW)).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(status(bearer(gateway.get("/api/me"), GOOD)).await, 200);
    gateway.log_in().await;
}

#[tokio::test]
async fn a_new_token_ends_what_the_old_one_opened() {
    let gateway = gateway().await;
    let (cookie, _) = gateway.log_in().await;
    let mut events = Events::open(bearer(gateway.get("/sse"), GOOD)).await;
    let file = gateway.dir.path().join(TOKEN);
    std::fs::write(&file, format!("{NEW}\n")).expect("it can be written");
    assert_eq!(status(bearer(gateway.get("/api/me"), GOOD)).await, 401);
    assert_eq!(status(gateway.get("/api/me").header("cookie", cookie)).await, 401);
    assert_eq!(status(bearer(gateway.get("/api/me"), NEW)).await, 200);
    assert_eq!(events.next().await, None);
    // Without a token nobody gets in.
    std::fs::remove_file(&file).expect("it was there");
    assert_eq!(status(bearer(gateway.get("/api/me"), NEW)).await, 401);
    assert_eq!(status(bearer(gateway.get("/api/me"), "")).await, 401);
}

#[tokio::test]
async fn local_programs_talk_in_their_own_sessions_where_the_owner_allows_it() {
    let closed = gateway().await;
    assert_eq!(status(closed.post("/api/chat", &json!({ "message": "hello" }))).await, 401);
    let config = ServerConfig { local_clients: LocalClients::Open, ..ServerConfig::default() };
    let gateway = start(config, Limits { wrong_token: Duration::ZERO, ..Limits::default() }).await;
    let chat = |session: Value| gateway.post("/api/chat", &json!({ "message": "hello", "session": session }));
    let answer: Value = sent(chat(Value::Null)).await.json().await.expect("JSON");
    assert_eq!(answer["session"], "agent:main:web:local-main");
    let answer: Value = sent(chat(json!("main"))).await.json().await.expect("JSON");
    assert_eq!(answer["session"], "agent:main:web:local-main");
    let again: Value = sent(chat(answer["session"].clone())).await.json().await.expect("JSON");
    assert_eq!(again["session"], "agent:main:web:local-main");
    {
        let taken = gateway.door.taken.lock().expect("no test panics with it");
        assert_eq!((taken[0].channel.as_str(), taken[0].sender.id.as_str()), ("web:local", "local"));
    }
    for (name, value) in
        [("origin", gateway.url.as_str()), ("x-forwarded-for", "10.0.0.1"), ("sec-fetch-site", "same-origin")]
    {
        assert_eq!(status(chat(Value::Null).header(name, value)).await, 401, "{name}");
    }
    assert_eq!(status(gateway.get("/api/me")).await, 401);
    assert_eq!(status(bearer(chat(json!("local-main")), GOOD)).await, 422);

    let mut mine = Events::open(gateway.get("/sse")).await;
    let mut named = Events::open(gateway.get(&format!("/sse?session={MAIN}&taskId=in_owner"))).await;
    let mut task = Events::open(gateway.get("/sse?taskId=in_owner")).await;
    let add = |task: &str, session: &str| {
        gateway.rows.add(&gateway.journal, task, session, "task_complete", json!({ "result": session }), false);
    };
    add("in_owner", MAIN);
    gateway.delta("in_owner", "secret");
    add("in_local", "agent:main:web:local-main");
    assert_eq!(mine.lines(1).await, ["2 task_complete agent:main:web:local-main"]);
    gateway.stopping.cancel();
    assert_eq!(named.next().await, None);
    assert_eq!(task.next().await, None);
}

// ---- health ----

#[tokio::test]
async fn readiness_follows_the_start_the_store_and_the_stop() {
    let gateway = gateway().await;
    let state = || async { (status(gateway.get("/healthz")).await, status(gateway.get("/readyz")).await) };
    assert_eq!(state().await, (200, 503));
    gateway.ready.started();
    assert_eq!(state().await, (200, 200));
    gateway.ready.store(false);
    assert_eq!(state().await, (200, 503));
    gateway.ready.store(true);
    gateway.stopping.cancel();
    assert_eq!(state().await, (200, 503));
}

// ---- /api/chat ----

#[tokio::test]
async fn a_message_goes_to_its_session_under_its_own_key() {
    let gateway = gateway().await;
    let chat = |body: Value| bearer(gateway.post("/api/chat", &body), GOOD).header("idempotency-key", "k-1");
    let answer: Value = sent(chat(json!({ "message": "你好", "more": [1] }))).await.json().await.expect("JSON");
    assert_eq!(answer, json!({ "success": true, "taskId": "in_1", "session": MAIN }));
    let answer: Value = sent(chat(json!({ "message": "/stop", "session": "a:b" }))).await.json().await.expect("JSON");
    assert_eq!(answer["session"], "agent:main:web:a%3Ab");
    let answer: Value =
        sent(chat(json!({ "message": "x", "session": "agent:main:web:a%3Ab" }))).await.json().await.expect("JSON");
    assert_eq!(answer["session"], "agent:main:web:a%3Ab");
    let taken = gateway.door.taken.lock().expect("no test panics with it");
    assert_eq!(taken[0].text, "你好");
    assert_eq!((taken[0].channel.as_str(), taken[0].sender.id.as_str()), ("web:main", "token"));
    assert_eq!(taken[0].platform_id, "k-1");
    assert!(taken[0].fingerprint.is_some() && taken[0].fingerprint != taken[1].fingerprint);
    assert_eq!(taken[2].conversation.id, "a:b");
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused_by_its_reason() {
    let gateway = gateway().await;
    let raw = |body: String| {
        bearer(gateway.request("POST", "/api/chat"), GOOD).header("content-type", "application/json").body(body)
    };
    for (body, wanted) in [
        ("", (400, "bad_json")),
        ("hello", (400, "bad_json")),
        ("null", (400, "bad_json")),
        ("[]", (400, "bad_json")),
        (&"[".repeat(5000), (400, "bad_json")),
        (&format!(r#"{{"message":"x","y":{}1{}}}"#, "[".repeat(64), "]".repeat(64)), (400, "bad_json")),
        ("{}", (422, "invalid")),
        (r#"{"message":1}"#, (422, "invalid")),
        (r#"{"message":"  "}"#, (422, "invalid")),
        (r#"{"message":"x","session":7}"#, (422, "invalid")),
        (r#"{"message":"x","session":"agent:main:telegram:direct:1"}"#, (422, "invalid")),
        (&format!(r#"{{"message":"{}"}}"#, "x".repeat(1 << 20)), (413, "too_large")),
    ] {
        let (status, name) = code(raw(body.to_owned())).await;
        assert_eq!((status, name.as_str()), wanted, "{}", &body[..body.len().min(60)]);
    }
    assert_eq!(status(raw("{}".into()).header("content-encoding", "gzip")).await, 415);
    assert_eq!(status(raw(r#"{"message":"x"}"#.into()).header("idempotency-key", "k".repeat(129))).await, 422);
    assert!(gateway.door.taken.lock().expect("no test panics with it").is_empty());

    let wait = Duration::from_secs(7);
    for (answer, wanted) in [
        (Ok(Accepted::Full(wait)), (429, "session_full")),
        (Ok(Accepted::Conflict), (409, "id_conflict")),
        (Ok(Accepted::Ignored(channel_api::IgnoredReason::NothingToAnswer)), (403, "not_accepted")),
        (Err(IntakeError::Busy(wait)), (503, "busy")),
        (Err(IntakeError::Unavailable("disk full: /secret/path".into())), (503, "unavailable")),
    ] {
        gateway.door.answers.lock().expect("no test panics with it").push_back(answer.clone());
        let refused = sent(raw(r#"{"message":"x"}"#.into())).await;
        assert_eq!(refused.headers().contains_key("retry-after"), matches!(wanted.0, 429 | 503), "{answer:?}");
        let status = refused.status().as_u16();
        let body = refused.text().await.expect("text");
        assert_eq!((status, body.contains(wanted.1)), (wanted.0, true), "{body}");
        assert!(!body.contains("/secret"), "{body}");
    }
    gateway
        .door
        .answers
        .lock()
        .expect("no test panics with it")
        .push_back(Ok(Accepted::Duplicate(InboxId::from("in_0".to_owned()))));
    let again: Value = sent(raw(r#"{"message":"x"}"#.into())).await.json().await.expect("JSON");
    assert_eq!(again, json!({ "success": true, "taskId": "in_0", "session": MAIN, "duplicate": true }));
}

// ---- /sse ----

#[tokio::test]
async fn events_come_live_with_the_ids_of_their_rows() {
    let gateway = gateway().await;
    gateway.add("in_old", "task_complete", json!({ "result": "before" }));
    let mut events = Events::open(bearer(gateway.get("/sse"), GOOD)).await;
    gateway.add("in_1", "turn_started", json!({ "turn": "tn_1" }));
    gateway.delta("in_1", "Hel");
    gateway.delta("in_1", "lo");
    gateway.add("in_1", "task_complete", json!({ "result": "Hello", "type": "forged" }));
    assert_eq!(
        events.lines(4).await,
        ["2 turn_started", "- text_delta Hel", "- text_delta lo", "3 task_complete Hello"]
    );
    gateway.add("in_2", "turn_started", json!({ "turn": "tn_2" }));
    let whole = json!({ "type": "turn_started", "taskId": "in_2", "session": MAIN, "turn": "tn_2" });
    assert_eq!(events.next().await, Some((Some(4), whole)));
    gateway.stopping.cancel();
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn whoever_asks_for_a_task_sees_all_of_it() {
    let gateway = gateway().await;
    gateway.add("in_1", "turn_started", json!({}));
    gateway.add("in_2", "turn_started", json!({}));
    gateway.add("in_1", "task_complete", json!({ "result": "done" }));
    let mut events = Events::open(bearer(gateway.get("/sse?taskId=in_1"), GOOD)).await;
    assert_eq!(events.lines(2).await, ["1 turn_started", "3 task_complete done"]);
    let other = gateway.rows.add(&gateway.journal, "in_3", "agent:main:web:x", "turn_started", json!({}), false);
    let mut session = Events::open(bearer(gateway.get("/sse?session=x&lastEventId=0"), GOOD)).await;
    assert_eq!(session.lines(1).await, [format!("{other} turn_started")]);
}

#[tokio::test]
async fn after_a_break_the_missed_rows_come_and_then_the_text_whole() {
    let gateway = gateway().await;
    let mut first = Events::open(bearer(gateway.get("/sse"), GOOD)).await;
    gateway.add("in_1", "turn_started", json!({}));
    gateway.delta("in_1", "One ");
    assert_eq!(first.lines(2).await, ["1 turn_started", "- text_delta One"]);
    drop(first);
    gateway.add("in_0", "task_complete", json!({ "result": "missed" }));
    // Somebody else still watches, so texts are still being told.
    let mut other = Events::open(bearer(gateway.get("/sse"), GOOD)).await;
    gateway.delta("in_1", "two ");
    assert_eq!(other.lines(1).await, ["- text_delta! One two"]);
    let mut again = Events::open(bearer(gateway.get("/sse").header("last-event-id", "1"), GOOD)).await;
    gateway.delta("in_1", "three");
    gateway.delta("in_1", " four");
    let last = gateway.add("in_1", "task_complete", json!({ "result": "One two three four" }));
    assert_eq!(
        again.lines(4).await,
        [
            "2 task_complete missed".to_owned(),
            "- text_delta! One two three".to_owned(),
            "- text_delta  four".to_owned(),
            format!("{last} task_complete One two three four"),
        ]
    );
    assert_eq!(status(bearer(gateway.get("/sse").header("last-event-id", "x"), GOOD)).await, 400);
}

#[tokio::test]
async fn rows_that_were_told_late_or_not_at_all_come_once_and_in_order() {
    let gateway = gateway().await;
    let mut events = Events::open(bearer(gateway.get("/sse"), GOOD)).await;
    gateway.rows.add(&gateway.journal, "in_1", MAIN, "task_complete", json!({ "result": "quiet" }), true);
    gateway.add("in_2", "task_complete", json!({ "result": "told" }));
    assert_eq!(events.lines(2).await, ["1 task_complete quiet", "2 task_complete told"]);
    gateway.rows.add(&gateway.journal, "in_3", MAIN, "task_complete", json!({ "result": "a command" }), true);
    gateway.journal.look(&InboxId::from("in_3".to_owned()), &SessionKey::from(MAIN.to_owned()));
    assert_eq!(events.lines(1).await, ["3 task_complete a command"]);
    // Told again after it was read: nothing comes of it.
    let row = gateway.rows.0.lock().expect("no test panics with it")[2].clone();
    gateway.journal.committed(vec![row]);
    gateway.add("in_4", "task_complete", json!({ "result": "next" }));
    assert_eq!(events.lines(1).await, ["4 task_complete next"]);
}

#[tokio::test]
async fn a_watcher_who_lagged_behind_still_gets_every_row() {
    let gateway = gateway().await;
    let mut events = Events::open(bearer(gateway.get("/sse"), GOOD)).await;
    for n in 0..20_000 {
        gateway.add("in_1", "tool_end", json!({ "result": n.to_string() }));
    }
    for n in 0..20_000 {
        let (id, event) = events.next().await.expect("an event");
        assert_eq!((id, event["result"].as_str()), (Some(n + 1), Some(n.to_string().as_str())));
    }
}

#[tokio::test]
async fn a_quiet_stream_shows_signs_of_life() {
    let limits = Limits { keep_alive: Duration::from_millis(20), ..Limits::default() };
    let gateway = start(ServerConfig::default(), limits).await;
    let mut events = Events::open(bearer(gateway.get("/sse"), GOOD)).await;
    while !events.1.contains(": still here\n\n") {
        assert!(events.more().await);
    }
}

// ---- /channels ----

#[tokio::test]
async fn an_adapter_gets_the_call_as_it_came_and_learns_that_its_answer_was_written() {
    let gateway = gateway().await;
    let call = gateway.request("PUT", "/channels/echo/one/messages/m%2D1?a=%20b").body("raw");
    let answer: Value = sent(call).await.json().await.expect("JSON");
    assert_eq!(answer, json!({ "method": "PUT", "path": "/messages/m-1", "query": "a=%20b", "body": "raw" }));
    assert!(gateway.was_written().await);
    for path in ["/channels/echo/two", "/channels/web/main", "/channels/echo/one/%2e%2e/x"] {
        assert_eq!(status(gateway.post(path, &json!({}))).await, 404, "{path}");
    }
}

#[tokio::test]
async fn an_adapter_learns_that_the_peer_went_away() {
    let gateway = gateway().await;
    for path in ["/large", "/stream"] {
        let mut peer = TcpStream::connect(gateway.host()).await.expect("a connection");
        let request = format!("GET /channels/echo/one{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        peer.write_all(request.as_bytes()).await.expect("it is sent");
        let mut some = [0; 1000];
        assert!(peer.read(&mut some).await.expect("the answer begins") > 0);
        drop(peer);
        assert!(!gateway.was_written().await, "{path}");
    }
}

#[tokio::test]
async fn row_37_bodies_have_bounds_whatever_their_headers_say() {
    let limits = Limits { head: Duration::from_millis(200), body: Duration::from_millis(200), ..Limits::default() };
    let gateway = start(ServerConfig::default(), limits).await;
    let head = "POST /channels/echo/one HTTP/1.1\r\nHost: localhost\r\n";
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    let endless = format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}{chunk}");
    let cases = [
        ("chunked without end", endless.as_str(), "HTTP/1.1 413"),
        (
            "larger than allowed",
            "POST /channels/echo/one HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\nx",
            "HTTP/1.1 413",
        ),
        (
            "shorter than promised",
            "POST /channels/echo/one HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx",
            "HTTP/1.1 408",
        ),
        ("a head without end", "POST /channels/echo/one HTTP/1.1\r\nHost: loc", ""),
        (
            "two lengths",
            "POST /channels/echo/one HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
            "HTTP/1.1 400",
        ),
        ("no host", "POST /channels/echo/one HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 421"),
        ("two hosts", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", "HTTP/1.1 421"),
        (
            "another host in its line",
            "GET http://evil.test/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "HTTP/1.1 421",
        ),
    ];
    for (what, request, wanted) in cases {
        let mut peer = TcpStream::connect(gateway.host()).await.expect("a connection");
        peer.write_all(request.as_bytes()).await.expect("it is sent");
        let mut answer = Vec::new();
        // Every one of them ends by the gateway's hand but those that may be followed by another request.
        let keeps = wanted.contains("421");
        if keeps {
            let mut some = vec![0; 4000];
            let read = timeout(SOON, peer.read(&mut some)).await.expect("soon").expect("an answer");
            answer.extend_from_slice(&some[..read]);
        } else {
            timeout(SOON, peer.read_to_end(&mut answer)).await.expect("soon").expect("an end");
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(wanted), "{what}: {answer}");
        assert!(!wanted.is_empty() || answer.is_empty(), "{what}: {answer}");
    }
    let gzip = gateway.request("POST", "/channels/echo/one").header("content-encoding", "gzip").body("x");
    assert_eq!(code(gzip).await, (415, "unsupported_encoding".into()));
    // A sender of three MiB still gets to read why.
    assert_eq!(
        code(gateway.request("POST", "/channels/echo/one").body("x".repeat(3 << 20))).await,
        (413, "too_large".into())
    );
    assert_eq!(status(gateway.request("POST", "/channels/echo/one").body("x")).await, 200);
}

// ---- the page ----

#[tokio::test]
async fn row_34_the_page_has_nothing_inline_and_fetches_nothing_from_elsewhere() {
    let gateway = gateway().await;
    let page = sent(gateway.get("/")).await.text().await.expect("text");
    assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick"), "{page}");
    for script in page.match_indices("<script") {
        assert!(page[script.0..].starts_with(r#"<script type="module" src="/assets/"#));
    }
    for name in ["chat.js", "chat.css", "icon.svg"] {
        assert!(page.contains(&format!("/assets/{name}")));
        let text = sent(gateway.get(&format!("/assets/{name}"))).await.text().await.expect("text");
        let foreign = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!foreign.contains("http://") && !foreign.contains("https://") && !text.contains("innerHTML"), "{name}");
    }
    assert_eq!(status(gateway.get("/assets/..%2ftoken")).await, 404);
}
