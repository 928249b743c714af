//! A Bot API server with the semantics that matter: updates stay until a higher offset confirms them, a second poll ends
//! the first, messages are checked as the real server checks them, updates are posted until they are acknowledged where a
//! webhook is set. Records every call with its time; makes the faults a test wants. The adapter's own tests use it too.

#![allow(dead_code, reason = "some of it only the adapter's own tests use, some only the journeys")]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// The deadline of what should take a moment on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(60);
/// The largest file that a bot may fetch, and send.
const FETCH_BYTES: usize = 20 << 20;
const SEND_BYTES: usize = 50 << 20;

/// The token of the bot.
pub const TOKEN: &str = "4242:AAkit-0123456789_abcdefghijklmnopqrs";
/// The bot's id.
pub const BOT_ID: i64 = 4242;
/// The bot's name.
pub const BOT_NAME: &str = "Crawfish_Bot";
/// The person that writes if no other is named; an owner by [`Telegram::section`].
pub const ADA: i64 = 99;

/// What happens to one call instead of, or after, the ordinary.
#[derive(Clone, Debug)]
pub enum Fault {
    /// 429 with `retry_after`, in seconds; nothing is done.
    RetryAfter(u64),
    /// A page for people, with this status; nothing is done.
    Html(u16),
    /// `ok: false` with this code and description; nothing is done.
    Refuse(u16, &'static str),
    /// The group that is written to gets this id: 400.
    Moved(i64),
    /// This body with status 200; nothing is done.
    Body(&'static str),
    /// It is done, and the connection breaks before the answer.
    DoneThenReset,
    /// The request is read and the connection breaks; nothing is done.
    Reset,
    /// It is done, after this time.
    Slow(Duration),
    /// 302 to this path of the same server, where a file is asked for; nothing is done.
    Redirect(&'static str),
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// When, since the server's start.
    pub at: Duration,
    /// The method, in lower case.
    pub method: String,
    /// Its parameters.
    pub body: Value,
    /// The status it was answered with.
    pub status: u16,
}

/// A message that the bot sent, as people see it.
#[derive(Clone, Debug)]
pub struct Sent {
    /// When, since the server's start.
    pub at: Duration,
    /// The chat.
    pub chat: i64,
    /// The topic.
    pub thread: Option<i64>,
    /// The message it shows itself a reply to.
    pub reply_to: Option<i64>,
    /// Its id.
    pub id: i64,
    /// What is read: the text, or what stands under the file.
    pub text: String,
    /// What was sent.
    pub raw: String,
    /// The parse mode.
    pub parse_mode: Option<String>,
    /// The file.
    pub file: Option<SentFile>,
    /// What the buttons stand for, and the whole keyboard.
    pub keyboard: Value,
    /// Every text it had before, oldest first.
    pub earlier: Vec<String>,
}

/// A file that the bot sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFile {
    /// As what: `photo`, `document`, `voice`, …
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its media type.
    pub mime: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// One step of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The chat.
    pub chat: i64,
    /// Its number.
    pub id: i64,
    /// What is read.
    pub text: String,
}

/// An update that was posted to a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its id.
    pub update: i64,
    /// The answer; 0 when there was none.
    pub status: u16,
}

#[derive(Default)]
struct Told {
    updates: BTreeMap<i64, Value>,
    next_update: i64,
    /// Ids that were handed out in some answer.
    handed_out: BTreeSet<i64>,
    /// The newest id of the messages of each chat.
    messages: HashMap<i64, i64>,
    /// Topics by chat.
    topics: BTreeSet<(i64, i64)>,
    sent: Vec<Sent>,
    drafts: Vec<Draft>,
    /// The bot's mark on each message, and how often it was changed.
    marks: BTreeMap<(i64, i64), Vec<String>>,
    deleted: Vec<(i64, i64)>,
    answered: Vec<String>,
    /// The files of people, by id, and where they can be fetched.
    files: HashMap<String, Vec<u8>>,
    posted: Vec<Posted>,
    secret: Option<String>,
    /// Where the webhook's host leads to.
    reached: Option<watch::Receiver<String>>,
    failed_post: Option<String>,
    calls: Vec<Call>,
    faults: HashMap<String, VecDeque<Fault>>,
    allowed: Option<Vec<String>>,
    webhook: Option<String>,
    revoked: bool,
    /// When each chat was written to; kept and judged where limits are enforced.
    written: Option<Vec<(Duration, i64)>>,
    /// The poll that may wait; an older one ends with 409.
    poll: u64,
    waiting: bool,
}

struct Inner {
    told: Mutex<Told>,
    changed: watch::Sender<u64>,
    started: std::time::Instant,
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_modify(|n| *n += 1);
        result
    }
}

/// The server; ends when it is dropped.
pub struct Telegram {
    addr: SocketAddr,
    inner: Arc<Inner>,
    _serving: JoinSet<()>,
}

impl Telegram {
    /// A server with one bot and no chats.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let told = Told { next_update: 811_000_001, ..Told::default() };
        #[expect(
            clippy::disallowed_methods,
            reason = "the fake stands outside of the gateway and has a clock of its own"
        )]
        let started = std::time::Instant::now();
        let inner = Arc::new(Inner { told: Mutex::new(told), changed: watch::channel(0).0, started });
        let router = Router::new()
            .route("/api/{bot}/{method}", axum::routing::any(serve))
            .route("/api/file/{bot}/{*path}", axum::routing::get(give))
            .layer(axum::extract::DefaultBodyLimit::max(64 << 20))
            .with_state(Arc::clone(&inner));
        let mut serving = JoinSet::new();
        serving.spawn(post_updates(Arc::clone(&inner)));
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { addr, inner, _serving: serving }
    }

    /// The account `main` of the configuration, with Ada as its owner; `more` are lines of it.
    pub fn section(&self, more: &str) -> String {
        format!(
            "[channels.telegram.main]\ntoken = \"{TOKEN}\"\napi_url = \"http://{}/api\"\nowners = [\"{ADA}\"]\n{more}\n",
            self.addr
        )
    }

    /// Where the Bot API is.
    pub fn api_url(&self) -> String {
        format!("http://{}/api", self.addr)
    }

    /// A file of somebody; the id that a message names it by.
    pub fn put_file(&self, id: &str, bytes: &[u8]) -> String {
        self.inner.change(|told| told.files.insert(id.to_owned(), bytes.to_vec()));
        id.to_owned()
    }

    /// Somebody presses a button that stands for `data` under a message. The query's id.
    pub fn press(&self, chat: &Value, message: i64, from: i64, data: &str) -> String {
        let id = format!("q{}", self.inner.lock().next_update);
        let sent = self.sent().into_iter().find(|sent| Some(sent.chat) == chat["id"].as_i64() && sent.id == message);
        let query = json!({
            "id": id, "chat_instance": "1", "data": data,
            "from": { "id": from, "is_bot": false, "first_name": format!("Person {from}") },
            "message": {
                "message_id": message, "date": 1_795_000_000, "chat": chat,
                "text": sent.map(|sent| sent.text).unwrap_or_default(),
                "from": { "id": BOT_ID, "is_bot": true, "first_name": "Crawfish", "username": BOT_NAME },
            },
        });
        self.update("callback_query", &query);
        id
    }

    /// Every step of every draft.
    pub fn drafts(&self) -> Vec<Draft> {
        self.inner.lock().drafts.clone()
    }

    /// The marks that the bot put on a message, in order; none is an empty text.
    pub fn marks(&self, chat: i64, message: i64) -> Vec<String> {
        self.inner.lock().marks.get(&(chat, message)).cloned().unwrap_or_default()
    }

    /// The messages that the bot took away.
    pub fn deleted(&self) -> Vec<(i64, i64)> {
        self.inner.lock().deleted.clone()
    }

    /// The queries of buttons that the bot answered.
    pub fn answered(&self) -> Vec<String> {
        self.inner.lock().answered.clone()
    }

    /// From now on the webhook's host leads to whoever listens at this address, whatever its name is.
    pub fn reach(&self, address: watch::Receiver<String>) {
        self.inner.change(|told| told.reached = Some(address));
    }

    /// Every post to the webhook.
    pub fn posted(&self) -> Vec<Posted> {
        self.inner.lock().posted.clone()
    }

    /// Where updates are posted to.
    pub fn webhook(&self) -> Option<String> {
        self.inner.lock().webhook.clone()
    }

    /// Does this with the next calls of a method, one after another. `file` is the download of a file.
    pub fn then(&self, method: &str, faults: impl IntoIterator<Item = Fault>) {
        self.inner.change(|told| told.faults.entry(method.to_lowercase()).or_default().extend(faults));
    }

    /// From now on what comes too fast is refused: more than 30 calls in a second, 5 in a second to one chat, 20 in a
    /// minute to a group.
    pub fn enforce_limits(&self) {
        self.inner.change(|told| told.written = Some(Vec::new()));
    }

    /// The token is no longer good.
    pub fn revoke(&self) {
        self.inner.change(|told| told.revoked = true);
    }

    /// Someone sets a webhook.
    pub fn set_webhook(&self, url: &str) {
        self.inner.change(|told| told.webhook = Some(url.to_owned()));
    }

    /// The next update has this id: as after a week of silence.
    pub fn go_on_at(&self, update_id: i64) {
        self.inner.change(|told| told.next_update = update_id);
    }

    /// A topic of a forum exists.
    pub fn open_topic(&self, chat: i64, thread: i64) {
        self.inner.change(|told| told.topics.insert((chat, thread)));
    }

    /// An update; its id.
    pub fn update(&self, kind: &str, content: &Value) -> i64 {
        self.inner.change(|told| {
            let id = told.next_update;
            told.next_update += 1;
            if let Some(chat) = content["chat"]["id"].as_i64() {
                let newest = told.messages.entry(chat).or_insert(0);
                *newest = (*newest).max(content["message_id"].as_i64().unwrap_or_default());
            }
            let unwanted = ["chat_member", "message_reaction", "message_reaction_count"];
            let wanted = match &told.allowed {
                Some(allowed) if !allowed.is_empty() => allowed.iter().any(|one| one == kind),
                _ => !unwanted.contains(&kind),
            };
            if wanted {
                told.updates.insert(id, json!({ "update_id": id, kind: content }));
            }
            id
        })
    }

    /// A new message of a chat; `more` is added to it. Its id.
    pub fn message(&self, chat: &Value, from: i64, more: &Value) -> i64 {
        let id = chat["id"].as_i64().expect("a chat has an id");
        let message_id = self.inner.change(|told| {
            let newest = told.messages.entry(id).or_insert(0);
            *newest += 1;
            *newest
        });
        let mut message = json!({
            "message_id": message_id, "date": 1_795_000_000, "chat": chat,
            "from": { "id": from, "is_bot": false, "first_name": format!("Person {from}") },
        });
        merge(&mut message, more);
        self.update("message", &message);
        message_id
    }

    /// A person writes to the bot.
    pub fn private(&self, from: i64, text: &str) -> i64 {
        self.message(&private(from), from, &json!({ "text": text }))
    }

    /// A person writes in a group. Where the text holds the bot's name, it is marked as a mention.
    pub fn group(&self, chat: &Value, from: i64, text: &str) -> i64 {
        self.message(chat, from, &json!({ "text": text, "entities": mentions(text) }))
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<Call> {
        self.inner.lock().calls.clone()
    }

    /// The calls of one method.
    pub fn calls_of(&self, method: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.method == method.to_lowercase()).collect()
    }

    /// What people see of the bot.
    pub fn sent(&self) -> Vec<Sent> {
        self.inner.lock().sent.clone()
    }

    /// The same in one chat.
    pub fn sent_to(&self, chat: i64) -> Vec<Sent> {
        self.sent().into_iter().filter(|sent| sent.chat == chat).collect()
    }

    /// Waits until a look at the server gives something.
    pub async fn until<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let mut changed = self.inner.changed.subscribe();
        let looking = async {
            loop {
                if let Some(found) = look(self) {
                    return found;
                }
                changed.changed().await.expect("the server lives");
            }
        };
        match tokio::time::timeout(SOON * 2, looking).await {
            Ok(found) => found,
            Err(_) => panic!("waited in vain for {what}; calls: {:#?}", self.last_calls()),
        }
    }

    fn last_calls(&self) -> Vec<String> {
        let calls = self.calls();
        let last = &calls[calls.len().saturating_sub(12)..];
        last.iter().map(|call| format!("{:?} {} {} {}", call.at, call.method, call.status, call.body)).collect()
    }

    /// Waits for a message in a chat that holds this.
    pub async fn said(&self, chat: i64, text: &str) -> Sent {
        self.until(&format!("{text:?} in {chat}"), |telegram| {
            telegram.sent_to(chat).into_iter().find(|sent| sent.text.contains(text))
        })
        .await
    }

    /// Waits until an update was handed out.
    pub async fn handed_out(&self, update: i64) {
        self.until("an update to be taken", |telegram| {
            telegram.inner.lock().handed_out.contains(&update).then_some(())
        })
        .await;
    }

    /// Waits until nothing is left to hand out: everything was confirmed.
    pub async fn all_confirmed(&self) {
        self.until("every update to be confirmed", |telegram| telegram.inner.lock().updates.is_empty().then_some(()))
            .await;
    }

    /// The id of the newest update.
    pub fn newest_update(&self) -> i64 {
        self.inner.lock().next_update - 1
    }

    /// Waits until a poll waits here.
    pub async fn polled(&self) {
        self.until("a poll", |telegram| telegram.inner.lock().waiting.then_some(())).await;
    }
}

/// A private chat.
pub fn private(person: i64) -> Value {
    json!({ "id": person, "type": "private", "first_name": format!("Person {person}") })
}

/// A group.
pub fn group(id: i64) -> Value {
    json!({ "id": id, "type": "supergroup", "title": "Friends" })
}

/// A group with topics.
pub fn forum(id: i64) -> Value {
    json!({ "id": id, "type": "supergroup", "title": "Forum", "is_forum": true })
}

/// The bot's name in a text, as entities.
pub fn mentions(text: &str) -> Value {
    let name = format!("@{BOT_NAME}");
    let marks = text.match_indices(&name).map(|(at, _)| {
        let offset = text[..at].encode_utf16().count();
        json!({ "type": "mention", "offset": offset, "length": name.len() })
    });
    Value::Array(marks.collect())
}

fn merge(into: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
}

/// What a call comes to.
struct Answered {
    status: u16,
    body: String,
    html: bool,
}

impl Answered {
    fn ok(result: &Value) -> Self {
        Self { status: 200, body: json!({ "ok": true, "result": result }).to_string(), html: false }
    }

    fn no(code: u16, description: &str) -> Self {
        Self::with(code, description, &Value::Null)
    }

    fn with(code: u16, description: &str, parameters: &Value) -> Self {
        let mut body = json!({ "ok": false, "error_code": code, "description": description });
        if !parameters.is_null() {
            body["parameters"] = parameters.clone();
        }
        Self { status: code, body: body.to_string(), html: false }
    }

    fn response(self) -> Response {
        let kind = if self.html { "text/html" } else { "application/json" };
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = StatusCode::from_u16(self.status).expect("a status");
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        response
    }
}

async fn serve(
    State(inner): State<Arc<Inner>>,
    Path((bot, method)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let at = inner.started.elapsed();
    let method = method.to_lowercase();
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let (body, file) = match kind.strip_prefix("multipart/form-data; boundary=") {
        Some(boundary) => form(&body, boundary),
        None => (serde_json::from_slice(&body).unwrap_or(Value::Null), None),
    };
    let fault = inner.lock().faults.get_mut(&method).and_then(VecDeque::pop_front);
    if let Some(Fault::Slow(time)) = fault {
        tokio::time::sleep(time).await;
    }
    let answered = match &fault {
        _ if inner.lock().revoked || bot != format!("bot{TOKEN}") => Answered::no(401, "Unauthorized"),
        Some(Fault::RetryAfter(seconds)) => Answered::with(
            429,
            &format!("Too Many Requests: retry after {seconds}"),
            &json!({ "retry_after": seconds }),
        ),
        Some(Fault::Html(status)) => Answered {
            status: *status,
            body: "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n</html>".to_owned(),
            html: true,
        },
        Some(Fault::Refuse(code, description)) => Answered::no(*code, description),
        Some(Fault::Moved(to)) => {
            inner.change(|told| {
                told.messages.remove(&body["chat_id"].as_i64().unwrap_or_default());
                told.messages.entry(*to).or_insert(1);
            });
            let description = "Bad Request: group chat was upgraded to a supergroup chat";
            Answered::with(400, description, &json!({ "migrate_to_chat_id": to }))
        }
        Some(Fault::Body(body)) => Answered { status: 200, body: (*body).to_owned(), html: false },
        Some(Fault::Reset | Fault::Redirect(_)) => Answered::no(500, "never seen"),
        _ if too_fast(&mut inner.lock(), &method, &body, at) => {
            Answered::with(429, "Too Many Requests: retry after 3", &json!({ "retry_after": 3 }))
        }
        None | Some(Fault::DoneThenReset | Fault::Slow(_)) => perform(&inner, &method, &body, file, at).await,
    };
    let call = Call { at, method, body, status: answered.status };
    inner.change(|told| told.calls.push(call));
    if matches!(fault, Some(Fault::Reset | Fault::DoneThenReset)) {
        // Ends the connection's task, and with it the connection, without a message to the terminal.
        std::panic::resume_unwind(Box::new("reset"));
    }
    answered.response()
}

async fn perform(inner: &Inner, method: &str, body: &Value, file: Option<SentFile>, at: Duration) -> Answered {
    match method {
        "getme" => Answered::ok(&json!({
            "id": BOT_ID, "is_bot": true, "first_name": "Crawfish", "username": BOT_NAME, "can_join_groups": true,
            "can_read_all_group_messages": false, "supports_inline_queries": false, "has_main_web_app": false,
        })),
        "getupdates" => get_updates(inner, body).await,
        "setwebhook" => inner.change(|told| set_webhook(told, body)),
        "deletewebhook" => inner.change(|told| {
            told.webhook = None;
            Answered::ok(&json!(true))
        }),
        "getwebhookinfo" => {
            let told = inner.lock();
            let mut info = json!({
                "url": told.webhook.clone().unwrap_or_default(), "has_custom_certificate": false,
                "pending_update_count": told.updates.len(),
            });
            if let Some(error) = &told.failed_post {
                info["last_error_date"] = json!(1_795_000_000);
                info["last_error_message"] = json!(error);
            }
            Answered::ok(&info)
        }
        "getfile" => get_file(&inner.lock(), body),
        "setmycommands" => set_my_commands(body),
        "sendchataction" => match body["chat_id"].as_i64() {
            Some(chat) if inner.lock().messages.contains_key(&chat) => Answered::ok(&json!(true)),
            _ => Answered::no(400, "Bad Request: chat not found"),
        },
        "sendmessage" => inner.change(|told| send_message(told, body, None, at)),
        "sendphoto" | "senddocument" | "sendvoice" | "sendaudio" | "sendvideo" | "sendanimation" => {
            inner.change(|told| send_file(told, &method["send".len()..], body, file, at))
        }
        "sendmessagedraft" => inner.change(|told| send_draft(told, body)),
        "editmessagetext" => inner.change(|told| edit_message(told, body)),
        "deletemessage" => inner.change(|told| delete_message(told, body)),
        "setmessagereaction" => inner.change(|told| set_reaction(told, body)),
        "answercallbackquery" => inner.change(|told| {
            told.answered.push(body["callback_query_id"].as_str().unwrap_or_default().to_owned());
            Answered::ok(&json!(true))
        }),
        _ => Answered::no(404, "Not Found: method not found"),
    }
}

/// Whether a call that people see comes too fast.
fn too_fast(told: &mut Told, method: &str, body: &Value, at: Duration) -> bool {
    let seen = ["sendmessage", "sendphoto", "senddocument", "sendvoice", "editmessagetext"].contains(&method);
    let (Some(written), Some(chat), true) = (&mut told.written, body["chat_id"].as_i64(), seen) else { return false };
    let within = |time: u64, of: Option<i64>| {
        let new = |(then, chat): &&(Duration, i64)| {
            at.saturating_sub(*then) < Duration::from_secs(time) && of.is_none_or(|of| of == *chat)
        };
        written.iter().filter(new).count()
    };
    let fast = within(1, None) >= 30 || within(1, Some(chat)) >= 5 || (chat < 0 && within(60, Some(chat)) >= 20);
    if !fast {
        written.push((at, chat));
    }
    fast
}

/// A form's parameters as JSON, and its file.
fn form(body: &[u8], boundary: &str) -> (Value, Option<SentFile>) {
    let (mut fields, mut file) = (Map::new(), None);
    let between = format!("--{boundary}");
    let find = |from: &[u8], what: &[u8]| from.windows(what.len()).position(|window| window == what);
    let mut rest = body;
    while let Some(at) = find(rest, between.as_bytes()) {
        rest = &rest[at + between.len()..];
        let Some(end) = find(rest, format!("\r\n{between}").as_bytes()) else { break };
        let part = &rest[..end];
        let Some(gap) = find(part, b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&part[..gap]).into_owned();
        let content = &part[gap + 4..];
        let of = |key: &str| head.split_once(&format!("{key}=\"")).and_then(|(_, rest)| rest.split('"').next());
        let name = of(" name").unwrap_or_default().to_owned();
        if let Some(file_name) = of("filename") {
            let mime =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-type: ").map(str::to_owned));
            let (name, mime) = (file_name.to_owned(), mime.unwrap_or_default());
            file = Some(SentFile {
                kind: of(" name").unwrap_or_default().to_owned(),
                name,
                mime,
                bytes: content.to_vec(),
            });
        } else {
            let text = String::from_utf8_lossy(content).into_owned();
            // Numbers and objects are read from their text, words stay words.
            let read = serde_json::from_str(&text).ok().filter(|value: &Value| !value.is_string());
            let words = matches!(name.as_str(), "caption" | "text" | "parse_mode");
            fields.insert(name, read.filter(|_| !words).unwrap_or(Value::String(text)));
        }
    }
    (Value::Object(fields), file)
}

fn get_file(told: &Told, body: &Value) -> Answered {
    let id = body["file_id"].as_str().unwrap_or_default();
    match told.files.get(id) {
        None => Answered::no(400, "Bad Request: wrong file_id or the file is temporarily unavailable"),
        Some(bytes) if bytes.len() > FETCH_BYTES => Answered::no(400, "Bad Request: file is too big"),
        Some(bytes) => Answered::ok(&json!({
            "file_id": id, "file_unique_id": format!("u{id}"), "file_size": bytes.len(), "file_path": format!("files/{id}"),
        })),
    }
}

/// The download of a file.
async fn give(State(inner): State<Arc<Inner>>, Path((bot, path)): Path<(String, String)>) -> Response {
    let fault = inner.lock().faults.get_mut("file").and_then(VecDeque::pop_front);
    let answered = match fault {
        Some(Fault::Html(status)) => Answered { status, body: "<html></html>".to_owned(), html: true },
        Some(Fault::Refuse(code, description)) => Answered::no(code, description),
        Some(Fault::Reset) => std::panic::resume_unwind(Box::new("reset")),
        Some(Fault::Slow(time)) => {
            tokio::time::sleep(time).await;
            Answered::no(404, "Not Found")
        }
        _ => Answered::no(404, "Not Found"),
    };
    inner.change(|told| {
        let status = if answered.status == 404 { 200 } else { answered.status };
        told.calls.push(Call { at: inner.started.elapsed(), method: "file".to_owned(), body: json!(path), status });
    });
    if let Some(Fault::Redirect(to)) = fault {
        return axum::response::IntoResponse::into_response((StatusCode::FOUND, [("location", to)]));
    }
    let found = path.strip_prefix("files/").and_then(|id| inner.lock().files.get(id).cloned());
    match found {
        Some(bytes) if answered.status == 404 && bot == format!("bot{TOKEN}") => Response::new(Body::from(bytes)),
        _ => answered.response(),
    }
}

fn set_webhook(told: &mut Told, body: &Value) -> Answered {
    let url = body["url"].as_str().unwrap_or_default().to_owned();
    if !url.starts_with("http") {
        return Answered::no(400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook");
    }
    if let Some(allowed) = body["allowed_updates"].as_array() {
        told.allowed = Some(allowed.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    }
    told.secret = body["secret_token"].as_str().map(str::to_owned);
    told.webhook = Some(url);
    Answered::ok(&json!(true))
}

/// Posts updates one after another where a webhook is set, each again and again until it is acknowledged.
async fn post_updates(inner: Arc<Inner>) {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().expect("a client");
    let mut changed = inner.changed.subscribe();
    loop {
        let next = {
            let told = inner.lock();
            let path =
                told.webhook.as_ref().and_then(|url| Some(url.split_once("://")?.1.split_once('/')?.1.to_owned()));
            let reached = told.reached.as_ref().map(|address| address.borrow().clone());
            let url = reached.zip(path).map(|(address, path)| format!("{address}/{path}"));
            url.zip(told.updates.iter().next().map(|(id, update)| (*id, update.clone(), told.secret.clone())))
        };
        let Some((url, (id, update, secret))) = next else {
            if changed.changed().await.is_err() {
                return;
            }
            continue;
        };
        inner.change(|told| told.handed_out.insert(id));
        let mut post = client.post(&url).header(header::CONTENT_TYPE, "application/json").body(update.to_string());
        if let Some(secret) = secret {
            post = post.header("X-Telegram-Bot-Api-Secret-Token", secret);
        }
        let status = post.send().await.map_or(0, |answer| answer.status().as_u16());
        inner.change(|told| {
            told.posted.push(Posted { update: id, status });
            if (200..300).contains(&status) {
                told.updates.remove(&id);
                told.failed_post = None;
            } else {
                told.failed_post = Some(format!("Wrong response from the webhook: {status}"));
            }
        });
        if !(200..300).contains(&status) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn get_updates(inner: &Inner, body: &Value) -> Answered {
    const TERMINATED: &str =
        "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running";
    const WEBHOOK: &str =
        "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";
    let limit = body["limit"].as_u64().unwrap_or(100).clamp(1, 100) as usize;
    let timeout = Duration::from_secs(body["timeout"].as_u64().unwrap_or(0));
    let mine = inner.change(|told| {
        told.poll += 1;
        if let Some(allowed) = body["allowed_updates"].as_array() {
            told.allowed = Some(allowed.iter().filter_map(Value::as_str).map(str::to_owned).collect());
        }
        match body["offset"].as_i64() {
            // What is before it is confirmed, and gone. An offset that no update can have yet confirms nothing: ids have
            // begun anew.
            Some(offset) if offset > 0 && offset <= told.next_update => told.updates = told.updates.split_off(&offset),
            Some(offset) if offset < 0 => {
                let keep = usize::try_from(-offset).unwrap_or(usize::MAX);
                while told.updates.len() > keep {
                    told.updates.pop_first();
                }
            }
            _ => {}
        }
        told.poll
    });
    let mut changed = inner.changed.subscribe();
    let waiting = async {
        loop {
            let answer = {
                let mut told = inner.lock();
                told.waiting = told.poll == mine;
                if told.poll != mine {
                    Some(Answered::no(409, TERMINATED))
                } else if told.webhook.is_some() {
                    Some(Answered::no(409, WEBHOOK))
                } else if told.revoked {
                    Some(Answered::no(401, "Unauthorized"))
                } else if told.updates.is_empty() {
                    None
                } else {
                    Some(hand_out(&mut told, limit))
                }
            };
            if let Some(answer) = answer {
                return answer;
            }
            if changed.changed().await.is_err() {
                return Answered::ok(&json!([]));
            }
        }
    };
    let answer = tokio::time::timeout(timeout, waiting).await.unwrap_or_else(|_| Answered::ok(&json!([])));
    inner.change(|told| told.waiting = false);
    answer
}

fn hand_out(told: &mut Told, limit: usize) -> Answered {
    let updates: Vec<Value> = told.updates.values().take(limit).cloned().collect();
    let ids: Vec<i64> = told.updates.keys().take(limit).copied().collect();
    told.handed_out.extend(ids);
    Answered::ok(&Value::Array(updates))
}

fn set_my_commands(body: &Value) -> Answered {
    let commands = body["commands"].as_array().map_or(&[][..], Vec::as_slice);
    if commands.len() > 100 {
        return Answered::no(400, "Bad Request: BOT_COMMANDS_TOO_MUCH");
    }
    let good = |command: &Value| {
        let name = command["command"].as_str().unwrap_or_default();
        let described = command["description"].as_str().is_some_and(|text| (1..=256).contains(&text.chars().count()));
        let named = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        described && named && (1..=32).contains(&name.len())
    };
    match commands.iter().all(good) {
        true => Answered::ok(&json!(true)),
        false => Answered::no(400, "Bad Request: BOT_COMMAND_INVALID"),
    }
}

/// What is read of a text, or why it is refused.
fn read_text(body: &Value) -> Result<String, Answered> {
    let text = read_marked(body, "text")?;
    if text.is_empty() {
        return Err(Answered::no(400, "Bad Request: message text is empty"));
    }
    if text.encode_utf16().count() > 4096 {
        return Err(Answered::no(400, "Bad Request: message is too long"));
    }
    Ok(text)
}

fn read_marked(body: &Value, field: &str) -> Result<String, Answered> {
    let raw = body[field].as_str().unwrap_or_default();
    let text = match body["parse_mode"].as_str().map(str::to_lowercase).as_deref() {
        Some("html") => {
            html(raw).map_err(|error| Answered::no(400, &format!("Bad Request: can't parse entities: {error}")))?
        }
        Some(_) => return Err(Answered::no(400, "Bad Request: unsupported parse_mode")),
        None => raw.to_owned(),
    };
    Ok(text.trim().to_owned())
}

/// What is wrong with a keyboard, if something is.
fn keyboard_problem(body: &Value) -> Option<Answered> {
    let rows = body["reply_markup"]["inline_keyboard"].as_array()?;
    let good = |key: &Value| {
        let data = key["callback_data"].as_str().unwrap_or_default();
        !key["text"].as_str().unwrap_or_default().is_empty() && (1..=64).contains(&data.len())
    };
    let all = rows.iter().flat_map(|row| row.as_array().into_iter().flatten()).all(good);
    (!all).then(|| Answered::no(400, "Bad Request: BUTTON_DATA_INVALID"))
}

fn send_file(told: &mut Told, kind: &str, body: &Value, file: Option<SentFile>, at: Duration) -> Answered {
    let Some(file) = file.filter(|file| file.kind == kind && !file.bytes.is_empty()) else {
        return Answered::no(400, "Bad Request: there is no file in the request");
    };
    if file.bytes.len() > SEND_BYTES {
        return Answered::no(413, "Request Entity Too Large");
    }
    // As the real one: what is no picture is no photo, what is no Opus is no voice.
    let starts = |magic: &[u8]| file.bytes.starts_with(magic);
    let shown = match kind {
        "photo" => starts(b"\x89PNG") || starts(b"\xff\xd8\xff") || starts(b"RIFF"),
        "voice" => starts(b"OggS"),
        _ => true,
    };
    match (shown, kind) {
        (true, _) => send_message(told, body, Some(file), at),
        (false, "photo") => Answered::no(400, "Bad Request: IMAGE_PROCESS_FAILED"),
        (false, _) => Answered::no(400, "Bad Request: wrong file type"),
    }
}

fn send_draft(told: &mut Told, body: &Value) -> Answered {
    let (chat, id) = (body["chat_id"].as_i64().unwrap_or_default(), body["draft_id"].as_i64().unwrap_or_default());
    if chat <= 0 || !told.messages.contains_key(&chat) {
        return Answered::no(400, "Bad Request: TEXTDRAFT_PEER_INVALID");
    }
    if id == 0 {
        return Answered::no(400, "Bad Request: draft identifier must be non-zero");
    }
    match read_text(body) {
        Ok(text) => {
            told.drafts.push(Draft { chat, id, text });
            Answered::ok(&json!(true))
        }
        Err(refusal) => refusal,
    }
}

fn delete_message(told: &mut Told, body: &Value) -> Answered {
    let (chat, id) = (body["chat_id"].as_i64().unwrap_or_default(), body["message_id"].as_i64().unwrap_or_default());
    let before = told.sent.len();
    told.sent.retain(|sent| (sent.chat, sent.id) != (chat, id));
    if told.sent.len() == before {
        return Answered::no(400, "Bad Request: message to delete not found");
    }
    told.deleted.push((chat, id));
    Answered::ok(&json!(true))
}

fn set_reaction(told: &mut Told, body: &Value) -> Answered {
    let (chat, id) = (body["chat_id"].as_i64().unwrap_or_default(), body["message_id"].as_i64().unwrap_or_default());
    if told.messages.get(&chat).is_none_or(|newest| id < 1 || id > *newest) {
        return Answered::no(400, "Bad Request: message to react not found");
    }
    let emoji = body["reaction"][0]["emoji"].as_str().unwrap_or_default();
    if !["", "👀", "🤔", "👍", "😱", "🔥", "🎉"].contains(&emoji) {
        return Answered::no(400, "Bad Request: REACTION_INVALID");
    }
    told.marks.entry((chat, id)).or_default().push(emoji.to_owned());
    Answered::ok(&json!(true))
}

fn send_message(told: &mut Told, body: &Value, file: Option<SentFile>, at: Duration) -> Answered {
    let Some(chat) = body["chat_id"].as_i64().filter(|chat| told.messages.contains_key(chat)) else {
        return Answered::no(400, "Bad Request: chat not found");
    };
    let read = match &file {
        None => read_text(body),
        Some(_) => read_marked(body, "caption"),
    };
    let text = match read {
        Ok(text) if file.is_some() && text.encode_utf16().count() > 1024 => {
            return Answered::no(400, "Bad Request: message caption is too long");
        }
        Ok(text) => text,
        Err(refusal) => return refusal,
    };
    if let Some(refusal) = keyboard_problem(body) {
        return refusal;
    }
    let thread = body["message_thread_id"].as_i64();
    if thread.is_some_and(|thread| !told.topics.contains(&(chat, thread))) {
        return Answered::no(400, "Bad Request: message thread not found");
    }
    let newest = told.messages.entry(chat).or_insert(0);
    let mut reply_to = body["reply_parameters"]["message_id"].as_i64();
    if reply_to.is_some_and(|id| id < 1 || id > *newest) {
        if body["reply_parameters"]["allow_sending_without_reply"] != true {
            return Answered::no(400, "Bad Request: message to be replied not found");
        }
        reply_to = None;
    }
    *newest += 1;
    let id = *newest;
    let raw = body["text"].as_str().or(body["caption"].as_str()).unwrap_or_default().to_owned();
    let parse_mode = body["parse_mode"].as_str().map(str::to_owned);
    let (text_sent, keyboard, earlier) = (text.clone(), body["reply_markup"]["inline_keyboard"].clone(), Vec::new());
    told.sent.push(Sent { at, chat, thread, reply_to, id, text: text_sent, raw, parse_mode, file, keyboard, earlier });
    Answered::ok(&json!({
        "message_id": id, "date": 1_795_000_000, "text": text, "chat": { "id": chat, "type": "private" },
        "from": { "id": BOT_ID, "is_bot": true, "first_name": "Crawfish", "username": BOT_NAME },
    }))
}

fn edit_message(told: &mut Told, body: &Value) -> Answered {
    let (chat, id) = (body["chat_id"].as_i64(), body["message_id"].as_i64());
    let text = match read_text(body) {
        Ok(text) => text,
        Err(refusal) => return refusal,
    };
    let Some(sent) = told.sent.iter_mut().find(|sent| Some(sent.chat) == chat && Some(sent.id) == id) else {
        return Answered::no(400, "Bad Request: message to edit not found");
    };
    let keyboard = &body["reply_markup"]["inline_keyboard"];
    if sent.text == text && sent.keyboard == *keyboard {
        return Answered::no(
            400,
            "Bad Request: message is not modified: specified new message content and reply markup are exactly the same \
             as a current content and reply markup of the message",
        );
    }
    let earlier = std::mem::replace(&mut sent.text, text);
    sent.earlier.push(earlier);
    sent.keyboard = keyboard.clone();
    sent.raw = body["text"].as_str().unwrap_or_default().to_owned();
    sent.parse_mode = body["parse_mode"].as_str().map(str::to_owned);
    Answered::ok(&json!({ "message_id": id, "date": 1_795_000_000, "chat": { "id": chat, "type": "private" } }))
}

/// The text of Telegram's HTML, or what is wrong with it.
fn html(raw: &str) -> Result<String, String> {
    const TAGS: [&str; 16] = [
        "b",
        "strong",
        "i",
        "em",
        "u",
        "ins",
        "s",
        "strike",
        "del",
        "a",
        "code",
        "pre",
        "blockquote",
        "span",
        "tg-spoiler",
        "tg-emoji",
    ];
    let mut text = String::new();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = raw;
    let offset = |rest: &str| raw.len() - rest.len();
    while let Some(at) = rest.find(['<', '&']) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(entity) = rest.strip_prefix('&') {
            let known = [("lt;", '<'), ("gt;", '>'), ("amp;", '&'), ("quot;", '"')];
            match known.iter().find(|(name, _)| entity.starts_with(name)) {
                Some((name, c)) => {
                    text.push(*c);
                    rest = &entity[name.len()..];
                }
                None => {
                    text.push('&');
                    rest = entity;
                }
            }
            continue;
        }
        let end = rest.find('>').ok_or_else(|| format!("Unclosed start tag at byte offset {}", offset(rest)))?;
        let tag = &rest[1..end];
        if let Some(name) = tag.strip_prefix('/') {
            match open.pop() {
                Some(opened) if opened == name.trim() || name.is_empty() => {}
                Some(opened) => {
                    let at = offset(rest);
                    return Err(format!(
                        "Unmatched end tag at byte offset {at}, expected \"</{opened}>\", found \"</{name}>\""
                    ));
                }
                None => return Err(format!("Unexpected end tag at byte offset {}", offset(rest))),
            }
        } else {
            let name = tag.split(|c: char| c.is_whitespace()).next().unwrap_or_default();
            if !TAGS.contains(&name) {
                return Err(format!("Unsupported start tag \"{name}\" at byte offset {}", offset(rest)));
            }
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    text.push_str(rest);
    match open.pop() {
        Some(name) => Err(format!("Can't find end tag corresponding to start tag \"{name}\"")),
        None => Ok(text),
    }
}

#[test]
fn the_html_of_the_fake_is_as_strict_as_telegrams() {
    assert_eq!(html("<b>1 &lt; 2</b> &amp; <a href=\"x\">y</a> &nope;").as_deref(), Ok("1 < 2 & y &nope;"));
    for wrong in ["<b>open", "<i><b>x</i></b>", "</b>", "<h1>x</h1>", "a < b"] {
        assert!(html(wrong).is_err(), "{wrong}");
    }
}
