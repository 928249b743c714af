//! A OneBot v11 implementation, NapCat or one of the others, without QQ behind it: it keeps the messages it was told and
//! sent, answers calls, brings events, and makes the faults a test wants. It connects to the gateway, is connected to, or
//! pushes by HTTP.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{
        Path, State,
        ws::{Message as AxumMessage, WebSocket, WebSocketUpgrade},
    },
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};

/// The bot's number if no other is named.
pub const BOT: i64 = 10_001;
/// The person that writes if no other is named.
pub const ADA: i64 = 99;
/// A group.
pub const GROUP: i64 = 700;

/// Which implementation is played. protocols.md §1.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// NapCat.
    NapCat,
    /// LLOneBot.
    LlOneBot,
    /// go-cqhttp.
    GoCqhttp,
    /// Lagrange.OneBot.
    Lagrange,
}

/// What happens to one call instead of, or after, the ordinary.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is done, and the answer says that QQ did not answer in time.
    DoneButTimeout,
    /// It is done and never answered.
    DoneButSilent,
    /// It is done, and all connections break before the answer.
    DoneThenGone,
    /// Nothing is done, and the answer is a failure with this retcode and these words.
    Refuse(i64, &'static str),
    /// It is done and answered twice.
    AnsweredTwice,
    /// It is done, and the answer's echo is a number.
    WrongEcho,
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The action.
    pub action: String,
    /// Its parameters.
    pub params: Value,
}

/// What goes over a connection to the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Text.
    Text(String),
    /// The end.
    Close(u16),
}

/// The implementation.
#[derive(Clone)]
pub struct OneBot(Arc<Inner>);

struct Inner {
    flavour: Flavour,
    bot: i64,
    state: Mutex<Known>,
    changed: watch::Sender<u64>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct Known {
    calls: Vec<Call>,
    faults: HashMap<String, VecDeque<Fault>>,
    /// The messages of each chat, events and own ones, oldest first.
    messages: BTreeMap<String, Vec<Value>>,
    forwards: HashMap<String, Value>,
    /// What stands where calls for files look.
    files: HashMap<String, Value>,
    connections: Vec<mpsc::UnboundedSender<Line>>,
    /// How many connections were opened so far.
    opened: usize,
    next: i64,
    time: i64,
    token: Option<String>,
    deaf: bool,
    unknown: Vec<String>,
}

impl OneBot {
    /// An implementation that is logged in as [`BOT`].
    pub fn new(flavour: Flavour) -> Self {
        Self::of(flavour, BOT)
    }

    /// The same for another number.
    pub fn of(flavour: Flavour, bot: i64) -> Self {
        let state = Mutex::new(Known { next: 1_000, time: 1_795_996_800, ..Known::default() });
        Self(Arc::new(Inner { flavour, bot, state, changed: watch::Sender::new(0), tasks: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, Known> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) {
        self.0.changed.send_modify(|n| *n += 1);
    }

    /// The next call of `action` meets this.
    pub fn fault(&self, action: &str, fault: Fault) {
        self.state().faults.entry(action.to_owned()).or_default().push_back(fault);
    }

    /// It does not know this action.
    pub fn forget(&self, action: &str) {
        self.state().unknown.push(action.to_owned());
    }

    /// What it asks of those who connect to it.
    pub fn token(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    /// From now on it reads and says nothing, and closes nothing: half-open.
    pub fn deaf(&self, deaf: bool) {
        self.state().deaf = deaf;
        self.change();
    }

    /// The time of the next messages, in epoch seconds.
    pub fn at(&self, time: i64) {
        self.state().time = time;
    }

    /// Something that can be asked for with `get_forward_msg`.
    pub fn forward(&self, id: &str, messages: Value) {
        self.state().forwards.insert(id.to_owned(), messages);
    }

    /// A file that can be asked for.
    pub fn file(&self, id: &str, answer: Value) {
        self.state().files.insert(id.to_owned(), answer);
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// The calls of one action.
    pub fn calls_of(&self, action: &str) -> Vec<Value> {
        self.state().calls.iter().filter(|call| call.action == action).map(|call| call.params.clone()).collect()
    }

    /// The messages that the bot sent, as people see them: each the list of its segments.
    pub fn sent(&self) -> Vec<Value> {
        let state = self.state();
        let mut own: Vec<&Value> =
            state.messages.values().flatten().filter(|message| message["post_type"] == "message_sent").collect();
        own.sort_by_key(|message| message["order"].as_i64());
        own.into_iter().map(|message| message["message"].clone()).collect()
    }

    /// The words of the messages that the bot sent.
    pub fn said(&self) -> Vec<String> {
        self.sent().iter().map(words).collect()
    }

    /// How many connections are open, and how many ever were.
    pub fn connections(&self) -> (usize, usize) {
        let mut state = self.state();
        state.connections.retain(|connection| !connection.is_closed());
        (state.connections.len(), state.opened)
    }

    /// Waits until `condition` holds; the bound only turns a wait without end into a failure.
    pub async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let mut changed = self.0.changed.subscribe();
        let fulfilled = async {
            while !condition(self) {
                // A look now and then: a closed connection changes nothing here.
                let _ = tokio::time::timeout(Duration::from_millis(50), changed.changed()).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(30), fulfilled).await.is_err() {
            panic!("waited in vain until {what}; calls: {:?}", self.calls());
        }
    }

    /// An event with what all of them have.
    pub fn event(&self, more: Value) -> Value {
        let mut event = json!({ "time": self.state().time, "self_id": self.0.bot });
        for (key, value) in more.as_object().into_iter().flatten() {
            event[key] = value.clone();
        }
        event
    }

    /// A message of a group, kept in its history, and its event.
    pub fn group_message(&self, group: i64, user: i64, message: Value) -> Value {
        let id = self.id();
        let event = self.event(json!({
            "post_type": "message", "message_type": "group", "sub_type": "normal", "message_id": id,
            "group_id": group, "user_id": user, "message": message, "raw_message": "", "font": 14,
            "sender": { "user_id": user, "nickname": format!("user {user}"), "card": "", "role": "member" },
        }));
        self.keep(&format!("group:{group}"), event.clone());
        event
    }

    /// A private message, kept in its history, and its event.
    pub fn private_message(&self, user: i64, message: Value) -> Value {
        let id = self.id();
        let event = self.event(json!({
            "post_type": "message", "message_type": "private", "sub_type": "friend", "message_id": id,
            "user_id": user, "message": message, "raw_message": "", "font": 14,
            "sender": { "user_id": user, "nickname": format!("user {user}") },
        }));
        self.keep(&format!("private:{user}"), event.clone());
        event
    }

    fn id(&self) -> i64 {
        let mut state = self.state();
        state.next += 1;
        // NapCat's ids are hashes: any 32 bits.
        if self.0.flavour == Flavour::NapCat && state.next % 2 == 0 { -state.next } else { state.next }
    }

    fn keep(&self, chat: &str, mut message: Value) {
        let mut state = self.state();
        state.next += 1;
        message["order"] = json!(state.next);
        state.messages.entry(chat.to_owned()).or_default().push(message);
    }

    /// Brings an event over every connection.
    pub fn bring(&self, event: &Value) {
        self.write(Line::Text(event.to_string()));
    }

    /// Closes every connection.
    pub fn hang_up(&self, code: u16) {
        self.write(Line::Close(code));
        self.state().connections.clear();
        self.change();
    }

    fn write(&self, line: Line) {
        let state = self.state();
        if !state.deaf {
            for connection in &state.connections {
                let _ = connection.send(line.clone());
            }
        }
    }

    /// A new connection as two queues of lines: what comes from the gateway, and what goes to it.
    pub fn attach(&self) -> (mpsc::UnboundedSender<Line>, mpsc::UnboundedReceiver<Line>) {
        let (to_gateway, lines) = mpsc::unbounded_channel();
        let (from_gateway, mut heard) = mpsc::unbounded_channel();
        {
            let mut state = self.state();
            state.connections.push(to_gateway.clone());
            state.opened += 1;
        }
        let lifecycle = self.event(json!({
            "post_type": "meta_event", "meta_event_type": "lifecycle", "sub_type": "connect",
        }));
        let _ = to_gateway.send(Line::Text(lifecycle.to_string()));
        let onebot = self.clone();
        self.task(async move {
            while let Some(line) = heard.recv().await {
                let Line::Text(text) = line else { break };
                if onebot.state().deaf {
                    continue;
                }
                onebot.called(&text, &to_gateway);
            }
            onebot.state().connections.retain(|connection| !connection.same_channel(&to_gateway));
            onebot.change();
        });
        self.change();
        (from_gateway, lines)
    }

    fn task(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
    }

    /// A call over a connection.
    fn called(&self, text: &str, answers: &mpsc::UnboundedSender<Line>) {
        let Ok(call) = serde_json::from_str::<Value>(text) else { return };
        let action = call["action"].as_str().unwrap_or_default().to_owned();
        let (fault, mut answer) = self.act(&action, &call["params"]);
        answer["echo"] = match self.0.flavour {
            Flavour::NapCat if call["echo"].is_null() => json!(""),
            _ => call["echo"].clone(),
        };
        match fault {
            Some(Fault::DoneButSilent) => return,
            Some(Fault::DoneThenGone) => return self.hang_up(1006),
            Some(Fault::WrongEcho) => answer["echo"] = json!(7),
            Some(Fault::AnsweredTwice) => {
                let _ = answers.send(Line::Text(answer.to_string()));
            }
            _ => {}
        }
        let _ = answers.send(Line::Text(answer.to_string()));
    }

    /// Does what a call asks, but for its fault, and answers.
    fn act(&self, action: &str, params: &Value) -> (Option<Fault>, Value) {
        let fault = {
            let mut state = self.state();
            state.calls.push(Call { action: action.to_owned(), params: params.clone() });
            state.faults.get_mut(action).and_then(VecDeque::pop_front)
        };
        let unknown = self.state().unknown.iter().any(|known| known == action);
        let napcat = self.0.flavour == Flavour::NapCat;
        let failed = |retcode: i64, words: &str| json!({ "status": "failed", "retcode": retcode, "data": null, "message": words, "wording": words });
        let answer = match &fault {
            Some(Fault::Refuse(retcode, words)) => failed(*retcode, words),
            _ if unknown && napcat => failed(1404, &format!("不支持的Api {action}")),
            _ if unknown => failed(1404, "API_NOT_FOUND"),
            Some(Fault::DoneButTimeout) => {
                let _ = self.done(action, params);
                failed(
                    1200,
                    "Timeout: NTEvent serviceAndMethod:NodeIKernelMsgService/sendMsg ListenerName:onMsgInfoListUpdate",
                )
            }
            _ => match self.done(action, params) {
                Ok(data) => json!({ "status": "ok", "retcode": 0, "data": data, "message": "", "wording": "" }),
                Err(words) => failed(if napcat { 200 } else { 100 }, &words),
            },
        };
        self.change();
        (fault, answer)
    }

    fn done(&self, action: &str, params: &Value) -> Result<Value, String> {
        let id = |key: &str| params[key].as_i64().or_else(|| params[key].as_str()?.parse().ok());
        let group = id("group_id").map(|group| format!("group:{group}"));
        let private = id("user_id").map(|user| format!("private:{user}"));
        match action {
            "send_group_msg" => self.send(&group.ok_or("no group_id")?, &params["message"]),
            "send_private_msg" => self.send(&private.ok_or("no user_id")?, &params["message"]),
            "send_guild_channel_msg" => {
                let (guild, channel) = (params["guild_id"].as_str(), params["channel_id"].as_str());
                let (guild, channel) = guild.zip(channel).ok_or("guild ids are texts")?;
                self.send(&format!("guild:{guild}/{channel}"), &params["message"])
            }
            "send_group_forward_msg" => self.send_forward(&group.ok_or("no group_id")?, &params["messages"]),
            "send_private_forward_msg" => self.send_forward(&private.ok_or("no user_id")?, &params["messages"]),
            "upload_group_file" | "upload_private_file" => {
                let chat = group.or(private).ok_or("no chat")?;
                let file = json!([{ "type": "file", "data": { "file": params["file"], "name": params["name"] } }]);
                self.send(&chat, &file).map(|_| Value::Null)
            }
            "get_msg" => {
                let id = id("message_id").ok_or("no message_id")?;
                let state = self.state();
                let found = state.messages.values().flatten().find(|message| message["message_id"] == json!(id));
                found.cloned().ok_or_else(|| "消息不存在".to_owned())
            }
            "get_forward_msg" => {
                let id = params["id"].as_str().ok_or("the id of a forward is a text")?;
                let found = self.state().forwards.get(id).cloned();
                found.map(|messages| json!({ "messages": messages })).ok_or_else(|| "消息不存在".to_owned())
            }
            "get_group_msg_history" => Ok(self.history(&group.ok_or("no group_id")?, params)),
            "get_friend_msg_history" => Ok(self.history(&private.ok_or("no user_id")?, params)),
            "get_record" | "get_image" | "get_group_file_url" | "get_private_file_url" => {
                let id = params["file_id"].as_str().or(params["file"].as_str()).unwrap_or_default();
                self.state().files.get(id).cloned().ok_or_else(|| "file not found".to_owned())
            }
            "get_login_info" => Ok(json!({ "user_id": self.0.bot, "nickname": "小龙虾" })),
            "get_status" => Ok(json!({ "online": true, "good": true })),
            "get_version_info" => {
                let app = match self.0.flavour {
                    Flavour::NapCat => "NapCat.Onebot",
                    Flavour::LlOneBot => "LLOneBot",
                    Flavour::GoCqhttp => "go-cqhttp",
                    Flavour::Lagrange => "Lagrange.OneBot",
                };
                Ok(json!({ "app_name": app, "app_version": "1.0.0", "protocol_version": "v11" }))
            }
            "set_friend_add_request" | "set_group_add_request" | "set_msg_emoji_like" => Ok(Value::Null),
            _ => Err(format!("不支持的Api {action}")),
        }
    }

    fn history(&self, chat: &str, params: &Value) -> Value {
        let count = params["count"].as_u64().unwrap_or(20) as usize;
        let state = self.state();
        let messages = state.messages.get(chat).map_or(&[][..], Vec::as_slice);
        json!({ "messages": messages[messages.len().saturating_sub(count)..] })
    }

    /// Checks a message as NapCat does and keeps it.
    fn send(&self, chat: &str, message: &Value) -> Result<Value, String> {
        let segments = message.as_array().filter(|segments| !segments.is_empty()).ok_or("消息体无法解析")?;
        if segments.iter().any(|segment| segment["type"] == "node") {
            return Err("转发消息不能和普通消息混在一起发送".to_owned());
        }
        let mut kept = segments.clone();
        if chat.starts_with("private:") {
            kept.retain(|segment| segment["type"] != "at");
        }
        let id = self.id();
        let kind = chat.split(':').next().unwrap_or_default();
        let message = self.event(json!({
            "post_type": "message_sent", "message_type": kind, "message_id": id, "user_id": self.0.bot,
            "message": kept, "sender": { "user_id": self.0.bot, "nickname": "小龙虾" },
        }));
        self.keep(chat, message);
        let id = match self.0.flavour {
            // Early builds did not know it.
            Flavour::Lagrange => 0,
            _ => id,
        };
        Ok(json!({ "message_id": id }))
    }

    fn send_forward(&self, chat: &str, messages: &Value) -> Result<Value, String> {
        let nodes = messages.as_array().filter(|nodes| !nodes.is_empty()).ok_or("消息体无法解析")?;
        if nodes.iter().any(|node| node["type"] != "node" || !node["data"]["content"].is_array()) {
            return Err("转发消息只能由 node 组成".to_owned());
        }
        self.send(chat, &json!([{ "type": "forward", "data": { "id": "7000000000000000001", "content": messages } }]))
    }

    /// Connects to the gateway and speaks until it is closed. `headers` beside `X-Self-ID` and `X-Client-Role`.
    ///
    /// # Errors
    /// The status that the gateway answered with instead, 0 when there was none.
    pub async fn dial(&self, url: &str, role: &str, headers: &[(&str, &str)]) -> Result<(), u16> {
        let mut request = url.into_client_request().map_err(|_| 0_u16)?;
        let bot = self.0.bot.to_string();
        for (name, value) in headers.iter().copied().chain([("x-self-id", bot.as_str()), ("x-client-role", role)]) {
            let name: axum::http::HeaderName = name.parse().map_err(|_| 0_u16)?;
            request.headers_mut().insert(name, value.parse().map_err(|_| 0_u16)?);
        }
        let uri = request.uri();
        let place = format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(80));
        let stream = TcpStream::connect(place).await.map_err(|_| 0_u16)?;
        let handshake = tokio_tungstenite::client_async(request, stream);
        // NapCat waits no longer.
        let (socket, _) = match tokio::time::timeout(Duration::from_secs(2), handshake).await {
            Ok(Ok(open)) => open,
            Ok(Err(tokio_tungstenite::tungstenite::Error::Http(answer))) => return Err(answer.status().as_u16()),
            _ => return Err(0),
        };
        let (to_bot, mut lines) = self.attach();
        let (mut sink, mut stream) = socket.split();
        self.task(async move {
            loop {
                tokio::select! {
                    line = lines.recv() => match line {
                        Some(Line::Text(text)) => if sink.send(Message::text(text)).await.is_err() { break },
                        Some(Line::Close(_)) | None => break,
                    },
                    read = stream.next() => match read {
                        Some(Ok(Message::Text(text))) => {
                            let _ = to_bot.send(Line::Text(text.as_str().to_owned()));
                        }
                        Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                        Some(Ok(_)) => {}
                    },
                }
            }
            let _ = sink.close().await;
        });
        Ok(())
    }

    /// A server of WebSockets and of the HTTP API on this machine.
    pub async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let router = Router::new()
            .route("/", any(upgrade))
            .route("/{action}", post(api))
            .route("/ws/", get(upgrade))
            .with_state(self.clone());
        self.task(async move {
            let _ = axum::serve(listener, router).await;
        });
        address
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let token = self.state().token.clone();
        token.is_none_or(|token| {
            headers.get("authorization").and_then(|value| value.to_str().ok()) == Some(&format!("Bearer {token}"))
        })
    }
}

/// The words of a message's segments; a merged forward's too.
pub fn words(message: &Value) -> String {
    let segments = message.as_array().map_or(&[][..], Vec::as_slice);
    let mut said = String::new();
    for segment in segments {
        match segment["type"].as_str() {
            Some("text") => said.push_str(segment["data"]["text"].as_str().unwrap_or_default()),
            Some("forward") => {
                for node in segment["data"]["content"].as_array().into_iter().flatten() {
                    if !said.is_empty() {
                        said.push('\n');
                    }
                    said.push_str(&words(&node["data"]["content"]));
                }
            }
            _ => {}
        }
    }
    said
}

/// A text as a list of segments.
pub fn text(text: &str) -> Value {
    json!([{ "type": "text", "data": { "text": text } }])
}

/// The bot's name before a text.
pub fn at_bot(text: &str) -> Value {
    json!([{ "type": "at", "data": { "qq": BOT.to_string() } }, { "type": "text", "data": { "text": format!(" {text}") } }])
}

async fn upgrade(State(onebot): State<OneBot>, headers: HeaderMap, upgrade: WebSocketUpgrade) -> Response {
    let admitted = onebot.admits(&headers);
    if !admitted && onebot.0.flavour == Flavour::GoCqhttp {
        return StatusCode::FORBIDDEN.into_response();
    }
    upgrade.on_upgrade(move |mut socket| async move {
        if admitted {
            return speak(onebot, socket).await;
        }
        // NapCat and LLOneBot open it all the same and say so.
        let refused =
            json!({ "status": "failed", "retcode": 1403, "data": null, "message": "token验证失败", "echo": null });
        let _ = socket.send(AxumMessage::text(refused.to_string())).await;
        let _ = socket.send(AxumMessage::Close(None)).await;
    })
}

async fn speak(onebot: OneBot, mut socket: WebSocket) {
    let (to_bot, mut lines) = onebot.attach();
    loop {
        tokio::select! {
            line = lines.recv() => match line {
                Some(Line::Text(text)) => if socket.send(AxumMessage::text(text)).await.is_err() { break },
                Some(Line::Close(_)) | None => break,
            },
            read = socket.recv() => match read {
                Some(Ok(AxumMessage::Text(text))) => {
                    let _ = to_bot.send(Line::Text(text.as_str().to_owned()));
                }
                Some(Ok(AxumMessage::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            },
        }
    }
}

async fn api(State(onebot): State<OneBot>, Path(action): Path<String>, headers: HeaderMap, body: Bytes) -> Response {
    if !onebot.admits(&headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let params = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (fault, mut answer) = onebot.act(&action, &params);
    if matches!(fault, Some(Fault::DoneButSilent)) {
        std::future::pending::<()>().await;
    }
    if matches!(fault, Some(Fault::DoneThenGone)) {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    // NapCat answers an unknown action and a runtime error alike: HTTP 200 and retcode 200. The others know 404.
    if answer["retcode"] == json!(1404) && onebot.0.flavour != Flavour::NapCat {
        return StatusCode::NOT_FOUND.into_response();
    }
    if matches!(answer["retcode"].as_i64(), Some(1404 | 1200)) {
        answer["retcode"] = json!(200);
    }
    axum::Json(answer).into_response()
}
