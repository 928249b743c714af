//! Remote models against a mock provider on a loopback port, with scripted faults.

mod providers;
#[path = "../tests/support/shapes.rs"]
mod shapes;

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, Response},
};
use channel_api::Clock;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    config::{ModelConfig, build, build_all},
    failover::{Failover, Rests},
    *,
};
use crate::{
    clock::ManualClock,
    lang::{self, Lang},
};

const KEY: &str = "sk-canary-0123456789abcdef";

/// What the mock does with one request; the last entry of its list goes on for ever.
#[derive(Clone)]
enum Act {
    /// Status, headers, body.
    Answer(u16, &'static [(&'static str, &'static str)], String),
    /// A stream in these pieces.
    Pieces(Vec<Piece>),
    /// No answer at all.
    Hang,
}

#[derive(Clone)]
enum Piece {
    Bytes(Vec<u8>),
    /// The connection breaks.
    Break,
    /// Nothing more comes, and the connection stays.
    Hang,
}

struct Mock {
    base_url: String,
    requests: Arc<Mutex<Vec<(HeaderMap, String)>>>,
    arrived: watch::Receiver<usize>,
    _server: JoinSet<()>,
}

#[derive(Clone)]
struct Provider {
    acts: Arc<Vec<Act>>,
    requests: Arc<Mutex<Vec<(HeaderMap, String)>>>,
    arrived: Arc<watch::Sender<usize>>,
}

async fn answer(State(provider): State<Provider>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let number = {
        let mut requests = provider.requests.lock().expect("not poisoned");
        requests.push((headers, String::from_utf8_lossy(&body).into_owned()));
        requests.len()
    };
    provider.arrived.send_replace(number);
    match provider.acts[(number - 1).min(provider.acts.len() - 1)].clone() {
        Act::Hang => std::future::pending().await,
        Act::Answer(status, headers, body) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            response.body(Body::from(body)).expect("a response")
        }
        Act::Pieces(pieces) => {
            let pieces = futures_util::stream::iter(pieces).then(|piece| async {
                match piece {
                    Piece::Bytes(bytes) => Ok(Bytes::from(bytes)),
                    Piece::Break => {
                        // The server writes what it has when the body lets it wait.
                        for _ in 0..3 {
                            tokio::task::yield_now().await;
                        }
                        Err(io::Error::other("cut"))
                    }
                    Piece::Hang => std::future::pending().await,
                }
            });
            let response = Response::builder().header("content-type", "text/event-stream");
            response.body(Body::from_stream(pieces)).expect("a response")
        }
    }
}

async fn mock(acts: Vec<Act>) -> Mock {
    let requests = Arc::default();
    let (sender, arrived) = watch::channel(0);
    let provider = Provider { acts: Arc::new(acts), requests: Arc::clone(&requests), arrived: Arc::new(sender) };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}/v1", listener.local_addr().expect("bound"));
    let post = || axum::routing::post(answer);
    let router = Router::new().route("/v1/chat/completions", post()).route("/v1/messages", post());
    let router = router.route("/v1/audio/transcriptions", post()).with_state(provider);
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    Mock { base_url, requests, arrived, _server: server }
}

impl Mock {
    fn config(&self, more: &str) -> ModelConfig {
        let text = format!("base_url = \"{}\"\napi_key = \"{KEY}\"\nmodel = \"test-1\"\n{more}", self.base_url);
        toml::from_str(&text).expect("a good section")
    }

    fn model(&self, clock: Arc<dyn Clock>, more: &str) -> Arc<dyn Model> {
        build("main", &self.config(more), clock, Path::new(".")).expect("a good section")
    }

    fn count(&self) -> usize {
        self.requests.lock().expect("not poisoned").len()
    }

    fn body(&self, number: usize) -> String {
        self.requests.lock().expect("not poisoned")[number].1.clone()
    }
}

/// A clock whose pauses of up to 5 s, or of exactly 45 s, are over at once; time limits never come.
#[derive(Default)]
struct Hurried {
    slept: Mutex<Vec<Duration>>,
}

#[async_trait]
impl Clock for Hurried {
    fn now_ms(&self) -> i64 {
        1_796_000_000_000
    }

    fn monotonic(&self) -> Duration {
        self.slept.lock().expect("not poisoned").iter().sum()
    }

    async fn sleep(&self, duration: Duration) {
        if duration < Duration::from_secs(5) || duration == Duration::from_secs(45) {
            self.slept.lock().expect("not poisoned").push(duration);
        } else {
            std::future::pending().await
        }
    }
}

#[derive(Default)]
struct Seen {
    text: Mutex<String>,
    resets: AtomicUsize,
    waits: Mutex<Vec<Waiting>>,
    passed: Mutex<Vec<String>>,
    grew: watch::Sender<usize>,
}

impl Progress for Seen {
    fn text(&self, delta: &str) {
        let mut text = self.text.lock().expect("not poisoned");
        text.push_str(delta);
        self.grew.send_replace(text.len());
    }
    fn reset(&self) {
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.text.lock().expect("not poisoned").clear();
    }
    fn waiting(&self, why: Waiting) {
        self.waits.lock().expect("not poisoned").push(why);
    }
    fn passed_over(&self, model: &str, why: &str) {
        self.passed.lock().expect("not poisoned").push(format!("{model}: {why}"));
    }
}

fn hello() -> ModelRequest {
    ModelRequest {
        system: "Be brief.".to_owned(),
        messages: vec![Message::user("hello")],
        tools: Vec::new(),
        max_tokens: None,
    }
}

async fn ask(model: &Arc<dyn Model>) -> Result<ModelResponse, ModelError> {
    model.complete(&hello(), &(), &CancellationToken::new()).await
}

/// Asks a provider that acts like this.
async fn outcome(acts: Vec<Act>) -> (Result<ModelResponse, ModelError>, Mock, Seen) {
    let mock = mock(acts).await;
    let seen = Seen::default();
    let model = mock.model(Arc::new(Hurried::default()), "");
    let result = model.complete(&hello(), &seen, &CancellationToken::new()).await;
    if let Err(error) = &result {
        let text = error.to_string();
        assert!(text.chars().count() <= 700 && !text.contains('<') && !text.contains("canary"), "{text}");
    }
    (result, mock, seen)
}

fn stream(text: &str) -> Act {
    Act::Pieces(vec![Piece::Bytes(text.as_bytes().to_vec())])
}

fn delta(delta: Value) -> String {
    format!("data: {}\n\n", json!({"id": "c1", "model": "test-1-0901", "choices": [{"index": 0, "delta": delta}]}))
}

fn say(text: &str) -> String {
    delta(json!({ "content": text }))
}

fn end(reason: &str) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
}

fn good(text: &str) -> Act {
    stream(&format!("{}{}data: [DONE]\n\n", say(text), end("stop")))
}

fn shape(response: &ModelResponse) -> (&str, Vec<(&str, &str)>, Finish) {
    let calls = response.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    (&response.text, calls, response.finish)
}

// The request.

fn conversation() -> ModelRequest {
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let result =
        |id: &str, text: &str| Message::Tool { call_id: id.to_owned(), name: "ls".to_owned(), text: text.to_owned() };
    ModelRequest {
        system: "You are 小龙虾.".to_owned(),
        messages: vec![
            Message::user("list"),
            Message::Assistant {
                text: String::new(),
                calls: vec![call("call_1", "ls", "{\"path\":\".\"}"), call("call_2", "read", "{path:")],
                opaque: Some(json!({"reasoning_content": "hm"})),
            },
            result("call_1", "a\nb"),
            result("call_2", "bad arguments"),
            Message::Assistant {
                text: "Done.".to_owned(),
                calls: vec![],
                opaque: Some(json!({"reasoning_content": "x"})),
            },
            Message::user("thanks"),
        ],
        tools: vec![ToolSpec {
            name: "ls".to_owned(),
            description: "Lists a folder.".to_owned(),
            parameters: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
        }],
        max_tokens: Some(100),
    }
}

#[tokio::test]
async fn the_request_keeps_the_strict_order_byte_for_byte() {
    let mock = mock(vec![good("ok")]).await;
    let model = mock.model(Arc::new(Hurried::default()), "");
    model.complete(&conversation(), &(), &CancellationToken::new()).await.expect("an answer");
    let expected = concat!(
        r#"{"model":"test-1","messages":["#,
        r#"{"role":"system","content":"You are 小龙虾."},"#,
        r#"{"role":"user","content":"list"},"#,
        r#"{"role":"assistant","content":null,"tool_calls":["#,
        r#"{"id":"call_1","type":"function","function":{"name":"ls","arguments":"{\"path\":\".\"}"}},"#,
        r#"{"id":"call_2","type":"function","function":{"name":"read","arguments":"{\"malformed\":\"{path:\"}"}}]},"#,
        r#"{"role":"tool","tool_call_id":"call_1","content":"a\nb"},"#,
        r#"{"role":"tool","tool_call_id":"call_2","content":"bad arguments"},"#,
        r#"{"role":"assistant","content":"Done."},"#,
        r#"{"role":"user","content":"thanks"}],"#,
        r#""tools":[{"type":"function","function":{"name":"ls","description":"Lists a folder.","#,
        r#""parameters":{"properties":{"path":{"type":"string"}},"type":"object"}}}],"#,
        r#""max_tokens":100,"stream":true,"stream_options":{"include_usage":true}}"#,
    );
    assert_eq!(mock.body(0), expected);
    let headers = mock.requests.lock().expect("not poisoned")[0].0.clone();
    assert_eq!(headers["authorization"], format!("Bearer {KEY}"));
    assert_eq!(headers["content-type"], "application/json");
}

#[tokio::test]
async fn quirks_change_the_request_and_nothing_else_does() {
    let mock = mock(vec![good("ok")]).await;
    let more = "max_tokens = 7\nquirks = { max_tokens_field = \"max_completion_tokens\", null_content = false, \
                send_reasoning = \"with_calls\", call_ids = \"nine\", usage_in_stream = false, auth = \"api_key\", \
                extra = { enable_thinking = false } }";
    let model = mock.model(Arc::new(Hurried::default()), more);
    let mut request = conversation();
    request.max_tokens = None;
    model.complete(&request, &(), &CancellationToken::new()).await.expect("an answer");
    let body: Value = serde_json::from_str(&mock.body(0)).expect("JSON");
    assert_eq!((&body["max_completion_tokens"], &body["max_tokens"]), (&json!(7), &Value::Null));
    assert_eq!((&body["enable_thinking"], &body["stream_options"]), (&json!(false), &Value::Null));
    let asked = &body["messages"][2];
    assert_eq!((&asked["content"], &asked["reasoning_content"]), (&json!(""), &json!("hm")));
    assert_eq!(body["messages"][5]["reasoning_content"], Value::Null);
    let id = asked["tool_calls"][0]["id"].as_str().expect("an id");
    assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    assert_eq!(body["messages"][3]["tool_call_id"], id);
    assert_ne!(body["messages"][4]["tool_call_id"], id);
    let headers = mock.requests.lock().expect("not poisoned")[0].0.clone();
    assert_eq!(
        (headers.get("api-key").expect("there").as_bytes(), headers.get("authorization")),
        (KEY.as_bytes(), None)
    );
}

// The answer.

#[tokio::test]
async fn a_stream_becomes_a_response_however_it_is_cut_into_pieces() {
    let text = format!(
        ": OPENROUTER PROCESSING\r\n\r\n{}{}{}data: {}\r\n\r\ndata: [DONE]\n\ndata: [DONE]\n\n",
        say("小龙"),
        delta(json!({"content": "虾 \u{1f99e}", "reasoning_content": "think"})),
        end("stop").replace("data: ", "event: message\ndata:"),
        json!({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": "5", "prompt_tokens_details": {"cached_tokens": 8}}}),
    );
    for size in [1, 3, 7, 4096] {
        let pieces = text.as_bytes().chunks(size).map(|bytes| Piece::Bytes(bytes.to_vec())).collect();
        let (result, mock, seen) = outcome(vec![Act::Pieces(pieces)]).await;
        let response = result.expect("an answer");
        assert_eq!(shape(&response), ("小龙虾 \u{1f99e}", vec![], Finish::Stop));
        assert_eq!(response.opaque, Some(json!({"reasoning_content": "think"})));
        assert_eq!(response.usage, Usage { input: 12, output: 5, cached: 8, ..Usage::default() });
        assert_eq!((response.model.as_str(), response.request_id.as_deref()), ("test-1-0901", Some("c1")));
        assert_eq!(*seen.text.lock().expect("not poisoned"), "小龙虾 \u{1f99e}");
        assert_eq!(mock.count(), 1);
    }
}

#[tokio::test]
async fn calls_come_together_whatever_the_server_does_with_index_id_and_arguments() {
    let call = |call: Value| delta(json!({ "tool_calls": [call] }));
    let (a, b) = (("ls", r#"{"path":"."}"#), ("read", r#"{"path":"b"}"#));
    let cases = [
        (
            "fragments by index",
            call(json!({"index": 0, "id": "x", "type": "function", "function": {"name": "ls", "arguments": ""}}))
                + &call(json!({"index": 0, "function": {"arguments": "{\"path\""}}))
                + &call(json!({"index": 1, "id": "y", "function": {"name": "read", "arguments": "{\"path\":"}}))
                + &call(json!({"index": 0, "id": "", "function": {"arguments": ":\".\"}", "name": null}}))
                + &call(json!({"index": 1, "function": {"arguments": "\"b\"}"}})),
        ),
        (
            "whole, index repeated, ids differ",
            call(json!({"index": 0, "id": "x", "function": {"name": "ls", "arguments": a.1}}))
                + &call(json!({"index": 0, "id": "y", "function": {"name": "read", "arguments": b.1}})),
        ),
        (
            "whole, index repeated, no ids",
            call(json!({"index": 0, "function": {"name": "ls", "arguments": a.1}}))
                + &call(json!({"index": 0, "id": "", "function": {"name": "read", "arguments": b.1}})),
        ),
        (
            "no index, no ids, fragments",
            call(json!({"function": {"name": "ls", "arguments": "{\"path\":"}}))
                + &call(json!({"function": {"arguments": "\".\"}"}}))
                + &call(json!({"function": {"name": "read", "arguments": b.1}})),
        ),
        (
            "no index, id in every fragment",
            call(json!({"id": "x", "function": {"name": "ls", "arguments": "{\"path\":"}}))
                + &call(json!({"id": "x", "function": {"name": "ls", "arguments": "\".\"}"}}))
                + &call(json!({"id": "y", "function": {"name": "read", "arguments": b.1}})),
        ),
        (
            "the whole call once more at its end",
            call(json!({"index": 0, "id": "x", "function": {"name": "ls", "arguments": a.1}}))
                + &call(json!({"index": 0, "id": "x", "function": {"name": "ls", "arguments": a.1}}))
                + &call(json!({"index": 1, "id": "x", "function": {"name": "read", "arguments": b.1}})),
        ),
        (
            "arguments as objects, both in one piece",
            delta(json!({"tool_calls": [
                {"index": 0, "function": {"name": "ls", "arguments": {"path": "."}}},
                {"index": 1, "function": {"name": "read", "arguments": {"path": "b"}}},
            ]})),
        ),
    ];
    for (what, pieces) in cases {
        for finish in [end("tool_calls"), end("stop"), end("made_up"), String::new()] {
            let (result, ..) = outcome(vec![stream(&format!("{pieces}{finish}"))]).await;
            let response = result.expect(what);
            assert_eq!(shape(&response), ("", vec![a, b], Finish::Stop), "{what}");
            assert!(response.calls[0].id.starts_with("call_") && response.calls[0].id != response.calls[1].id);
        }
    }
    let old = delta(json!({"function_call": {"name": "ls", "arguments": "{\"path\":"}}))
        + &delta(json!({"function_call": {"arguments": "\".\"}"}}));
    let (result, ..) = outcome(vec![stream(&(old + &end("function_call")))]).await;
    assert_eq!(shape(&result.expect("an answer")), ("", vec![a], Finish::Stop));
}

#[tokio::test]
async fn a_whole_answer_is_read_where_a_stream_was_asked_for() {
    let body = json!({
        "id": "c9", "model": "m", "usage": {"prompt_tokens": -3, "completion_tokens": 2},
        "choices": [{"message": {"role": "assistant", "content": null, "reasoning_content": "r",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]},
            "finish_reason": "stop"}]
    });
    let (result, ..) = outcome(vec![Act::Answer(200, &[("x-request-id", "r1")], format!("\n {body}"))]).await;
    let response = result.expect("an answer");
    assert_eq!(shape(&response), ("", vec![("ls", "{}")], Finish::Stop));
    // Less than nothing is no count: ours stands in its place.
    let usage = response.usage;
    assert!((1..100).contains(&usage.input) && usage.output == 2 && usage.estimated, "{usage:?}");
    assert_eq!(response.request_id.as_deref(), Some("r1"));
    let parts =
        json!({"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}]});
    let (result, _, seen) = outcome(vec![Act::Answer(200, &[], parts.to_string())]).await;
    assert_eq!(shape(&result.expect("an answer")), ("ab", vec![], Finish::Stop));
    assert_eq!(*seen.text.lock().expect("not poisoned"), "ab");
}

#[tokio::test]
async fn a_count_of_tokens_that_cannot_be_is_replaced_by_ours() {
    let i64_max = i64::MAX;
    let cases = [
        (json!({"prompt_tokens": i64_max, "completion_tokens": i64_max}), None, None),
        (json!({"prompt_tokens": u64::MAX, "completion_tokens": 7}), None, Some(7)),
        (json!({"prompt_tokens": 1e30, "completion_tokens": "12", "total_tokens": null}), None, Some(12)),
        (json!({"prompt_tokens": -5, "completion_tokens": -100}), None, None),
        (json!({"prompt_tokens": 12.7, "completion_tokens": " 9.0 "}), Some(12), Some(9)),
        (json!({"prompt_tokens": "many", "completion_tokens": []}), None, None),
        (json!({"prompt_tokens": 100_000_000, "completion_tokens": 100_000_001}), Some(100_000_000), None),
        (json!({"prompt_tokens": 0, "completion_tokens": 0}), None, None),
        (json!({"prompt_tokens": 5, "completion_tokens": 1, "cached_tokens": u64::MAX}), Some(5), Some(1)),
    ];
    for (told, input, output) in cases {
        let usage = format!("data: {}\n\n", json!({"choices": [], "usage": told}));
        let (result, ..) = outcome(vec![stream(&(say("eight words of it") + &end("stop") + &usage))]).await;
        let usage = result.expect("an answer").usage;
        assert!(input.map_or((1..100).contains(&usage.input), |input| usage.input == input), "{told}: {usage:?}");
        assert!(output.map_or((1..100).contains(&usage.output), |output| usage.output == output), "{told}: {usage:?}");
        assert_eq!(usage.estimated, input.is_none() || output.is_none(), "{told}");
        assert!(usage.cached <= usage.input, "{told}: {usage:?}");
    }
    let mut sum = Usage { input: u64::MAX, output: u64::MAX, cached: u64::MAX, ..Usage::default() };
    sum.add(&Usage { input: 1, output: 1, cached: 1, cache_write: 1, estimated: false });
    assert_eq!((sum.input, sum.output, sum.cached, sum.cache_write), (u64::MAX, u64::MAX, u64::MAX, 1));
}

#[tokio::test]
async fn a_connection_closed_in_a_thought_or_in_a_call_is_a_broken_one() {
    let call = |arguments: &str| {
        delta(json!({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "ls", "arguments": arguments}}]}))
    };
    let event = |event: Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().expect("a type"));
    let starts = event(json!({"type": "message_start", "message": {"id": "m", "content": []}}));
    let thinks = event(json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}}))
        + &event(json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "hm"}}));
    let calls = event(json!({"type": "content_block_start", "index": 0,
            "content_block": {"type": "tool_use", "id": "t", "name": "ls", "input": {}}}))
        + &event(json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": "{\"path\":"}}));
    let whole = event(json!({"type": "message_start", "message": {"id": "m", "content": []}}))
        + &event(
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "whole"}}),
        )
        + &event(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}))
        + &event(json!({"type": "message_stop"}));
    let anthropic = "provider = \"anthropic\"";
    let cases = [
        ("", call("{\"path\":"), say("whole") + &end("stop")),
        ("", call(""), say("whole") + &end("stop")),
        ("", delta(json!({"reasoning_content": "let me see"})), say("whole") + &end("stop")),
        ("", delta(json!({"role": "assistant"})), say("whole") + &end("stop")),
        (anthropic, starts.clone(), whole.clone()),
        (anthropic, starts.clone() + &thinks, whole.clone()),
        (anthropic, starts + &calls, whole),
    ];
    for (more, cut, whole) in cases {
        let often = mock(vec![stream(&cut)]).await;
        let error = ask(&often.model(Arc::new(Hurried::default()), more)).await.expect_err("no answer");
        assert_eq!(error, ModelError::Retry(Cause::new(cause::What::Broke)), "{cut}");
        assert_eq!(often.count(), 4, "asked again with the usual pauses: {cut}");
        let once = mock(vec![stream(&cut), stream(&whole)]).await;
        let answer = ask(&once.model(Arc::new(Hurried::default()), more)).await;
        assert_eq!(answer.expect("the second").text, "whole", "{cut}");
    }
}

#[tokio::test]
async fn bad_input_65_strange_characters_ends_and_pieces_cost_nothing_but_themselves() {
    let cases = [
        // Half a surrogate pair, a whole one, an escaped backslash before a u, NUL.
        (
            r#"data: {"choices":[{"delta":{"content":"a\ud800b\ud83e\udd9e\\ud800\u0000"}}]}"#.to_owned()
                + "\n\n"
                + &end("stop"),
            ("a\u{fffd}b\u{1f99e}\\ud800\u{fffd}", Finish::Stop),
        ),
        // No blank lines between the events, no end of the last one.
        ((say("a").trim_end().to_owned() + "\n" + end("stop").trim_end()), ("a", Finish::Stop)),
        // Something that is not JSON, and a choice that was not asked for.
        (
            say("a")
                + "data: oops\n\ndata: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"z\"}}]}\n\n"
                + &end("stop"),
            ("a", Finish::Stop),
        ),
        (say("a") + &end("length"), ("a", Finish::Length)),
        (end("length"), ("", Finish::Length)),
        (say("a") + &end("content_filter"), ("a", Finish::Filtered)),
        // No word about the end.
        (say("a"), ("a", Finish::Cut)),
        (say("a") + "data: [DONE]\n\n", ("a", Finish::Stop)),
        // An error in the middle: what came is kept.
        (say("a") + "data: {\"error\":{\"message\":\"overloaded\",\"code\":502}}\n\n", ("a", Finish::Cut)),
        (say("a") + "data: {\"error\":{\"code\":\"data_inspection_failed\"}}\n\n", ("a", Finish::Filtered)),
        (say("a") + &end("error"), ("a", Finish::Cut)),
    ];
    for (body, (text, finish)) in cases {
        let (result, mock, _) = outcome(vec![stream(&body)]).await;
        let response = result.expect(&body);
        assert_eq!(shape(&response), (text, vec![], finish), "{body}");
        assert!(response.usage.estimated);
        assert_eq!(mock.count(), 1, "{body}");
    }
}

#[tokio::test]
async fn a_cut_stream_keeps_its_text_and_never_half_a_call() {
    let bytes = |text: String| Piece::Bytes(text.into_bytes());
    let half = delta(json!({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "ls", "arguments": "{}"}}]}));
    let (result, mock, seen) =
        outcome(vec![Act::Pieces(vec![bytes(say("half")), bytes(half.clone()), Piece::Break])]).await;
    assert_eq!(shape(&result.expect("the text")), ("half", vec![], Finish::Cut));
    assert_eq!((mock.count(), seen.resets.load(Ordering::Relaxed)), (1, 0));
    // Without text it is asked again.
    let (result, mock, _) = outcome(vec![Act::Pieces(vec![bytes(half.clone()), Piece::Break]), good("whole")]).await;
    assert_eq!((shape(&result.expect("the second")).0, mock.count()), ("whole", 2));
    // After the end of the answer a broken connection is nobody's business.
    let (result, mock, _) = outcome(vec![Act::Pieces(vec![bytes(half + &end("tool_calls")), Piece::Break])]).await;
    assert_eq!((shape(&result.expect("the call")).1, mock.count()), (vec![("ls", "{}")], 1));
    // What was shown is taken back before the next try: blank text is no answer.
    let (result, _, seen) = outcome(vec![Act::Pieces(vec![bytes(say(" ")), Piece::Break]), good("b")]).await;
    assert_eq!(shape(&result.expect("the second")).0, "b");
    assert_eq!((seen.resets.load(Ordering::Relaxed), &**seen.text.lock().expect("not poisoned")), (1, "b"));
}

#[tokio::test]
async fn bad_input_62_a_flood_is_cut_off() {
    let mut pieces = vec![
        Piece::Bytes(say("kept").into_bytes()),
        Piece::Bytes(b"data: {\"choices\":[{\"delta\":{\"content\":\"".to_vec()),
    ];
    pieces.extend(std::iter::repeat_n(Piece::Bytes(vec![b'x'; 1 << 20]), 200));
    let nothing_but = pieces.split_off(1);
    pieces.extend(nothing_but.iter().cloned());
    let (result, mock, _) = outcome(vec![Act::Pieces(pieces)]).await;
    assert_eq!(shape(&result.expect("the beginning")), ("kept", vec![], Finish::Cut));
    assert_eq!(mock.count(), 1);
    // With nothing to keep it fails alone: it is not asked for again, and says nothing about the provider.
    let (result, mock, _) = outcome(vec![Act::Pieces(nothing_but), good("never asked for")]).await;
    assert!(matches!(result, Err(ModelError::Fatal(_))), "{result:?}");
    assert_eq!(mock.count(), 1);
    let long = say(&"y".repeat(1 << 20));
    let (result, ..) = outcome(vec![Act::Pieces(vec![Piece::Bytes(long.into_bytes()); 8])]).await;
    let response = result.expect("what fits");
    assert_eq!((response.text.len(), response.finish), (4 << 20, Finish::Length));
}

// Refusals, tries, limits.

#[tokio::test]
async fn bad_input_63_refusals_are_classed_bounded_and_show_neither_page_nor_key() {
    let html = format!("<html><body>{}</body></html>", "x".repeat(10_000));
    let error = |message: &str| json!({"error": {"message": message, "code": "c"}}).to_string();
    let long = "z".repeat(3_000);
    type Expected = fn(&ModelError) -> bool;
    let cases: Vec<(u16, String, Expected, usize)> = vec![
        (400, error("maximum context length is 5"), |e| matches!(e, ModelError::TooLong(_)), 1),
        (
            400,
            error("messages with role \"tool\" must be a response to a preceeding message with \"tool_calls\""),
            |e| matches!(e, ModelError::Order(_)),
            1,
        ),
        (400, error("data_inspection_failed"), |e| matches!(e, ModelError::Refused(_)), 1),
        (401, error(&format!("Incorrect API key provided: {KEY}")), |e| matches!(e, ModelError::Fatal(_)), 1),
        (403, error("no"), |e| matches!(e, ModelError::Fatal(_)), 1),
        (404, html.clone(), |e| matches!(e, ModelError::Fatal(_)), 1),
        (422, error(&format!("{long} {KEY}")), |e| matches!(e, ModelError::Fatal(_)), 1),
        (400, error(&format!("you sent {KEY}")), |e| matches!(e, ModelError::Fatal(_)), 1),
        (429, error("insufficient_quota"), |e| matches!(e, ModelError::Fatal(_)), 1),
        (429, error("slow down"), |e| matches!(e, ModelError::Retry(_)), 4),
        (408, String::new(), |e| matches!(e, ModelError::Retry(_)), 4),
        (500, html.clone(), |e| matches!(e, ModelError::Retry(_)), 4),
        (529, error("overloaded"), |e| matches!(e, ModelError::Retry(_)), 4),
        (302, html.clone(), |e| matches!(e, ModelError::Fatal(_)), 1),
        (200, html, |e| matches!(e, ModelError::Retry(_)), 4),
        (200, json!({"error": {"message": "busy", "code": 503}}).to_string(), |e| matches!(e, ModelError::Retry(_)), 4),
        (200, json!({"error": "invalid_api_key"}).to_string(), |e| matches!(e, ModelError::Fatal(_)), 1),
        (
            200,
            json!({"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}).to_string(),
            |e| matches!(e, ModelError::Retry(_)),
            4,
        ),
        (200, "{\"choices\": [{".to_owned(), |e| matches!(e, ModelError::Retry(_)), 4),
    ];
    for (status, body, expected, tries) in cases {
        let (result, mock, _) = outcome(vec![Act::Answer(status, &[], body.clone())]).await;
        let error = result.expect_err(&body);
        assert!(expected(&error), "{status} {body}: {error:?}");
        assert_eq!(mock.count(), tries, "{status} {body}: {error:?}");
        assert!(!error.to_string().contains("xxxx"), "{error}");
    }
    let (result, ..) = outcome(vec![stream(&end("content_filter"))]).await;
    assert!(matches!(result, Err(ModelError::Refused(_))));
    let event = "event: error\ndata: {\"code\":\"DataInspectionFailed\",\"message\":\"no\"}\n\n";
    let (result, ..) = outcome(vec![stream(event)]).await;
    assert!(matches!(result, Err(ModelError::Refused(_))));
}

#[tokio::test]
async fn bad_input_61_nothing_is_asked_for_once_more_and_then_named() {
    let nothing = [
        Act::Answer(200, &[], "{}".to_owned()),
        Act::Answer(200, &[], "null".to_owned()),
        Act::Answer(200, &[], String::new()),
        Act::Answer(200, &[], json!({"choices": []}).to_string()),
        Act::Answer(200, &[], json!({"choices": [{"message": {"content": null}}]}).to_string()),
        stream("data: {\"choices\":[]}\n\ndata: [DONE]\n\n"),
        stream(&(say(" \n") + &end("stop"))),
        stream(": keep-alive\n\n"),
    ];
    for act in nothing {
        let (result, mock, _) = outcome(vec![act.clone()]).await;
        assert_eq!(result, Err(ModelError::Fatal(Cause::new(cause::What::Nothing))));
        assert_eq!(mock.count(), 2);
        let (result, ..) = outcome(vec![act, good("here")]).await;
        assert_eq!(result.expect("the second").text, "here");
    }
}

#[tokio::test]
async fn retry_after_is_kept_up_to_two_minutes_and_handed_on_beyond() {
    let busy = |headers| Act::Answer(429, headers, String::new());
    for headers in [
        &[("retry-after", "45")] as &'static [_],
        // The mock's clock shows 2026-11-30 00:53:20 UTC.
        &[("retry-after", "Mon, 30 Nov 2026 00:54:05 GMT")],
        &[("retry-after-ms", "45000")],
    ] {
        let mock = mock(vec![busy(headers), good("ok")]).await;
        let clock = Arc::new(Hurried::default());
        let model = mock.model(clock.clone(), "");
        assert_eq!(ask(&model).await.expect("the second").text, "ok");
        assert_eq!(clock.monotonic(), Duration::from_secs(45), "{headers:?}");
    }
    let (result, mock, _) = outcome(vec![busy(&[("retry-after", "300")])]).await;
    assert_eq!((result, mock.count()), (Err(ModelError::RetryAfter(Duration::from_secs(300))), 1));
    let (result, ..) = outcome(vec![busy(&[("retry-after", "9999999999")])]).await;
    assert_eq!(result, Err(ModelError::RetryAfter(Duration::from_secs(3600))));
    for odd in [&[("retry-after", "-5")] as &'static [_], &[("retry-after", "soon")], &[("retry-after", "NaN")]] {
        let (result, mock, _) = outcome(vec![busy(odd), good("ok")]).await;
        assert_eq!((result.expect("the second").text.as_str(), mock.count()), ("ok", 2), "{odd:?}");
    }
}

#[tokio::test]
async fn a_silent_provider_is_given_up_and_the_person_hears_of_it() {
    let mock = mock(vec![Act::Hang]).await;
    let clock = Arc::new(ManualClock::at(0));
    let model = mock.model(clock.clone(), "");
    let seen = Seen::default();
    let (request, cancel) = (hello(), CancellationToken::new());
    let call = model.complete(&request, &seen, &cancel);
    let pass_time = async {
        loop {
            clock.advance(Duration::from_millis(500));
            tokio::task::yield_now().await;
        }
    };
    let result = tokio::select! { result = call => result, () = pass_time => unreachable!("it never ends") };
    assert_eq!(result, Err(ModelError::Retry(Cause::new(cause::What::Silent))));
    assert!((240..260).contains(&clock.monotonic().as_secs()), "{:?}", clock.monotonic());
    // How often it is asked again hangs on the pauses, which are drawn by lot.
    let waits = seen.waits.lock().expect("not poisoned");
    let (first, again) = waits.split_first().expect("something was said");
    assert!(*first == Waiting::Slow && (1..=2).contains(&again.len()), "{waits:?}");
    assert!(again.iter().all(|wait| *wait == Waiting::Again), "{waits:?}");
}

#[tokio::test]
async fn a_stream_that_falls_silent_keeps_its_text_after_90_seconds() {
    let mock = mock(vec![Act::Pieces(vec![Piece::Bytes(say("Hel").into_bytes()), Piece::Hang])]).await;
    let clock = Arc::new(ManualClock::at(0));
    let model = mock.model(clock.clone(), "");
    let seen = Seen::default();
    let (request, cancel) = (hello(), CancellationToken::new());
    let mut grew = seen.grew.subscribe();
    let call = model.complete(&request, &seen, &cancel);
    let (result, ()) = tokio::join!(call, async {
        grew.wait_for(|length| *length == 3).await.expect("text comes");
        clock.advance(Duration::from_secs(89));
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(1));
    });
    assert_eq!(shape(&result.expect("the text")), ("Hel", vec![], Finish::Cut));
    assert_eq!(*seen.waits.lock().expect("not poisoned"), []);
}

#[tokio::test]
async fn cancelling_ends_a_call_at_once_wherever_it_is() {
    let pieces = Act::Pieces(vec![Piece::Bytes(say("Hel").into_bytes()), Piece::Hang]);
    for act in [Act::Hang, pieces, Act::Answer(429, &[("retry-after", "100")], String::new())] {
        let mock = mock(vec![act]).await;
        let model = mock.model(Arc::new(ManualClock::at(0)), "");
        let cancel = CancellationToken::new();
        let mut arrived = mock.arrived.clone();
        let request = hello();
        let call = model.complete(&request, &(), &cancel);
        let (result, ()) = tokio::join!(call, async {
            arrived.wait_for(|count| *count == 1).await.expect("it arrives");
            cancel.cancel();
        });
        assert_eq!(result, Err(ModelError::Cancelled));
    }
}

#[tokio::test]
async fn no_more_requests_than_allowed_run_at_once() {
    let mock = mock(vec![Act::Hang]).await;
    let model = mock.model(Arc::new(ManualClock::at(0)), "max_concurrent = 2");
    let cancel = CancellationToken::new();
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let (model, cancel) = (Arc::clone(&model), cancel.clone());
        calls.spawn(async move { model.complete(&hello(), &(), &cancel).await });
    }
    let mut arrived = mock.arrived.clone();
    arrived.wait_for(|count| *count == 2).await.expect("two arrive");
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(mock.count(), 2);
    cancel.cancel();
    while let Some(result) = calls.join_next().await {
        assert_eq!(result.expect("no panic"), Err(ModelError::Cancelled));
    }
}

#[tokio::test]
async fn a_provider_that_cannot_be_reached_is_named_without_its_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    let text = format!("base_url = \"http://127.0.0.1:{port}/v1?token={KEY}\"\nmodel = \"m\"\napi_key = \"{KEY}\"");
    let config = toml::from_str(&text).expect("a good section");
    let model = build("main", &config, Arc::new(Hurried::default()), Path::new(".")).expect("a good section");
    let Err(ModelError::Retry(cause)) = ask(&model).await else { panic!("nobody listens there") };
    let text = cause.to_string();
    assert!(text.contains("127.0.0.1") && !text.contains("canary"), "{text}");
}

#[tokio::test]
async fn the_breaker_of_one_key_opens_after_five_failures_and_one_call_tries_it() {
    let mut acts = vec![Act::Answer(500, &[], String::new()); 5];
    acts.push(good("well again"));
    let mock = mock(acts).await;
    let clock = Arc::new(ManualClock::at(0));
    let shared: Arc<dyn Clock> = clock.clone();
    let configs = [("a", mock.config("")), ("b", mock.config(""))];
    let models = build_all(&configs.map(|(name, config)| (name.to_owned(), config)).into(), &shared, Path::new("."))
        .expect("good sections");
    let drive = async |model: &Arc<dyn Model>| {
        let call = ask(model);
        let pass_time = async {
            // Pauses between tries are at most a few seconds; no time limit is near.
            loop {
                if clock.monotonic() < Duration::from_secs(25) {
                    clock.advance(Duration::from_millis(20));
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! { result = call => result, () = pass_time => unreachable!("it never ends") }
    };
    assert!(matches!(drive(&models["a"]).await, Err(ModelError::Retry(_))));
    assert_eq!(mock.count(), 4);
    // The other model of the same key has the fifth failure; its second try meets the shut breaker and tells the failure.
    assert!(matches!(drive(&models["b"]).await, Err(ModelError::Retry(_))));
    assert_eq!(mock.count(), 5);
    // Whoever comes now is told that it rests.
    let Err(ModelError::Resting(wait)) = ask(&models["a"]).await else { panic!("the breaker is open") };
    assert!(wait <= Duration::from_secs(30), "{wait:?}");
    assert_eq!(mock.count(), 5);
    clock.advance(Duration::from_secs(30));
    assert_eq!(ask(&models["a"]).await.expect("the probe").text, "well again");
    assert_eq!(ask(&models["b"]).await.expect("open again").text, "well again");
}

#[test]
fn one_probe_at_a_time_and_a_failed_one_shuts_again() {
    use super::remote::Breaker;
    let breaker = Breaker::default();
    let at = Duration::from_secs;
    for second in [0, 1, 2, 3, 70] {
        breaker.pass(at(second)).expect("open").settle(true, at(second));
    }
    assert!(breaker.pass(at(71)).is_ok(), "four of the five are older than a minute");
    for second in [71, 72, 73, 74] {
        breaker.pass(at(second)).expect("open").settle(true, at(second));
    }
    assert_eq!(breaker.pass(at(75)).err(), Some(at(29)));
    let probe = breaker.pass(at(104)).expect("one probe");
    assert_eq!(breaker.pass(at(104)).err(), Some(at(1)));
    drop(probe);
    breaker.pass(at(105)).expect("a cancelled probe says nothing").settle(true, at(105));
    assert_eq!(breaker.pass(at(106)).err(), Some(at(29)));
    breaker.pass(at(135)).expect("one probe").settle(false, at(135));
    assert!(breaker.pass(at(135)).is_ok() && breaker.pass(at(135)).is_ok());
}

#[tokio::test]
async fn bad_input_60_no_way_of_marking_thoughts_reaches_the_text() {
    for thought in [
        json!({ "reasoning_content": "secret" }),
        json!({ "content": null, "reasoning_content": "secret" }),
        json!({ "reasoning": "secret" }),
        json!({ "reasoning": "secret", "reasoning_details": [{ "type": "reasoning.text", "text": "secret", "index": 0 }] }),
        json!({ "content": [{ "type": "thinking", "thinking": [{ "type": "text", "text": "secret" }] }] }),
        json!({ "content": [{ "type": "reasoning", "text": "secret" }] }),
        json!({ "thinking": "secret" }),
    ] {
        let text = format!("{}{}{}data: [DONE]\n\n", delta(thought.clone()), say("Hello"), end("stop"));
        let (response, ..) = outcome(vec![stream(&text)]).await;
        assert_eq!(response.expect("an answer").text, "Hello", "{thought}");
    }
}

#[tokio::test]
async fn details_of_reasoning_that_came_in_pieces_go_back_whole() {
    let piece = |text: &str, more: Value| {
        let mut detail = json!({ "type": "reasoning.text", "index": 0, "text": text, "format": "x-v1" });
        detail.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        delta(json!({ "reasoning": text, "reasoning_details": [detail] }))
    };
    let call = json!({ "index": 0, "id": "c", "function": { "name": "ls", "arguments": "{}" } });
    let other = json!({ "reasoning_details": [{ "type": "reasoning.encrypted", "index": 1, "data": "b3Bx" }] });
    let parts = [
        piece("let me ", json!({ "signature": null })),
        piece("see", json!({ "signature": "c2ln" })),
        delta(other),
        delta(json!({ "tool_calls": [call] })),
        end("tool_calls"),
    ];
    let mock = mock(vec![stream(&parts.concat())]).await;
    let model = mock.model(Arc::new(Hurried::default()), "quirks = { send_reasoning = \"with_calls_if_any\" }");
    let response = ask(&model).await.expect("a call");
    let mut request = hello();
    let id = response.calls[0].id.clone();
    request.messages.push(Message::Assistant { text: response.text, calls: response.calls, opaque: response.opaque });
    request.messages.push(Message::Tool { call_id: id, name: "ls".to_owned(), text: "a".to_owned() });
    model.complete(&request, &(), &CancellationToken::new()).await.expect("a call");
    let body: Value = serde_json::from_str(&mock.body(1)).expect("JSON");
    let expected = json!([
        { "type": "reasoning.text", "index": 0, "text": "let me see", "format": "x-v1", "signature": "c2ln" },
        { "type": "reasoning.encrypted", "index": 1, "data": "b3Bx" },
    ]);
    assert_eq!(
        (&body["messages"][2]["reasoning_details"], &body["messages"][2]["reasoning"]),
        (&expected, &Value::Null)
    );
}

// Anthropic's Messages API.

fn messages(events: &[Value]) -> String {
    let line = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default());
    events.iter().map(line).collect()
}

fn said(text: &str, ends: &[Value]) -> String {
    let mut events = vec![
        json!({ "type": "message_start", "message": { "id": "msg_1", "model": "test-1", "usage": { "input_tokens": 3 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } }),
    ];
    events.extend_from_slice(ends);
    messages(&events)
}

fn ends() -> [Value; 2] {
    [
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 2 } }),
        json!({ "type": "message_stop" }),
    ]
}

const ANTHROPIC: &str = "provider = \"anthropic\"";

#[tokio::test]
async fn the_messages_api_is_asked_with_its_headers_and_asked_again_when_it_is_overloaded() {
    let overloaded = json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } });
    let acts = vec![
        Act::Answer(529, &[("request-id", "req_9")], overloaded.to_string()),
        stream(&messages(&[json!({ "type": "message_start", "message": {} }), overloaded])),
        stream(&said("whole", &ends())),
    ];
    let mock = mock(acts).await;
    let model = mock.model(Arc::new(Hurried::default()), ANTHROPIC);
    let response = ask(&model).await.expect("the third try");
    assert_eq!((response.text.as_str(), response.usage.input, response.usage.output), ("whole", 3, 2));
    assert_eq!(mock.count(), 3);
    let headers = mock.requests.lock().expect("not poisoned")[0].0.clone();
    assert_eq!(
        (&headers["x-api-key"], &headers["anthropic-version"]),
        (&HeaderValue::from_static(KEY), &HeaderValue::from_static("2023-06-01"))
    );
    assert!(headers.get("authorization").is_none());
}

#[tokio::test]
async fn refusals_of_the_messages_api_are_told_from_each_other() {
    let refused = |status: u16, kind: &str, message: &str| {
        Act::Answer(status, &[], json!({ "type": "error", "error": { "type": kind, "message": message } }).to_string())
    };
    for (act, expected) in [
        (refused(401, "authentication_error", "invalid x-api-key"), "fatal"),
        (refused(400, "invalid_request_error", "Your credit balance is too low to access the API"), "fatal"),
        (refused(400, "invalid_request_error", "prompt is too long: 212000 tokens > 200000 maximum"), "too_long"),
        (refused(413, "request_too_large", "Request exceeds the maximum size"), "too_long"),
        (
            refused(400, "invalid_request_error", "messages.2: `tool_use` ids were found without `tool_result` blocks"),
            "order",
        ),
        (refused(404, "not_found_error", "model: nothing-1"), "fatal"),
        (stream(&said("", &[json!({ "type": "message_delta", "delta": { "stop_reason": "refusal" } })])), "refused"),
    ] {
        let mock = mock(vec![act]).await;
        let model = mock.model(Arc::new(Hurried::default()), ANTHROPIC);
        let found = match ask(&model).await.expect_err(expected) {
            ModelError::Fatal(_) => "fatal",
            ModelError::TooLong(_) => "too_long",
            ModelError::Order(_) => "order",
            ModelError::Refused(_) => "refused",
            other => panic!("{expected}: {other:?}"),
        };
        assert_eq!((found, mock.count()), (expected, 1));
    }
}

#[tokio::test]
async fn a_cut_stream_of_the_messages_api_keeps_its_words_and_is_marked() {
    let mut pieces = vec![Piece::Bytes(said("half an ans", &[]).into_bytes())];
    pieces.push(Piece::Break);
    let mock = mock(vec![Act::Pieces(pieces)]).await;
    let model = mock.model(Arc::new(Hurried::default()), ANTHROPIC);
    let response = ask(&model).await.expect("the words so far");
    assert_eq!((response.text.as_str(), response.finish), ("half an ans", Finish::Cut));
    // A page, or another API's answer, is an error in plain words.
    for odd in ["<html>Sign in</html>".to_owned(), json!({ "choices": [] }).to_string()] {
        let mock = self::mock(vec![Act::Answer(200, &[], odd)]).await;
        let model = mock.model(Arc::new(Hurried::default()), ANTHROPIC);
        let error = ask(&model).await.expect_err("no answer");
        assert!(matches!(&error, ModelError::Retry(_) | ModelError::Fatal(_)), "{error:?}");
        assert!(!error.to_string().contains('<'), "{error}");
    }
}

// Failover.

fn scripted(name: &str, answer: &str) -> Arc<dyn Model> {
    let rules = format!("otherwise: {answer}");
    Arc::new(scripted::Scripted::from_text(name, &rules, "rules", Arc::new(Hurried::default())).expect("good rules"))
}

fn failover(models: Vec<Arc<dyn Model>>) -> Failover {
    Failover::new("main", models, Rests::default(), Arc::new(Hurried::default()))
}

#[tokio::test]
async fn the_next_model_answers_when_the_first_cannot() {
    for ill in ["{ error: { retry: x } }", "{ error: { retry_after_ms: 500000 } }", "{ error: { fatal: x } }"] {
        let models = vec![scripted("a", ill), scripted("b", "{ text: b }"), scripted("c", "{ text: c }")];
        let model: Arc<dyn Model> = Arc::new(failover(models));
        let response = ask(&model).await.expect("b answers");
        assert_eq!((response.text.as_str(), response.model.as_str(), model.name()), ("b", "b", "main"));
    }
    let models = vec![scripted("a", "{ text: half, error: { retry: x } }"), scripted("b", "{ text: whole }")];
    let seen = Seen::default();
    let model = failover(models);
    model.complete(&hello(), &seen, &CancellationToken::new()).await.expect("b answers");
    assert_eq!((seen.resets.load(Ordering::Relaxed), &**seen.text.lock().expect("not poisoned")), (1, "whole"));
}

#[tokio::test]
async fn a_fault_of_the_request_is_not_shopped_around() {
    for fault in ["too_long", "order", "refused"] {
        let models = vec![scripted("a", &format!("{{ error: {{ {fault}: x }} }}")), scripted("b", "{ text: b }")];
        let model: Arc<dyn Model> = Arc::new(failover(models));
        assert!(ask(&model).await.is_err(), "{fault}");
    }
    let cancel = CancellationToken::new();
    cancel.cancel();
    let model = failover(vec![scripted("a", "{ text: a }"), scripted("b", "{ text: b }")]);
    assert_eq!(model.complete(&hello(), &(), &cancel).await, Err(ModelError::Cancelled));
}

#[tokio::test]
async fn when_all_fail_the_error_that_may_pass_is_handed_on() {
    let model = |errors: &[&str]| -> Arc<dyn Model> {
        let models = errors
            .iter()
            .enumerate()
            .map(|(n, error)| scripted(&format!("x{n}"), &format!("{{ error: {{ {error} }} }}")))
            .collect();
        Arc::new(failover(models))
    };
    let after = |seconds| Err(ModelError::RetryAfter(Duration::from_secs(seconds)));
    assert_eq!(ask(&model(&["retry_after_ms: 9000", "fatal: f", "retry_after_ms: 3000"])).await, after(3));
    assert_eq!(ask(&model(&["fatal: f", "retry: r"])).await, Err(ModelError::Retry("r".into())));
    assert_eq!(ask(&model(&["fatal: f", "fatal: g"])).await, Err(ModelError::Fatal("f".into())));
    assert!(matches!(ask(&model(&[])).await, Err(ModelError::Fatal(_))));
}

#[tokio::test]
async fn a_busy_model_rests_alone_and_says_so() {
    let busy = mock(vec![Act::Answer(429, &[("retry-after", "45")], String::new()), good("a again")]).await;
    let other = mock(vec![good("b")]).await;
    let clock = Arc::new(ManualClock::at(0));
    let shared: Arc<dyn Clock> = clock.clone();
    let sections = [("a", busy.config("")), ("b", other.config("")), ("c", busy.config("max_tokens = 5"))];
    let models = build_all(&sections.map(|(name, config)| (name.to_owned(), config)).into(), &shared, Path::new("."))
        .expect("good sections");
    let rests = Rests::default();
    let of = |names: &[&str]| {
        let models = names.iter().map(|name| models[*name].clone()).collect();
        Failover::new("main", models, rests.clone(), shared.clone())
    };
    let ask = async |model: &Failover| {
        let seen = Seen::default();
        let text = model.complete(&hello(), &seen, &CancellationToken::new()).await.map(|response| response.text);
        (text, seen.passed.into_inner().expect("not poisoned"))
    };
    // It asks for 45 s: nobody waits for that while there is another.
    let (text, passed) = ask(&of(&["a", "b"])).await;
    assert_eq!(text.as_deref(), Ok("b"));
    assert!(passed.len() == 1 && passed[0].starts_with("a: the provider asks to wait"), "{passed:?}");
    assert_eq!(ask(&of(&["a", "b"])).await.0.as_deref(), Ok("b"));
    assert_eq!((busy.count(), other.count()), (1, 2), "it was left alone");
    // Another section of the same provider and key is not the one that rests.
    assert_eq!(ask(&of(&["c", "b"])).await.0.as_deref(), Ok("a again"));
    clock.advance(Duration::from_secs(44));
    assert_eq!(ask(&of(&["a", "b"])).await.0.as_deref(), Ok("b"));
    clock.advance(Duration::from_secs(1));
    assert_eq!(ask(&of(&["a", "b"])).await, (Ok("a again".to_owned()), vec![]));
}

#[tokio::test]
async fn when_all_rest_the_first_to_wake_is_asked_all_the_same() {
    let models = vec![scripted("a", "{ error: { retry_after_ms: 90000 } }"), scripted("b", "{ error: { retry: x } }")];
    let model: Arc<dyn Model> = Arc::new(failover(models));
    assert_eq!(ask(&model).await, Err(ModelError::Retry("x".into())));
    assert_eq!(ask(&model).await, Err(ModelError::Retry("x".into())), "b wakes first, and is asked");
    assert!(matches!(ask(&(Arc::new(failover(vec![])) as Arc<dyn Model>)).await, Err(ModelError::Fatal(_))));
}

// The way there.

#[tokio::test]
async fn a_proxy_of_a_section_is_the_way_of_every_wire() {
    let whole = json!({ "text": "heard", "type": "message", "stop_reason": "end_turn",
        "content": [{ "type": "text", "text": "said" }],
        "choices": [{ "message": { "content": "said" }, "finish_reason": "stop" }] });
    let proxy = mock(vec![Act::Answer(200, &[], whole.to_string())]).await;
    let address = proxy.base_url.trim_end_matches("/v1");
    // Nobody knows this name: only a proxy can reach it.
    let section = |more: &str| -> ModelConfig {
        let text = format!("base_url = \"http://model.invalid.lan/v1\"\nmodel = \"m\"\nproxy = \"{address}\"\n{more}");
        toml::from_str(&text).expect("a good section")
    };
    let clock: Arc<dyn Clock> = Arc::new(Hurried::default());
    for more in ["", ANTHROPIC] {
        let model = build("main", &section(more), clock.clone(), Path::new(".")).expect("a good section");
        assert_eq!(ask(&model).await.expect("an answer").text, "said", "{more}");
    }
    let ears = audio::Ears::new("ears", &section(""), None, clock.clone()).expect("a good section");
    let heard = ears.hear(b"OggS", "audio/ogg", &CancellationToken::new()).await;
    assert_eq!(heard.as_deref(), Ok("heard"));
    assert_eq!(proxy.count(), 3);
}

#[test]
fn this_machine_is_reached_directly_whatever_the_environment_says() {
    // A process of its own: the environment is everybody's. Nothing listens on the proxy's port.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "model::tests::the_request_keeps_the_strict_order_byte_for_byte"])
        .envs(
            ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
                .map(|name| (name, &proxy)),
        )
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
async fn a_written_proxy_is_used_for_all_but_this_machine() {
    // The "proxy" is the mock: it sees the request for another host, absolute, as a proxy does.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let proxy = listener.local_addr().expect("bound");
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let router = Router::new()
        .fallback(async |State(seen): State<Arc<Mutex<Vec<String>>>>, request: axum::extract::Request| {
            seen.lock().expect("not poisoned").push(request.uri().to_string());
            json!({"choices": [{"message": {"content": "through the proxy"}}]}).to_string()
        })
        .with_state(Arc::clone(&seen));
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    let section = format!("model = \"m\"\nbase_url = \"http://ollama.internal/v1\"\nproxy = \"http://{proxy}\"");
    let config = toml::from_str(&section).expect("a good section");
    let model = build("main", &config, Arc::new(Hurried::default()), Path::new(".")).expect("a good section");
    assert_eq!(ask(&model).await.expect("an answer").text, "through the proxy");
    assert_eq!(*seen.lock().expect("not poisoned"), ["http://ollama.internal/v1/chat/completions"]);

    let direct = mock(vec![good("direct")]).await;
    let model = direct.model(Arc::new(Hurried::default()), &format!("proxy = \"http://{proxy}\""));
    assert_eq!(ask(&model).await.expect("an answer").text, "direct");
    assert_eq!(seen.lock().expect("not poisoned").len(), 1);
}

#[tokio::test]
#[ignore = "needs a real server: CRAWFISH_REAL_MODEL=http://127.0.0.1:PORT/v1"]
async fn a_real_model_answers_and_goes_on_after_a_tool_result() {
    let base_url = std::env::var("CRAWFISH_REAL_MODEL").expect("CRAWFISH_REAL_MODEL names the server");
    let config = toml::from_str(&format!("model = \"any\"\nmax_tokens = 60\nbase_url = \"{base_url}\"")).expect("good");
    let clock = Arc::new(crate::clock::SystemClock::new());
    let model = build("main", &config, clock, Path::new(".")).expect("a good section");
    let seen = Seen::default();
    let response = model.complete(&hello(), &seen, &CancellationToken::new()).await.expect("an answer");
    assert_eq!(*seen.text.lock().expect("not poisoned"), response.text);
    assert!(!response.usage.estimated && response.usage.input > 0 && response.usage.output > 0, "{response:?}");
    let response = model.complete(&conversation(), &(), &CancellationToken::new()).await.expect("an answer");
    println!("{response:#?}");
    let mut long = hello();
    long.messages = vec![Message::user("word ".repeat(60_000))];
    let error = model.complete(&long, &(), &CancellationToken::new()).await.expect_err("no model is that patient");
    assert!(matches!(error, ModelError::TooLong(_)), "{error:?}");
}
