//! A reply as Telegram's messages: HTML, or plain text of the same pieces. Pure.

use channel_api::{Level, MediaSource, Part, Reply, TextUnit};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::markdown;

/// The longest text of one message, in UTF-16 units of what is seen: tags do not count.
pub const TEXT_LIMIT: usize = 4096;
/// The most messages one reply becomes. bad-inputs.md 65.
const MOST_PARTS: usize = 10;
/// Room for the line that says that the rest is missing, in UTF-16 units.
const NOTE_UNITS: usize = 64;

/// What [`Part::body`] holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Body {
    /// The text as HTML; without it the part's text is sent as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// The message that the reply asks to quote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
}

/// The parts of a reply. Both levels have the same parts with the same [`Part::text`].
pub fn render(reply: &Reply, level: Level) -> Vec<Part> {
    let source = with_attachments(reply);
    let (text, whole) = markdown::read(&source);
    // What is cut anyway leaves room for the mark of a second try.
    let fits = TextUnit::Utf16.len(text.as_str()) <= TEXT_LIMIT;
    let limit = if fits { TEXT_LIMIT } else { TEXT_LIMIT - 2 };
    let most = if whole { MOST_PARTS } else { MOST_PARTS - 1 };
    let pieces = text.pieces(limit, most, NOTE_UNITS);
    let mut shown: Vec<(String, String)> = Vec::with_capacity(pieces.len() + 1);
    let mut cut_off = !whole;
    for piece in pieces {
        cut_off |= piece.cut_off;
        shown.push((text.plain(piece.range.clone()).to_owned(), text.html(piece.range)));
    }
    if cut_off {
        let note = cut_note(text.as_str());
        match shown.last_mut() {
            Some((plain, html)) if TextUnit::Utf16.len(plain) + NOTE_UNITS <= TEXT_LIMIT => {
                *plain = format!("{plain}\n\n{note}");
                *html = format!("{html}\n\n<i>{note}</i>");
            }
            _ => shown.push((note.to_owned(), format!("<i>{note}</i>"))),
        }
    }
    let part = |(n, (plain, html)): (usize, (String, String))| {
        let html = (level == Level::Rich).then_some(html);
        let quote = (n == 0).then(|| reply.quote.clone()).flatten();
        let body = serde_json::to_value(Body { html, quote }).unwrap_or(Value::Null);
        Part { text: plain, body }
    };
    shown.into_iter().enumerate().map(part).collect()
}

/// Files are named below the text: this channel does not send them.
fn with_attachments(reply: &Reply) -> String {
    let mut text = reply.text.clone();
    for attachment in &reply.attachments {
        let name = attachment.name.as_deref().unwrap_or("file");
        let name: String = name.chars().filter(|c| !c.is_control() && !"[]()<>`*_\\".contains(*c)).take(100).collect();
        let line = match attachment.media.as_ref().map(|media| &media.source) {
            Some(MediaSource::Url(url)) => format!("📎 {name}: <{url}>"),
            _ => format!("📎 {name}"),
        };
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(&line);
    }
    text
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

/// The last line of an answer that is too long.
fn cut_note(text: &str) -> &'static str {
    match is_chinese(text) {
        true => "（回答太长，后面的内容没有发送。）",
        false => "(The answer is too long; the rest was not sent.)",
    }
}

#[cfg(test)]
mod tests;
