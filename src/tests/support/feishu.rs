//! Feishu's open platform with the semantics that matter: tokens that can be revoked, messages with `uuid`, cards that
//! refuse a sixth table and any number that does not rise, reactions, files both ways, and the long connection with its
//! binary frames. Records every call; makes the faults a test wants.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{
        State, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};

/// The app.
pub const APP_ID: &str = "cli_9f5343c580712544";
/// Its secret.
pub const APP_SECRET: &str = "SeCrEt0123456789abcdef";
/// The bot.
pub const BOT: &str = "ou_bot";
/// The person that writes if no other is named.
pub const ADA: &str = "ou_ada";
/// How long a test waits at most.
const SOON: Duration = Duration::from_secs(30);

/// What happens to one call instead of, or after, the ordinary.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status and code; nothing is done.
    Code(u16, i64, &'static str),
    /// 429 that names so many seconds; nothing is done.
    Limit(u64),
    /// A page for people; nothing is done.
    Html(u16),
    /// It is done, and the connection breaks before the answer.
    DoneThenReset,
    /// The connection breaks; nothing is done.
    Reset,
    /// 302 to this path of the same server; nothing is done.
    Redirect(&'static str),
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Its JSON; null for others.
    pub body: Value,
}

/// A message of the bot.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// Its id.
    pub id: String,
    /// The chat; empty for a reply.
    pub chat: String,
    /// The message it replies to.
    pub reply_to: Option<String>,
    /// It was asked to stay in a thread.
    pub in_thread: bool,
    /// `msg_type`.
    pub kind: String,
    /// `content`.
    pub content: Value,
    /// `uuid`.
    pub uuid: String,
}

/// A card of CardKit.
#[derive(Clone, Debug, Default)]
pub struct Card {
    /// What it is.
    pub data: Value,
    /// The number of its last change.
    pub sequence: i64,
    /// It streams.
    pub streaming: bool,
    /// Everything it has shown.
    pub shown: Vec<String>,
    /// It was sent.
    pub sent: bool,
}

/// A file that was uploaded.
#[derive(Clone, Debug, Default)]
pub struct Uploaded {
    /// The text fields.
    pub fields: BTreeMap<String, String>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What the platform knows.
#[derive(Default)]
pub struct Told {
    tokens: usize,
    /// How often a token was asked for.
    pub token_calls: usize,
    /// How long tokens live, in seconds.
    pub expire: u64,
    revoked: bool,
    /// The bot's messages, in order.
    pub sent: Vec<Sent>,
    /// The ids of taken-back messages.
    pub deleted: Vec<String>,
    uuids: HashMap<String, String>,
    /// Cards by id.
    pub cards: HashMap<String, Card>,
    /// Reactions that stand: message, emoji, id.
    pub reactions: Vec<(String, String, String)>,
    /// Every reaction that was ever set.
    pub reacted: Vec<(String, String)>,
    /// Files that people sent, by key.
    pub resources: HashMap<String, (String, Vec<u8>)>,
    /// Messages that can be asked for.
    pub messages: HashMap<String, Vec<Value>>,
    /// Uploaded files by key.
    pub uploads: BTreeMap<String, Uploaded>,
    /// Scopes and whether they are granted.
    pub scopes: Vec<(String, bool)>,
    /// Every call, in order.
    pub calls: Vec<Call>,
    faults: Vec<(String, VecDeque<Fault>)>,
    /// The code of the next answers for a long connection.
    pub endpoint_code: i64,
    /// `ClientConfig`.
    pub config: Value,
    connections: Vec<(usize, mpsc::UnboundedSender<Order>)>,
    /// Connections that were ever opened.
    pub opened: usize,
    /// Pings that came.
    pub pings: usize,
    /// Pings are not answered.
    pub deaf: bool,
    /// Events that come on every new connection until they are acknowledged.
    waiting: Vec<(String, Vec<u8>)>,
    /// Answers to events: the frame's message id, the code and the data.
    pub acks: Vec<(String, i64, Value)>,
    frames: usize,
}

enum Order {
    Send(Vec<u8>),
    Cut,
}

struct Inner {
    told: Mutex<Told>,
    changed: watch::Sender<u64>,
    addr: SocketAddr,
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
pub struct Feishu {
    inner: Arc<Inner>,
    _serving: JoinSet<()>,
}

impl Feishu {
    /// A platform with one app.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let told = Told {
            expire: 7_200,
            config: json!({ "ReconnectCount": -1, "ReconnectInterval": 1, "ReconnectNonce": 0, "PingInterval": 120 }),
            scopes: ["im:message", "im:resource", "cardkit:card:write"].map(|scope| (scope.to_owned(), true)).to_vec(),
            ..Told::default()
        };
        let inner = Arc::new(Inner { told: Mutex::new(told), changed: watch::channel(0).0, addr });
        let router = Router::new()
            .route("/ws", axum::routing::get(socket))
            .fallback(serve)
            .layer(axum::extract::DefaultBodyLimit::max(64 << 20))
            .with_state(Arc::clone(&inner));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { inner, _serving: serving }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://{}", self.inner.addr)
    }

    /// A look at what it knows.
    pub fn look<T>(&self, read: impl FnOnce(&Told) -> T) -> T {
        read(&self.inner.lock())
    }

    /// Changes what it knows.
    pub fn change<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        self.inner.change(change)
    }

    /// The next calls whose `METHOD path` holds `what` meet these faults, one each.
    pub fn fault(&self, what: &str, faults: impl IntoIterator<Item = Fault>) {
        self.change(|told| told.faults.push((what.to_owned(), faults.into_iter().collect())));
    }

    /// The token that was handed out is refused from now on.
    pub fn revoke_token(&self) {
        self.change(|told| told.revoked = true);
    }

    /// Waits until what it knows fulfils a condition.
    ///
    /// # Panics
    /// When it does not, naming what was waited for.
    pub async fn until(&self, what: &str, condition: impl Fn(&Told) -> bool) {
        let mut changed = self.inner.changed.subscribe();
        let waiting = async {
            while !condition(&self.inner.lock()) {
                changed.changed().await.expect("the platform lives");
            }
        };
        tokio::time::timeout(SOON, waiting).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
    }

    /// Waits until so many long connections were opened.
    pub async fn until_connected(&self, times: usize) {
        self.until("a long connection stands", |told| told.opened >= times && !told.connections.is_empty()).await;
    }

    /// Delivers an event to the newest connection in so many parts; the frame's id.
    pub fn deliver(&self, event: &Value, parts: usize) -> String {
        self.change(|told| {
            told.frames += 1;
            let id = format!("frame-{}", told.frames);
            let payload = event.to_string().into_bytes();
            let size = payload.len().div_ceil(parts.max(1)).max(1);
            let pieces: Vec<&[u8]> = payload.chunks(size).collect();
            for (seq, piece) in pieces.iter().enumerate() {
                let (sum, seq) = (pieces.len().to_string(), seq.to_string());
                let headers = [("type", "event"), ("message_id", &id), ("trace_id", "t"), ("sum", &sum), ("seq", &seq)];
                let frame = encode(1, &headers, piece);
                if let Some((_, connection)) = told.connections.last() {
                    let _ = connection.send(Order::Send(frame));
                }
            }
            id
        })
    }

    /// An event that comes, now or on a later connection, until it is acknowledged.
    pub fn say(&self, event: &Value) {
        let payload = event.to_string().into_bytes();
        self.change(|told| {
            told.frames += 1;
            let id = format!("frame-{}", told.frames);
            if let Some((_, connection)) = told.connections.last() {
                let _ = connection.send(Order::Send(whole(&id, &payload)));
            }
            told.waiting.push((id, payload));
        });
    }

    /// Sends bytes that may be no frame.
    pub fn deliver_bytes(&self, bytes: &[u8]) {
        self.change(|told| {
            if let Some((_, connection)) = told.connections.last() {
                let _ = connection.send(Order::Send(bytes.to_vec()));
            }
        });
    }

    /// The code that an event was answered with.
    pub async fn ack(&self, frame: &str) -> i64 {
        self.until("the event is answered", |told| told.acks.iter().any(|(id, ..)| id == frame)).await;
        self.look(|told| told.acks.iter().find(|(id, ..)| id == frame).map_or(0, |(_, code, _)| *code))
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        self.change(|told| {
            for (_, connection) in told.connections.drain(..) {
                let _ = connection.send(Order::Cut);
            }
        });
    }

    /// What people read, in order: the texts of messages that were not taken back, cards as they are now.
    pub fn read(&self) -> Vec<String> {
        self.look(shown)
    }
}

/// See [`Feishu::read`].
pub fn shown(told: &Told) -> Vec<String> {
    told.sent.iter().filter(|sent| !told.deleted.contains(&sent.id)).map(|sent| text_of(told, sent)).collect()
}

/// What is read of a message.
fn text_of(told: &Told, sent: &Sent) -> String {
    let word = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    match sent.kind.as_str() {
        "text" => word(&sent.content, "text"),
        "post" => {
            let md = sent.content.pointer("/zh_cn/content/0/0").cloned().unwrap_or_default();
            word(&md, "text")
        }
        "interactive" => {
            let id = sent.content.pointer("/data/card_id").and_then(Value::as_str);
            let card = id.and_then(|id| told.cards.get(id)).map_or(&sent.content, |card| &card.data);
            card_text(card)
        }
        other => format!("[{other}]"),
    }
}

/// The words of a card.
pub fn card_text(card: &Value) -> String {
    let elements = card.pointer("/body/elements").and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |element: &Value| {
        let md = element.get("content").or_else(|| element.pointer("/text/content"));
        md.and_then(Value::as_str).map(str::to_owned)
    };
    elements.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

/// An event with a message.
pub fn message(id: &str, chat: &str, chat_type: &str, kind: &str, content: &Value, at: i64) -> Value {
    json!({
        "schema": "2.0",
        "header": {
            "event_id": format!("ev-{id}-{at}"), "event_type": "im.message.receive_v1", "create_time": at.to_string(),
            "token": "v_test_token", "app_id": APP_ID, "tenant_key": "tenant",
        },
        "event": {
            "sender": { "sender_id": { "open_id": ADA, "union_id": "on_ada" }, "sender_type": "user" },
            "message": {
                "message_id": id, "chat_id": chat, "chat_type": chat_type, "message_type": kind,
                "content": content.to_string(), "create_time": at.to_string(),
            },
        },
    })
}

/// An event with a text; `@_user_1` in it names the bot.
pub fn text(id: &str, chat: &str, chat_type: &str, text: &str, at: i64) -> Value {
    let mut event = message(id, chat, chat_type, "text", &json!({ "text": text }), at);
    if text.contains("@_user_1") {
        event["event"]["message"]["mentions"] =
            json!([{ "key": "@_user_1", "id": { "open_id": BOT }, "name": "Crawfish", "tenant_key": "tenant" }]);
    }
    event
}

async fn serve(
    State(inner): State<Arc<Inner>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let path = uri.path_and_query().map(|path| path.to_string()).unwrap_or_default();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let fault = inner.change(|told| {
        told.calls.push(Call { method: method.to_string(), path: path.clone(), body: body.clone() });
        let named = format!("{method} {path}");
        let faults = told.faults.iter_mut().find(|(what, faults)| named.contains(what.as_str()) && !faults.is_empty());
        faults.and_then(|(_, faults)| faults.pop_front())
    });
    match fault {
        Some(Fault::Code(status, code, msg)) => answer(status, &json!({ "code": code, "msg": msg })),
        Some(Fault::Limit(seconds)) => {
            let mut response = answer(429, &json!({ "code": 99_991_400, "msg": "request trigger frequency limit" }));
            let value = seconds.to_string().parse().expect("a header");
            response.headers_mut().insert("x-ogw-ratelimit-reset", value);
            response
        }
        Some(Fault::Html(status)) => {
            let mut response = Response::new(Body::from("<html>bad gateway</html>"));
            *response.status_mut() = StatusCode::from_u16(status).expect("a status");
            response
        }
        Some(Fault::Redirect(to)) => {
            let mut response = answer(302, &json!({}));
            response.headers_mut().insert("location", to.parse().expect("a header"));
            response
        }
        Some(Fault::Reset) => broken(),
        Some(Fault::DoneThenReset) => {
            let _ = inner.change(|told| act(told, inner.addr, &method, &path, &headers, &body, &bytes));
            broken()
        }
        None => inner.change(|told| act(told, inner.addr, &method, &path, &headers, &body, &bytes)),
    }
}

/// An answer whose connection breaks in the middle.
fn broken() -> Response {
    let pieces = futures_util::stream::iter([Ok(Bytes::from("{")), Err(std::io::Error::other("broken"))]);
    Response::new(Body::from_stream(pieces))
}

fn answer(status: u16, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response.headers_mut().insert("content-type", "application/json; charset=utf-8".parse().expect("a header"));
    response
}

fn done(data: Value) -> Response {
    answer(200, &json!({ "code": 0, "msg": "success", "data": data }))
}

fn refused(code: i64, msg: &str) -> Response {
    answer(400, &json!({ "code": code, "msg": msg }))
}

fn act(
    told: &mut Told,
    addr: SocketAddr,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body: &Value,
    bytes: &[u8],
) -> Response {
    let word = |key: &str| body.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let path = path.split('?').next().unwrap_or_default();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    if path == "/open-apis/auth/v3/tenant_access_token/internal" {
        told.token_calls += 1;
        if word("app_secret") != APP_SECRET {
            return answer(200, &json!({ "code": 10014, "msg": "app secret invalid" }));
        }
        told.tokens += 1;
        told.revoked = false;
        let token = format!("t-{}", told.tokens);
        return answer(200, &json!({ "code": 0, "msg": "ok", "tenant_access_token": token, "expire": told.expire }));
    }
    if path == "/callback/ws/endpoint" {
        if told.endpoint_code != 0 {
            return answer(200, &json!({ "code": told.endpoint_code, "msg": "refused" }));
        }
        let url = format!("ws://{addr}/ws?device_id=1&service_id=33554678");
        return done(json!({ "URL": url, "ClientConfig": told.config }));
    }
    let token = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if told.revoked || token != format!("Bearer t-{}", told.tokens) {
        return refused(99_991_663, "Invalid access token for authorization. Please make a test attempt again.");
    }
    match (method.as_str(), segments.as_slice()) {
        ("GET", ["open-apis", "bot", "v3", "info"]) => answer(
            200,
            &json!({ "code": 0, "msg": "ok", "bot": { "activate_status": 2, "app_name": "Crawfish", "open_id": BOT } }),
        ),
        ("GET", ["open-apis", "application", "v6", "scopes"]) => {
            let one = |(name, granted): &(String, bool)| json!({ "scope_name": name, "grant_status": if *granted { 1 } else { 2 } });
            done(json!({ "scopes": told.scopes.iter().map(one).collect::<Vec<_>>() }))
        }
        ("POST", ["open-apis", "im", "v1", "messages"]) => send(told, body, &word("receive_id"), None),
        ("POST", ["open-apis", "im", "v1", "messages", id, "reply"]) => {
            if told.deleted.iter().any(|gone| gone == id) {
                return refused(230_011, "The message was withdrawn.");
            }
            send(told, body, "", Some((*id).to_owned()))
        }
        ("GET", ["open-apis", "im", "v1", "messages", id]) => match told.messages.get(*id) {
            Some(items) => done(json!({ "items": items })),
            None => refused(230_110, "Action unavailable as the message has been deleted."),
        },
        ("DELETE", ["open-apis", "im", "v1", "messages", id]) => {
            told.deleted.push((*id).to_owned());
            done(json!({}))
        }
        ("GET", ["open-apis", "im", "v1", "messages", _, "resources", key]) => match told.resources.get(*key) {
            Some((mime, bytes)) => {
                let mut response = Response::new(Body::from(bytes.clone()));
                response.headers_mut().insert("content-type", mime.parse().expect("a header"));
                response
            }
            None => refused(234_003, "File not in message."),
        },
        ("POST", ["open-apis", "im", "v1", "messages", id, "reactions"]) => {
            let emoji =
                body.pointer("/reaction_type/emoji_type").and_then(Value::as_str).unwrap_or_default().to_owned();
            let reaction = format!("re-{}", told.reacted.len() + 1);
            told.reacted.push(((*id).to_owned(), emoji.clone()));
            told.reactions.push(((*id).to_owned(), emoji, reaction.clone()));
            done(json!({ "reaction_id": reaction }))
        }
        ("DELETE", ["open-apis", "im", "v1", "messages", _, "reactions", reaction]) => {
            told.reactions.retain(|(_, _, id)| id != reaction);
            done(json!({}))
        }
        ("POST", ["open-apis", "im", "v1", kind @ ("images" | "files")]) => {
            let uploaded = multipart(headers, bytes);
            if uploaded.bytes.is_empty() {
                return refused(234_010, "File's size can't be 0.");
            }
            let key = format!("{}_{}", if *kind == "images" { "img" } else { "file" }, told.uploads.len() + 1);
            told.uploads.insert(key.clone(), uploaded);
            done(if *kind == "images" { json!({ "image_key": key }) } else { json!({ "file_key": key }) })
        }
        ("POST", ["open-apis", "cardkit", "v1", "cards"]) => {
            let data: Value = serde_json::from_str(&word("data")).unwrap_or_default();
            if let Some(refusal) = check_card(&data) {
                return refusal;
            }
            let id = format!("73{:017}", told.cards.len() + 1);
            let streaming = data.pointer("/config/streaming_mode").and_then(Value::as_bool).unwrap_or(false);
            let shown = vec![card_text(&data)];
            told.cards.insert(id.clone(), Card { data, streaming, shown, ..Card::default() });
            done(json!({ "card_id": id }))
        }
        (_, ["open-apis", "cardkit", "v1", "cards", id, what @ ..]) => {
            let Some(card) = told.cards.get_mut(*id) else { return refused(300_301, "card not found") };
            let sequence = body.get("sequence").and_then(Value::as_i64).unwrap_or(0);
            if sequence <= card.sequence {
                return refused(300_317, "sequence number compare failed");
            }
            change_card(card, sequence, method.as_str(), what, body)
        }
        _ => answer(404, &json!({ "code": 99_991_661, "msg": format!("no such call: {method} {path}") })),
    }
}

fn change_card(card: &mut Card, sequence: i64, method: &str, what: &[&str], body: &Value) -> Response {
    match (method, what) {
        ("PUT", ["elements", element, "content"]) => {
            if !card.streaming {
                return refused(300_309, "streaming mode is closed");
            }
            let content = body.get("content").cloned().unwrap_or_default();
            let elements = card.data.pointer_mut("/body/elements").and_then(Value::as_array_mut);
            let found = elements.and_then(|all| all.iter_mut().find(|one| one["element_id"] == *element));
            let Some(found) = found else { return refused(300_314, "element not found") };
            found["content"] = content.clone();
            card.shown.push(content.as_str().unwrap_or_default().to_owned());
        }
        ("PATCH", ["settings"]) => {
            let settings: Value =
                serde_json::from_str(body["settings"].as_str().unwrap_or_default()).unwrap_or_default();
            if let Some(on) = settings.pointer("/config/streaming_mode").and_then(Value::as_bool) {
                card.streaming = on;
                card.data["config"]["streaming_mode"] = json!(on);
            }
        }
        ("PUT", []) => {
            let data = body.pointer("/card/data").and_then(Value::as_str).unwrap_or_default();
            let data: Value = serde_json::from_str(data).unwrap_or_default();
            if let Some(refusal) = check_card(&data) {
                return refusal;
            }
            card.streaming = data.pointer("/config/streaming_mode").and_then(Value::as_bool).unwrap_or(false);
            card.shown.push(card_text(&data));
            card.data = data;
        }
        _ => return refused(300_001, "no such change"),
    }
    card.sequence = sequence;
    done(json!({}))
}

fn send(told: &mut Told, body: &Value, chat: &str, reply_to: Option<String>) -> Response {
    let word = |key: &str| body.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let uuid = word("uuid");
    if uuid.chars().count() > 50 {
        return refused(230_001, "uuid is too long");
    }
    if let Some(id) = told.uuids.get(&uuid).filter(|_| !uuid.is_empty()) {
        return done(json!({ "message_id": id }));
    }
    let Ok(content) = serde_json::from_str::<Value>(&word("content")) else {
        return refused(230_001, "content is not a string in json format");
    };
    let kind = word("msg_type");
    let size = word("content").len();
    match kind.as_str() {
        "interactive" => match content.pointer("/data/card_id").and_then(Value::as_str) {
            Some(id) => match told.cards.get_mut(id) {
                Some(card) if !card.sent => card.sent = true,
                _ => return refused(230_099, "the card cannot be sent"),
            },
            None => {
                if let Some(refusal) = check_card(&content) {
                    return refusal;
                }
            }
        },
        "post" if size > 30 * 1024 => return refused(230_025, "the length of the message content reaches its limit"),
        "text" if size > 150 * 1024 => return refused(230_025, "the length of the message content reaches its limit"),
        _ => {}
    }
    let id = format!("om_bot_{}", told.sent.len() + 1);
    let in_thread = body.get("reply_in_thread").and_then(Value::as_bool).unwrap_or(false);
    told.sent.push(Sent {
        id: id.clone(),
        chat: chat.to_owned(),
        reply_to,
        in_thread,
        kind,
        content,
        uuid: uuid.clone(),
    });
    if !uuid.is_empty() {
        told.uuids.insert(uuid, id.clone());
    }
    done(json!({ "message_id": id }))
}

/// A card of the new form, of at most 30 KB and five tables.
fn check_card(card: &Value) -> Option<Response> {
    if card["schema"] != "2.0" || card.pointer("/body/elements").is_none() {
        return Some(refused(230_099, "Failed to create card content, ext=ErrCode: 11246; ErrMsg: not a card"));
    }
    if card.to_string().len() > 30 * 1024 {
        return Some(refused(230_025, "the length of the message content reaches its limit"));
    }
    let text = card_text(card);
    let (mut fence, mut tables) = (false, 0);
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            fence = !fence;
        }
        let rule =
            line.contains("--") && line.contains('|') && line.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
        if rule && !fence {
            tables += 1;
        }
    }
    let words = "Failed to create card content, ext=ErrCode: 11310; ErrMsg: card table number over limit";
    (tables > 5).then(|| refused(230_099, words))
}

/// The fields of a form.
fn multipart(headers: &HeaderMap, bytes: &[u8]) -> Uploaded {
    let kind = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = format!("--{}", kind.split("boundary=").nth(1).unwrap_or_default().trim_matches('"'));
    let mut uploaded = Uploaded::default();
    let find = |from: usize, what: &[u8]| {
        bytes[from..].windows(what.len()).position(|window| window == what).map(|at| from + at)
    };
    let mut at = 0;
    while let Some(begin) = find(at, boundary.as_bytes()) {
        let begin = begin + boundary.len();
        let (Some(head_end), Some(end)) = (find(begin, b"\r\n\r\n"), find(begin, boundary.as_bytes())) else { break };
        let head = String::from_utf8_lossy(&bytes[begin..head_end]).into_owned();
        let value = &bytes[head_end + 4..end.saturating_sub(2).max(head_end + 4)];
        let name = head.split("name=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        match head.contains("filename=") {
            true => uploaded.bytes = value.to_vec(),
            false => {
                uploaded.fields.insert(name.to_owned(), String::from_utf8_lossy(value).into_owned());
            }
        }
        at = end;
    }
    uploaded
}

async fn socket(State(inner): State<Arc<Inner>>, upgrade: WebSocketUpgrade) -> Result<Response, Infallible> {
    Ok(upgrade.on_upgrade(move |socket| talk(inner, socket)).into_response())
}

async fn talk(inner: Arc<Inner>, mut socket: WebSocket) {
    let (orders, mut ordered) = mpsc::unbounded_channel();
    let me = inner.change(|told| {
        told.opened += 1;
        for (id, payload) in &told.waiting {
            let _ = orders.send(Order::Send(whole(id, payload)));
        }
        told.connections.push((told.opened, orders));
        told.opened
    });
    loop {
        tokio::select! {
            order = ordered.recv() => match order {
                Some(Order::Send(bytes)) => {
                    if socket.send(Message::Binary(bytes.into())).await.is_err() {
                        break;
                    }
                }
                // Without a goodbye, as a network does it.
                Some(Order::Cut) | None => break,
            },
            message = socket.recv() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    if let Some(pong) = hear(&inner, &bytes) && socket.send(Message::Binary(pong.into())).await.is_err() {
                        break;
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            },
        }
    }
    inner.change(|told| told.connections.retain(|(id, _)| *id != me));
}

/// Takes one frame of the app; what is answered.
fn hear(inner: &Inner, bytes: &[u8]) -> Option<Vec<u8>> {
    let (method, headers, payload) = decode(bytes);
    let header = |key: &str| headers.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
    inner.change(|told| {
        if method == 0 {
            told.pings += 1;
            return (!told.deaf).then(|| encode(0, &[("type", "pong")], told.config.to_string().as_bytes()));
        }
        let answer: Value = serde_json::from_slice(&payload).unwrap_or_default();
        let code = answer["code"].as_i64().unwrap_or_default();
        if header("biz_rt").is_some() {
            let id = header("message_id").unwrap_or_default();
            told.waiting.retain(|(waiting, _)| code != 200 || *waiting != id);
            told.acks.push((header("message_id").unwrap_or_default(), code, answer["data"].clone()));
        }
        None
    })
}

/// An event in one frame.
fn whole(id: &str, payload: &[u8]) -> Vec<u8> {
    let headers = [("type", "event"), ("message_id", id), ("trace_id", "t"), ("sum", "1"), ("seq", "0")];
    encode(1, &headers, payload)
}

/// A frame, written by hand so that it is not the adapter's own code that checks the adapter.
fn encode(method: u64, headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (tag, value) in [(0x08, 7), (0x10, 99), (0x18, 33_554_678), (0x20, method)] {
        out.push(tag);
        varint(&mut out, value);
    }
    for (key, value) in headers {
        let mut header = Vec::new();
        bytes_field(&mut header, 0x0a, key.as_bytes());
        bytes_field(&mut header, 0x12, value.as_bytes());
        bytes_field(&mut out, 0x2a, &header);
    }
    bytes_field(&mut out, 0x42, payload);
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes_field(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

type Frame = (u64, Vec<(String, String)>, Vec<u8>);

fn decode(bytes: &[u8]) -> Frame {
    let (mut method, mut headers, mut payload) = (0, Vec::new(), Vec::new());
    for (tag, number, field) in fields(bytes) {
        match tag {
            4 => method = number,
            5 => {
                let mut header = (String::new(), String::new());
                for (tag, _, text) in fields(&field) {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    if tag == 1 { header.0 = text } else { header.1 = text }
                }
                headers.push(header);
            }
            8 => payload = field,
            _ => {}
        }
    }
    (method, headers, payload)
}

/// The fields of a message: tag, number, bytes.
fn fields(bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    let (mut at, mut found) = (0, Vec::new());
    let number = |at: &mut usize| {
        let (mut value, mut shift) = (0_u64, 0);
        while let Some(byte) = bytes.get(*at) {
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 || shift > 63 {
                break;
            }
        }
        value
    };
    while at < bytes.len() {
        let key = number(&mut at);
        if key & 7 == 2 {
            let length = number(&mut at) as usize;
            let end = at.saturating_add(length).min(bytes.len());
            found.push((key >> 3, 0, bytes[at..end].to_vec()));
            at = end;
        } else {
            let value = number(&mut at);
            found.push((key >> 3, value, Vec::new()));
        }
    }
    found
}
