//! A model's server (OpenAI's chat completions, Anthropic's Messages API) that says what a test wants, makes the faults it wants, records every
//! request and checks that the messages on the wire stand in the strict order.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{StatusCode, header},
    response::Response,
    routing::post,
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::mark::Mark;

/// A tool call as the model writes it.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its id.
    pub id: String,
    /// The tool's name, as the model spells it.
    pub name: String,
    /// The arguments, raw.
    pub arguments: String,
}

/// A call.
pub fn call(id: &str, name: &str, arguments: &str) -> Call {
    Call { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

/// What the model does with one request.
#[derive(Clone, Debug)]
pub enum Say {
    /// Answers.
    Text(String),
    /// Calls tools.
    Calls(Vec<Call>),
    /// First waits for the gate.
    After(Gate, Box<Say>),
    /// First takes its time.
    Slowly(Duration, Box<Say>),
    /// First thinks (where the wire format has a place for it).
    Thinks(String, Box<Say>),
    /// A text that is written before everybody's eyes: after each few characters so long a pause.
    Written(Duration, String),
    /// 429 with `Retry-After`, 500 and the like.
    Status(u16, Option<u32>),
    /// 400: the messages are not in the order that this provider wants, in DashScope's words.
    WrongOrder,
    /// Says the first words, waits for the gate, then says the rest.
    InTwo(String, Gate, String),
    /// Never answers.
    Hang,
    /// Begins to answer, and the connection breaks.
    Cut(String),
    /// 200 with a page for people.
    Html,
    /// 200 with an error in it.
    ErrorInside,
    /// A status, a header and a body as they are; a body that begins like JSON is sent as such, any other as a stream.
    Raw(u16, Option<(&'static str, &'static str)>, String),
}

/// A text.
pub fn text(text: impl Into<String>) -> Say {
    Say::Text(text.into())
}

/// Holds turns until it is opened.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::channel(false).0)
    }
}

impl Gate {
    /// Lets everyone through, now and later.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub(super) async fn passed(&self) {
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Its place among all requests, from 1.
    pub n: u64,
    /// Which start of the gateway sent it (`base_url` ends in `/boot/${KIT_BOOT}/v1`).
    pub boot: u64,
    /// The body; one of the Messages API told in the words of the other.
    pub body: Value,
    /// The same as it came.
    pub raw: Value,
    /// The key it was sent with.
    pub authorization: Option<String>,
}

impl Ask {
    /// The messages.
    pub fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The messages after the last one of a user.
    fn since_said(&self) -> &[Value] {
        let messages = self.messages();
        let last = messages.iter().rposition(|message| message["role"] == "user").map_or(0, |n| n + 1);
        &messages[last..]
    }

    /// The last thing a user said.
    pub fn said(&self) -> &str {
        let said = self.messages().iter().rev().find(|message| message["role"] == "user");
        said.and_then(|message| message["content"].as_str()).unwrap_or_default()
    }

    /// The marks in it.
    pub fn marks(&self) -> Vec<Mark> {
        Mark::all_in(self.said())
    }

    /// How many times the model has called tools since.
    pub fn round(&self) -> usize {
        self.since_said().iter().filter(|message| message["role"] == "assistant").count()
    }

    /// What those tools answered.
    pub fn results(&self) -> Vec<&str> {
        let tools = self.since_said().iter().filter(|message| message["role"] == "tool");
        tools.filter_map(|message| message["content"].as_str()).collect()
    }

    /// The names of the tools that are offered.
    pub fn tools(&self) -> Vec<&str> {
        let tools = self.body["tools"].as_array().map_or(&[][..], Vec::as_slice);
        tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect()
    }
}

/// When a turn was at the model, in the server's own order of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Which start of the gateway.
    pub boot: u64,
    /// The session, by its marks.
    pub session: u32,
    /// The messages, by their marks.
    pub marks: Vec<Mark>,
    /// When it began.
    pub began: u64,
    /// When it was answered; `None` while it is not, and when its sender went away first.
    pub answered: Option<u64>,
}

pub(super) type Script = dyn Fn(&Ask) -> Say + Send + Sync;

pub(super) struct Inner {
    script: Mutex<Arc<Script>>,
    asks: Mutex<Vec<Ask>>,
    visits: Mutex<Vec<Visit>>,
    disorder: Mutex<Vec<String>>,
    refuses: Mutex<Refuses>,
    order: AtomicU64,
    count: watch::Sender<u64>,
}

/// What a strict provider answers with 400.
#[derive(Clone, Copy, Debug, Default)]
struct Refuses {
    /// Any other order.
    disorder: bool,
    /// An assistant's message whose content is null.
    null: bool,
}

/// The server; ends when it is dropped.
pub struct ModelServer {
    addr: SocketAddr,
    inner: Arc<Inner>,
    _serving: JoinSet<()>,
}

impl ModelServer {
    /// A server that follows a script.
    pub async fn start(script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let inner = Arc::new(Inner {
            script: Mutex::new(Arc::new(script)),
            asks: Mutex::default(),
            visits: Mutex::default(),
            disorder: Mutex::default(),
            refuses: Mutex::default(),
            order: AtomicU64::new(0),
            count: watch::channel(0).0,
        });
        let router = Router::new()
            .route("/boot/{boot}/v1/chat/completions", post(complete))
            .route("/boot/{boot}/v1/messages", post(super::messages_api::complete))
            .layer(axum::extract::DefaultBodyLimit::max(64 << 20))
            .with_state(Arc::clone(&inner));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { addr, inner, _serving: serving }
    }

    /// A server that repeats the marks, or else the first line, of what was said.
    pub async fn echo() -> Self {
        Self::start(echo).await
    }

    /// The section of the configuration.
    pub fn section(&self) -> String {
        format!(
            "[models.main]\nprovider = \"openai\"\nbase_url = \"http://{}/boot/${{KIT_BOOT}}/v1\"\n\
             api_key = \"sk-kit-0123456789abcdef\"\nmodel = \"kit-1\"\n",
            self.addr
        )
    }

    /// The section of the configuration for the Messages API, with more lines.
    pub fn messages_section(&self, more: &str) -> String {
        format!(
            "[models.main]\nprovider = \"anthropic\"\nbase_url = \"http://{}/boot/${{KIT_BOOT}}\"\n\
             api_key = \"sk-kit-0123456789abcdef\"\nmodel = \"kit-1\"\n{more}\n",
            self.addr
        )
    }

    /// A section of another name, for OpenAI's format, with more lines.
    pub fn named_section(&self, name: &str, more: &str) -> String {
        let section = self.section().replace("[models.main]", &format!("[models.{name}]"));
        format!("{section}{more}\n")
    }

    /// From now on refuses every wrong order with 400 as DashScope does, and an assistant's null content as well.
    pub fn be_strict(&self) {
        *lock(&self.inner.refuses) = Refuses { disorder: true, null: true };
    }

    /// Follows another script from now on.
    pub fn follow(&self, script: impl Fn(&Ask) -> Say + Send + Sync + 'static) {
        *lock(&self.inner.script) = Arc::new(script);
    }

    /// Every request so far.
    pub fn asks(&self) -> Vec<Ask> {
        lock(&self.inner.asks).clone()
    }

    /// The requests whose last user message holds this.
    pub fn asks_about(&self, text: &str) -> Vec<Ask> {
        self.asks().into_iter().filter(|ask| ask.said().contains(text)).collect()
    }

    /// Waits until a request about this has come.
    pub async fn asked_about(&self, text: &str) {
        let mut count = self.inner.count.subscribe();
        let asked = async {
            while self.asks_about(text).is_empty() {
                count.changed().await.expect("the server lives");
            }
        };
        tokio::time::timeout(super::wait::SOON, asked)
            .await
            .unwrap_or_else(|_| panic!("the model was never asked about {text:?}"));
    }

    /// Every visit of a turn that has marks.
    pub fn visits(&self) -> Vec<Visit> {
        lock(&self.inner.visits).clone()
    }

    /// # Panics
    /// When a request broke the strict order.
    pub fn assert_strict_order(&self) {
        let disorder = lock(&self.inner.disorder);
        assert!(disorder.is_empty(), "the order on the wire was broken:\n{}", disorder.join("\n"));
    }
}

/// Repeats the marks, or else the first line, of what was said.
pub fn echo(ask: &Ask) -> Say {
    let marks = ask.marks();
    if marks.is_empty() {
        return text(format!("you said: {}", ask.said().lines().next().unwrap_or_default()));
    }
    text(format!("done {}", marks.iter().map(Mark::to_string).collect::<Vec<_>>().join(" ")))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn complete(
    State(inner): State<Arc<Inner>>,
    Path(boot): Path<u64>,
    headers: axum::http::HeaderMap,
    body: Bytes,
) -> Response {
    let body: Value = match serde_json::from_slice(&body) {
        Ok(body) => body,
        Err(error) => {
            lock(&inner.disorder).push(format!("a body is no JSON: {error}"));
            return answer(StatusCode::BAD_REQUEST, "application/json", "{}");
        }
    };
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let raw = body.clone();
    match inner.received(boot, body, raw, authorization) {
        Ok((ask, script)) => visited(&inner, &ask, async || perform(&ask, script(&ask)).await).await,
        Err(refused) => *refused,
    }
}

/// Makes the response to a request and notes when it began and ended.
pub(super) async fn visited(inner: &Inner, ask: &Ask, respond: impl AsyncFnOnce() -> Response) -> Response {
    let visit = begin(inner, ask);
    inner.count.send_modify(|count| *count += 1);
    let response = respond().await;
    if let Some(visit) = visit {
        let now = inner.order.fetch_add(1, Ordering::SeqCst);
        lock(&inner.visits)[visit].answered = Some(now);
    }
    response
}

impl Inner {
    /// Notes that something about a request is wrong.
    pub(super) fn wrong(&self, problem: String) {
        lock(&self.disorder).push(problem);
    }

    /// Notes a request and checks its order.
    pub(super) fn received(
        &self,
        boot: u64,
        body: Value,
        raw: Value,
        authorization: Option<String>,
    ) -> Result<(Ask, Arc<Script>), Box<Response>> {
        let inner = self;
        let mut asks = lock(&inner.asks);
        let ask = Ask { n: asks.len() as u64 + 1, boot, body, raw, authorization };
        let refuses = *lock(&inner.refuses);
        let null = |message: &Value| message["role"] == "assistant" && message["content"].is_null();
        let problem = match strict_order(ask.messages()) {
            Err(problem) => Some(problem),
            Ok(()) => (refuses.null && ask.messages().iter().any(null)).then(|| "null content".to_owned()),
        };
        asks.push(ask.clone());
        if let Some(problem) = problem {
            lock(&inner.disorder).push(format!("request {}: {problem}", ask.n));
            if refuses.disorder {
                inner.count.send_modify(|count| *count += 1);
                return Err(Box::new(wrong_order()));
            }
        }
        Ok((ask, Arc::clone(&lock(&inner.script))))
    }
}

fn begin(inner: &Inner, ask: &Ask) -> Option<usize> {
    let marks = ask.marks();
    let session = marks.first()?.session;
    let mut visits = lock(&inner.visits);
    let began = inner.order.fetch_add(1, Ordering::SeqCst);
    visits.push(Visit { boot: ask.boot, session, marks, began, answered: None });
    Some(visits.len() - 1)
}

pub(super) async fn perform(ask: &Ask, mut say: Say) -> Response {
    let stream = ask.body["stream"] == true;
    loop {
        say = match say {
            Say::After(gate, then) => {
                gate.passed().await;
                *then
            }
            Say::Slowly(time, then) => {
                tokio::time::sleep(time).await;
                *then
            }
            Say::Thinks(_, then) => *then,
            Say::Hang => std::future::pending().await,
            Say::Status(status, retry_after) => {
                let status = StatusCode::from_u16(status).expect("a status");
                let body = json!({ "error": { "message": "no <luck>", "type": "server_error" } }).to_string();
                let mut response = answer(status, "application/json", &body);
                if let Some(seconds) = retry_after {
                    response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
                }
                return response;
            }
            Say::WrongOrder => return wrong_order(),
            Say::Html => {
                return answer(StatusCode::OK, "text/html", "<!doctype html><html><body>Sign in</body></html>");
            }
            Say::ErrorInside => {
                let body = json!({ "error": { "message": "the backend is gone", "code": 500 } }).to_string();
                return answer(StatusCode::OK, "application/json", &body);
            }
            Say::Raw(status, header, body) => {
                let status = StatusCode::from_u16(status).expect("a status");
                let json = body.starts_with('{');
                let mut response = Response::builder().status(status);
                let kind = if json { "application/json" } else { "text/event-stream" };
                response = response.header(header::CONTENT_TYPE, kind);
                if let Some((name, value)) = header {
                    response = response.header(name, value);
                }
                let pieces: Vec<char> = body.chars().collect();
                let pieces = pieces.chunks(50).map(|piece| piece.iter().collect());
                return response.body(body_of(pieces.collect())).expect("it is well-formed");
            }
            Say::Cut(text) => {
                let first = chunk(&json!({ "role": "assistant", "content": text }), None);
                let broken = std::io::Error::other("cut");
                let chunks = [Ok(Bytes::from(first)), Err(broken)];
                return event_stream(Body::from_stream(stream::iter(chunks)));
            }
            Say::InTwo(first, gate, rest) => {
                let first = chunk(&json!({ "role": "assistant", "content": first }), None);
                let rest = async move {
                    gate.passed().await;
                    let rest = chunk(&json!({ "content": rest }), None);
                    Ok::<_, Infallible>(Bytes::from(format!("{rest}{}", end("stop").concat())))
                };
                let first = async move { Ok(Bytes::from(first)) };
                return event_stream(Body::from_stream(stream::once(first).chain(stream::once(rest))));
            }
            Say::Text(text) if stream => return event_stream(streamed_text(&text)),
            Say::Written(pause, text) if stream => return event_stream(written(pause, &text)),
            Say::Written(_, text) => Say::Text(text),
            Say::Calls(calls) if stream => return event_stream(streamed_calls(&calls)),
            Say::Text(text) => return whole(&json!({ "role": "assistant", "content": text }), "stop"),
            Say::Calls(calls) => {
                let calls: Vec<Value> = calls.iter().map(wired).collect();
                let message = json!({ "role": "assistant", "content": null, "tool_calls": calls });
                return whole(&message, "tool_calls");
            }
        };
    }
}

fn wrong_order() -> Response {
    let message = "<400> InternalError.Algo.InvalidParameter: An assistant message with \"tool_calls\" must be followed by tool \
                   messages, and messages with role \"tool\" must be a response to a preceeding message with \"tool_calls\".";
    let error = json!({ "message": message, "type": "invalid_request_error", "code": "invalid_parameter_error" });
    answer(StatusCode::BAD_REQUEST, "application/json", &json!({ "error": error }).to_string())
}

fn wired(call: &Call) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}

fn whole(message: &Value, finish: &str) -> Response {
    let body = json!({
        "id": "chatcmpl-kit", "object": "chat.completion", "created": 1, "model": "kit-1",
        "choices": [{ "index": 0, "message": message, "finish_reason": finish }],
        "usage": { "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15 },
    });
    answer(StatusCode::OK, "application/json", &body.to_string())
}

pub(super) fn answer(status: StatusCode, kind: &'static str, body: &str) -> Response {
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, kind);
    response.body(Body::from(body.to_owned())).expect("it is well-formed")
}

pub(super) fn event_stream(body: Body) -> Response {
    let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
    response.body(body).expect("it is well-formed")
}

fn chunk(delta: &Value, finish: Option<&str>) -> String {
    let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
    let body = json!({
        "id": "chatcmpl-kit", "object": "chat.completion.chunk", "created": 1, "model": "kit-1", "choices": [choice],
    });
    format!("data: {body}\n\n")
}

fn end(finish: &str) -> [String; 3] {
    let usage = json!({ "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15 });
    let last = json!({ "id": "chatcmpl-kit", "object": "chat.completion.chunk", "choices": [], "usage": usage });
    [chunk(&json!({}), Some(finish)), format!("data: {last}\n\n"), "data: [DONE]\n\n".to_owned()]
}

fn streamed_text(text: &str) -> Body {
    body_of(chunks_of(text))
}

/// In pieces of a few characters.
fn chunks_of(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut chunks = vec![chunk(&json!({ "role": "assistant", "content": "" }), None)];
    chunks.extend(chars.chunks(7).map(|piece| chunk(&json!({ "content": piece.iter().collect::<String>() }), None)));
    chunks.extend(end("stop"));
    chunks
}

fn written(pause: Duration, text: &str) -> Body {
    let chunks = stream::iter(chunks_of(text)).then(move |chunk| async move {
        tokio::time::sleep(pause).await;
        Ok::<_, Infallible>(Bytes::from(chunk))
    });
    Body::from_stream(chunks)
}

/// The arguments in two pieces.
fn streamed_calls(calls: &[Call]) -> Body {
    let mut chunks = vec![chunk(&json!({ "role": "assistant", "content": null }), None)];
    for (index, call) in calls.iter().enumerate() {
        let half = call.arguments.char_indices().nth(call.arguments.chars().count() / 2).map_or(0, |(at, _)| at);
        let (first, second) = call.arguments.split_at(half);
        let mut begin = wired(&Call { arguments: first.to_owned(), ..call.clone() });
        begin["index"] = index.into();
        chunks.push(chunk(&json!({ "tool_calls": [begin] }), None));
        let rest = json!({ "index": index, "function": { "arguments": second } });
        chunks.push(chunk(&json!({ "tool_calls": [rest] }), None));
    }
    chunks.extend(end("tool_calls"));
    body_of(chunks)
}

pub(super) fn body_of(chunks: Vec<String>) -> Body {
    Body::from_stream(stream::iter(chunks.into_iter().map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk)))))
}

/// The strict order: after an assistant message with calls, exactly one tool message for each of them, nothing between;
/// no tool message elsewhere.
fn strict_order(messages: &[Value]) -> Result<(), String> {
    let mut open: BTreeMap<String, bool> = BTreeMap::new();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (n, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            match open.get_mut(id) {
                Some(answered) if !*answered => *answered = true,
                Some(_) => return Err(format!("message {n}: the call {id:?} is answered twice")),
                None => return Err(format!("message {n}: the tool message {id:?} answers no call before it")),
            }
            continue;
        }
        if let Some((id, _)) = open.iter().find(|(_, answered)| !**answered) {
            return Err(format!("message {n} ({role}): the call {id:?} has no answer yet"));
        }
        open.clear();
        if role == "system" && n > 0 {
            return Err(format!("message {n}: a system message that is not the first"));
        }
        let empty = message["content"].as_str().is_none_or(|text| text.trim().is_empty());
        if message["tool_calls"].as_array().is_some_and(Vec::is_empty) {
            return Err(format!("message {n} ({role}): an empty list of calls"));
        }
        if empty && !message["tool_calls"].is_array() {
            return Err(format!("message {n} ({role}): nothing in it"));
        }
        for call in message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice) {
            let id = call["id"].as_str().unwrap_or_default().to_owned();
            if id.is_empty() || !seen.insert(id.clone()) {
                return Err(format!("message {n}: the id {id:?} of a call is empty or used before"));
            }
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            if serde_json::from_str::<Value>(arguments).is_err() {
                return Err(format!("message {n}: the arguments of {id:?} are no JSON: {arguments}"));
            }
            open.insert(id, false);
        }
    }
    match open.iter().find(|(_, answered)| !**answered) {
        Some((id, _)) => Err(format!("at the end the call {id:?} has no answer")),
        None => Ok(()),
    }
}

#[test]
fn the_strict_order_is_told_from_every_other_one() {
    let user = json!({ "role": "user", "content": "x" });
    let tool = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "r" });
    let calls = |ids: &[&str]| {
        let calls: Vec<Value> = ids.iter().map(|id| wired(&call(id, "read", "{}"))).collect();
        json!({ "role": "assistant", "content": null, "tool_calls": calls })
    };
    let good = [user.clone(), calls(&["a", "b"]), tool("b"), tool("a"), user.clone()];
    assert_eq!(strict_order(&good), Ok(()));
    for bad in [
        vec![user.clone(), tool("a")],
        vec![calls(&["a"])],
        vec![calls(&["a"]), user.clone(), tool("a")],
        vec![calls(&["a", "b"]), tool("a"), user.clone()],
        vec![calls(&["a"]), tool("a"), tool("a")],
        vec![calls(&["a"]), tool("a"), calls(&["a"]), tool("a")],
        vec![calls(&["a", "a"]), tool("a")],
        vec![user.clone(), json!({ "role": "assistant", "content": "", "tool_calls": [] })],
        vec![user.clone(), json!({ "role": "assistant", "content": null }), user.clone()],
        vec![user, json!({ "role": "system", "content": "late" })],
    ] {
        assert!(strict_order(&bad).is_err(), "{bad:?}");
    }
}
