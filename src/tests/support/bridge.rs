//! A bridge: signs and posts messages as Standard Webhooks has it, polls, reads streams, and receives callbacks, whose
//! signatures it checks and whose arrival it records as the truth.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use channel_api::Clock;
use crawfish::clock::SystemClock;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::{
    gateway::{Gateway, client},
    mark::Mark,
    wait::SOON,
};

/// The secret of every bridge.
pub const SECRET: &str = "whsec_S2l0LXNlY3JldC1vZi0yNC1ieXRlcw==";

/// The value of `webhook-signature`.
fn sign(secret: &str, id: &str, timestamp: i64, body: &[u8]) -> String {
    let key = STANDARD.decode(secret.trim_start_matches("whsec_")).expect("base64");
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key of any length");
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body, `Null` when it is no JSON.
    pub body: Value,
    /// The body as it came.
    pub raw: String,
    /// `Retry-After`.
    pub retry_after: Option<String>,
}

impl Answer {
    async fn read(response: reqwest::Response) -> Result<Self, reqwest::Error> {
        let status = response.status().as_u16();
        let retry_after =
            response.headers().get("retry-after").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let raw = response.text().await?;
        Ok(Self { status, body: serde_json::from_str(&raw).unwrap_or(Value::Null), raw, retry_after })
    }

    /// The text of the one message it holds.
    pub fn text(&self) -> &str {
        self.body["messages"][0]["text"].as_str().unwrap_or_else(|| panic!("no message: {self:?}"))
    }

    /// The code of the error it tells.
    pub fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// A direct message of `u1`.
pub fn message(id: &str, room: &str, text: &str) -> Value {
    json!({
        "v": 1, "id": id, "conversation": { "id": room, "type": "direct" }, "sender": { "id": "u1", "name": "Ada" },
        "text": text,
    })
}

/// The message of a mark: its text is the mark.
pub fn marked(mark: Mark) -> Value {
    message(&mark.id(), &mark.room(), &format!("please do {mark}"))
}

/// The sender's side.
#[derive(Clone)]
pub struct Bridge {
    client: reqwest::Client,
    gateway: watch::Receiver<String>,
    account: &'static str,
    clock: Arc<SystemClock>,
}

impl Bridge {
    /// The bridge `bridge` of this gateway, wherever it listens.
    pub fn to(gateway: &Gateway) -> Self {
        Self { client: client(), gateway: gateway.address(), account: "bridge", clock: Arc::new(SystemClock::new()) }
    }

    /// The section of the configuration; `more` are lines of it.
    pub fn section(more: &str) -> String {
        format!("[channels.webhook.bridge]\nsecret = \"{SECRET}\"\ntrusted = [\"u1\"]\n{more}\n")
    }

    /// Now, in seconds.
    pub fn now(&self) -> i64 {
        self.clock.now_ms() / 1000
    }

    fn url(&self) -> String {
        format!("{}/channels/webhook/{}", *self.gateway.borrow(), self.account)
    }

    /// A signed request, to be changed or sent.
    pub fn request(&self, id: &str, body: &str) -> reqwest::RequestBuilder {
        self.request_at(id, body, self.now())
    }

    /// The same, signed at another time.
    pub fn request_at(&self, id: &str, body: &str, timestamp: i64) -> reqwest::RequestBuilder {
        self.client
            .post(self.url())
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", sign(SECRET, id, timestamp, body.as_bytes()))
            .body(body.to_owned())
    }

    /// A request with nothing but a body.
    pub fn unsigned(&self, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        self.client.post(self.url()).header("content-type", "application/json").body(body)
    }

    /// Sends a request.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.expect("the gateway answers");
        Answer::read(response).await.expect("the answer is whole")
    }

    /// Posts a message and does not wait for its answer.
    pub async fn post(&self, message: &Value) -> Answer {
        self.send(self.request(id_of(message), &message.to_string())).await
    }

    /// Posts a message that must be taken.
    pub async fn accepted(&self, message: &Value) {
        let answer = self.post(message).await;
        assert_eq!((answer.status, &answer.body["status"]), (202, &json!("accepted")), "{answer:?}");
    }

    /// Posts a message and waits for its answer.
    pub async fn wait(&self, message: &Value) -> Answer {
        self.send(self.request(id_of(message), &message.to_string()).header("prefer", "wait=20")).await
    }

    /// One try of a bridge whose gateway may die at any moment.
    pub async fn try_post(&self, message: &Value) -> Option<Answer> {
        let response = self.request(id_of(message), &message.to_string()).send().await.ok()?;
        Answer::read(response).await.ok()
    }

    /// Posts until the gateway has acknowledged, as a bridge does that loses nothing; the answer.
    pub async fn deliver(&self, message: &Value) -> Answer {
        loop {
            let at = self.gateway.borrow().clone();
            if let Some(answer) = self.try_post(message).await {
                match answer.status {
                    200..=299 => return answer,
                    429 | 503 => {}
                    _ => panic!("{} was refused: {answer:?}", id_of(message)),
                }
            }
            // Again when the gateway has come back, or after a moment.
            let mut gateway = self.gateway.clone();
            let moved = async { gateway.wait_for(|url| *url != at).await.map(drop) };
            let _ = tokio::time::timeout(Duration::from_millis(50), moved).await;
        }
    }

    /// Asks what became of a message.
    pub async fn poll(&self, id: &str) -> Answer {
        let timestamp = self.now();
        let request = self
            .client
            .get(format!("{}/messages/{id}", self.url()))
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", sign(SECRET, id, timestamp, b""));
        self.send(request).await
    }

    /// Asks until the message has ended.
    pub async fn ended(&self, id: &str) -> Answer {
        super::wait::until(&format!("the end of {id}"), SOON, async || {
            let answer = self.poll(id).await;
            (answer.status == 200).then_some(answer)
        })
        .await
    }

    /// Posts a message and reads the stream of its answer: (event, data) pairs.
    pub async fn stream(&self, message: &Value) -> Vec<(String, Value)> {
        let request = self.request(id_of(message), &message.to_string()).header("accept", "text/event-stream");
        let answer = self.send(request).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let mut events = Vec::new();
        for block in answer.raw.split("\n\n") {
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if let (Some(event), Some(data)) = (field("event:"), field("data:")) {
                events.push((event.to_owned(), serde_json::from_str(data).expect("its data is JSON")));
            }
        }
        events
    }
}

fn id_of(message: &Value) -> &str {
    message["id"].as_str().expect("a message has an id")
}

/// What the receiver does with the next callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answers with this status (410: no more, please).
    Status(u16),
    /// Answers with this status and these words.
    Says(u16, &'static str),
    /// Breaks the connection without an answer.
    Reset,
    /// Takes its time and then takes it.
    Slow(Duration),
    /// Takes it, and its answer is lost.
    TakenThenReset,
}

/// One callback as it came.
#[derive(Clone, Debug)]
pub struct Callback {
    /// Its place among all that came, refused ones too.
    pub order: u64,
    /// `webhook-id`.
    pub id: String,
    /// The body.
    pub body: Value,
    /// It was taken (the answer was 2xx, or would have been).
    pub taken: bool,
}

impl Callback {
    /// The message that it answers.
    pub fn in_reply_to(&self) -> &str {
        self.body["in_reply_to"].as_str().unwrap_or_default()
    }

    /// The text.
    pub fn text(&self) -> &str {
        self.body["text"].as_str().unwrap_or_default()
    }
}

#[derive(Default)]
struct Seen {
    callbacks: Vec<Callback>,
    faults: VecDeque<Fault>,
    wrong: Vec<String>,
}

struct Shared {
    seen: Mutex<Seen>,
    count: watch::Sender<usize>,
}

/// The receiver of callbacks; ends when it is dropped.
pub struct Receiver {
    addr: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

impl Receiver {
    /// A receiver that takes everything.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared { seen: Mutex::default(), count: watch::channel(0).0 });
        let router = Router::new()
            .route("/callback", post(receive))
            .layer(axum::extract::DefaultBodyLimit::max(16 << 20))
            .with_state(Arc::clone(&shared));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { addr, shared, _serving: serving }
    }

    /// The lines of the bridge's section.
    pub fn lines(&self) -> String {
        format!("callback_url = \"http://{}/callback\"\nallow_private_callback = true", self.addr)
    }

    /// Does this with the next callbacks, one after another.
    pub fn then(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.shared.seen).faults.extend(faults);
    }

    /// Every callback that came.
    pub fn callbacks(&self) -> Vec<Callback> {
        lock(&self.shared.seen).callbacks.clone()
    }

    /// Those that were taken and answer this message.
    pub fn answers_to(&self, id: &str) -> Vec<Callback> {
        self.callbacks().into_iter().filter(|callback| callback.taken && callback.in_reply_to() == id).collect()
    }

    /// Waits until what has come satisfies a condition.
    pub async fn until(&self, what: &str, deadline: Duration, enough: impl Fn(&[Callback]) -> bool) -> Vec<Callback> {
        let mut count = self.shared.count.subscribe();
        let waiting = async {
            loop {
                let callbacks = self.callbacks();
                if enough(&callbacks) {
                    return callbacks;
                }
                count.changed().await.expect("the receiver lives");
            }
        };
        match tokio::time::timeout(deadline, waiting).await {
            Ok(callbacks) => callbacks,
            Err(_) => panic!("waited {deadline:?} for {what}; there were {} callbacks", self.callbacks().len()),
        }
    }

    /// Waits for the answer to a message: its final callback.
    pub async fn answer_to(&self, id: &str) -> Callback {
        let is_it =
            |callback: &Callback| callback.taken && callback.in_reply_to() == id && callback.body["final"] == true;
        let callbacks = self.until(&format!("the answer to {id}"), SOON, |all| all.iter().any(is_it)).await;
        callbacks.into_iter().find(is_it).expect("it was just there")
    }

    /// # Panics
    /// When a callback was not signed by the gateway, or was not what a callback is.
    pub fn assert_all_signed(&self) {
        let seen = lock(&self.shared.seen);
        assert!(seen.wrong.is_empty(), "{}", seen.wrong.join("\n"));
    }
}

async fn receive(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let fault = {
        let mut seen = lock(&shared.seen);
        if let Err(problem) = check(&headers, &body) {
            seen.wrong.push(problem);
        }
        seen.faults.pop_front()
    };
    if let Some(Fault::Slow(time)) = fault {
        tokio::time::sleep(time).await;
    }
    let taken = !matches!(fault, Some(Fault::Status(300..) | Fault::Says(300.., _) | Fault::Reset));
    {
        let mut seen = lock(&shared.seen);
        let order = seen.callbacks.len() as u64;
        let id = headers.get("webhook-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        seen.callbacks.push(Callback { order, id, body, taken });
    }
    shared.count.send_modify(|count| *count += 1);
    match fault {
        Some(Fault::Status(status)) => StatusCode::from_u16(status).expect("a status").into_response(),
        Some(Fault::Says(status, words)) => (StatusCode::from_u16(status).expect("a status"), words).into_response(),
        // Ends the connection's task, and with it the connection, without a message to the terminal.
        Some(Fault::Reset | Fault::TakenThenReset) => std::panic::resume_unwind(Box::new("reset")),
        Some(Fault::Slow(_)) | None => StatusCode::OK.into_response(),
    }
}

fn check(headers: &HeaderMap, body: &[u8]) -> Result<(), String> {
    let value = |name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).ok_or_else(|| format!("a callback without {name}"))
    };
    let (id, timestamp, signature) = (value("webhook-id")?, value("webhook-timestamp")?, value("webhook-signature")?);
    let timestamp: i64 = timestamp.parse().map_err(|_| "a callback's timestamp is no number".to_owned())?;
    if !signature.split(' ').any(|one| one == sign(SECRET, id, timestamp, body)) {
        return Err(format!("the callback {id} is not signed with our secret"));
    }
    if (SystemClock::new().now_ms() / 1000).abs_diff(timestamp) > 300 {
        return Err(format!("the callback {id} is signed at another time"));
    }
    let body: Value = serde_json::from_slice(body).map_err(|error| format!("the callback {id} is no JSON: {error}"))?;
    // What is shown before the answer has no place among its parts.
    let before = body["type"] == "typing" || (body["final"] == false && body.get("in_reply_to").is_none());
    let placed = body["seq"].is_u64() && body["final"].is_boolean();
    if body["id"] != id || body["v"] != 1 || !(before || placed) {
        return Err(format!("the callback {id} is not what a callback is: {body}"));
    }
    Ok(())
}
