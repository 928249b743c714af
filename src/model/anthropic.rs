//! The wire format of Anthropic's Messages API: a request to bytes, a stream or a whole answer to a response. Performs no IO
//! and trusts nothing that comes in: what cannot be read costs that piece, never the answer.
//!
//! docs.claude.com "Messages", "Streaming Messages", "Tool use", "Extended thinking", "Prompt caching", "Errors" (read in
//! November 2026); dependencies.md §6. Thinking goes back byte for byte and at its place, to the model that thought it: the
//! signatures in it are checked there. Other providers' servers speak this format as well; nothing here knows whose it is.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use channel_api::json::parse;
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value, json, value::RawValue};
use sha2::{Digest as _, Sha256};

use super::{
    Finish, Message, ModelRequest, ModelResponse, Picture, Progress, ToolCall, ToolSpec, Usage, new_call_id,
    openai::{
        MAX_ARGUMENTS, MAX_CALLS, MAX_TEXT, clean, encoded, finish_of, is_whole, number, object_text, request_id,
        trouble_in,
    },
    remote::{End, Reader, Trouble, Wire},
    sse::Event,
};

/// What the API calls this version of itself.
pub(super) const VERSION: &str = "2023-06-01";
/// The field is required; every model takes this much.
const MAX_TOKENS: u32 = 8_192;
/// The most bytes of a picture: 5 MB as base64.
const LARGEST_PICTURE: usize = 3_750_000;
/// The most blocks of thinking that are kept of an answer.
const MAX_BLOCKS: usize = 256;
/// Under this name thinking is kept with the message.
const KEPT: &str = "anthropic";

/// The Messages API of one model.
pub(super) struct Anthropic {
    /// The model as the provider names it.
    pub model: String,
    /// It can look at pictures.
    pub sees: bool,
    /// The answer comes as a stream.
    pub stream: bool,
    /// Used when the request has no limit.
    pub max_tokens: Option<u32>,
    /// Added to every request.
    pub extra: Map<String, Value>,
}

impl Wire for Anthropic {
    fn body(&self, request: &ModelRequest) -> Vec<u8> {
        let mut messages = self.messages(request);
        mark(&mut messages);
        let system = (!request.system.is_empty()).then(|| [Block::Text { text: &request.system, cached: true }]);
        let (tools, tool_choice) = tools(request);
        let body = Body {
            model: &self.model,
            max_tokens: request.max_tokens.or(self.max_tokens).unwrap_or(MAX_TOKENS),
            tools,
            tool_choice,
            system,
            messages,
            stream: self.stream,
            extra: &self.extra,
        };
        serde_json::to_vec(&body).expect("strings, numbers and JSON values are JSON")
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Answer { asked: self.model.clone(), ..Answer::default() })
    }
}

// The request.

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[Block<'a>; 1]>,
    messages: Vec<Wired<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: Cow<'a, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Ephemeral>,
}

/// Everything up to here is worth keeping in the provider's cache.
#[derive(Serialize)]
#[serde(tag = "type", rename = "ephemeral")]
struct Ephemeral {}

/// One message on the wire.
#[derive(Serialize)]
struct Wired<'a> {
    role: &'static str,
    content: Vec<Block<'a>>,
}

/// One block of a message.
enum Block<'a> {
    Text {
        text: &'a str,
        cached: bool,
    },
    Picture(&'a Picture),
    /// Thinking, as it came.
    Kept(&'a Value),
    Call(&'a ToolCall),
    Result {
        id: Cow<'a, str>,
        text: &'a str,
        cached: bool,
    },
}

impl Serialize for Block<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Self::Kept(value) = self {
            return value.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        let cached = match self {
            Self::Text { text, cached } => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", text)?;
                *cached
            }
            Self::Picture(picture) => {
                map.serialize_entry("type", "image")?;
                let source = json!({ "type": "base64", "media_type": picture.mime, "data": encoded(picture) });
                map.serialize_entry("source", &source)?;
                false
            }
            Self::Call(call) => {
                map.serialize_entry("type", "tool_use")?;
                map.serialize_entry("id", &wire_id(&call.id))?;
                map.serialize_entry("name", &call.name)?;
                let input = RawValue::from_string(object_text(&call.arguments).into_owned());
                map.serialize_entry("input", &input.map_err(serde::ser::Error::custom)?)?;
                false
            }
            Self::Result { id, text, cached } => {
                map.serialize_entry("type", "tool_result")?;
                map.serialize_entry("tool_use_id", id)?;
                map.serialize_entry("content", text)?;
                *cached
            }
            Self::Kept(_) => false,
        };
        if cached {
            map.serialize_entry("cache_control", &Ephemeral {})?;
        }
        map.end()
    }
}

impl Anthropic {
    /// The messages: results of one answer's calls together in one user message, nothing empty.
    fn messages<'a>(&self, request: &'a ModelRequest) -> Vec<Wired<'a>> {
        let mut wired: Vec<Wired<'a>> = Vec::with_capacity(request.messages.len());
        for message in &request.messages {
            let (role, blocks) = match message {
                Message::User { text, pictures } => {
                    let shown = pictures.iter().filter(|picture| self.sees && fits(picture));
                    let words = (!text.trim().is_empty()).then_some(Block::Text { text, cached: false });
                    ("user", shown.map(Block::Picture).chain(words).collect())
                }
                Message::Assistant { text, calls, opaque } => ("assistant", self.said(text, calls, opaque.as_ref())),
                Message::Tool { call_id, text, .. } => {
                    ("user", vec![Block::Result { id: wire_id(call_id), text, cached: false }])
                }
            };
            match wired.last_mut() {
                Some(last) if last.role == role => last.content.extend(blocks),
                _ if blocks.is_empty() => {}
                _ => wired.push(Wired { role, content: blocks }),
            }
        }
        wired
    }

    /// An answer of the assistant with its thinking where it stood.
    fn said<'a>(&self, text: &'a str, calls: &'a [ToolCall], opaque: Option<&'a Value>) -> Vec<Block<'a>> {
        let kept = opaque.map(|opaque| &opaque[KEPT]).filter(|kept| kept["model"] == self.model.as_str());
        let layout = kept.and_then(|kept| kept["blocks"].as_array()).map_or(&[][..], Vec::as_slice);
        let mut words = Some(text).filter(|text| !text.trim().is_empty());
        let mut calls = calls.iter();
        let mut blocks = Vec::new();
        for block in layout {
            match block["type"].as_str() {
                Some("text") => blocks.extend(words.take().map(|text| Block::Text { text, cached: false })),
                Some("tool_use") => match calls.next() {
                    Some(call) => blocks.push(Block::Call(call)),
                    // The calls beyond the limit were left out, and with them what was thought between them.
                    None => break,
                },
                _ => blocks.push(Block::Kept(block)),
            }
        }
        blocks.extend(words.map(|text| Block::Text { text, cached: false }));
        blocks.extend(calls.map(Block::Call));
        // Thinking alone is no message.
        if blocks.iter().all(|block| matches!(block, Block::Kept(_))) {
            blocks.clear();
        }
        blocks
    }
}

fn fits(picture: &Picture) -> bool {
    picture.bytes.as_ref().is_some_and(|bytes| bytes.len() <= LARGEST_PICTURE)
}

/// Marks where the provider's cache may end: behind the newest message of the person or of tools, and behind the one before
/// it, which the last request ended with. With the tools and the system prompt that makes four, the most there may be.
fn mark(messages: &mut [Wired<'_>]) {
    for message in messages.iter_mut().filter(|message| message.role == "user").rev().take(2) {
        if let Some(Block::Text { cached, .. } | Block::Result { cached, .. }) = message.content.last_mut() {
            *cached = true;
        }
    }
}

/// The tools. A request that tells of calls must name some: in the last round those it tells of, and none may be called.
fn tools(request: &ModelRequest) -> (Vec<Tool<'_>>, Option<Value>) {
    let mut tools: Vec<Tool<'_>> = request
        .tools
        .iter()
        .map(|ToolSpec { name, description, parameters }| Tool {
            name,
            description,
            input_schema: Cow::Borrowed(parameters),
            cache_control: None,
        })
        .collect();
    if let Some(last) = tools.last_mut() {
        last.cache_control = Some(Ephemeral {});
        return (tools, None);
    }
    let called: BTreeSet<&str> = request
        .messages
        .iter()
        .flat_map(|message| match message {
            Message::Assistant { calls, .. } => calls.as_slice(),
            _ => &[],
        })
        .map(|call| call.name.as_str())
        .collect();
    let named = called.into_iter().map(|name| Tool {
        name,
        description: "Not available now.",
        input_schema: Cow::Owned(json!({ "type": "object" })),
        cache_control: None,
    });
    tools.extend(named);
    let none = (!tools.is_empty()).then(|| json!({ "type": "none" }));
    (tools, none)
}

/// The id of a call as the API takes it: letters, digits, `_` and `-`. Ours are; what an old history holds may not be.
fn wire_id(id: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !id.is_empty() && id.bytes().all(plain) {
        return Cow::Borrowed(id);
    }
    Cow::Owned(format!(
        "call_{}",
        Sha256::digest(id).iter().take(12).map(|byte| format!("{byte:02x}")).collect::<String>()
    ))
}

// The answer.

/// An answer as far as it has come.
#[derive(Default)]
struct Answer {
    /// The model that was asked, as we name it.
    asked: String,
    text: String,
    /// By the index of the block; small even when the indices are not.
    blocks: BTreeMap<u64, Part>,
    arguments: usize,
    thinking: usize,
    /// `message_start` came.
    begun: bool,
    finish: Option<Finish>,
    /// `message_stop` came.
    done: bool,
    /// A limit of ours was reached.
    over: bool,
    usage: Option<Usage>,
    model: String,
    id: Option<String>,
}

/// A block as far as it has come.
enum Part {
    /// Its words are in [`Answer::text`].
    Text,
    Call {
        name: String,
        arguments: String,
    },
    /// Thinking, as it goes back.
    Kept(Map<String, Value>),
}

impl Reader for Answer {
    fn event(&mut self, event: &Event, progress: &dyn Progress) -> Result<(), Trouble> {
        let data = event.data.trim();
        if data.is_empty() || data == "[DONE]" {
            return Ok(());
        }
        match parse(data) {
            Some(value) => self.take(&value, event.name == "error", progress),
            None if event.name == "error" => Err(Trouble { text: data.to_owned(), ..Trouble::default() }),
            None => {
                tracing::debug!(bytes = data.len(), "left out a piece of the model's answer that is not JSON");
                Ok(())
            }
        }
    }

    fn whole(&mut self, body: &[u8], progress: &dyn Progress) -> Result<(), Trouble> {
        let text = String::from_utf8_lossy(body);
        let not_one = || Trouble { text: "the answer is not one of the Messages API".to_owned(), ..Trouble::default() };
        let message = parse(text.trim_start_matches('\u{feff}').trim()).ok_or_else(not_one)?;
        if let Some(trouble) = told(&message, false) {
            return Err(trouble);
        }
        let blocks = message["content"].as_array().ok_or_else(not_one)?;
        self.begins(&message);
        for (index, block) in blocks.iter().enumerate() {
            self.block(index as u64, block, progress);
        }
        self.ends(&message)?;
        self.done = true;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.done || self.over
    }

    fn has_ended(&self) -> bool {
        self.finish.is_some()
    }

    fn has_text(&self) -> bool {
        !self.text.trim().is_empty()
    }

    fn has_begun(&self) -> bool {
        self.begun || !self.blocks.is_empty()
    }

    fn finish(self: Box<Self>, _end: End) -> ModelResponse {
        let answer = *self;
        let mut finish = match answer.finish {
            _ if answer.over => Finish::Length,
            Some(finish) => finish,
            None if answer.done => Finish::Stop,
            None => Finish::Cut,
        };
        let mut calls = Vec::new();
        let mut layout = Vec::new();
        let mut thought = false;
        for part in answer.blocks.into_values() {
            match part {
                Part::Text => layout.push(json!({ "type": "text" })),
                Part::Call { name, arguments } if !name.trim().is_empty() => {
                    layout.push(json!({ "type": "tool_use" }));
                    calls.push(ToolCall { id: new_call_id(), name, arguments });
                }
                Part::Call { .. } => {}
                // Without its signature it would be refused.
                Part::Kept(block) if block.get("signature").or(block.get("data")).is_some() => {
                    thought = true;
                    layout.push(Value::Object(block));
                }
                Part::Kept(_) => {}
            }
        }
        if finish == Finish::Cut {
            calls.clear();
        } else if finish == Finish::Stop && calls.iter().any(|call| !is_whole(&call.arguments)) {
            finish = Finish::Length;
        }
        let opaque =
            (thought && finish != Finish::Cut).then(|| json!({ KEPT: { "model": answer.asked, "blocks": layout } }));
        ModelResponse {
            text: answer.text,
            calls,
            finish,
            opaque,
            usage: answer.usage.unwrap_or_default(),
            model: answer.model,
            answered_by: String::new(),
            request_id: answer.id,
        }
    }
}

impl Answer {
    /// An event of a stream.
    fn take(&mut self, event: &Value, is_error: bool, progress: &dyn Progress) -> Result<(), Trouble> {
        if let Some(trouble) = told(event, is_error) {
            return Err(trouble);
        }
        let index = event["index"].as_u64().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.begins(&event["message"]),
            "content_block_start" => self.block(index, &event["content_block"], progress),
            "content_block_delta" => self.delta(index, &event["delta"], progress),
            "message_delta" => {
                self.count(&event["usage"]);
                self.ends(&event["delta"])?;
            }
            "message_stop" => self.done = true,
            // A whole answer in one event.
            "message" => {
                self.begins(event);
                for (index, block) in event["content"].as_array().into_iter().flatten().enumerate() {
                    self.block(index as u64, block, progress);
                }
                self.ends(event)?;
            }
            // ping, content_block_stop, and what is new: the documentation asks to let it pass.
            _ => {}
        }
        Ok(())
    }

    fn begins(&mut self, message: &Value) {
        self.begun = true;
        self.model = message["model"].as_str().unwrap_or_default().chars().take(200).collect();
        let id = message["id"].as_str().filter(|id| !id.is_empty());
        self.id = self.id.take().or_else(|| id.map(request_id));
        self.count(&message["usage"]);
    }

    fn ends(&mut self, message: &Value) -> Result<(), Trouble> {
        let Some(reason) = message["stop_reason"].as_str().filter(|reason| !reason.is_empty()) else { return Ok(()) };
        self.finish = match reason {
            // The provider's own tools wait to go on; what is written goes on where it stopped.
            "pause_turn" => Some(Finish::Length),
            reason => finish_of(reason),
        };
        if self.finish.is_none() {
            return Err(Trouble { status: Some(503), text: format!("stop_reason: {reason}"), ..Trouble::default() });
        }
        Ok(())
    }

    /// The counts come in two pieces; each replaces what it names. What was read from the cache or written into it is not
    /// among `input_tokens`.
    fn count(&mut self, usage: &Value) {
        if !usage.is_object() {
            return;
        }
        let mut known = self.usage.unwrap_or_default();
        let cached = number(&usage["cache_read_input_tokens"]).unwrap_or(known.cached);
        let written = number(&usage["cache_creation_input_tokens"]).unwrap_or(known.cache_write);
        let fresh = number(&usage["input_tokens"]);
        let fresh = fresh.unwrap_or(known.input.saturating_sub(known.cached).saturating_sub(known.cache_write));
        // `number` bounds each of them.
        known.input = fresh + cached + written;
        known.output = number(&usage["output_tokens"]).unwrap_or(known.output);
        (known.cached, known.cache_write) = (cached, written);
        self.usage = Some(known);
    }

    /// A block begins, or is here whole.
    fn block(&mut self, index: u64, block: &Value, progress: &dyn Progress) {
        if self.blocks.len() == MAX_CALLS + MAX_BLOCKS && !self.blocks.contains_key(&index) {
            return;
        }
        let part = match block["type"].as_str().unwrap_or_default() {
            "text" => Part::Text,
            "tool_use" => {
                let name: String = clean(block["name"].as_str().unwrap_or_default()).chars().take(256).collect();
                let arguments = match &block["input"] {
                    Value::Object(input) if !input.is_empty() => block["input"].to_string(),
                    _ => String::new(),
                };
                self.arguments += arguments.len();
                Part::Call { name, arguments }
            }
            "thinking" | "redacted_thinking" => {
                let Some(block) = block.as_object() else { return };
                self.thinking += block.values().map(|value| value.as_str().map_or(8, str::len)).sum::<usize>();
                let mut kept = block.clone();
                kept.retain(|key, value| key != "signature" || value.as_str().is_some_and(|text| !text.is_empty()));
                Part::Kept(kept)
            }
            // Blocks of the provider's own tools: nothing of ours.
            _ => return,
        };
        if self.arguments > MAX_ARGUMENTS || self.thinking > MAX_TEXT {
            self.over = true;
            return;
        }
        let is_text = matches!(part, Part::Text);
        self.blocks.insert(index, part);
        if is_text {
            self.say(block["text"].as_str().unwrap_or_default(), progress);
        }
    }

    fn delta(&mut self, index: u64, delta: &Value, progress: &dyn Progress) {
        match delta["type"].as_str().unwrap_or_default() {
            "text_delta" => {
                let known = matches!(self.blocks.get(&index), Some(Part::Text));
                if !known && self.blocks.len() < MAX_CALLS + MAX_BLOCKS {
                    self.blocks.entry(index).or_insert(Part::Text);
                }
                self.say(delta["text"].as_str().unwrap_or_default(), progress);
            }
            "input_json_delta" => {
                let piece = clean(delta["partial_json"].as_str().unwrap_or_default());
                self.arguments += piece.len();
                if self.arguments > MAX_ARGUMENTS {
                    self.over = true;
                } else if let Some(Part::Call { arguments, .. }) = self.blocks.get_mut(&index) {
                    arguments.push_str(&piece);
                }
            }
            "thinking_delta" => self.think(index, "thinking", &delta["thinking"]),
            "signature_delta" => self.think(index, "signature", &delta["signature"]),
            _ => {}
        }
    }

    /// More of a block of thinking.
    fn think(&mut self, index: u64, field: &str, piece: &Value) {
        let piece = piece.as_str().unwrap_or_default();
        self.thinking += piece.len();
        if self.thinking > MAX_TEXT {
            self.over = true;
            return;
        }
        let Some(Part::Kept(block)) = self.blocks.get_mut(&index) else { return };
        match block.get_mut(field) {
            Some(Value::String(known)) => known.push_str(piece),
            _ => drop(block.insert(field.to_owned(), Value::from(piece))),
        }
    }

    fn say(&mut self, text: &str, progress: &dyn Progress) {
        if text.is_empty() || self.over {
            return;
        }
        let mut text = clean(text);
        let room = MAX_TEXT - self.text.len();
        if text.len() > room {
            self.over = true;
            text = Cow::Owned(text[..text.floor_char_boundary(room)].to_owned());
        }
        self.text.push_str(&text);
        progress.text(&text);
    }
}

/// An error inside an answer, with the status that stands for its kind.
fn told(value: &Value, is_error: bool) -> Option<Trouble> {
    let mut trouble = trouble_in(value, is_error || value["type"] == "error")?;
    trouble.status = trouble.status.or_else(|| {
        Some(match value["error"]["type"].as_str()? {
            "invalid_request_error" => 400,
            "authentication_error" => 401,
            "billing_error" => 402,
            "permission_error" => 403,
            "not_found_error" => 404,
            "request_too_large" => 413,
            "rate_limit_error" => 429,
            "api_error" => 500,
            "timeout_error" => 504,
            "overloaded_error" => 529,
            _ => return None,
        })
    });
    Some(trouble)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wire() -> Anthropic {
        Anthropic { model: "m-1".to_owned(), sees: true, stream: true, max_tokens: None, extra: Map::new() }
    }

    fn read(events: &[Value]) -> Result<ModelResponse, Trouble> {
        let mut reader = wire().reader();
        for event in events {
            reader.event(&Event { name: String::new(), data: event.to_string() }, &())?;
        }
        let end = if reader.is_done() { End::Clean } else { End::Broken };
        Ok(reader.finish(end))
    }

    fn delta(index: u64, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": index, "delta": delta })
    }

    fn begin(index: u64, block: Value) -> Value {
        json!({ "type": "content_block_start", "index": index, "content_block": block })
    }

    /// Thinks, speaks, calls twice.
    fn stream() -> Vec<Value> {
        vec![
            json!({ "type": "message_start", "message": { "id": "msg_1", "model": "m-1-0901", "content": [],
                "usage": { "input_tokens": 10, "cache_read_input_tokens": 700, "cache_creation_input_tokens": 40,
                    "output_tokens": 1 } } }),
            begin(0, json!({ "type": "thinking", "thinking": "", "signature": "" })),
            json!({ "type": "ping" }),
            delta(0, json!({ "type": "thinking_delta", "thinking": "let me " })),
            delta(0, json!({ "type": "thinking_delta", "thinking": "see" })),
            delta(0, json!({ "type": "signature_delta", "signature": "c2ln" })),
            json!({ "type": "content_block_stop", "index": 0 }),
            begin(1, json!({ "type": "redacted_thinking", "data": "b3BhcXVl" })),
            begin(2, json!({ "type": "text", "text": "" })),
            delta(2, json!({ "type": "text_delta", "text": "I look" })),
            delta(2, json!({ "type": "text_delta", "text": " 看看" })),
            begin(3, json!({ "type": "tool_use", "id": "toolu_1", "name": "ls", "input": {} })),
            delta(3, json!({ "type": "input_json_delta", "partial_json": "" })),
            delta(3, json!({ "type": "input_json_delta", "partial_json": "{\"path\": \"" })),
            delta(3, json!({ "type": "input_json_delta", "partial_json": ".\"}" })),
            begin(4, json!({ "type": "tool_use", "id": "toolu_1", "name": "ls", "input": { "path": "b" } })),
            json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 33 } }),
            json!({ "type": "message_stop" }),
        ]
    }

    #[test]
    fn a_stream_becomes_a_response_and_goes_back_as_it_came() {
        let response = read(&stream()).expect("an answer");
        assert_eq!(
            (response.text.as_str(), response.finish, response.model.as_str()),
            ("I look 看看", Finish::Stop, "m-1-0901")
        );
        let calls: Vec<_> = response.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!(calls, [("ls", "{\"path\": \".\"}"), ("ls", "{\"path\":\"b\"}")]);
        assert_ne!(response.calls[0].id, response.calls[1].id);
        let usage = Usage { input: 750, output: 33, cached: 700, cache_write: 40, estimated: false };
        assert_eq!(response.usage, usage);

        let ids: Vec<&str> = response.calls.iter().map(|call| call.id.as_str()).collect();
        let result = |id: &str, text: &str| Message::Tool { call_id: id.into(), name: "ls".into(), text: text.into() };
        let request = ModelRequest {
            system: "You are 小龙虾.".to_owned(),
            messages: vec![
                Message::user("list"),
                Message::Assistant {
                    text: response.text.clone(),
                    calls: response.calls.clone(),
                    opaque: response.opaque.clone(),
                },
                result(ids[0], "a"),
                result(ids[1], "b"),
            ],
            tools: vec![ToolSpec {
                name: "ls".to_owned(),
                description: "Lists.".to_owned(),
                parameters: json!({ "type": "object" }),
            }],
            max_tokens: None,
        };
        let body = String::from_utf8(wire().body(&request)).expect("JSON");
        let expected = format!(
            concat!(
                r#"{{"model":"m-1","max_tokens":8192,"#,
                r#""tools":[{{"name":"ls","description":"Lists.","input_schema":{{"type":"object"}},"#,
                r#""cache_control":{{"type":"ephemeral"}}}}],"#,
                r#""system":[{{"type":"text","text":"You are 小龙虾.","cache_control":{{"type":"ephemeral"}}}}],"#,
                r#""messages":[{{"role":"user","content":[{{"type":"text","text":"list","#,
                r#""cache_control":{{"type":"ephemeral"}}}}]}},"#,
                r#"{{"role":"assistant","content":["#,
                r#"{{"signature":"c2ln","thinking":"let me see","type":"thinking"}},"#,
                r#"{{"data":"b3BhcXVl","type":"redacted_thinking"}},"#,
                r#"{{"type":"text","text":"I look 看看"}},"#,
                r#"{{"type":"tool_use","id":"{0}","name":"ls","input":{{"path": "."}}}},"#,
                r#"{{"type":"tool_use","id":"{1}","name":"ls","input":{{"path":"b"}}}}]}},"#,
                r#"{{"role":"user","content":["#,
                r#"{{"type":"tool_result","tool_use_id":"{0}","content":"a"}},"#,
                r#"{{"type":"tool_result","tool_use_id":"{1}","content":"b","cache_control":{{"type":"ephemeral"}}}}"#,
                r#"]}}],"stream":true}}"#
            ),
            ids[0], ids[1]
        );
        assert_eq!(body, expected);
        // Another model's thinking is not this one's.
        let other = Anthropic { model: "m-2".to_owned(), ..wire() };
        assert!(!String::from_utf8(other.body(&request)).expect("JSON").contains("c2ln"));
        // In the last round nothing may be called, and what the history tells of is named all the same.
        let last = ModelRequest { tools: Vec::new(), ..request };
        let body: Value = serde_json::from_slice(&wire().body(&last)).expect("JSON");
        assert_eq!((&body["tool_choice"], &body["tools"][0]["name"]), (&json!({ "type": "none" }), &json!("ls")));
    }

    #[test]
    fn a_stream_that_breaks_keeps_its_words_and_none_of_its_calls() {
        let all = stream();
        for length in 0..all.len() - 2 {
            let response = read(&all[..length]).expect("no error in it");
            assert_eq!((response.finish, response.calls.len(), response.opaque), (Finish::Cut, 0, None), "{length}");
        }
        // The end of the connection alone is missing.
        let response = read(&all[..all.len() - 1]).expect("no error in it");
        assert_eq!((response.finish, response.calls.len()), (Finish::Stop, 2));
        // Arguments that were cut by the limit are not whole.
        let mut cut = all;
        cut.remove(14);
        let response = read(&cut).expect("no error in it");
        assert_eq!(response.finish, Finish::Length);
    }

    #[test]
    fn errors_and_ends_mean_what_the_documentation_says() {
        for (kind, status) in
            [("overloaded_error", 529), ("rate_limit_error", 429), ("api_error", 500), ("billing_error", 402)]
        {
            let event = json!({ "type": "error", "error": { "type": kind, "message": "no" }, "request_id": "req_1" });
            let trouble = read(&[event]).expect_err("an error");
            assert_eq!((trouble.status, trouble.text.contains("no")), (Some(status), true), "{trouble:?}");
        }
        for (reason, finish) in [
            ("end_turn", Finish::Stop),
            ("stop_sequence", Finish::Stop),
            ("max_tokens", Finish::Length),
            ("model_context_window_exceeded", Finish::Length),
            ("pause_turn", Finish::Length),
            ("refusal", Finish::Filtered),
        ] {
            let end = json!({ "type": "message_delta", "delta": { "stop_reason": reason } });
            assert_eq!(read(&[end]).expect("an end").finish, finish, "{reason}");
        }
        let mut reader = wire().reader();
        let body = json!({ "type": "message", "id": "msg_2", "model": "m-1", "stop_reason": "end_turn",
            "content": [{ "type": "text", "text": "whole" }], "usage": { "input_tokens": 3, "output_tokens": 1 } });
        reader.whole(body.to_string().as_bytes(), &()).expect("an answer");
        assert_eq!(reader.finish(End::Clean).text, "whole");
        for odd in ["{}", "null", "[]", "{\"content\": 1}", "<html>"] {
            assert!(wire().reader().whole(odd.as_bytes(), &()).is_err(), "{odd}");
        }
    }

    #[test]
    fn pictures_are_shown_to_those_who_see_and_fit() {
        let picture = |bytes: &'static [u8]| Picture {
            name: "a".repeat(64),
            mime: "image/png".to_owned(),
            bytes: Some(bytes.into()),
        };
        static LARGE: [u8; LARGEST_PICTURE + 1] = [0; LARGEST_PICTURE + 1];
        let request = ModelRequest {
            system: String::new(),
            messages: vec![Message::User { text: "see".to_owned(), pictures: vec![picture(b"abc"), picture(&LARGE)] }],
            tools: Vec::new(),
            max_tokens: Some(5),
        };
        let content = |wire: &Anthropic| {
            let body: Value = serde_json::from_slice(&wire.body(&request)).expect("JSON");
            body["messages"][0]["content"].clone()
        };
        let source = json!({ "type": "base64", "media_type": "image/png", "data": "YWJj" });
        let shown = content(&wire());
        assert_eq!((&shown[0], &shown[1]["text"]), (&json!({ "type": "image", "source": source }), &json!("see")));
        assert_eq!(content(&Anthropic { sees: false, ..wire() }).as_array().map(Vec::len), Some(1));
    }

    fn event() -> impl Strategy<Value = Value> {
        let word = prop_oneof![
            Just("thinking"),
            Just("redacted_thinking"),
            Just("text"),
            Just("tool_use"),
            Just("text_delta"),
            Just("input_json_delta"),
            Just("thinking_delta"),
            Just("signature_delta"),
            Just("content_block_start"),
            Just("content_block_delta"),
            Just("message_start"),
            Just("message_delta"),
            Just("message_stop"),
            Just("end_turn"),
            Just("{\"a\":1}"),
            Just("\0"),
            Just(""),
        ];
        let key = prop_oneof![
            Just("type"),
            Just("index"),
            Just("content_block"),
            Just("delta"),
            Just("text"),
            Just("partial_json"),
            Just("thinking"),
            Just("signature"),
            Just("data"),
            Just("name"),
            Just("input"),
            Just("message"),
            Just("usage"),
            Just("input_tokens"),
            Just("output_tokens"),
            Just("stop_reason"),
            Just("content"),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            word.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((key.clone(), inner), 0..6).prop_map(|fields| {
                    Value::Object(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_event_can_break_the_reader(events in proptest::collection::vec(event(), 0..10)) {
            let mut reader = wire().reader();
            for event in events {
                let _ = reader.event(&Event { name: String::new(), data: event.to_string() }, &());
            }
            let response = reader.finish(End::Broken);
            prop_assert!(!response.text.contains('\0'));
            prop_assert!(response.finish != Finish::Cut || response.calls.is_empty());
        }
    }
}
