//! A Bot API server with the semantics that matter: updates stay until a higher offset confirms them, a second poll ends
//! the first, messages are checked as the real server checks them. Records every call with its time; makes the faults a
//! test wants.

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
    http::{StatusCode, header},
    response::Response,
};
use channel_api::Clock;
use crawfish::clock::SystemClock;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::wait::SOON;

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
    /// What is read.
    pub text: String,
    /// What was sent.
    pub raw: String,
    /// The parse mode.
    pub parse_mode: Option<String>,
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
    calls: Vec<Call>,
    faults: HashMap<String, VecDeque<Fault>>,
    allowed: Option<Vec<String>>,
    webhook: Option<String>,
    revoked: bool,
    /// The poll that may wait; an older one ends with 409.
    poll: u64,
    waiting: bool,
}

struct Inner {
    told: Mutex<Told>,
    changed: watch::Sender<u64>,
    clock: SystemClock,
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
        let inner = Arc::new(Inner { told: Mutex::new(told), changed: watch::channel(0).0, clock: SystemClock::new() });
        let router = Router::new()
            .route("/api/{bot}/{method}", axum::routing::any(serve))
            .layer(axum::extract::DefaultBodyLimit::max(16 << 20))
            .with_state(Arc::clone(&inner));
        let mut serving = JoinSet::new();
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

    /// Does this with the next calls of a method, one after another.
    pub fn then(&self, method: &str, faults: impl IntoIterator<Item = Fault>) {
        self.inner.change(|told| told.faults.entry(method.to_lowercase()).or_default().extend(faults));
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
            "message_id": message_id, "date": self.inner.clock.now_ms() / 1000, "chat": chat,
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

async fn serve(State(inner): State<Arc<Inner>>, Path((bot, method)): Path<(String, String)>, body: Bytes) -> Response {
    let at = inner.clock.monotonic();
    let method = method.to_lowercase();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
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
        Some(Fault::Reset) => Answered::no(500, "never seen"),
        None | Some(Fault::DoneThenReset | Fault::Slow(_)) => perform(&inner, &method, &body, at).await,
    };
    let call = Call { at, method, body, status: answered.status };
    inner.change(|told| told.calls.push(call));
    if matches!(fault, Some(Fault::Reset | Fault::DoneThenReset)) {
        // Ends the connection's task, and with it the connection, without a message to the terminal.
        std::panic::resume_unwind(Box::new("reset"));
    }
    answered.response()
}

async fn perform(inner: &Inner, method: &str, body: &Value, at: Duration) -> Answered {
    match method {
        "getme" => Answered::ok(&json!({
            "id": BOT_ID, "is_bot": true, "first_name": "Crawfish", "username": BOT_NAME, "can_join_groups": true,
            "can_read_all_group_messages": false, "supports_inline_queries": false, "has_main_web_app": false,
        })),
        "getupdates" => get_updates(inner, body).await,
        "deletewebhook" => inner.change(|told| {
            told.webhook = None;
            Answered::ok(&json!(true))
        }),
        "setmycommands" => set_my_commands(body),
        "sendchataction" => match body["chat_id"].as_i64() {
            Some(chat) if inner.lock().messages.contains_key(&chat) => Answered::ok(&json!(true)),
            _ => Answered::no(400, "Bad Request: chat not found"),
        },
        "sendmessage" => inner.change(|told| send_message(told, body, at)),
        "editmessagetext" => inner.change(|told| edit_message(told, body)),
        _ => Answered::no(404, "Not Found: method not found"),
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
    let raw = body["text"].as_str().unwrap_or_default();
    let text = match body["parse_mode"].as_str().map(str::to_lowercase).as_deref() {
        Some("html") => {
            html(raw).map_err(|error| Answered::no(400, &format!("Bad Request: can't parse entities: {error}")))?
        }
        Some(_) => return Err(Answered::no(400, "Bad Request: unsupported parse_mode")),
        None => raw.to_owned(),
    };
    let text = text.trim().to_owned();
    if text.is_empty() {
        return Err(Answered::no(400, "Bad Request: message text is empty"));
    }
    if text.encode_utf16().count() > 4096 {
        return Err(Answered::no(400, "Bad Request: message is too long"));
    }
    Ok(text)
}

fn send_message(told: &mut Told, body: &Value, at: Duration) -> Answered {
    let Some(chat) = body["chat_id"].as_i64().filter(|chat| told.messages.contains_key(chat)) else {
        return Answered::no(400, "Bad Request: chat not found");
    };
    let text = match read_text(body) {
        Ok(text) => text,
        Err(refusal) => return refusal,
    };
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
    let raw = body["text"].as_str().unwrap_or_default().to_owned();
    let parse_mode = body["parse_mode"].as_str().map(str::to_owned);
    told.sent.push(Sent { at, chat, thread, reply_to, id, text: text.clone(), raw, parse_mode });
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
    if sent.text == text {
        return Answered::no(
            400,
            "Bad Request: message is not modified: specified new message content and reply markup are exactly the same \
             as a current content and reply markup of the message",
        );
    }
    sent.text = text;
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
