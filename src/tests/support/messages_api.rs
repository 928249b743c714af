//! Anthropic's Messages API, spoken by the model's server: the same scripts, and its own strictness. A request is told in the
//! words of OpenAI's format, so that a script reads both alike.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::Response,
};
use futures_util::stream;
use serde_json::{Value, json};

use super::model_server::{Ask, Inner, Say, answer, body_of, event_stream, perform, visited};

pub(super) async fn complete(
    State(inner): State<Arc<Inner>>,
    Path(boot): Path<u64>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Ok(raw) = serde_json::from_slice::<Value>(&body) else {
        inner.wrong("a body is no JSON".to_owned());
        return answer(StatusCode::BAD_REQUEST, "application/json", "{}");
    };
    if headers.get("anthropic-version").is_none() {
        inner.wrong("no anthropic-version".to_owned());
    }
    if let Err(problem) = strict(&raw) {
        inner.wrong(format!("Messages API: {problem}"));
        let error = json!({ "type": "error", "error": { "type": "invalid_request_error", "message": problem } });
        return answer(StatusCode::BAD_REQUEST, "application/json", &error.to_string());
    }
    let key = headers.get("x-api-key").and_then(|value| value.to_str().ok()).map(str::to_owned);
    match inner.received(boot, in_other_words(&raw), raw, key) {
        Ok((ask, script)) => visited(&inner, &ask, async || respond(&ask, script(&ask)).await).await,
        Err(refused) => *refused,
    }
}

/// What the API refuses.
fn strict(body: &Value) -> Result<(), String> {
    if body["max_tokens"].as_u64().is_none_or(|most| most == 0) {
        return Err("max_tokens: Field required".to_owned());
    }
    let marks = body.to_string().matches("\"cache_control\"").count();
    if marks > 4 {
        return Err(format!("A maximum of 4 blocks with cache_control may be provided. Found {marks}."));
    }
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut open: Vec<&str> = Vec::new();
    for (n, message) in messages.iter().enumerate() {
        let expected = if n % 2 == 0 { "user" } else { "assistant" };
        if message["role"] != expected {
            return Err(format!("messages.{n}: roles must alternate between \"user\" and \"assistant\""));
        }
        let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        if blocks.is_empty() {
            return Err(format!("messages.{n}: all messages must have non-empty content"));
        }
        let results: Vec<&str> = blocks
            .iter()
            .take_while(|block| block["type"] == "tool_result")
            .filter_map(|block| block["tool_use_id"].as_str())
            .collect();
        if !open.iter().all(|id| results.contains(id)) {
            return Err(format!("messages.{}: `tool_use` ids were found without `tool_result` blocks", n - 1));
        }
        if let Some(id) = results.iter().find(|id| !open.contains(id)) {
            return Err(format!("messages.{n}: unexpected `tool_use_id` found in `tool_result` blocks: {id}"));
        }
        open.clear();
        for block in blocks {
            match block["type"].as_str().unwrap_or_default() {
                "text" if block["text"].as_str().is_none_or(|text| text.trim().is_empty()) => {
                    return Err(format!("messages.{n}: text content blocks must be non-empty"));
                }
                "tool_use" if !block["input"].is_object() => {
                    return Err(format!("messages.{n}: tool_use.input: Input should be a valid dictionary"));
                }
                "tool_use" => open.extend(block["id"].as_str()),
                "thinking" if block["signature"] != signature(block["thinking"].as_str().unwrap_or_default()) => {
                    return Err(format!("messages.{n}: Invalid `signature` in `thinking` block"));
                }
                _ => {}
            }
        }
        let called = blocks.iter().any(|block| matches!(block["type"].as_str(), Some("tool_use" | "tool_result")));
        if called && body["tools"].as_array().is_none_or(Vec::is_empty) {
            return Err("Requests which include `tool_use` or `tool_result` blocks must define tools".to_owned());
        }
    }
    if open.is_empty() { Ok(()) } else { Err("`tool_use` ids were found without `tool_result` blocks".to_owned()) }
}

/// What this server signs a thought with.
fn signature(thought: &str) -> String {
    format!("sig-{}-{}", thought.len(), thought.chars().rev().collect::<String>())
}

fn in_other_words(body: &Value) -> Value {
    let mut messages = Vec::new();
    if let Some(system) = body["system"][0]["text"].as_str() {
        messages.push(json!({ "role": "system", "content": system }));
    }
    for message in body["messages"].as_array().into_iter().flatten() {
        let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        let of = |kind: &'static str| blocks.iter().filter(move |block| block["type"] == kind);
        let text: Vec<&str> = of("text").filter_map(|block| block["text"].as_str()).collect();
        for result in of("tool_result") {
            messages
                .push(json!({ "role": "tool", "tool_call_id": result["tool_use_id"], "content": result["content"] }));
        }
        let calls: Vec<Value> = of("tool_use")
            .map(|call| {
                let function = json!({ "name": call["name"], "arguments": call["input"].to_string() });
                json!({ "id": call["id"], "type": "function", "function": function })
            })
            .collect();
        let mut said = json!({ "role": message["role"], "content": text.join("\n") });
        if !calls.is_empty() {
            said["tool_calls"] = Value::Array(calls);
        }
        if !text.is_empty() || said["tool_calls"].is_array() {
            messages.push(said);
        }
    }
    let named = |tool: &Value| json!({ "type": "function", "function": { "name": tool["name"] } });
    let callable = body["tool_choice"]["type"] != "none";
    let tools = body["tools"].as_array().into_iter().flatten().filter(|_| callable).map(named);
    json!({ "model": body["model"], "messages": messages, "tools": tools.collect::<Vec<_>>(), "stream": body["stream"] })
}

async fn respond(ask: &Ask, mut say: Say) -> Response {
    let mut thoughts = Vec::new();
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
            Say::Thinks(thought, then) => {
                thoughts.push(thought);
                *then
            }
            Say::Text(text) | Say::Written(_, text) => {
                return event_stream(body_of(events(&thoughts, &text, &Say::Hang)));
            }
            calls @ Say::Calls(_) => return event_stream(body_of(events(&thoughts, "", &calls))),
            Say::InTwo(first, gate, rest) => {
                gate.passed().await;
                Say::Text(first + &rest)
            }
            Say::Cut(text) => {
                let all = events(&thoughts, &text, &Say::Hang);
                // Without the end of the block, of the message and of the stream.
                let first = all[..all.len() - 3].concat();
                let chunks = [Ok(Bytes::from(first)), Err(std::io::Error::other("cut"))];
                return event_stream(Body::from_stream(stream::iter(chunks)));
            }
            Say::Status(529, _) | Say::ErrorInside => {
                let error =
                    json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } });
                let started =
                    event(&json!({ "type": "message_start", "message": { "id": "msg_x", "model": "kit-1" } }));
                return event_stream(body_of(vec![started, event(&error)]));
            }
            other => return perform(ask, other).await,
        };
    }
}

fn event(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default())
}

/// A whole stream, in small pieces.
fn events(thoughts: &[String], text: &str, say: &Say) -> Vec<String> {
    let usage = json!({ "input_tokens": 6, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 1, "output_tokens": 1 });
    let mut all = vec![json!({ "type": "message_start", "message": {
        "id": "msg_kit", "type": "message", "role": "assistant", "model": "kit-1", "content": [], "usage": usage } })];
    let mut index = 0;
    let mut block = |begin: Value, deltas: Vec<Value>| {
        all.push(json!({ "type": "content_block_start", "index": index, "content_block": begin }));
        let delta = |delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
        all.extend(deltas.into_iter().map(delta));
        all.push(json!({ "type": "content_block_stop", "index": index }));
        index += 1;
    };
    let pieces = |text: &str| -> Vec<String> {
        text.chars().collect::<Vec<_>>().chunks(7).map(|piece| piece.iter().collect()).collect()
    };
    for thought in thoughts {
        let mut deltas: Vec<Value> =
            pieces(thought).iter().map(|piece| json!({ "type": "thinking_delta", "thinking": piece })).collect();
        deltas.push(json!({ "type": "signature_delta", "signature": signature(thought) }));
        block(json!({ "type": "thinking", "thinking": "", "signature": "" }), deltas);
    }
    if !text.is_empty() {
        let deltas = pieces(text).iter().map(|piece| json!({ "type": "text_delta", "text": piece })).collect();
        block(json!({ "type": "text", "text": "" }), deltas);
    }
    let mut reason = "end_turn";
    if let Say::Calls(calls) = say {
        reason = "tool_use";
        for call in calls {
            let deltas = pieces(&call.arguments)
                .iter()
                .map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }))
                .collect();
            block(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} }), deltas);
        }
    }
    let end = json!({ "stop_reason": reason, "stop_sequence": null });
    all.push(json!({ "type": "message_delta", "delta": end, "usage": { "output_tokens": 5 } }));
    all.push(json!({ "type": "message_stop" }));
    all.iter().map(event).collect()
}
