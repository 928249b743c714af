//! The wire format of OpenAI's chat completions: a request to bytes, a stream or a whole answer to a response. Performs no
//! IO and trusts nothing that comes in: what cannot be read costs that piece, never the answer.
//!
//! bad-inputs.md 57, 61–65; dependencies.md §6. Servers' differences stand in [`super::quirks`].

use std::{borrow::Cow, collections::BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use channel_api::json::parse;
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value, value::RawValue};
use sha2::{Digest as _, Sha256};

use super::{
    Finish, Message, ModelRequest, ModelResponse, Picture, Progress, ToolCall, ToolSpec, Usage, new_call_id,
    quirks::{CallIds, MaxTokens, Quirks, SendReasoning},
    remote::{End, Reader, Trouble, Wire},
    sse::Event,
};

/// The most bytes of an answer's text and of its reasoning.
pub(super) const MAX_TEXT: usize = 4 << 20;
/// The most bytes of all arguments of an answer.
pub(super) const MAX_ARGUMENTS: usize = 8 << 20;
/// The most calls of an answer that are read; how many run is the turn's business.
pub(super) const MAX_CALLS: usize = 256;
/// The fields in which servers send reasoning.
const REASONING: [&str; 2] = ["reasoning_content", "reasoning"];
/// OpenRouter's form of it, with signatures.
const DETAILS: &str = "reasoning_details";
/// The fields of a detail that come in pieces.
const GROWS: [&str; 3] = ["text", "summary", "data"];

/// Chat completions of one model.
pub(super) struct OpenAi {
    /// The model as the provider names it.
    pub model: String,
    pub quirks: Quirks,
    /// It can look at pictures.
    pub sees: bool,
    /// Used when the request has no limit.
    pub max_tokens: Option<u32>,
    /// Added to every request.
    pub extra: Map<String, Value>,
}

impl Wire for OpenAi {
    fn body(&self, request: &ModelRequest) -> Vec<u8> {
        let max_tokens = request.max_tokens.or(self.max_tokens);
        let (old, new) = match self.quirks.max_tokens {
            MaxTokens::MaxTokens => (max_tokens, None),
            MaxTokens::MaxCompletionTokens => (None, max_tokens),
        };
        let stream = self.quirks.stream;
        let body = Body {
            model: &self.model,
            messages: messages(request, &self.quirks, self.sees),
            tools: request.tools.iter().map(Tool::of).collect(),
            max_tokens: old,
            max_completion_tokens: new,
            stream,
            enable_thinking: (!stream
                && self.quirks.thinking_needs_stream
                && !self.extra.contains_key("enable_thinking"))
            .then_some(false),
            stream_options: (stream && self.quirks.usage_in_stream).then_some(StreamOptions { include_usage: true }),
            extra: &self.extra,
        };
        serde_json::to_vec(&body).expect("strings, numbers and JSON values are JSON")
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Answer::default())
    }
}

// The request.

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Wired<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_thinking: Option<bool>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    function: &'a ToolSpec,
}

impl<'a> Tool<'a> {
    fn of(function: &'a ToolSpec) -> Self {
        Self { r#type: "function", function }
    }
}

/// One message on the wire.
enum Wired<'a> {
    Plain { role: &'static str, text: &'a str },
    Seen { text: &'a str, pictures: Vec<&'a Picture> },
    Assistant { text: Option<&'a str>, calls: &'a [ToolCall], extra: Vec<(&'a str, Cow<'a, Value>)>, ids: CallIds },
    Tool { id: Cow<'a, str>, text: &'a str },
}

fn messages<'a>(request: &'a ModelRequest, quirks: &Quirks, sees: bool) -> Vec<Wired<'a>> {
    let mut wired = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        wired.push(Wired::Plain { role: "system", text: &request.system });
    }
    wired.extend(request.messages.iter().map(|message| match message {
        Message::User { text, pictures } => {
            let shown: Vec<&Picture> = pictures.iter().filter(|picture| sees && picture.bytes.is_some()).collect();
            if shown.is_empty() { Wired::Plain { role: "user", text } } else { Wired::Seen { text, pictures: shown } }
        }
        Message::Assistant { text, calls, opaque } => Wired::Assistant {
            text: if text.is_empty() && !calls.is_empty() && quirks.null_content { None } else { Some(text) },
            calls,
            extra: reasoning_back(opaque.as_ref(), !calls.is_empty(), quirks),
            ids: quirks.call_ids,
        },
        Message::Tool { call_id, text, .. } => Wired::Tool { id: wire_id(call_id, quirks.call_ids), text },
    }));
    wired
}

fn reasoning_back<'a>(opaque: Option<&'a Value>, has_calls: bool, quirks: &Quirks) -> Vec<(&'a str, Cow<'a, Value>)> {
    let wanted = match quirks.reasoning {
        SendReasoning::Never => false,
        SendReasoning::WithCalls | SendReasoning::WithCallsIfAny => has_calls,
        SendReasoning::Always => true,
    };
    if !wanted {
        return Vec::new();
    }
    let mut fields: Vec<(&str, Cow<'_, Value>)> = REASONING
        .into_iter()
        .chain([DETAILS])
        .filter_map(|name| Some((name, Cow::Borrowed(opaque?.get(name)?))))
        .collect();
    if fields.is_empty() && quirks.reasoning == SendReasoning::WithCalls {
        // Another model made these calls: the server still wants the field.
        fields.push((REASONING[0], Cow::Owned(Value::from(quirks.reasoning_filler))));
    }
    fields
}

/// Nine letters and digits stand for our id, the same in the call and in its result.
fn wire_id(id: &str, ids: CallIds) -> Cow<'_, str> {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    match ids {
        CallIds::Own => Cow::Borrowed(id),
        CallIds::Nine => {
            Sha256::digest(id).iter().take(9).map(|byte| ALPHABET[usize::from(*byte) % 62] as char).collect()
        }
    }
}

impl Serialize for Wired<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Plain { role, text } => {
                map.serialize_entry("role", role)?;
                map.serialize_entry("content", text)?;
            }
            Self::Seen { text, pictures } => {
                map.serialize_entry("role", "user")?;
                let words = serde_json::json!({ "type": "text", "text": text });
                let pictures = pictures.iter().map(|picture| {
                    let url = format!("data:{};base64,{}", picture.mime, encoded(picture));
                    serde_json::json!({ "type": "image_url", "image_url": { "url": url } })
                });
                map.serialize_entry("content", &std::iter::once(words).chain(pictures).collect::<Vec<_>>())?;
            }
            Self::Assistant { text, calls, extra, ids } => {
                map.serialize_entry("role", "assistant")?;
                map.serialize_entry("content", text)?;
                for (name, value) in extra {
                    map.serialize_entry(name, value)?;
                }
                if !calls.is_empty() {
                    let calls: Vec<WiredCall<'_>> = calls.iter().map(|call| WiredCall::of(call, *ids)).collect();
                    map.serialize_entry("tool_calls", &calls)?;
                }
            }
            Self::Tool { id, text } => {
                map.serialize_entry("role", "tool")?;
                map.serialize_entry("tool_call_id", id)?;
                map.serialize_entry("content", text)?;
            }
        }
        map.end()
    }
}

#[derive(Serialize)]
struct WiredCall<'a> {
    id: Cow<'a, str>,
    r#type: &'static str,
    function: WiredFunction<'a>,
}

#[derive(Serialize)]
struct WiredFunction<'a> {
    name: &'a str,
    arguments: Cow<'a, str>,
}

impl<'a> WiredCall<'a> {
    fn of(call: &'a ToolCall, ids: CallIds) -> Self {
        Self {
            id: wire_id(&call.id, ids),
            r#type: "function",
            function: WiredFunction { name: &call.name, arguments: object_text(&call.arguments) },
        }
    }
}

/// The arguments of an earlier call as servers want them back: a JSON object. Some parse them and fail on anything else.
pub(super) fn object_text(arguments: &str) -> Cow<'_, str> {
    if arguments.trim().is_empty() {
        return Cow::Borrowed("{}");
    }
    // Half a pair of surrogates is JSON to some parsers and an error to others: such a call may not spoil every request
    // that follows.
    let is_object = serde_json::from_str::<Map<String, Value>>(arguments).is_ok();
    if is_object {
        Cow::Borrowed(arguments)
    } else {
        Cow::Owned(serde_json::json!({ "malformed": arguments }).to_string())
    }
}

/// A picture's bytes as they stand in JSON.
pub(super) fn encoded(picture: &Picture) -> String {
    STANDARD.encode(picture.bytes.as_deref().unwrap_or_default())
}

// The answer.

/// An answer as far as it has come.
#[derive(Default)]
struct Answer {
    text: String,
    reasoning: [String; 2],
    /// OpenRouter's `reasoning_details`, pieces of one joined.
    details: Vec<Value>,
    detailed: usize,
    calls: Vec<Part>,
    arguments: usize,
    /// A choice came.
    begun: bool,
    finish: Option<Finish>,
    /// `[DONE]` came.
    done: bool,
    /// A limit of ours was reached.
    over: bool,
    usage: Option<Usage>,
    model: String,
    id: Option<String>,
}

/// A call as far as it has come.
#[derive(Default)]
struct Part {
    index: Option<i64>,
    id: String,
    name: String,
    arguments: String,
}

impl Reader for Answer {
    fn event(&mut self, event: &Event, progress: &dyn Progress) -> Result<(), Trouble> {
        let data = event.data.trim();
        if data.is_empty() {
            return Ok(());
        }
        if data == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        match parse(data) {
            Some(chunk) => self.chunk(&chunk, event.name == "error", progress),
            // Some servers forget the blank line between two events.
            None if data.contains('\n') => data
                .lines()
                .try_for_each(|line| self.event(&Event { name: event.name.clone(), data: line.to_owned() }, progress)),
            None if event.name == "error" => Err(Trouble { text: data.to_owned(), ..Trouble::default() }),
            None => {
                tracing::debug!(bytes = data.len(), "left out a piece of the model's answer that is not JSON");
                Ok(())
            }
        }
    }

    fn whole(&mut self, body: &[u8], progress: &dyn Progress) -> Result<(), Trouble> {
        let text = String::from_utf8_lossy(body);
        match parse(text.trim_start_matches('\u{feff}').trim()) {
            Some(chunk) => {
                self.chunk(&chunk, false, progress)?;
                self.done = true;
                Ok(())
            }
            None => Err(Trouble { text: "the answer is not JSON".to_owned(), ..Trouble::default() }),
        }
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
        self.begun
    }

    fn finish(self: Box<Self>, end: End) -> ModelResponse {
        let mut answer = *self;
        let complete = answer.done || answer.finish.is_some();
        answer.calls.retain(|part| !part.name.trim().is_empty() || !part.arguments.trim().is_empty());
        // A server that says nothing at the end but ended well: calls whose arguments are whole are whole.
        let whole_calls = end == End::Clean
            && !answer.calls.is_empty()
            && answer.calls.iter().all(|part| {
                // Nothing at all may be a call that was cut before its arguments.
                !part.name.is_empty() && !part.arguments.trim().is_empty() && is_whole(&part.arguments)
            });
        let finish = match answer.finish {
            _ if answer.over => Finish::Length,
            Some(finish) if complete => finish,
            _ if complete || whole_calls => Finish::Stop,
            _ => Finish::Cut,
        };
        if finish == Finish::Cut {
            answer.calls.clear();
        }
        if !answer.details.is_empty() {
            // The same once more, in the form that can go back.
            answer.reasoning = Default::default();
        }
        let mut opaque: Map<String, Value> = REASONING
            .into_iter()
            .zip(answer.reasoning)
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| (name.to_owned(), Value::from(text)))
            .collect();
        if !answer.details.is_empty() {
            opaque.insert(DETAILS.to_owned(), Value::Array(answer.details));
        }
        ModelResponse {
            text: answer.text,
            calls: answer
                .calls
                .into_iter()
                .map(|part| ToolCall { id: new_call_id(), name: part.name, arguments: part.arguments })
                .collect(),
            finish,
            opaque: (!opaque.is_empty()).then_some(Value::Object(opaque)),
            usage: answer.usage.unwrap_or_default(),
            model: answer.model,
            answered_by: String::new(),
            request_id: answer.id,
        }
    }
}

impl Answer {
    fn chunk(&mut self, chunk: &Value, is_error: bool, progress: &dyn Progress) -> Result<(), Trouble> {
        if let Some(trouble) = trouble_in(chunk, is_error) {
            return Err(trouble);
        }
        if self.model.is_empty() {
            self.model = chunk["model"].as_str().unwrap_or_default().chars().take(200).collect();
        }
        if let Some(id) =
            [&chunk["request_id"], &chunk["id"]].iter().find_map(|id| id.as_str().filter(|id| !id.is_empty()))
        {
            self.id.get_or_insert_with(|| request_id(id));
        }
        let choice = chunk["choices"].as_array().and_then(|choices| choices.first()).unwrap_or(&Value::Null);
        if !matches!(choice["index"].as_i64(), None | Some(0)) {
            return Ok(());
        }
        for usage in [&choice["usage"], &chunk["usage"]] {
            if let Some(usage) = usage_of(usage) {
                self.usage = Some(usage);
            }
        }
        self.begun |= choice.is_object();
        // A stream has `delta`, a whole answer `message`; servers that mix them up exist.
        for part in [&choice["delta"], &choice["message"]] {
            self.delta(part, progress);
        }
        if let Some(reason) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty() && *reason != "null")
        {
            match finish_of(reason) {
                Some(finish) => self.finish = Some(finish),
                None => {
                    return Err(Trouble {
                        status: Some(503),
                        text: format!("finish_reason: {reason}"),
                        ..Trouble::default()
                    });
                }
            }
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Value, progress: &dyn Progress) {
        if delta.is_null() {
            return;
        }
        for (name, kept) in REASONING.into_iter().zip(&mut self.reasoning) {
            let text = delta[name].as_str().unwrap_or_default();
            if kept.len() + text.len() <= MAX_TEXT {
                kept.push_str(&clean(text));
            }
        }
        for detail in delta[DETAILS].as_array().into_iter().flatten() {
            self.detail(detail);
        }
        match &delta["content"] {
            Value::String(text) => self.say(text, progress),
            Value::Array(parts) => {
                // Mistral's thinking stands among the parts, under a type of its own.
                let spoken = |part: &&Value| matches!(part["type"].as_str(), None | Some("text" | "output_text"));
                for text in parts.iter().filter(spoken).filter_map(|part| part["text"].as_str()) {
                    self.say(text, progress);
                }
            }
            _ => {}
        }
        if let Some(text) = delta["refusal"].as_str() {
            self.say(text, progress);
        }
        match &delta["tool_calls"] {
            Value::Array(calls) => calls.iter().for_each(|call| self.call(call)),
            call @ Value::Object(_) => self.call(call),
            _ => {}
        }
        if delta["function_call"].is_object() {
            self.call(&serde_json::json!({ "index": 0, "function": delta["function_call"] }));
        }
    }

    /// A piece of reasoning that goes back as it came; pieces of one are told by their type and index.
    fn detail(&mut self, piece: &Value) {
        let Some(fields) = piece.as_object() else { return };
        self.detailed += piece.to_string().len();
        if self.detailed > MAX_TEXT {
            return;
        }
        let same = |known: &&mut Value| known["type"] == piece["type"] && known["index"] == piece["index"];
        let Some(Value::Object(known)) = self.details.last_mut().filter(same) else {
            if self.details.len() < MAX_CALLS {
                self.details.push(piece.clone());
            }
            return;
        };
        for (name, value) in fields {
            match (known.get_mut(name), value) {
                (Some(Value::String(before)), Value::String(more)) if GROWS.contains(&name.as_str()) => {
                    before.push_str(more)
                }
                (_, Value::Null) => {}
                _ => drop(known.insert(name.clone(), value.clone())),
            }
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

    /// Joins a piece of a call to the call it belongs to. Servers leave `index` out or repeat 0 for every call, send ids
    /// once, always, never or empty, and arguments whole, in pieces, or as an object.
    fn call(&mut self, piece: &Value) {
        let index = piece["index"].as_i64();
        let id = piece["id"].as_str().unwrap_or_default();
        let function = if piece["function"].is_object() { &piece["function"] } else { piece };
        let name = clean(function["name"].as_str().unwrap_or_default());
        let arguments = match &function["arguments"] {
            Value::String(text) => clean(text),
            Value::Null => Cow::Borrowed(""),
            other => Cow::Owned(other.to_string()),
        };
        let known = if index.is_some() {
            self.calls.iter().rposition(|part| part.index == index)
        } else if !id.is_empty() {
            self.calls.iter().rposition(|part| part.id == id)
        } else if name.is_empty() {
            self.calls.len().checked_sub(1)
        } else {
            self.calls.iter().rposition(|part| part.name.is_empty())
        };
        let known = known.filter(|at| !self.begins_anew(*at, id, &name));
        let at = match known {
            Some(at) => at,
            None if self.calls.len() == MAX_CALLS => return,
            None => {
                self.calls.push(Part { index, ..Part::default() });
                self.calls.len() - 1
            }
        };
        let part = &mut self.calls[at];
        if part.id.is_empty() {
            part.id = id.chars().take(200).collect();
        }
        let repeated = !name.is_empty() && part.name == *name;
        if repeated && !arguments.is_empty() && part.arguments == *arguments && is_whole(&arguments) {
            // The whole call once more, at its end.
            return;
        }
        if !repeated && part.name.len() + name.len() <= 256 {
            part.name.push_str(&name);
        }
        if self.arguments + arguments.len() > MAX_ARGUMENTS {
            self.over = true;
            return;
        }
        self.arguments += arguments.len();
        part.arguments.push_str(&arguments);
    }

    /// Whether a piece that seems to belong to the call at `at` is in truth the start of another.
    fn begins_anew(&self, at: usize, id: &str, name: &str) -> bool {
        let part = &self.calls[at];
        if name.is_empty() || part.name.is_empty() {
            return false;
        }
        if !id.is_empty() && !part.id.is_empty() {
            return id != part.id;
        }
        // No ids to tell them apart: a name after whole arguments begins the next call.
        id.is_empty() && part.id.is_empty() && is_whole(&part.arguments) && !part.arguments.is_empty()
    }
}

pub(super) fn is_whole(arguments: &str) -> bool {
    arguments.trim().is_empty() || serde_json::from_str::<&RawValue>(arguments).is_ok()
}

/// NUL characters and the like have no place in a database or a chat.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Why it ended; nothing when the reason says that the provider broke down.
pub(super) fn finish_of(reason: &str) -> Option<Finish> {
    match reason.to_ascii_lowercase().as_str() {
        "length" | "max_tokens" | "max_output_tokens" | "model_length" | "model_context_window_exceeded" => {
            Some(Finish::Length)
        }
        "content_filter" | "sensitive" | "safety" | "recitation" | "refusal" | "prohibited_content" => {
            Some(Finish::Filtered)
        }
        "error" | "network_error" | "insufficient_system_resource" | "abort" => None,
        _ => Some(Finish::Stop),
    }
}

fn usage_of(usage: &Value) -> Option<Usage> {
    usage.as_object()?;
    let first = |values: &[&Value]| values.iter().find_map(|value| number(value));
    let input = first(&[&usage["prompt_tokens"], &usage["input_tokens"]]);
    let output = first(&[&usage["completion_tokens"], &usage["output_tokens"]]);
    input.or(output)?;
    let input = input.unwrap_or(0);
    let cached = first(&[
        &usage["prompt_tokens_details"]["cached_tokens"],
        &usage["prompt_cache_hit_tokens"],
        &usage["cached_tokens"],
    ]);
    Some(Usage { input, output: output.unwrap_or(0), cached: cached.unwrap_or(0).min(input), ..Usage::default() })
}

/// A count of tokens as servers write it: a number, whole or not, or a text. Nothing for one that cannot be: below zero, or
/// more than a call can take ([`Usage::MOST`]).
pub(super) fn number(value: &Value) -> Option<u64> {
    let float = |number: f64| (0.0..=Usage::MOST as f64).contains(&number).then_some(number as u64);
    let count = match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_f64().and_then(float)),
        Value::String(text) => {
            let text = text.trim();
            text.parse().ok().or_else(|| text.parse().ok().and_then(float))
        }
        _ => None,
    };
    count.filter(|count| *count <= Usage::MOST)
}

/// An id fit for a log: printable, 200 characters at most.
pub(super) fn request_id(id: &str) -> String {
    id.chars().filter(char::is_ascii_graphic).take(200).collect()
}

/// The error a body or a piece of a stream tells of, in the shapes servers use.
pub(super) fn trouble_in(body: &Value, is_error: bool) -> Option<Trouble> {
    let body = match body {
        Value::Array(items) => items.first()?,
        other => other,
    };
    let base = &body["base_resp"];
    let told = !matches!(body["error"], Value::Null | Value::Bool(false))
        || is_error
        || (body["choices"].is_null()
            && (body["object"] == "error"
                || body["success"] == false
                || !body["detail"].is_null()
                || !body["errors"].is_null()
                || (body["code"].is_string() && body["message"].is_string())))
        || base["status_code"].as_i64().is_some_and(|code| code != 0);
    if !told {
        return None;
    }
    let mut words = BTreeSet::new();
    let mut texts = Vec::new();
    let mut status = None;
    // OpenRouter says "Provider returned error" and keeps the provider's words apart, often as JSON in a string.
    let metadata = &body["error"]["metadata"];
    let raw = metadata["raw"].as_str().map(|raw| parse(raw).filter(Value::is_object).unwrap_or_else(|| raw.into()));
    let raw = raw.unwrap_or_else(|| metadata["raw"].clone());
    if metadata["reasons"].is_array() {
        texts.push(format!("requires moderation: {}", metadata["reasons"]));
    }
    if let Value::String(raw) = &raw {
        texts.push(raw.clone());
    }
    let objects = [body, &body["error"], base, &raw, &raw["error"]];
    for object in objects {
        for key in ["code", "type", "status"] {
            match &object[key] {
                Value::String(word) if !word.is_empty() => {
                    words.insert(word.as_str());
                    status = status.or_else(|| word.parse().ok());
                }
                Value::Number(number) => status = status.or_else(|| number.as_u64()?.try_into().ok()),
                _ => {}
            }
        }
        if let Some(code) = object["status_code"].as_i64() {
            texts.push(format!("status_code {code}"));
        }
        for key in ["message", "msg", "status_msg", "detail", "error", "errors"] {
            match &object[key] {
                Value::String(text) if !text.is_empty() => texts.push(text.clone()),
                list @ Value::Array(_) => texts.push(list.to_string()),
                _ => {}
            }
        }
    }
    let mut text = texts.join(" ");
    if !words.is_empty() {
        let words = words.into_iter().collect::<Vec<_>>().join(", ");
        text = if text.is_empty() { words } else { format!("{text} ({words})") };
    }
    let ids = [&body["request_id"], &body["error"]["request_id"], &body["requestId"], &body["id"]];
    let request_id = ids.iter().find_map(|id| id.as_str().filter(|id| !id.is_empty())).map(request_id);
    Some(Trouble { status: status.filter(|status| (400..600).contains(status)), text, request_id })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn arguments_go_back_as_an_object_that_every_parser_takes() {
        for good in ["{}", " {\"a\": \"\\ud83e\\udd9e\"}"] {
            assert_eq!(object_text(good), good);
        }
        assert_eq!(object_text(" "), "{}");
        for bad in ["[1]", "null", "{\"a\":", "{\"q\":\"\\ud83d\"}"] {
            let text = object_text(bad);
            let back: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(back["malformed"], bad);
        }
    }

    /// JSON made of the words that chunks are made of, in all the wrong places.
    fn chunk() -> impl Strategy<Value = Value> {
        let word = prop_oneof![
            "choices|delta|message|content|tool_calls|function|name|arguments|index|id|error|code|usage|finish_reason",
            "prompt_tokens|reasoning_content|text|type|refusal|base_resp|status_code|detail|stop|length|\\PC{0,4}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            word.clone().prop_map(Value::from),
            Just(Value::from("{\"a\":1}")),
            Just(Value::from("\0")),
        ];
        leaf.prop_recursive(5, 40, 5, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((word.clone(), inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_chunk_can_break_the_reader(
            chunks in proptest::collection::vec(chunk(), 0..8),
            wrap in any::<bool>(),
            clean in any::<bool>(),
        ) {
            let mut reader: Box<dyn Reader> = Box::new(Answer::default());
            for chunk in chunks {
                let chunk = if wrap { serde_json::json!({ "choices": [{ "delta": chunk }] }) } else { chunk };
                let event = Event { name: String::new(), data: chunk.to_string() };
                let _ = reader.event(&event, &());
            }
            let response = reader.finish(if clean { End::Clean } else { End::Broken });
            prop_assert!(!response.text.contains('\0'));
            prop_assert!(response.finish != Finish::Cut || response.calls.is_empty());
            let ids: BTreeSet<&str> = response.calls.iter().map(|call| call.id.as_str()).collect();
            prop_assert_eq!(ids.len(), response.calls.len());
        }
    }
}
