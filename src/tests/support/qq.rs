//! QQ's open platform with the semantics that matter: a gateway whose sessions keep their events until they are resumed
//! past them, tokens that run out, answers counted by message and refused under a number that was used, files bound to
//! their chat. Records every call; makes the faults a test wants. Signs nothing itself: whoever posts an event to a
//! webhook brings the signature.

#![allow(dead_code, reason = "the adapter's tests and the gateway's journeys each use a part of it")]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{
        Path, State, WebSocketUpgrade,
        ws::{CloseFrame, Message, WebSocket},
    },
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::Response,
    routing::{any, get},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};

/// The bot's AppID.
pub const APP_ID: &str = "102012345";
/// The bot's AppSecret.
pub const APP_SECRET: &str = "DG5g3B4j9X2KOErG";
/// The bot's id in guilds.
pub const BOT_ID: &str = "7788";
/// The longest wait for something that is expected.
const SOON: Duration = Duration::from_secs(30);

/// What happens to one call instead of, or after, the ordinary.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status, code and words; nothing is done.
    Refuse(u16, i64, &'static str),
    /// This status and body; nothing is done.
    Body(u16, &'static str),
    /// It is done, and the answer breaks off.
    DoneThenReset,
    /// Nothing is done, and the answer breaks off.
    Reset,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// `POST /v2/users/U/messages`.
    pub what: String,
    /// Its JSON; for a form, its length in bytes.
    pub body: Value,
}

/// A message that people see.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The path it was posted to, e.g. `/v2/users/U`.
    pub to: String,
    /// What was posted.
    pub body: Value,
    /// Its id.
    pub id: String,
}

impl Sent {
    /// What is read.
    pub fn text(&self) -> &str {
        self.body
            .pointer("/markdown/content")
            .or_else(|| self.body.get("content"))
            .and_then(Value::as_str)
            .unwrap_or("")
    }

    /// `msg_seq`.
    pub fn seq(&self) -> Option<u64> {
        self.body.get("msg_seq").and_then(Value::as_u64)
    }
}

/// What the platform knows and what was asked of it.
#[derive(Default)]
pub struct Told {
    /// Every call, in order.
    pub calls: Vec<Call>,
    /// What people see.
    pub sent: Vec<Sent>,
    /// Uploaded files: their chat's path, type and bytes (base64).
    pub files: Vec<(String, u64, String)>,
    /// How many tokens were given out.
    pub tokens: usize,
    /// Connections that are open now.
    pub open: usize,
    /// Connections that were opened.
    pub opened: usize,
    /// The intents of each identify.
    pub identified: Vec<u64>,
    /// The number from which each resume went on.
    pub resumed: Vec<u64>,
    /// What each heartbeat named.
    pub beats: Vec<Value>,
    /// Interactions that were confirmed.
    pub confirmed: Vec<String>,
    /// Files that people sent, by name.
    media: HashMap<String, Bytes>,
    faults: HashMap<&'static str, VecDeque<Fault>>,
    valid: BTreeSet<String>,
    used: BTreeMap<String, BTreeSet<u64>>,
    sessions: HashMap<String, Vec<Value>>,
    /// The session that events go to.
    current: Option<String>,
    line: Option<mpsc::UnboundedSender<Word>>,
    refused_intents: u64,
    no_markdown: bool,
    deaf: bool,
    mute: bool,
    no_sessions: bool,
}

enum Word {
    Payload(Value),
    Close(u16, String),
    Cut,
}

struct Inner {
    addr: SocketAddr,
    told: Mutex<Told>,
    changed: watch::Sender<u64>,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_modify(|n| *n += 1);
        result
    }
}

/// The platform; ends when it is dropped.
pub struct Qq {
    inner: Arc<Inner>,
    _serving: JoinSet<()>,
}

impl Qq {
    /// A platform with one bot.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let inner = Arc::new(Inner { addr, told: Mutex::default(), changed: watch::Sender::new(0) });
        let app = Router::new()
            .route("/websocket", get(gateway))
            .route("/media/{name}", get(media))
            .route("/{*path}", any(call))
            .with_state(Arc::clone(&inner));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, app).await.expect("serves") });
        Self { inner, _serving: serving }
    }

    /// The keys of a section that reach this platform.
    pub fn section(&self) -> String {
        let url = format!("http://{}", self.inner.addr);
        format!(
            "app_id = '{APP_ID}'\napp_secret = '{APP_SECRET}'\napi_url = '{url}'\ntoken_url = '{url}/app/getAppAccessToken'"
        )
    }

    /// A look at what was told.
    pub fn look<T>(&self, read: impl FnOnce(&Told) -> T) -> T {
        read(&self.inner.lock())
    }

    /// Waits until what was told fulfils `condition`.
    pub async fn until(&self, what: &str, condition: impl Fn(&Told) -> bool) {
        let mut changed = self.inner.changed.subscribe();
        let fulfilled = async {
            loop {
                if condition(&self.inner.lock()) {
                    return;
                }
                changed.changed().await.expect("the platform lives");
            }
        };
        if tokio::time::timeout(SOON, fulfilled).await.is_err() {
            let told = self.inner.lock();
            panic!("waited in vain until {what}; calls: {:#?}, open: {}", told.calls, told.open);
        }
    }

    /// The next call of `token`, `gateway`, `me`, `send`, `file` or `press` meets this.
    pub fn fault(&self, what: &'static str, fault: Fault) {
        self.inner.change(|told| told.faults.entry(what).or_default().push_back(fault));
    }

    /// Every token that was given out is void.
    pub fn revoke_tokens(&self) {
        self.inner.change(|told| told.valid.clear());
    }

    /// The bot may not send Markdown.
    pub fn forbid_markdown(&self) {
        self.inner.change(|told| told.no_markdown = true);
    }

    /// An identify with one of these bits is closed with 4014.
    pub fn refuse_intents(&self, bits: u64) {
        self.inner.change(|told| told.refused_intents = bits);
    }

    /// Heartbeats are answered or not.
    pub fn answer_heartbeats(&self, answer: bool) {
        self.inner.change(|told| told.deaf = !answer);
    }

    /// Sessions begin without a greeting, or with one.
    pub fn greet(&self, greet: bool) {
        self.inner.change(|told| told.mute = !greet);
    }

    /// Sessions are forgotten: a resume is answered with op 9.
    pub fn forget_sessions(&self) {
        self.inner.change(|told| {
            told.sessions.clear();
            told.current = None;
        });
    }

    /// No new session may be begun.
    pub fn refuse_sessions(&self) {
        self.inner.change(|told| told.no_sessions = true);
    }

    /// Says something over the open connection, as it is.
    pub fn say(&self, payload: Value) {
        let said = self.inner.lock().line.as_ref().map(|line| line.send(Word::Payload(payload)));
        assert!(matches!(said, Some(Ok(()))), "a connection is open");
    }

    /// Ends the open connection with this code.
    pub fn close(&self, code: u16, why: &str) {
        if let Some(line) = &self.inner.lock().line {
            let _ = line.send(Word::Close(code, why.to_owned()));
        }
    }

    /// Breaks the open connection without a word.
    pub fn cut(&self) {
        if let Some(line) = &self.inner.lock().line {
            let _ = line.send(Word::Cut);
        }
    }

    /// A file that somebody sends; its link.
    pub fn file(&self, name: &str, bytes: &'static [u8]) -> String {
        self.inner.change(|told| told.media.insert(name.to_owned(), Bytes::from_static(bytes)));
        format!("http://{}/media/{name}", self.inner.addr)
    }

    /// Where it is, e.g. `127.0.0.1:4711`.
    pub fn host(&self) -> String {
        self.inner.addr.to_string()
    }

    /// An event in the current session: sent now, or when the session is resumed.
    pub fn event(&self, name: &str, d: Value) {
        self.inner.change(|told| {
            let session = told.current.clone().expect("a session began");
            let log = told.sessions.get_mut(&session).expect("it is kept");
            let seq = log.len() + 2;
            let payload = json!({ "op": 0, "s": seq, "t": name, "id": format!("{name}:{seq}"), "d": d });
            log.push(payload.clone());
            if let Some(line) = &told.line {
                let _ = line.send(Word::Payload(payload));
            }
        });
    }

    /// A private message.
    pub fn c2c(id: &str, openid: &str, text: &str) -> Value {
        json!({ "id": id, "content": text, "timestamp": "2026-11-30T08:00:00+08:00",
            "author": { "id": openid, "user_openid": openid, "union_openid": "" },
            "message_scene": { "source": "default" } })
    }

    /// A message in a group that mentions the bot.
    pub fn group(id: &str, group: &str, member: &str, text: &str) -> Value {
        json!({ "id": id, "content": format!(" {text}"), "timestamp": "2026-11-30T08:00:00+08:00",
            "group_id": group, "group_openid": group, "author": { "id": member, "member_openid": member } })
    }

    /// A message in a guild's channel that mentions the bot.
    pub fn guild(id: &str, channel: &str, user: &str, text: &str) -> Value {
        json!({ "id": id, "channel_id": channel, "guild_id": "G1", "content": format!("<@!{BOT_ID}> {text}"),
            "timestamp": "2026-11-30T08:00:00+08:00", "seq": 1, "author": { "id": user, "username": "Ada", "bot": false } })
    }
}

type Gateway = State<Arc<Inner>>;

async fn media(State(inner): Gateway, Path(name): Path<String>) -> Response {
    let file = inner.lock().media.get(&name).cloned();
    let mut response = Response::new(Body::from(file.clone().unwrap_or_default()));
    *response.status_mut() = if file.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    response
}

async fn gateway(State(inner): Gateway, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(move |socket| async move { serve(inner, socket).await })
}

async fn serve(inner: Arc<Inner>, mut socket: WebSocket) {
    let (line, mut words) = mpsc::unbounded_channel();
    inner.change(|told| {
        told.open += 1;
        told.opened += 1;
    });
    talk(&inner, &mut socket, line.clone(), &mut words).await;
    inner.change(|told| {
        told.open -= 1;
        if told.line.as_ref().is_some_and(|current| current.same_channel(&line)) {
            told.line = None;
        }
    });
}

async fn talk(
    inner: &Inner,
    socket: &mut WebSocket,
    line: mpsc::UnboundedSender<Word>,
    words: &mut mpsc::UnboundedReceiver<Word>,
) {
    let hello = json!({ "op": 10, "d": { "heartbeat_interval": 41250 } });
    let _ = line.send(Word::Payload(hello));
    loop {
        tokio::select! {
            word = words.recv() => match word {
                Some(Word::Payload(payload)) => {
                    if socket.send(Message::text(payload.to_string())).await.is_err() {
                        return;
                    }
                }
                Some(Word::Close(code, why)) => {
                    let _ = socket.send(Message::Close(Some(CloseFrame { code, reason: why.into() }))).await;
                    return;
                }
                Some(Word::Cut) | None => return,
            },
            frame = socket.recv() => {
                let Some(Ok(frame)) = frame else { return };
                let Message::Text(text) = frame else { continue };
                let payload: Value = serde_json::from_str(&text).expect("the bot speaks JSON");
                inner.change(|told| answer(told, &payload, &line));
            }
        }
    }
}

fn answer(told: &mut Told, payload: &Value, line: &mpsc::UnboundedSender<Word>) {
    let say = |payload: Value| drop(line.send(Word::Payload(payload)));
    let close = |code: u16| drop(line.send(Word::Close(code, "no".to_owned())));
    let d = &payload["d"];
    let known = || d["token"].as_str().and_then(|token| token.strip_prefix("QQBot ")).map(str::to_owned);
    match payload["op"].as_u64() {
        Some(1) => {
            told.beats.push(d.clone());
            if !told.deaf {
                say(json!({ "op": 11 }));
            }
        }
        Some(2) => {
            if !known().is_some_and(|token| told.valid.contains(&token)) {
                return close(4004);
            }
            let intents = d["intents"].as_u64().expect("intents");
            told.identified.push(intents);
            if intents & told.refused_intents != 0 {
                return close(4014);
            }
            if told.mute {
                return;
            }
            let session = format!("session-{}", told.identified.len());
            told.sessions.insert(session.clone(), Vec::new());
            told.current = Some(session.clone());
            told.line = Some(line.clone());
            say(json!({ "op": 0, "s": 1, "t": "READY", "d": { "version": 1, "session_id": session,
                "user": { "id": BOT_ID, "username": "小龙虾", "bot": true }, "shard": [0, 1] } }));
        }
        Some(6) => {
            if !known().is_some_and(|token| told.valid.contains(&token)) {
                return close(4004);
            }
            let seq = d["seq"].as_u64().expect("a number");
            told.resumed.push(seq);
            let session = d["session_id"].as_str().expect("a session").to_owned();
            let Some(log) = told.sessions.get(&session) else {
                return say(json!({ "op": 9, "d": false }));
            };
            for payload in log.iter().filter(|payload| payload["s"].as_u64() > Some(seq)) {
                say(payload.clone());
            }
            say(json!({ "op": 0, "t": "RESUMED", "d": "" }));
            told.current = Some(session);
            told.line = Some(line.clone());
        }
        _ => close(4001),
    }
}

async fn call(
    State(inner): Gateway,
    Path(path): Path<String>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let what = format!("{method} {}", uri.path());
    let form = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"multipart/"));
    let value = match form {
        true => form_fields(&body),
        false => serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let segments: Vec<&str> = path.split('/').collect();
    let name = match segments.as_slice() {
        ["app", "getAppAccessToken"] => "token",
        ["gateway", "bot"] => "gateway",
        ["users", "@me"] => "me",
        ["interactions", _] => "press",
        [.., "files"] => "file",
        [.., "messages"] => "send",
        _ => return told(404, &json!({ "message": "no such path", "code": 404 })),
    };
    let (answer, fault) = inner.change(|told| {
        told.calls.push(Call { what, body: value.clone() });
        let fault = told.faults.get_mut(name).and_then(VecDeque::pop_front);
        let done = !matches!(fault, Some(Fault::Refuse(..) | Fault::Body(..) | Fault::Reset));
        let answer = done.then(|| act(told, inner.addr, name, &segments, &value, &token));
        (answer, fault)
    });
    match fault {
        Some(Fault::Refuse(status, code, message)) => told(status, &json!({ "code": code, "message": message })),
        Some(Fault::Body(status, text)) => {
            let mut response = Response::new(Body::from(text));
            *response.status_mut() = StatusCode::from_u16(status).expect("a status");
            response
        }
        Some(Fault::DoneThenReset | Fault::Reset) => {
            let broken = futures_util::stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut")) });
            Response::new(Body::from_stream(broken))
        }
        None => answer.map_or_else(|| told(500, &Value::Null), |(status, body)| told(status, &body)),
    }
}

fn act(told: &mut Told, addr: SocketAddr, name: &str, path: &[&str], body: &Value, token: &str) -> (u16, Value) {
    if name == "token" {
        if body["appId"] != APP_ID || body["clientSecret"] != APP_SECRET {
            return (200, json!({ "code": 100_016, "message": "invalid appid or secret" }));
        }
        told.tokens += 1;
        let token = format!("token-{}", told.tokens);
        told.valid.insert(token.clone());
        return (200, json!({ "access_token": token, "expires_in": "7200" }));
    }
    if !token.strip_prefix("QQBot ").is_some_and(|token| told.valid.contains(token)) {
        return (401, json!({ "code": 11_244, "message": "token expire or not exist" }));
    }
    match name {
        "gateway" => {
            let left = if told.no_sessions { 0 } else { 999 };
            (
                200,
                json!({ "url": format!("ws://{addr}/websocket"), "shards": 1,
                    "session_start_limit": { "total": 1000, "remaining": left, "reset_after": 7_000, "max_concurrency": 1 } }),
            )
        }
        "me" => (200, json!({ "id": BOT_ID, "username": "小龙虾" })),
        "press" => {
            told.confirmed.push(path[1].to_owned());
            (204, Value::Null)
        }
        "file" => {
            if body["srv_send_msg"] != json!(false) {
                return (400, json!({ "code": 1, "message": "this would be an active message" }));
            }
            let chat = format!("/{}", path[..path.len() - 1].join("/"));
            let kind = body["file_type"].as_u64().unwrap_or_default();
            told.files.push((chat.clone(), kind, body["file_data"].as_str().unwrap_or_default().to_owned()));
            (200, json!({ "file_uuid": "u", "file_info": format!("{chat}#{}", told.files.len()), "ttl": 0 }))
        }
        _ => send(told, path, body),
    }
}

fn send(told: &mut Told, path: &[&str], body: &Value) -> (u16, Value) {
    let refused = |code: i64, message: &str| (400, json!({ "code": code, "message": message, "err_code": code }));
    let to = format!("/{}", path[..path.len() - 1].join("/"));
    let v2 = path[0] == "v2";
    let Some(answers) = body["msg_id"].as_str().or_else(|| body["event_id"].as_str()) else {
        return refused(40_034_102, "主动消息失败, 无权限");
    };
    if body["msg_type"] == json!(7) {
        if body["content"].as_str().unwrap_or_default().is_empty() {
            return refused(1, "content is empty");
        }
        let info = body.pointer("/media/file_info").and_then(Value::as_str).unwrap_or_default();
        if !info.starts_with(&format!("{to}#")) {
            return refused(304_082, "file_info of another chat");
        }
    }
    if body["msg_type"] == json!(2) && told.no_markdown {
        return refused(40_034_012, "不允许发送原生 markdown");
    }
    let used = told.used.entry(answers.to_owned()).or_default();
    if v2 && !used.insert(body["msg_seq"].as_u64().unwrap_or(1)) {
        return refused(40_054_005, "消息被去重，请检查请求msgseq");
    }
    if !v2 {
        used.insert(1_000 + used.len() as u64);
    }
    if used.len() > 5 {
        return refused(40_034_025, "被动消息超过限制次数");
    }
    let id = format!("ROBOT1.0_{}", told.sent.len() + 1);
    told.sent.push(Sent { to, body: body.clone(), id: id.clone() });
    (200, json!({ "id": id, "timestamp": "2026-11-30T08:00:01+08:00" }))
}

/// The text fields of a form, and the length of its picture.
fn form_fields(body: &[u8]) -> Value {
    let text = String::from_utf8_lossy(body);
    let mut fields = json!({ "picture_bytes": body.len() });
    for part in text.split("Content-Disposition: form-data; name=\"").skip(1) {
        if let (Some((name, _)), Some((_, value))) = (part.split_once('"'), part.split_once("\r\n\r\n")) {
            fields[name] = json!(value.split("\r\n").next().unwrap_or_default());
        }
    }
    fields
}

fn told(status: u16, body: &Value) -> Response {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
