//! `web_fetch`: what a public web address says, as text; everything else is named instead of shown.
//!
//! Reads and never sends: `GET` alone. How an address is judged and reached is `egress`'s; here it becomes words in a
//! block that the rules call information, never orders. openclaw-parity.md §5.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{size, tell},
    decode::{self, Content},
    truncate::head_and_tail,
};
use crate::{
    egress::{Egress, EgressError, Fetched, Limits},
    untrusted,
};

mod charset;
mod page;

/// The fewest characters that are worth a call.
const FEWEST: usize = 500;
/// Kept free in the result for the block around the text.
const ROOM_FOR_BLOCK: usize = 400;
/// Kept free for the line that says where a part lies.
const ROOM_FOR_NOTE: usize = 80;
/// The most characters of the address in the block.
const ADDRESS: usize = 200;
/// The most characters of what an error page says.
const ERROR_TEXT: usize = 600;
/// Pages that are read at once; others wait.
const READERS: usize = 2;
/// The longest a page may take to be read after it came.
const READING: Duration = Duration::from_secs(15);

/// Fetches a web address.
pub struct WebFetch {
    egress: Arc<Egress>,
    readers: Arc<Semaphore>,
}

#[derive(Deserialize)]
struct Arguments {
    url: String,
    format: Option<Format>,
    max_chars: Option<usize>,
    offset: Option<usize>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    #[default]
    Markdown,
    Text,
    Raw,
}

impl WebFetch {
    /// A tool that reaches the web through this client.
    pub fn new(egress: Arc<Egress>) -> Self {
        Self { egress, readers: Arc::new(Semaphore::new(READERS)) }
    }

    /// The words of an answer; blocks of work go to a thread of their own.
    async fn words(&self, fetched: Fetched, format: Format, ctx: &ToolContext) -> Result<Words, ToolError> {
        let reading = async {
            let place = Arc::clone(&self.readers).acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                let _place = place;
                Words::of(&fetched, format)
            })
            .await
            .map_err(|error| ToolError::Abort(format!("reading a page ended unexpectedly: {error}")))
        };
        tokio::select! {
            biased;
            () = ctx.cancel.cancelled() => Err(ToolError::Abort("stopped".to_owned())),
            words = reading => words,
            () = ctx.clock.sleep(READING) => tell("The page came, but it takes too long to read.".to_owned()),
        }
    }
}

#[async_trait]
impl Tool for WebFetch {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "web_fetch".to_owned(),
            description: "Reads a public web page or API by GET.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "url": {"type": "string"},
                    "format": {"type": "string", "enum": ["markdown", "text", "raw"]},
                    "max_chars": {"type": "integer", "minimum": 1},
                    "offset": {"type": "integer", "minimum": 0},
                },
                "required": ["url"],
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn address<'a>(&self, args: &'a Value) -> Option<&'a str> {
        args["url"].as_str()
    }

    fn reads_outside(&self, _: &Value) -> bool {
        true
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { url, format, max_chars, offset } = arguments::typed(args)?;
        let fetched = match self.egress.fetch(&url, Limits::default(), &ctx.cancel).await {
            Ok(fetched) => fetched,
            Err(EgressError::Cancelled) => return Err(ToolError::Abort("stopped".to_owned())),
            Err(error) => return tell(error.to_string()),
        };
        let (status, cut) = (fetched.status, fetched.cut);
        let from: String = untrusted::defuse(fetched.url.as_str()).chars().take(ADDRESS).collect();
        let host = fetched.url.host_str().unwrap_or_default().to_owned();
        let words = self.words(fetched, format.unwrap_or_default(), ctx).await?;
        let most = ctx.output_chars.saturating_sub(ROOM_FOR_BLOCK).max(ctx.output_chars / 2);
        let most = max_chars.map_or(most, |asked| asked.max(FEWEST).min(most));
        let attribute = format!(" url=\"{}\"", from.replace(['"', '<', '>'], ""));
        if !(200..300).contains(&status) {
            let mut told = format!("`{host}` answered {}.", status_line(status));
            if let Words::Text(text) = words {
                let text = head_and_tail(&untrusted::defuse(&text), ERROR_TEXT.min(most), "an error page");
                told.push_str(&format!(" It says:\n{}", untrusted::block("web", &attribute, &text)));
            }
            return tell(told);
        }
        let mut told = match words {
            Words::Text(text) => {
                let text = untrusted::defuse(&text);
                let text = match offset.filter(|offset| *offset > 0) {
                    Some(offset) => part(&text, offset, most)?,
                    // A little of the head comes again, so that nothing is missed.
                    None => head_and_tail(&text, most, &format!("read on with offset {}", most / 2)),
                };
                untrusted::block("web", &attribute, &text)
            }
            Words::Empty(why) | Words::Other(why) => why,
        };
        if cut {
            told.push_str("\n[only the first 2 MiB of the answer were read]");
        }
        Ok(told.into())
    }
}

/// The characters from `offset` on, and where to go on.
fn part(text: &str, offset: usize, most: usize) -> Result<String, ToolError> {
    let total = text.chars().count();
    if offset >= total {
        return tell(format!("The page has only {total} characters; offset {offset} is past its end."));
    }
    let piece: String = text.chars().skip(offset).take(most.saturating_sub(ROOM_FOR_NOTE).max(1)).collect();
    let next = offset + piece.chars().count();
    let note = if next < total {
        format!("[characters {offset} to {next} of {total}; go on with offset {next}]")
    } else {
        format!("[characters {offset} to the end at {total}]")
    };
    Ok(format!("{piece}\n{note}"))
}

/// `404 Not Found`.
fn status_line(status: u16) -> String {
    let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    reason.map_or_else(|| status.to_string(), |reason| format!("{status} {reason}"))
}

/// What an answer has to say.
#[derive(Debug, PartialEq, Eq)]
enum Words {
    /// Text, never empty.
    Text(String),
    /// Nothing, in a sentence.
    Empty(String),
    /// Something that is no text, in a sentence.
    Other(String),
}

impl Words {
    fn of(fetched: &Fetched, format: Format) -> Self {
        let kind = Kind::of(&fetched.content_type, &fetched.body);
        let text = match kind {
            Kind::Other(what) => {
                let bytes = fetched.length.unwrap_or(fetched.body.len() as u64);
                let least = if fetched.cut && fetched.length.is_none() { "more than " } else { "" };
                return Self::Other(format!("[This is no text: {what}, {least}{}. It is not shown.]", size(bytes)));
            }
            kind => {
                let decoded = charset::decoded(&fetched.body, &fetched.content_type, kind == Kind::Html);
                match (kind, format) {
                    (Kind::Html, Format::Markdown | Format::Text) => {
                        let form = if format == Format::Text { page::Form::Text } else { page::Form::Markdown };
                        let page::Page { title, text } = page::readable(&decoded, fetched.url.as_str(), form);
                        match text.is_empty() {
                            true => {
                                let why =
                                    "The page has no readable text: perhaps it needs a browser that runs scripts.";
                                return Self::Empty(why.to_owned());
                            }
                            false if title.is_empty() => text,
                            false => format!("Title: {title}\n\n{text}"),
                        }
                    }
                    _ => decoded,
                }
            }
        };
        if text.trim().is_empty() { Self::Empty("The answer is empty.".to_owned()) } else { Self::Text(text) }
    }
}

/// What kind of thing a body is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Html,
    Json,
    Text,
    /// No text: what it is.
    Other(String),
}

impl Kind {
    fn of(content_type: &str, body: &[u8]) -> Self {
        let mime = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let named = match mime.as_str() {
            "text/html" | "application/xhtml+xml" => Some(Self::Html),
            "application/json" | "text/json" => Some(Self::Json),
            "application/xml"
            | "application/javascript"
            | "application/x-javascript"
            | "application/yaml"
            | "application/x-yaml"
            | "application/toml"
            | "application/x-ndjson"
            | "application/jsonl"
            | "application/sql"
            | "application/x-sh" => Some(Self::Text),
            mime if mime.ends_with("+json") => Some(Self::Json),
            mime if mime.ends_with("+xml") && !mime.starts_with("image/") => Some(Self::Text),
            mime if mime.starts_with("text/") => Some(Self::Text),
            "" | "application/octet-stream" | "application/unknown" | "unknown/unknown" => None,
            mime => {
                let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '/' | '+' | '-' | '.');
                return Self::Other(mime.chars().filter(plain).take(80).collect());
            }
        };
        let sample = &body[..body.len().min(64 << 10)];
        match (decode::sniff(sample, sample.len() == body.len()), named) {
            // The name may be wrong; the bytes are not.
            (Content::Binary(what), None | Some(Self::Text | Self::Json)) => Self::Other(what.to_owned()),
            (_, Some(named)) => named,
            (Content::Text(_), None) => {
                let start = body[..body.len().min(512)].trim_ascii_start().to_ascii_lowercase();
                if start.starts_with(b"<!doctype html") || start.starts_with(b"<html") {
                    Self::Html
                } else {
                    Self::Text
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
