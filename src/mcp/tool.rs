//! A tool of a server, as a tool of ours: asked only as it was approved, answered in a block that the rules call information
//! and never orders.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use super::{
    Server,
    connection::{CallError, call},
    listing::{Listed, one_line},
};
use crate::{
    policy::{Effect, Terms},
    secrets::Redactor,
    tools::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec, truncate::head_and_tail},
    untrusted,
};

/// Kept free in the result for the block around the text.
const ROOM_FOR_BLOCK: usize = 400;
/// The most characters of a server's error.
const ERROR_TEXT: usize = 2_000;

/// One tool.
pub struct McpTool {
    /// Whose it is.
    pub server: Arc<Server>,
    /// The server's name for it.
    pub theirs: String,
    /// Ours.
    pub ours: String,
    /// As it was approved.
    pub approved: Listed,
    /// Takes the configuration's secrets out of what it gives.
    pub redactor: Redactor,
}

fn tell<T>(text: String) -> Result<T, ToolError> {
    Err(ToolError::TellModel(text))
}

#[async_trait]
impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        let description = match self.approved.description.is_empty() {
            true => format!("A tool of the server `{}`.", self.server.name()),
            false => self.approved.description.clone(),
        };
        ToolSpec { name: self.ours.clone(), description, parameters: self.approved.parameters.clone() }
    }

    fn server(&self) -> Option<&str> {
        Some(self.server.name())
    }

    fn reads_outside(&self, _: &Value) -> bool {
        true
    }

    fn effect(&self) -> Effect {
        let trusted = self.server.config().trust_hints;
        match (trusted && self.approved.read_only, trusted && self.approved.idempotent) {
            (true, _) => Effect::Read,
            (_, true) => Effect::Idempotent,
            _ => Effect::Effect,
        }
    }

    fn terms(&self) -> Terms {
        Terms { least: self.server.config().least, ..Terms::of(self.effect()) }
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let stopped = || ToolError::Abort("stopped".to_owned());
        let server = self.server.name();
        let ready = tokio::select! {
            biased;
            () = ctx.cancel.cancelled() => return Err(stopped()),
            ready = self.server.ready() => ready,
        };
        let (peer, listing) = match ready {
            Ok(ready) => ready,
            Err(why) => {
                return tell(format!(
                    "The server `{server}` of this tool cannot be reached now ({why}). Nothing was done. Go on without it, \
                     and tell the user."
                ));
            }
        };
        match listing.tools.get(&self.theirs) {
            Some(now) if now.hash == self.approved.hash => {}
            Some(_) => {
                return tell(format!(
                    "`{}` is not what its owner approved any more, and is withheld. Nothing was done. Tell the user: \
                     `crawfish mcp approve {server}` shows it and lets it back.",
                    self.ours
                ));
            }
            None => return tell(format!("The server `{server}` has no `{}` any more. Go on without it.", self.theirs)),
        }
        let seconds = self.server.config().timeout_s;
        let args = args.as_object().cloned().unwrap_or_default();
        let called = call(&peer, &self.theirs, args, Duration::from_secs(seconds), &ctx.cancel, &*ctx.clock).await;
        match called {
            Ok(result) => self.told(&result, ctx.output_chars),
            Err(CallError::Stopped) => Err(stopped()),
            Err(CallError::TimedOut) => tell(format!(
                "The server `{server}` did not answer within {seconds} s; it was told to stop. What it did until then stays \
                 done: look before you repeat the call."
            )),
            Err(CallError::Lost) => {
                self.server.doubt();
                tell(format!(
                    "The connection to the server `{server}` broke while the call ran, or its answer was too large. Its \
                     outcome is unknown: look before you repeat it."
                ))
            }
            Err(CallError::Asks) => {
                tell(format!("The server `{server}` asks for something that it is not granted. Nothing more was done."))
            }
            Err(CallError::Refused(why)) => {
                let why = head_and_tail(&untrusted::defuse(&self.redactor.redact(&why)), ERROR_TEXT, "an error");
                tell(format!("The server `{server}` refused the call:\n{}", self.block(&why)))
            }
        }
    }
}

impl McpTool {
    fn block(&self, text: &str) -> String {
        let attributes = format!(" server=\"{}\" tool=\"{}\"", self.server.name(), self.ours);
        untrusted::block("mcp", &attributes, text)
    }

    fn told(&self, result: &CallToolResult, chars: usize) -> Result<ToolOutput, ToolError> {
        let text = words(result);
        let text = untrusted::defuse(&self.redactor.redact(&text));
        let most = chars.saturating_sub(ROOM_FOR_BLOCK).max(chars / 2);
        let text = head_and_tail(&text, most, "ask the tool for less");
        let text = if text.trim().is_empty() { "(no output)".to_owned() } else { text };
        match result.is_error {
            Some(true) => tell(format!("The tool reports an error:\n{}", self.block(&text))),
            _ => Ok(ToolOutput::from(self.block(&text))),
        }
    }
}

/// The words of a result: texts as they are, everything else named with its kind and size.
fn words(result: &CallToolResult) -> String {
    let mut all: Vec<String> = result.content.iter().map(piece).collect();
    // Servers say structured answers twice, as JSON and as text; one is enough.
    if !result.content.iter().any(|block| matches!(block, ContentBlock::Text(_)))
        && let Some(structured) = &result.structured_content
    {
        all.push(structured.to_string());
    }
    all.join("\n")
}

fn piece(block: &ContentBlock) -> String {
    let named = |what: &str, kind: &str, base64: usize| {
        format!("[{what}, {}, {} KiB: not shown]", one_line(kind, 60), (base64 / 4 * 3).div_ceil(1024))
    };
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => named("a picture", &image.mime_type, image.data.len()),
        ContentBlock::Audio(audio) => named("a sound", &audio.mime_type, audio.data.len()),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("[{}]\n{text}", one_line(uri, 200)),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                named(&format!("a file, {}", one_line(uri, 200)), mime_type.as_deref().unwrap_or("unknown"), blob.len())
            }
            _ => "[something that is not shown]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => {
            format!("[a link: {} {}]", one_line(&link.name, 100), one_line(&link.uri, 200))
        }
        _ => "[something that is not shown]".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_shown_and_all_else_is_named() {
        let result: CallToolResult = serde_json::from_value(json!({
            "content": [
                { "type": "text", "text": "one" },
                { "type": "image", "mimeType": "image/png", "data": "A".repeat(40_000) },
                { "type": "audio", "mimeType": "audio/wav", "data": "AAAA" },
                { "type": "resource", "resource": { "uri": "file:///a.txt", "text": "inside" } },
                { "type": "resource", "resource": { "uri": "file:///a.bin", "blob": "AAAA" } },
                { "type": "resource_link", "name": "page", "uri": "https://example.com" },
            ],
            "structuredContent": { "twice": true },
        }))
        .expect("a result");
        assert_eq!(
            words(&result),
            "one\n[a picture, image/png, 30 KiB: not shown]\n[a sound, audio/wav, 1 KiB: not shown]\n[file:///a.txt]\ninside\n\
             [a file, file:///a.bin, unknown, 1 KiB: not shown]\n[a link: page https://example.com]"
        );
        let structured: CallToolResult =
            serde_json::from_value(json!({ "content": [], "structuredContent": { "time": "12:00" } }))
                .expect("a result");
        assert_eq!(words(&structured), "{\"time\":\"12:00\"}");
    }
}
