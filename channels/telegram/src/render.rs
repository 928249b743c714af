//! A reply as Telegram's messages: HTML, or plain text of the same pieces. Pure.

use channel_api::{Attachment, Button, Level, MediaSource, Part, Reply, TextUnit};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::markdown;

/// The longest text of one message, in UTF-16 units of what is seen: tags do not count.
pub const TEXT_LIMIT: usize = 4096;
/// The longest text under a file, in the same units.
pub const CAPTION_LIMIT: usize = 1024;
/// The most files one reply brings; of more the names are told.
const MOST_FILES: usize = 10;
/// The longest data of a button, in bytes, and the longest label, in characters.
const BUTTON_BYTES: usize = 64;
const LABEL_CHARS: usize = 64;
/// The most buttons in a row, and the most rows.
const BUTTONS_IN_ROW: usize = 8;
const MOST_ROWS: usize = 12;
/// The most messages one reply becomes. bad-inputs.md 65.
const MOST_PARTS: usize = 10;
/// The most people one reply names. security.md row 31.
const MOST_NAMED: usize = 5;
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
    /// The file that this message is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Attachment>,
    /// The text stands under the file. Without it the part's text only names the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub caption: bool,
    /// Rows of buttons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buttons: Vec<Vec<Button>>,
}

/// What a person reads of a message, and the same as HTML.
type Shown = (String, String);

/// The parts of a reply: its text, then its files; one file takes a short text with it. Both levels have the same parts
/// with the same [`Part::text`].
pub fn render(reply: &Reply, level: Level) -> Vec<Part> {
    let there = reply.attachments.iter().filter(|file| file.media.is_some());
    let files: Vec<&Attachment> = there.take(MOST_FILES).collect();
    let texts = texts(&with_names(reply, files.len()));
    let buttons = buttons(&reply.buttons);
    let body = |html: Option<&str>| {
        let html = (level == Level::Rich).then(|| html.map(str::to_owned)).flatten();
        Body { html, ..Body::default() }
    };
    let mut parts: Vec<(String, Body)> = Vec::new();
    match (texts.as_slice(), files.as_slice()) {
        ([(plain, html)], [file]) if TextUnit::Utf16.len(plain) <= CAPTION_LIMIT => {
            let file = Some((*file).clone());
            parts.push((plain.clone(), Body { file, caption: true, buttons, ..body(Some(html)) }));
        }
        _ => {
            parts.extend(texts.iter().map(|(plain, html)| (plain.clone(), body(Some(html)))));
            let under = parts.len().saturating_sub(1);
            parts.extend(files.iter().map(|file| (named(file), Body { file: Some((*file).clone()), ..body(None) })));
            if let Some((_, last)) = parts.get_mut(under) {
                last.buttons = buttons;
            }
        }
    }
    if let Some((_, first)) = parts.first_mut() {
        first.quote = reply.quote.clone();
    }
    let part = |(text, body)| Part { text, body: serde_json::to_value(body).unwrap_or(Value::Null) };
    parts.into_iter().map(part).collect()
}

/// The text of an answer that is not whole yet, as far as it fits one message.
pub fn beginning(markdown: &str) -> Option<Shown> {
    let (text, _) = markdown::read(markdown);
    let piece = text.pieces(TEXT_LIMIT, 1, 0).into_iter().next()?;
    Some((text.plain(piece.range.clone()).to_owned(), text.html(piece.range)))
}

/// The messages of a text.
fn texts(source: &str) -> Vec<Shown> {
    let (text, whole) = markdown::read(source);
    // What is cut anyway leaves room for the mark of a second try.
    let fits = TextUnit::Utf16.len(text.as_str()) <= TEXT_LIMIT;
    let limit = if fits { TEXT_LIMIT } else { TEXT_LIMIT - 2 };
    let most = if whole { MOST_PARTS } else { MOST_PARTS - 1 };
    let pieces = text.pieces(limit, most, NOTE_UNITS);
    let mut shown: Vec<Shown> = Vec::with_capacity(pieces.len() + 1);
    let mut cut_off = !whole;
    let (mut named, mut named_html) = (0, 0);
    for piece in pieces {
        cut_off |= piece.cut_off;
        let plain = without_crowds(text.plain(piece.range.clone()), &mut named, false);
        shown.push((plain, without_crowds(&text.html(piece.range), &mut named_html, true)));
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
    shown
}

/// The same text, and after the first few `@name` no more of them name anybody: a sign as long that looks alike. Code is left
/// as it is where tags tell it (`html`): nobody is named there. security.md row 31.
fn without_crowds(text: &str, named: &mut usize, html: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut code, mut before) = (0_usize, ' ');
    for (at, c) in text.char_indices() {
        let (rest, after) = (&text[at..], &text[at + c.len_utf8()..]);
        if html && c == '<' {
            code += usize::from(rest.starts_with("<code") || rest.starts_with("<pre"));
            code = code.saturating_sub(usize::from(rest.starts_with("</code>") || rest.starts_with("</pre>")));
        }
        let name = after.starts_with(|c: char| c.is_ascii_alphabetic());
        let names = c == '@' && name && code == 0 && !before.is_alphanumeric() && before != '_';
        *named += usize::from(names);
        out.push(if names && *named > MOST_NAMED { '＠' } else { c });
        before = c;
    }
    out
}

/// The text with the names of files that do not come: those that are nowhere, and those beyond the first `sent`.
fn with_names(reply: &Reply, sent: usize) -> String {
    let mut text = reply.text.clone();
    let mut there = 0;
    for attachment in &reply.attachments {
        there += usize::from(attachment.media.is_some());
        if attachment.media.is_some() && there <= sent {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        let line = named(attachment);
        text.push_str(&line.replacen('[', "\\[", 1));
    }
    text
}

/// The line that stands for a file: its name, and its link if it has one.
pub fn named(attachment: &Attachment) -> String {
    let name = name(attachment).unwrap_or_else(|| "?".to_owned());
    match attachment.media.as_ref().map(|media| &media.source) {
        Some(MediaSource::Url(url)) => format!("[file: {name}] {url}"),
        _ => format!("[file: {name}]"),
    }
}

/// A file's name without what is markup or a path.
pub fn name(attachment: &Attachment) -> Option<String> {
    let name = attachment.name.as_deref()?;
    let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let fine = |c: &char| !c.is_control() && !"[]()<>`*_\"".contains(*c);
    let name: String = name.chars().filter(fine).take(100).collect();
    (!name.trim_matches([' ', '.']).is_empty()).then_some(name)
}

/// Buttons as Telegram takes them. Of one that it would not take, nothing is lost: the text says what can be typed.
fn buttons(rows: &[Vec<Button>]) -> Vec<Vec<Button>> {
    let good = |button: &&Button| {
        !button.data.is_empty() && button.data.len() <= BUTTON_BYTES && !button.label.trim().is_empty()
    };
    let fit =
        |button: &Button| Button { label: button.label.chars().take(LABEL_CHARS).collect(), data: button.data.clone() };
    let row = |row: &Vec<Button>| row.iter().filter(good).take(BUTTONS_IN_ROW).map(fit).collect::<Vec<_>>();
    rows.iter().map(row).filter(|row| !row.is_empty()).take(MOST_ROWS).collect()
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
