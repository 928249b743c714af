//! Discord as a bot sees it: REST, the gateway with sessions that can be resumed, and a store of files. Checks what the real one checks, drops a second message with the same nonce, makes the faults that a
//! test wants, and keeps what it was told.
//!
//! Depends on nothing of this program: adapters' tests and journeys use the same file.
#![allow(dead_code, reason = "each user of this file needs another part of it")]
#![allow(clippy::disallowed_methods, reason = "the fake is another program: it has a clock of its own")]

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{
        State,
        ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade},
    },
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::Response,
    routing::{any, get},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// The bot's token: its first part is [`BOT_ID`] in base64.
pub const TOKEN: &str = "MTAwMDAwMDAwMDAwMDAwMDAwMQ.GaBcDe.abcdefghijklmnopqrstuvwxyz0123456789-_";
/// The bot, and its application.
pub const BOT_ID: &str = "1000000000000000001";
/// A server.
pub const GUILD: &str = "2000000000000000001";
/// A channel of it.
pub const GENERAL: &str = "3000000000000000001";
/// A thread in that channel.
pub const THREAD: &str = "3000000000000000002";
/// The bot's direct chat with [`ADA`].
pub const DM: &str = "3000000000000000009";
/// A person.
pub const ADA: &str = "4000000000000000001";
/// Another one.
pub const BOB: &str = "4000000000000000002";
/// The role that Discord made for the bot.
pub const BOT_ROLE: &str = "5000000000000000001";

const EPOCH_MS: i64 = 1_420_070_400_000;
/// How long a nonce is remembered.
const NONCE: Duration = Duration::from_secs(180);
/// How long anything may take here: a bound that turns a wait without end into a failure.
const SOON: Duration = Duration::from_secs(30);

/// What happens to one call instead of, or after, the ordinary.
#[derive(Clone, Debug)]
pub enum Fault {
    /// 429 with `retry_after` in seconds; of all calls, or of this one.
    RetryAfter(f64, bool),
    /// A page for people with this status; nothing is done.
    Html(u16),
    /// This status, code and message; nothing is done.
    Refuse(u16, u64, &'static str),
    /// It is done, and the connection breaks before the answer.
    DoneThenReset,
    /// The request is read and the connection breaks; nothing is done.
    Reset,
    /// It is done, and answered after this time.
    Slow(Duration),
    /// 302 to this path of the same server, where a file is asked for.
    Redirect(&'static str),
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// When, since the start.
    pub at: Duration,
    /// `GET`, `POST`, …
    pub method: String,
    /// The path below the API's address, with its query.
    pub path: String,
    /// The JSON of it: of a form, its `payload_json`.
    pub body: Value,
    /// The files of a form: name and bytes.
    pub files: Vec<(String, Vec<u8>)>,
    /// What it was answered with.
    pub status: u16,
}

/// What a gateway connection is told to do.
#[derive(Clone, Debug)]
enum Order {
    Close(u16),
    Drop,
    Raw(String),
}

#[derive(Default)]
struct Session {
    /// Dispatched events with their numbers.
    events: Vec<(u64, String)>,
    next: u64,
}

struct Told {
    now_ms: i64,
    ids: i64,
    messages: BTreeMap<String, Vec<Value>>,
    nonces: HashMap<(String, String), (Instant, Value)>,
    /// Answers to interactions by their token.
    interactions: HashMap<String, Vec<Value>>,
    reactions: Vec<(String, String, String)>,
    files: HashMap<String, Vec<u8>>,
    /// Names of files that were asked for.
    downloads: Vec<String>,
    calls: Vec<Call>,
    faults: Vec<(String, Fault)>,
    sessions: HashMap<String, Session>,
    current: Option<String>,
    orders: VecDeque<Order>,
    connection: u64,
    /// Frames of the bot: connection and frame.
    frames: Vec<(u64, Value)>,
    /// Paths at which connections were opened.
    opened: Vec<String>,
    content_intent: bool,
    revoked: bool,
    acknowledges: bool,
    in_servers: bool,
    heartbeat_ms: u64,
    /// Close codes that the bot sent.
    goodbyes: Vec<u16>,
    /// Calls that would have notified somebody.
    violations: Vec<String>,
}

struct Inner {
    told: Mutex<Told>,
    changed: watch::Sender<u64>,
    start: Instant,
    addr: SocketAddr,
    host: Mutex<Option<String>>,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        let done = change(&mut self.lock());
        self.changed.send_modify(|n| *n += 1);
        done
    }
}

impl Told {
    fn id(&mut self) -> String {
        self.ids += 1;
        (((self.now_ms - EPOCH_MS) << 22) + self.ids).to_string()
    }
}

/// The fake; ends when dropped.
pub struct Discord {
    inner: Arc<Inner>,
    _tasks: JoinSet<()>,
}

impl Discord {
    /// A server at this time of the world, in epoch milliseconds.
    pub async fn start(now_ms: i64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let told = Told {
            now_ms,
            ids: 0,
            messages: BTreeMap::new(),
            nonces: HashMap::new(),
            interactions: HashMap::new(),
            reactions: Vec::new(),
            files: HashMap::new(),
            downloads: Vec::new(),
            calls: Vec::new(),
            faults: Vec::new(),
            sessions: HashMap::new(),
            current: None,
            orders: VecDeque::new(),
            connection: 0,
            frames: Vec::new(),
            opened: Vec::new(),
            content_intent: true,
            revoked: false,
            acknowledges: true,
            in_servers: true,
            heartbeat_ms: 41_250,
            goodbyes: Vec::new(),
            violations: Vec::new(),
        };
        let inner = Arc::new(Inner {
            told: Mutex::new(told),
            changed: watch::Sender::new(0),
            start: Instant::now(),
            addr,
            host: Mutex::default(),
        });
        let app = Router::new()
            .route("/gateway", get(gateway))
            .route("/gateway/", get(gateway))
            .route("/resume", get(gateway))
            .route("/cdn/{*name}", get(store))
            .route("/api/v10/{*path}", any(rest))
            .with_state(inner.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Self { inner, _tasks: tasks }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.inner.addr
    }

    /// From now on it is known by this name, which only a proxy can resolve.
    pub fn be_known_as(&self, host: &str) {
        *self.inner.host.lock().unwrap_or_else(PoisonError::into_inner) = Some(host.to_owned());
    }

    /// `host:port`.
    pub fn host(&self) -> String {
        host(&self.inner)
    }

    /// The REST address.
    pub fn api_url(&self) -> String {
        format!("http://{}/api/v10", self.host())
    }

    /// The gateway's address.
    pub fn gateway_url(&self) -> String {
        format!("ws://{}/gateway", self.host())
    }

    /// The lines of a section that leads here.
    pub fn section(&self) -> String {
        format!("token = \"{TOKEN}\"\napi_url = \"{}\"\ngateway_url = \"{}\"\n", self.api_url(), self.gateway_url())
    }

    /// Moves the time of the world.
    pub fn set_time(&self, now_ms: i64) {
        self.inner.lock().now_ms = now_ms;
    }

    /// A new id of this moment.
    pub fn new_id(&self) -> String {
        self.inner.lock().id()
    }

    /// Somebody writes in the channel; `more` replaces or adds fields. The message's id.
    pub fn say(&self, channel: &str, author: &str, content: &str, more: Value) -> String {
        let message = self.message(channel, author, content, more);
        let id = message["id"].as_str().expect("an id").to_owned();
        self.dispatch("MESSAGE_CREATE", message);
        id
    }

    /// The same while nobody is connected, or so that nobody hears it.
    pub fn say_unheard(&self, channel: &str, author: &str, content: &str, more: Value) -> String {
        self.message(channel, author, content, more)["id"].as_str().expect("an id").to_owned()
    }

    fn message(&self, channel: &str, author: &str, content: &str, more: Value) -> Value {
        self.inner.change(|told| {
            let id = told.id();
            let mut message = json!({
                "id": id, "channel_id": channel, "type": 0, "content": content, "tts": false, "pinned": false,
                "author": {
                    "id": author, "username": "ada", "global_name": "Ada", "discriminator": "0", "avatar": null,
                    "bot": author == BOT_ID,
                },
                "timestamp": "2026-11-30T00:00:00.000000+00:00", "edited_timestamp": null, "mention_everyone": false,
                "mentions": [], "mention_roles": [], "attachments": [], "embeds": [], "flags": 0,
            });
            if content.contains(&format!("<@{BOT_ID}>")) {
                message["mentions"] = json!([{"id": BOT_ID, "username": "crawfish", "bot": true}]);
            }
            if channel != DM {
                message["guild_id"] = GUILD.into();
                message["member"] = json!({"nick": null, "roles": []});
            }
            if let (Some(fields), Value::Object(more)) = (message.as_object_mut(), more) {
                fields.extend(more);
            }
            let mut kept = message.clone();
            if let Some(fields) = kept.as_object_mut() {
                // A list of messages does not say where they are.
                fields.remove("guild_id");
                fields.remove("member");
            }
            told.messages.entry(channel.to_owned()).or_default().push(kept);
            message
        })
    }

    /// A person takes a message away.
    pub fn delete(&self, channel: &str, message: &str) {
        self.inner.change(|told| {
            if let Some(messages) = told.messages.get_mut(channel) {
                messages.retain(|kept| kept["id"] != message);
            }
        });
        let mut data = json!({"id": message, "channel_id": channel});
        if channel != DM {
            data["guild_id"] = GUILD.into();
        }
        self.dispatch("MESSAGE_DELETE", data);
    }

    /// An event, whatever it is.
    pub fn dispatch(&self, name: &str, data: Value) {
        self.inner.change(|told| {
            let Some(session) = told.current.clone().and_then(|id| told.sessions.get_mut(&id)) else { return };
            session.next += 1;
            let number = session.next;
            let frame = json!({"op": 0, "s": number, "t": name, "d": data}).to_string();
            session.events.push((number, frame));
        });
    }

    /// Text on the wire as it is.
    pub fn raw(&self, text: &str) {
        self.order(Order::Raw(text.to_owned()));
    }

    /// Closes the connection with this code; 4004 and the like, or one that can be resumed.
    pub fn close(&self, code: u16) {
        self.order(Order::Close(code));
    }

    /// The connection breaks without a word.
    pub fn cut(&self) {
        self.order(Order::Drop);
    }

    /// Sessions so far are forgotten: the next RESUME gets "invalid session".
    pub fn forget_sessions(&self) {
        self.inner.change(|told| {
            told.sessions.clear();
            told.current = None;
        });
    }

    fn order(&self, order: Order) {
        self.inner.change(|told| told.orders.push_back(order));
    }

    /// The next call whose `METHOD /path` contains this fails so.
    pub fn fail_next(&self, call: &str, fault: Fault) {
        self.inner.change(|told| told.faults.push((call.to_owned(), fault)));
    }

    /// Message Content Intent in the Developer Portal.
    pub fn set_content_intent(&self, on: bool) {
        self.inner.lock().content_intent = on;
    }

    /// The token was reset.
    pub fn revoke(&self) {
        self.inner.lock().revoked = true;
    }

    /// The bot is in no server.
    pub fn leave_servers(&self) {
        self.inner.lock().in_servers = false;
    }

    /// Whether heartbeats are answered, and how often they are wanted.
    pub fn set_heartbeat(&self, every_ms: u64, acknowledges: bool) {
        let mut told = self.inner.lock();
        (told.heartbeat_ms, told.acknowledges) = (every_ms, acknowledges);
    }

    /// Puts a file into the store; its address.
    pub fn put_file(&self, name: &str, bytes: &[u8]) -> String {
        self.inner.lock().files.insert(name.to_owned(), bytes.to_vec());
        format!("http://{}/cdn/{name}", self.host())
    }

    /// The names of files that were asked for, in order.
    pub fn downloads(&self) -> Vec<String> {
        self.inner.lock().downloads.clone()
    }

    /// A slash command or a button, as `INTERACTION_CREATE` brings it.
    pub fn interact(&self, kind: u8, channel: &str, user: &str, data: Value, more: Value) -> String {
        let id = self.new_id();
        let user = json!({"id": user, "username": "ada", "global_name": "Ada"});
        let mut event = json!({
            "id": id, "application_id": BOT_ID, "type": kind, "token": format!("tok-{id}"), "version": 1,
            "channel_id": channel, "data": data, "locale": "en-US",
        });
        if channel == DM {
            event["user"] = user;
            event["channel"] = json!({"id": channel, "type": 1});
        } else {
            event["guild_id"] = GUILD.into();
            event["member"] = json!({"user": user, "roles": []});
            event["channel"] = json!({"id": channel, "type": 0, "name": "general"});
        }
        if let (Some(fields), Value::Object(more)) = (event.as_object_mut(), more) {
            fields.extend(more);
        }
        self.dispatch("INTERACTION_CREATE", event);
        id
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<Call> {
        self.inner.lock().calls.clone()
    }

    /// The calls whose `METHOD /path` contains this.
    pub fn calls_of(&self, call: &str) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|made| format!("{} {}", made.method, made.path).contains(call));
        calls
    }

    /// What the bot wrote in a channel, as it stands there now.
    pub fn written(&self, channel: &str) -> Vec<Value> {
        let told = self.inner.lock();
        let all = told.messages.get(channel).into_iter().flatten();
        all.filter(|message| message["author"]["id"] == BOT_ID).cloned().collect()
    }

    /// The texts of [`Self::written`].
    pub fn texts(&self, channel: &str) -> Vec<String> {
        self.written(channel).iter().map(|message| message["content"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// The answers to an interaction, the first one as it stands now.
    pub fn answers(&self, interaction: &str) -> Vec<Value> {
        self.inner.lock().interactions.get(&format!("tok-{interaction}")).cloned().unwrap_or_default()
    }

    /// The bot's reactions: channel, message, emoji.
    pub fn reactions(&self) -> Vec<(String, String, String)> {
        self.inner.lock().reactions.clone()
    }

    /// Frames of the bot with this opcode: the number of their connection and their data.
    pub fn frames(&self, op: u64) -> Vec<(u64, Value)> {
        let told = self.inner.lock();
        let frames = told.frames.iter().filter(|(_, frame)| frame["op"] == op);
        frames.map(|(connection, frame)| (*connection, frame["d"].clone())).collect()
    }

    /// The paths at which gateway connections were opened.
    pub fn opened(&self) -> Vec<String> {
        self.inner.lock().opened.clone()
    }

    /// The close codes that the bot sent.
    pub fn goodbyes(&self) -> Vec<u16> {
        self.inner.lock().goodbyes.clone()
    }

    /// Messages that could have notified somebody. Empty, or a test fails.
    pub fn violations(&self) -> Vec<String> {
        self.inner.lock().violations.clone()
    }

    /// Waits until a look at it shows what a test waits for.
    pub async fn until(&self, what: &str, seen: impl Fn(&Self) -> bool) {
        let mut changed = self.inner.changed.subscribe();
        let waiting = async {
            while !seen(self) {
                let _ = changed.changed().await;
            }
        };
        if tokio::time::timeout(SOON, waiting).await.is_err() {
            panic!("waited in vain until {what}; calls: {:#?}", self.calls());
        }
    }

    /// Waits until a session stands: so many in all were begun or resumed.
    pub async fn until_connected(&self, times: usize) {
        self.until("the bot is connected", |discord| {
            discord.frames(2).len() + discord.frames(6).len() >= times && discord.inner.lock().current.is_some()
        })
        .await;
    }
}

fn host(inner: &Inner) -> String {
    let known = inner.host.lock().unwrap_or_else(PoisonError::into_inner).clone();
    format!("{}:{}", known.unwrap_or_else(|| "127.0.0.1".to_owned()), inner.addr.port())
}

async fn gateway(State(inner): State<Arc<Inner>>, uri: Uri, upgrade: WebSocketUpgrade) -> Response {
    let connection = inner.change(|told| {
        told.connection += 1;
        told.opened.push(uri.path().to_owned());
        told.orders.clear();
        told.connection
    });
    upgrade.on_upgrade(move |socket| async move { serve_gateway(&inner, socket, connection).await })
}

async fn serve_gateway(inner: &Inner, mut socket: WebSocket, connection: u64) {
    let heartbeat = inner.lock().heartbeat_ms;
    let hello = json!({"op": 10, "s": null, "t": null, "d": {"heartbeat_interval": heartbeat, "_trace": ["x"]}});
    if socket.send(text(&hello)).await.is_err() {
        return;
    }
    let mut session: Option<String> = None;
    let mut sent = 0;
    let mut changed = inner.changed.subscribe();
    loop {
        // What was dispatched since, in order.
        let next: Vec<(u64, String)> = match &session {
            Some(id) => {
                let told = inner.lock();
                let events = told.sessions.get(id).map_or(&[][..], |session| &session.events);
                events.iter().filter(|(number, _)| *number > sent).cloned().collect()
            }
            None => Vec::new(),
        };
        for (number, frame) in next {
            if socket.send(Message::Text(frame.into())).await.is_err() {
                return;
            }
            sent = number;
        }
        let order = {
            let mut told = inner.lock();
            if told.connection == connection && session.is_some() { told.orders.pop_front() } else { None }
        };
        match order {
            Some(Order::Close(code)) => return closed(&mut socket, code).await,
            Some(Order::Drop) => return,
            Some(Order::Raw(raw)) => {
                if socket.send(Message::Text(raw.into())).await.is_err() {
                    return;
                }
                continue;
            }
            None => {}
        }
        tokio::select! {
            _ = changed.changed() => {}
            frame = socket.recv() => {
                let Some(Ok(Message::Text(raw))) = frame else {
                    match frame {
                        Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                        Some(Ok(Message::Close(Some(close)))) => {
                            return inner.change(|told| told.goodbyes.push(close.code));
                        }
                        _ => return,
                    }
                };
                let Ok(frame) = serde_json::from_str::<Value>(&raw) else { return closed(&mut socket, 4002).await };
                inner.change(|told| told.frames.push((connection, frame.clone())));
                let data = &frame["d"];
                match frame["op"].as_u64() {
                    Some(1) => {
                        let acknowledges = inner.lock().acknowledges;
                        let ack = json!({"op": 11, "d": null});
                        if acknowledges && socket.send(text(&ack)).await.is_err() {
                            return;
                        }
                    }
                    Some(2) => match identify(inner, data) {
                        Ok(id) => session = Some(id),
                        Err(code) => return closed(&mut socket, code).await,
                    },
                    Some(6) => {
                        let id = data["session_id"].as_str().unwrap_or_default().to_owned();
                        let seq = data["seq"].as_u64().unwrap_or(0);
                        if data["token"] != TOKEN {
                            return closed(&mut socket, 4004).await;
                        }
                        let resumed = inner.change(|told| {
                            let known = told.sessions.get_mut(&id)?;
                            known.next += 1;
                            let number = known.next;
                            let frame = json!({"op": 0, "s": number, "t": "RESUMED", "d": {"_trace": []}}).to_string();
                            known.events.push((number, frame));
                            told.current = Some(id.clone());
                            Some(())
                        });
                        match resumed {
                            Some(()) => {
                                session = Some(id);
                                sent = seq;
                            }
                            None => {
                                if socket.send(text(&json!({"op": 9, "d": false}))).await.is_err() {
                                    return;
                                }
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

fn identify(inner: &Inner, data: &Value) -> Result<String, u16> {
    let host = host(inner);
    inner.change(|told| {
        if told.revoked || data["token"] != TOKEN {
            return Err(4004);
        }
        if data["intents"].as_u64().unwrap_or(0) & (1 << 15) != 0 && !told.content_intent {
            return Err(4014);
        }
        let id = format!("session-{}", told.sessions.len() + 1);
        let ready = json!({
            "v": 10, "user_settings": {}, "session_type": "normal", "session_id": id,
            "resume_gateway_url": format!("ws://{host}/resume"), "relationships": [], "private_channels": [],
            "presences": [], "guilds": [{"id": GUILD, "unavailable": true}], "guild_join_requests": [],
            "user": {
                "id": BOT_ID, "username": "crawfish", "global_name": null, "discriminator": "0", "avatar": null,
                "bot": true, "verified": true, "mfa_enabled": false, "email": null, "flags": 0, "clan": null,
            },
            "application": {"id": BOT_ID, "flags": 565_248}, "shard": [0, 1], "geo_ordered_rtc_regions": ["x"],
        });
        let guild = json!({
            "id": GUILD, "name": "The server", "owner_id": ADA, "unavailable": false, "member_count": 3,
            "channels": [
                {"id": GENERAL, "type": 0, "name": "general", "position": 0, "parent_id": null},
                {"id": "3000000000000000003", "type": 2, "name": "voice"},
            ],
            "threads": [{"id": THREAD, "type": 11, "name": "a thread", "parent_id": GENERAL}],
            "roles": [{"id": BOT_ROLE, "name": "crawfish", "tags": {"bot_id": BOT_ID}}],
            "members": [], "emojis": [], "a_field_of_next_year": {"x": [1, null]},
        });
        let mut session = Session::default();
        for (name, data) in [("READY", ready), ("GUILD_CREATE", guild)] {
            session.next += 1;
            let number = session.next;
            session.events.push((number, json!({"op": 0, "s": number, "t": name, "d": data}).to_string()));
        }
        told.sessions.insert(id.clone(), session);
        told.current = Some(id.clone());
        Ok(id)
    })
}

fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}

async fn closed(socket: &mut WebSocket, code: u16) {
    let _ = socket.send(Message::Close(Some(CloseFrame { code, reason: "said the fake".into() }))).await;
    let answered = async { while let Some(Ok(_)) = socket.recv().await {} };
    let _ = tokio::time::timeout(Duration::from_secs(1), answered).await;
}

async fn store(State(inner): State<Arc<Inner>>, headers: HeaderMap, uri: Uri) -> Response {
    let name = uri.path().trim_start_matches("/cdn/").to_owned();
    if headers.contains_key(header::AUTHORIZATION) {
        inner.change(|told| told.violations.push(format!("the token went to the store: {name}")));
    }
    let (fault, file) = {
        let mut told = inner.lock();
        told.downloads.push(name.clone());
        (take_fault(&mut told, &format!("GET /cdn/{name}")), told.files.get(&name).cloned())
    };
    if let Some(Fault::Redirect(to)) = fault {
        return axum::response::IntoResponse::into_response((StatusCode::FOUND, [(header::LOCATION, to)]));
    }
    if let Some(Fault::Slow(time)) = fault {
        tokio::time::sleep(time).await;
    }
    let mut response = Response::new(Body::from(file.clone().unwrap_or_default()));
    if file.is_none() {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    if let Some(Fault::Html(status)) = fault {
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    }
    response
}

fn take_fault(told: &mut Told, call: &str) -> Option<Fault> {
    let place = told.faults.iter().position(|(on, _)| call.contains(on.as_str()))?;
    Some(told.faults.remove(place).1)
}

async fn rest(State(inner): State<Arc<Inner>>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let path = uri.path_and_query().map_or("", |path| path.as_str()).trim_start_matches("/api/v10").to_owned();
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let (json_body, files) = match kind.split_once("boundary=") {
        Some((_, boundary)) => form(&body, boundary.trim_matches('"')),
        None => (serde_json::from_slice(&body).unwrap_or(Value::Null), Vec::new()),
    };
    let fault = take_fault(&mut inner.lock(), &format!("{method} {path}"));
    let authorized = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let authorized = authorized == Some(&format!("Bot {TOKEN}")) && !inner.lock().revoked;
    let without_token = path.starts_with("/webhooks/") || path.starts_with("/interactions/");
    let (status, answer, html) = match &fault {
        _ if !authorized && !without_token => (401, json!({"message": "401: Unauthorized", "code": 0}), false),
        Some(Fault::RetryAfter(seconds, global)) => {
            (429, json!({"message": "You are being rate limited.", "retry_after": seconds, "global": global}), false)
        }
        Some(Fault::Html(status)) => (*status, Value::Null, true),
        Some(Fault::Refuse(status, code, message)) => (*status, json!({"message": message, "code": code}), false),
        Some(Fault::Reset) => (500, Value::Null, false),
        Some(Fault::Redirect(_)) => (302, Value::Null, false),
        None | Some(Fault::DoneThenReset | Fault::Slow(_)) => {
            let (status, answer) =
                inner.change(|told| perform(told, &host(&inner), &method, &path, &json_body, &files));
            (status, answer, false)
        }
    };
    if let Some(Fault::Slow(time)) = fault {
        tokio::time::sleep(time).await;
    }
    let call = Call { at: inner.start.elapsed(), method: method.to_string(), path, body: json_body, files, status };
    inner.change(|told| told.calls.push(call));
    if matches!(fault, Some(Fault::Reset | Fault::DoneThenReset)) {
        // Ends the connection's task, and with it the connection, without a message to the terminal.
        std::panic::resume_unwind(Box::new("reset"));
    }
    let body = if html { "<html><title>Bad Gateway</title></html>".to_owned() } else { answer.to_string() };
    let mut response = Response::new(Body::from(if status == 204 { String::new() } else { body }));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    let kind = if html { "text/html" } else { "application/json" };
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

fn perform(
    told: &mut Told,
    host: &str,
    method: &Method,
    path: &str,
    body: &Value,
    files: &[(String, Vec<u8>)],
) -> (u16, Value) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let unknown = |code: u64, what: &str| (404, json!({"message": format!("Unknown {what}"), "code": code}));
    match (method.as_str(), segments.as_slice()) {
        ("GET", ["users", "@me"]) => (200, json!({"id": BOT_ID, "username": "crawfish", "bot": true})),
        ("GET", ["applications", "@me"]) => {
            let flags = if told.content_intent { 1 << 19 } else { 0 };
            (200, json!({"id": BOT_ID, "name": "crawfish", "flags": flags}))
        }
        ("GET", ["users", "@me", "guilds"]) => {
            let all = if told.in_servers {
                json!([{"id": GUILD, "name": "The server", "owner": false, "permissions": "3072"}])
            } else {
                json!([])
            };
            (200, all)
        }
        ("GET", ["gateway", "bot"]) => {
            let limit = json!({"total": 1000, "remaining": 999, "reset_after": 14_400_000, "max_concurrency": 1});
            (200, json!({"url": format!("ws://{host}/gateway"), "shards": 1, "session_start_limit": limit}))
        }
        ("PUT", ["applications", BOT_ID, "commands"]) => (200, body.clone()),
        ("GET", ["channels", channel]) => match *channel {
            GENERAL => (200, json!({"id": GENERAL, "type": 0, "name": "general", "guild_id": GUILD})),
            "3000000000000000004" => (200, json!({"id": channel, "type": 11, "name": "older", "parent_id": GENERAL})),
            _ => unknown(10003, "Channel"),
        },
        ("POST", ["channels", _, "typing"]) => (204, Value::Null),
        ("GET", ["channels", channel, "messages"]) => {
            let number = |key: &str| {
                query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix(&format!("{key}=")))
                    .and_then(|n| n.parse::<u64>().ok())
            };
            let (after, limit) = (number("after").unwrap_or(0), number("limit").unwrap_or(50).min(100));
            let all = told.messages.get(*channel).cloned().unwrap_or_default();
            let order = |message: &Value| message["id"].as_str().and_then(|id| id.parse::<u64>().ok()).unwrap_or(0);
            let mut found: Vec<Value> = all.into_iter().filter(|message| order(message) > after).collect();
            found.sort_by_key(order);
            let limit = usize::try_from(limit).unwrap_or(100);
            if number("after").is_some() {
                found.truncate(limit);
            } else {
                found = found.split_off(found.len().saturating_sub(limit));
            }
            // The newest first.
            found.reverse();
            (200, found.into())
        }
        ("GET", ["channels", channel, "messages", message]) => {
            let found = told.messages.get(*channel).into_iter().flatten().find(|kept| kept["id"] == *message);
            found.map_or_else(|| unknown(10008, "Message"), |found| (200, found.clone()))
        }
        ("POST", ["channels", channel, "messages"]) => {
            if let Some(refusal) = refused(told, path, body, files) {
                return refusal;
            }
            let nonce = body["nonce"].as_str().unwrap_or_default().to_owned();
            let enforced = body["enforce_nonce"] == true && !nonce.is_empty();
            if nonce.chars().count() > 25 {
                return (400, json!({"message": "Invalid Form Body", "code": 50035}));
            }
            let key = ((*channel).to_owned(), nonce.clone());
            if enforced
                && let Some((at, message)) = told.nonces.get(&key)
                && at.elapsed() < NONCE
            {
                return (200, message.clone());
            }
            let message = ours(told, channel, body, files);
            told.messages.entry((*channel).to_owned()).or_default().push(message.clone());
            if enforced {
                told.nonces.insert(key, (Instant::now(), message.clone()));
            }
            (200, message)
        }
        ("PATCH", ["channels", channel, "messages", message]) => {
            if let Some(refusal) = refused(told, path, body, files) {
                return refusal;
            }
            let found = told.messages.get_mut(*channel).into_iter().flatten().find(|kept| kept["id"] == *message);
            match found {
                Some(kept) => {
                    kept["content"] = body["content"].clone();
                    kept["components"] = body["components"].clone();
                    kept["edited_timestamp"] = "2026-11-30T00:00:01.000000+00:00".into();
                    (200, kept.clone())
                }
                None => unknown(10008, "Message"),
            }
        }
        ("DELETE", ["channels", channel, "messages", message]) => {
            let messages = told.messages.entry((*channel).to_owned()).or_default();
            let before = messages.len();
            messages.retain(|kept| kept["id"] != *message);
            if messages.len() < before { (204, Value::Null) } else { unknown(10008, "Message") }
        }
        (verb @ ("PUT" | "DELETE"), ["channels", channel, "messages", message, "reactions", emoji, "@me"]) => {
            let exists = told.messages.get(*channel).into_iter().flatten().any(|kept| kept["id"] == *message);
            if !exists {
                return unknown(10008, "Message");
            }
            let reaction = ((*channel).to_owned(), (*message).to_owned(), (*emoji).to_owned());
            told.reactions.retain(|kept| *kept != reaction);
            if verb == "PUT" {
                told.reactions.push(reaction);
            }
            (204, Value::Null)
        }
        ("POST", ["interactions", _, token, "callback"]) => {
            if told.interactions.contains_key(*token) {
                return (400, json!({"message": "Interaction has already been acknowledged.", "code": 40060}));
            }
            told.interactions.insert((*token).to_owned(), Vec::new());
            (204, Value::Null)
        }
        ("PATCH", ["webhooks", BOT_ID, token, "messages", "@original"]) => {
            if let Some(refusal) = refused(told, path, body, files) {
                return refusal;
            }
            let message = ours(told, "0", body, files);
            match told.interactions.get_mut(*token) {
                Some(answers) => {
                    match answers.first_mut() {
                        Some(first) => first["content"] = body["content"].clone(),
                        None => answers.push(message.clone()),
                    }
                    (200, message)
                }
                None => unknown(10015, "Webhook"),
            }
        }
        ("POST", ["webhooks", BOT_ID, token]) => {
            if let Some(refusal) = refused(told, path, body, files) {
                return refusal;
            }
            let message = ours(told, "0", body, files);
            match told.interactions.get_mut(*token) {
                Some(answers) => {
                    answers.push(message.clone());
                    (200, message)
                }
                None => unknown(10015, "Webhook"),
            }
        }
        _ => unknown(0, "route"),
    }
}

/// What Discord refuses, and what this server does not let pass: a message that may notify somebody.
fn refused(told: &mut Told, path: &str, body: &Value, files: &[(String, Vec<u8>)]) -> Option<(u16, Value)> {
    let mentions = &body["allowed_mentions"];
    if mentions["parse"] != json!([]) || mentions["replied_user"] == true || !mentions["users"].is_null() {
        told.violations.push(format!("{path}: allowed_mentions is {mentions}"));
    }
    let content = body["content"].as_str().unwrap_or_default();
    if content.chars().count() > 2_000 {
        return Some((400, json!({"message": "Invalid Form Body", "code": 50035, "errors": {"content": {}}})));
    }
    if content.trim().is_empty() && files.is_empty() {
        return Some((400, json!({"message": "Cannot send an empty message", "code": 50006})));
    }
    if files.iter().any(|(_, bytes)| bytes.len() > 10 * 1024 * 1024) {
        return Some((413, json!({"message": "Request entity too large", "code": 40005})));
    }
    None
}

fn ours(told: &mut Told, channel: &str, body: &Value, files: &[(String, Vec<u8>)]) -> Value {
    let id = told.id();
    let attachments: Vec<Value> = files
        .iter()
        .map(|(name, bytes)| json!({"id": "1", "filename": name.replace(' ', "_"), "size": bytes.len()}))
        .collect();
    json!({
        "id": id, "channel_id": channel, "type": 0, "content": body["content"].as_str().unwrap_or_default().trim(),
        "author": {"id": BOT_ID, "username": "crawfish", "bot": true}, "attachments": attachments,
        "components": body["components"], "message_reference": body["message_reference"], "flags": body["flags"],
    })
}

/// The fields and files of a form.
fn form(body: &[u8], boundary: &str) -> (Value, Vec<(String, Vec<u8>)>) {
    let mark = format!("--{boundary}").into_bytes();
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(next) = find(&body[at..], &mark) {
        places.push(at + next);
        at += next + mark.len();
    }
    let (mut json_body, mut files) = (Value::Null, Vec::new());
    for pair in places.windows(2) {
        let piece = &body[pair[0] + mark.len() + 2..pair[1].saturating_sub(2)];
        let Some(end) = find(piece, b"\r\n\r\n") else { continue };
        let (head, data) = (String::from_utf8_lossy(&piece[..end]).into_owned(), &piece[end + 4..]);
        let quoted = |key: &str| {
            let (_, rest) = head.split_once(&format!("{key}=\""))?;
            rest.split_once('"').map(|(value, _)| value.to_owned())
        };
        match (quoted("filename"), quoted(" name").as_deref()) {
            (Some(name), _) => files.push((name, data.to_vec())),
            (None, Some("payload_json")) => json_body = serde_json::from_slice(data).unwrap_or(Value::Null),
            _ => {}
        }
    }
    (json_body, files)
}

fn find(all: &[u8], wanted: &[u8]) -> Option<usize> {
    all.windows(wanted.len()).position(|window| window == wanted)
}
