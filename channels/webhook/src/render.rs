//! A reply as the messages a bridge gets. Pure, but for reading the bytes of an attachment when a message leaves.

use base64::{Engine, engine::general_purpose::STANDARD};
use channel_api::{Attachment, Level, Media, MediaSource, Part, Reply, ReplyKind, TextUnit, split::split};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The longest text of one message, in characters.
pub const TEXT_LIMIT: usize = 60_000;

/// The most messages of one answer; what is beyond is left out, and the last says so. bad-inputs.md 65.
const MOST_TEXTS: usize = 10;

/// The most bytes of attachments that one message carries; what is beyond is named without its bytes.
const ATTACHED_BYTES: usize = 8 * 1024 * 1024;

/// What [`Part::body`] holds.
#[derive(Debug, Serialize, Deserialize)]
struct Body {
    #[serde(rename = "type")]
    kind: String,
    format: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Attachment>,
}

/// The parts of a reply; attachments go with the last.
pub fn render(reply: &Reply, level: Level) -> Vec<Part> {
    let mut texts = split(&reply.text, TEXT_LIMIT, TextUnit::Chars);
    if texts.len() > MOST_TEXTS {
        texts.truncate(MOST_TEXTS - 1);
        let head: Vec<char> = reply.text.chars().filter(|c| c.is_alphabetic()).take(500).collect();
        let chinese = head.iter().filter(|c| ('\u{4e00}'..='\u{9fff}').contains(*c)).count() * 3 > head.len();
        let note = match chinese {
            true => "（回答太长，后面的内容没有发送。）",
            false => "(The answer is too long; the rest was not sent.)",
        };
        texts.push(note.to_owned());
    }
    if texts.is_empty() && !reply.attachments.is_empty() {
        texts.push(String::new());
    }
    let kind = match reply.kind {
        ReplyKind::Error => "error",
        ReplyKind::Message | ReplyKind::Notice => "message",
    };
    let format = match level {
        Level::Rich => "markdown",
        Level::Plain => "plain",
    };
    let last = texts.len().saturating_sub(1);
    let part = |(n, text): (usize, String)| {
        let attachments = if n == last { reply.attachments.clone() } else { Vec::new() };
        let body = Body { kind: kind.to_owned(), format: format.to_owned(), attachments };
        Part { text, body: serde_json::to_value(body).unwrap_or(Value::Null) }
    };
    texts.into_iter().enumerate().map(part).collect()
}

/// What a message has besides its part: the same in an answer in place, in a callback and in a poll.
pub struct Envelope<'a> {
    /// The part's id.
    pub id: &'a str,
    /// The conversation as it came in, where it is known.
    pub conversation: Option<&'a Value>,
    /// The platform id of the message that is answered.
    pub in_reply_to: Option<&'a str>,
    /// From 1.
    pub seq: u32,
    /// The last of its answer.
    pub last: bool,
    /// When it was committed, in epoch milliseconds.
    pub created_at: i64,
}

/// One outgoing message, as protocols.md §5.2 shows it.
pub async fn message(envelope: Envelope<'_>, part: &Part, media: &dyn Media) -> Value {
    let body = Body::deserialize(&part.body).unwrap_or_else(|_| Body {
        kind: "message".to_owned(),
        format: "plain".to_owned(),
        attachments: Vec::new(),
    });
    let mut message = json!({
        "v": 1,
        "type": body.kind,
        "id": envelope.id,
        "in_reply_to": envelope.in_reply_to,
        "seq": envelope.seq,
        "final": envelope.last,
        "text": part.text,
        "format": body.format,
        "timestamp": rfc3339(envelope.created_at),
    });
    if let Some(conversation) = envelope.conversation {
        message["conversation"] = conversation.clone();
    }
    if !body.attachments.is_empty() {
        let mut room = ATTACHED_BYTES;
        let mut attachments = Vec::with_capacity(body.attachments.len());
        for attachment in &body.attachments {
            attachments.push(attached(attachment, media, &mut room).await);
        }
        message["attachments"] = Value::Array(attachments);
    }
    message
}

async fn attached(attachment: &Attachment, media: &dyn Media, room: &mut usize) -> Value {
    let mut shown = json!({ "kind": attachment.kind });
    if let Some(name) = &attachment.name {
        shown["name"] = json!(name);
    }
    let mut unavailable = attachment.unavailable.clone();
    if let Some(file) = &attachment.media {
        if let Some(mime) = &file.mime {
            shown["mime"] = json!(mime);
        }
        match &file.source {
            MediaSource::Url(url) => shown["url"] = json!(url),
            MediaSource::Stored(_) => match media.read(file).await {
                Some(bytes) if bytes.len() <= *room => {
                    *room -= bytes.len();
                    shown["size"] = json!(bytes.len());
                    shown["data"] = json!(STANDARD.encode(&bytes));
                }
                Some(bytes) => {
                    shown["size"] = json!(bytes.len());
                    unavailable = Some("the file is too large for a webhook".to_owned());
                }
                None => unavailable = Some("the file is no longer kept".to_owned()),
            },
        }
    }
    if let Some(reason) = unavailable {
        shown["unavailable"] = json!(reason);
    }
    shown
}

/// An epoch millisecond as people and programs read it.
pub fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| String::new(), |time| time.to_string())
}
