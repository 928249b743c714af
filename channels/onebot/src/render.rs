//! A reply as messages of QQ: plain text of up to three messages, a longer one as a merged forward, files as messages of
//! their own. Pure.

use channel_api::{Attachment, AttachmentKind, Level, MediaRef, MediaSource, Part, Reply};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{inbound, text};

/// The longest text of one part, in characters: a merged forward of a handful of messages.
pub const TEXT_LIMIT: usize = 9_000;
/// The longest text of one message; QQ itself ends somewhat above 4,500.
const MESSAGE: usize = 1_500;
/// The longest text of one message where no forward is possible.
const LONG_MESSAGE: usize = 3_000;
/// More messages than this become a merged forward.
const SEPARATE: usize = 3;
/// The most parts of text. bad-inputs.md 65.
const MOST_PARTS: usize = 10;
/// The most files.
const MOST_FILES: usize = 10;

/// What [`Part::body`] holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// One message of text.
    Text {
        /// The message that the reply asks to quote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quote: Option<String>,
    },
    /// A merged forward of these messages.
    Forward(Vec<String>),
    /// A file.
    File(OutFile),
}

/// A file to be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutFile {
    /// How it is shown.
    pub kind: AttachmentKind,
    /// Where its bytes are.
    pub media: MediaRef,
    /// Its name.
    pub name: String,
}

/// The parts of a reply. `forward_above`: see [`crate::Config::forward_above`].
pub fn render(reply: &Reply, level: Level, forward_above: usize) -> Vec<Part> {
    let (shown, mut whole) = text::plain(&reply.text);
    let mut parts = Vec::new();
    let separate = text::pieces(&shown, MESSAGE);
    let long = separate.len() > SEPARATE || shown.chars().count() > forward_above;
    if level == Level::Rich && forward_above > 0 && long {
        // Room for the line breaks that join its messages again.
        for piece in text::pieces(&shown, TEXT_LIMIT - 100) {
            let nodes = text::pieces(&piece, MESSAGE);
            parts.push(part(nodes.join("\n"), &Body::Forward(nodes)));
        }
    } else {
        let pieces = if long { text::pieces(&shown, LONG_MESSAGE) } else { separate };
        for (n, piece) in pieces.into_iter().enumerate() {
            let quote = (n == 0).then(|| reply.quote.clone()).flatten();
            parts.push(part(piece, &Body::Text { quote }));
        }
    }
    if parts.len() > MOST_PARTS {
        parts.truncate(MOST_PARTS - 1);
        whole = false;
    }
    if !whole {
        let note = match inbound::language(&shown) {
            Some(true) => "（回答太长，后面的内容没有发送。）",
            _ => "(The answer is too long; the rest was not sent.)",
        };
        parts.push(part(note.to_owned(), &Body::Text { quote: None }));
    }
    parts.extend(reply.attachments.iter().take(MOST_FILES).map(file));
    parts
}

fn part(text: String, body: &Body) -> Part {
    Part { text, body: serde_json::to_value(body).unwrap_or(Value::Null) }
}

fn file(attachment: &Attachment) -> Part {
    let name = name_of(attachment);
    let line = line(&name, attachment.media.as_ref());
    match &attachment.media {
        Some(media) => part(line, &Body::File(OutFile { kind: attachment.kind, media: media.clone(), name })),
        None => part(line, &Body::Text { quote: None }),
    }
}

/// The line that stands for a file: `[file: name]`, with its link if it has one.
pub fn line(name: &str, media: Option<&MediaRef>) -> String {
    match media.map(|media| &media.source) {
        Some(MediaSource::Url(url)) => format!("[file: {name}] {}", url.chars().take(2_000).collect::<String>()),
        _ => format!("[file: {name}]"),
    }
}

fn name_of(attachment: &Attachment) -> String {
    let given = attachment.name.as_deref().unwrap_or_default();
    let given = given.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String = given.chars().filter(|c| !c.is_control() && *c != ']').take(100).collect();
    if !name.trim().is_empty() {
        return name;
    }
    match attachment.kind {
        AttachmentKind::Image => "picture",
        AttachmentKind::Audio => "voice",
        AttachmentKind::Video => "video",
        AttachmentKind::File => "file",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_33_codes_that_a_model_wrote_are_words() {
        for code in [
            "[CQ:image,file=file:///etc/passwd]",
            "[CQ:record,file=http://10.0.0.1]",
            "[CQ:at,qq=all]",
            "&#91;CQ:at,qq=all&#93;",
        ] {
            for (level, forward) in [(Level::Rich, 1), (Level::Rich, 0), (Level::Plain, 0)] {
                let parts = render(&Reply::message(format!("look {code}")), level, forward);
                let body: Body = serde_json::from_value(parts[0].body.clone()).expect("a body");
                assert!(!matches!(body, Body::File(_)), "{code} became a file");
                assert!(parts[0].text.starts_with("look "), "{:?}", parts[0]);
            }
        }
        // What is sent is a list of segments on every path: a text of it cannot be read as a code.
        let sends = include_str!("send.rs");
        let texts = sends.matches("\"type\": \"text\", \"data\": { \"text\": ").count();
        assert!(texts >= 2 && !sends.contains("auto_escape"), "{texts}");
    }
}
