//! The fake model: OpenAI's chat completions, answered at once or after a set time, whole or as a stream, as asked.
//!
//! It answers with every mark (`#…#`) of the newest user messages, so that a load can tell which of its messages an
//! answer belongs to, and can keep the requests it got.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::wire::{Answer, Message};

/// The model's state, shared by all its connections.
#[derive(Default)]
pub struct FakeModel {
    /// How long it thinks, in microseconds.
    think_us: AtomicU64,
    /// The bodies of requests, while they are kept.
    kept: Mutex<Option<Vec<Bytes>>>,
}

impl FakeModel {
    /// From now on an answer takes this long.
    pub fn think(&self, time: Duration) {
        self.think_us.store(time.as_micros() as u64, Ordering::Release);
    }

    /// Keeps requests from now on.
    pub fn keep(&self) {
        *self.lock() = Some(Vec::new());
    }

    /// The requests kept; no more are.
    pub fn kept(&self) -> Vec<Bytes> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<Bytes>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, request: Message) -> Answer {
        if !request.second().ends_with("/chat/completions") {
            return Answer::json(404, r#"{"error":{"message":"only chat completions are served here"}}"#);
        }
        if let Some(kept) = self.lock().as_mut() {
            kept.push(request.body.clone());
        }
        let think = Duration::from_micros(self.think_us.load(Ordering::Acquire));
        if !think.is_zero() {
            tokio::time::sleep(think).await;
        }
        // Parsing the whole request would cost as much as the gateway's own work on it.
        let stream = contains(&request.body, b"\"stream\":true");
        let text = format!("Here is the answer to {}.", marks(&request.body).join(" "));
        if stream { streamed(&text) } else { whole(&text) }
    }
}

fn contains(body: &[u8], wanted: &[u8]) -> bool {
    body.windows(wanted.len()).any(|part| part == wanted)
}

/// The marks after the last word of the assistant, or in the whole request when it has said nothing yet.
fn marks(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body);
    let newest = text.rfind("\"role\":\"assistant\"").map_or(&*text, |at| &text[at..]);
    // What the assistant itself said comes first: its marks are those of older messages.
    let newest = newest.find("\"role\":\"user\"").map_or(newest, |at| &newest[at..]);
    let mut marks: Vec<String> = Vec::new();
    let mut rest = newest;
    while let Some(start) = rest.find("#m") {
        let Some(length) = rest[start + 1..].find('#') else { break };
        let mark = &rest[start..start + length + 2];
        let ours = mark.len() <= 40 && mark[1..mark.len() - 1].bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
        if ours && !marks.iter().any(|known| known == mark) {
            marks.push(mark.to_owned());
        }
        rest = &rest[start + length + 2..];
    }
    marks
}

const USAGE: &str = r#"{"prompt_tokens":2000,"completion_tokens":12,"total_tokens":2012}"#;

fn streamed(text: &str) -> Answer {
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        Bytes::from(format!(
            "data: {{\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"model\":\"fake\",\"choices\":[{choice}]}}\n\n"
        ))
    };
    let middle = text.len() / 2;
    let body = vec![
        chunk(json!({ "role": "assistant", "content": "" }), Value::Null),
        chunk(json!({ "content": &text[..middle] }), Value::Null),
        chunk(json!({ "content": &text[middle..] }), Value::Null),
        chunk(json!({}), json!("stop")),
        Bytes::from(format!("data: {{\"id\":\"c-1\",\"model\":\"fake\",\"choices\":[],\"usage\":{USAGE}}}\n\n")),
        Bytes::from_static(b"data: [DONE]\n\n"),
    ];
    Answer { status: 200, kind: "text/event-stream", body }
}

fn whole(text: &str) -> Answer {
    let message = json!({ "role": "assistant", "content": text });
    Answer::json(
        200,
        format!(
            "{{\"id\":\"c-1\",\"object\":\"chat.completion\",\"model\":\"fake\",\
             \"choices\":[{{\"index\":0,\"message\":{message},\"finish_reason\":\"stop\"}}],\"usage\":{USAGE}}}"
        ),
    )
}
