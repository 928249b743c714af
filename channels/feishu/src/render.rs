//! A reply as Feishu's messages: cards, or plain text of the same pieces, and a message for each file. Pure.

use channel_api::{Attachment, Button, Level, MediaSource, Part, Reply, TextUnit, split::split};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{markdown, target::Target};

/// The longest text of one message, in characters.
pub const TEXT_LIMIT: usize = 4_000;
/// What is cut: the rest is for plain text that is longer than its Markdown, and for the mark of a second try.
const PIECE: usize = 3_500;
/// The most messages that the text of one reply becomes. bad-inputs.md 65.
const MOST_PARTS: usize = 10;
/// The most of a text that is sent as a file, in bytes.
const DOCUMENT_BYTES: usize = 2 * 1024 * 1024;
/// The most files of one reply.
const MOST_FILES: usize = 10;
/// The element that streams.
pub const ELEMENT: &str = "answer";

/// What [`Part::body`] holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Body {
    /// The text as Markdown; without it the part's text is sent as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md: Option<String>,
    /// Rows of buttons under it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buttons: Vec<Vec<Button>>,
    /// The message that the reply asks to quote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// The file that is sent; the part's text is what is sent where it cannot be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Attachment>,
    /// The text of a file that is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
}

/// The parts of a reply. Both levels have the same parts with the same [`Part::text`].
pub fn render(reply: &Reply, level: Level) -> Vec<Part> {
    let mut pieces = split(&reply.text, PIECE, TextUnit::Chars);
    let document = (pieces.len() > MOST_PARTS).then(|| {
        pieces.truncate(MOST_PARTS - 1);
        let end = reply.text.floor_char_boundary(DOCUMENT_BYTES);
        reply.text[..end].to_owned()
    });
    let last = pieces.len();
    let mut parts: Vec<Part> = Vec::with_capacity(last + 1);
    for (n, md) in pieces.into_iter().enumerate() {
        let plain = markdown::plain(&md);
        let text = if plain.chars().count() <= TEXT_LIMIT { plain } else { markdown::harmless(&md) };
        let body = Body {
            md: (level == Level::Rich).then_some(md),
            buttons: if n + 1 == last { reply.buttons.clone() } else { Vec::new() },
            quote: (n == 0).then(|| reply.quote.clone()).flatten(),
            ..Body::default()
        };
        parts.push(Part { text, body: json!(body) });
    }
    if let Some(document) = document {
        let text = match is_chinese(&reply.text) {
            true => "（回答太长：全文在文件 answer.md 里。）",
            false => "(The answer is too long: the file answer.md has all of it.)",
        };
        let body = Body { document: Some(document), ..Body::default() };
        parts.push(Part { text: text.to_owned(), body: json!(body) });
    }
    for (n, attachment) in reply.attachments.iter().take(MOST_FILES).enumerate() {
        let quote = if parts.is_empty() && n == 0 { reply.quote.clone() } else { None };
        let body = Body { file: Some(attachment.clone()), quote, ..Body::default() };
        parts.push(Part { text: file_line(attachment), body: json!(body) });
    }
    parts
}

/// What is said instead of a file that cannot be sent.
pub fn file_line(attachment: &Attachment) -> String {
    let name = attachment.name.as_deref().unwrap_or("file");
    let name: String = name.chars().filter(|c| !c.is_control() && !"[]<>".contains(*c)).take(100).collect();
    match attachment.media.as_ref().map(|media| &media.source) {
        Some(MediaSource::Url(url)) => format!("[file: {name}] {}", url.chars().take(2_000).collect::<String>()),
        _ => format!("[file: {name}]"),
    }
}

/// A card with these words and buttons. `streaming`: it is being written. `target` is where it is shown: a press does not
/// tell that, so the buttons do.
pub fn card(md: &str, summary: &str, buttons: &[Vec<Button>], target: &Target, streaming: bool) -> Value {
    card_of(json!({ "tag": "markdown", "element_id": ELEMENT, "content": md }), summary, buttons, target, streaming)
}

/// A card with text that has no markup.
pub fn plain_card(text: &str, summary: &str, buttons: &[Vec<Button>], target: &Target) -> Value {
    let text = json!({ "tag": "plain_text", "content": text });
    card_of(json!({ "tag": "div", "element_id": ELEMENT, "text": text }), summary, buttons, target, false)
}

fn card_of(words: Value, summary: &str, buttons: &[Vec<Button>], target: &Target, streaming: bool) -> Value {
    let mut elements = vec![words];
    for row in buttons.iter().take(10) {
        let columns: Vec<Value> = row.iter().take(8).map(|button| column(button, target)).collect();
        elements.push(json!({ "tag": "column_set", "flex_mode": "flow", "columns": columns }));
    }
    let mut config = json!({ "update_multi": true, "streaming_mode": streaming });
    let summary: String = summary.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(80).collect();
    if !streaming && !summary.is_empty() {
        config["summary"] = json!({ "content": summary });
    }
    json!({ "schema": "2.0", "config": config, "body": { "elements": elements } })
}

fn column(button: &Button, target: &Target) -> Value {
    let mut value = json!({ "say": button.data, "direct": target.direct, "chat": target.chat });
    if let Some(thread) = &target.thread {
        value["thread"] = json!(thread);
    }
    if target.topics {
        value["topics"] = json!(true);
    }
    let label: String = button.label.chars().take(60).collect();
    let button = json!({
        "tag": "button",
        "text": { "tag": "plain_text", "content": label },
        "type": "default",
        "behaviors": [{ "type": "callback", "value": value }],
    });
    json!({ "tag": "column", "width": "auto", "elements": [button] })
}

/// The first line of a message that may have arrived before.
pub fn resend_note(text: &str) -> &'static str {
    match is_chinese(text) {
        true => "↻（这条消息可能已经发过一次）",
        false => "↻ (this message may have arrived once before)",
    }
}

/// The language of a message: an adapter knows no other than that of the answer.
fn is_chinese(text: &str) -> bool {
    let start: Vec<char> = text.chars().filter(|c| c.is_alphabetic()).take(500).collect();
    let chinese = start.iter().filter(|c| ('\u{4E00}'..='\u{9FFF}').contains(*c)).count();
    chinese * 3 > start.len()
}
