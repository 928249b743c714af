//! A reply as messages of Discord. Pure.
//!
//! Discord shows most of Markdown itself; what it does not is written in a way that it does: tables as code blocks, small
//! headings as bold lines, pictures as links, rules as a line.

use channel_api::{Attachment, Button, Level, Part, Reply, TextUnit, split::split};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The longest message, in UTF-16 units: Discord counts characters, and never more than these.
pub const TEXT_LIMIT: usize = 2_000;
/// The most messages with text of one answer.
const MOST_PARTS: usize = 20;
/// Room for the line that says that the rest is missing.
const NOTE_UNITS: usize = 64;
/// The most files of one answer.
const MOST_FILES: usize = 10;
/// The most rows of buttons, and buttons in one.
const MOST_ROWS: usize = 5;
/// The longest label, in characters.
const LABEL_CHARS: usize = 80;
/// The longest text that a button stands for, in characters.
const DATA_CHARS: usize = 100;
/// The most Markdown that is laid out, in bytes.
const MOST_SOURCE: usize = 512 * 1024;
/// The widest a column of a table is made.
const WIDEST_COLUMN: usize = 40;

/// What [`Part::body`] holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Body {
    /// The message that the reply asks to quote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// The file that this part is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Attachment>,
    /// Rows of buttons, as Discord takes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<Value>,
}

/// The parts of a reply: texts, then one for each file. [`Part::text`] is what is sent.
pub fn render(reply: &Reply, level: Level) -> Vec<Part> {
    let source = clean(&reply.text);
    let end = source.floor_char_boundary(MOST_SOURCE);
    let text = match level {
        Level::Rich => laid_out(&source[..end]),
        Level::Plain => source[..end].to_owned(),
    };
    let mut texts = split(&text, TEXT_LIMIT, TextUnit::Utf16);
    if texts.len() > MOST_PARTS || end < source.len() {
        let note = cut_note(&reply.text);
        texts.truncate(MOST_PARTS);
        match texts.last_mut() {
            Some(last) if TextUnit::Utf16.len(last) + NOTE_UNITS <= TEXT_LIMIT => *last = format!("{last}\n\n{note}"),
            _ => texts.push(note.to_owned()),
        }
    }
    let last = texts.len().saturating_sub(1);
    let texts = texts.into_iter().enumerate().map(|(n, text)| {
        let quote = (n == 0).then(|| reply.quote.clone()).flatten();
        let components = if n == last { components(&reply.buttons) } else { Vec::new() };
        part(text, Body { quote, file: None, components })
    });
    let files = reply.attachments.iter().take(MOST_FILES).map(|attachment| {
        let file = Some(attachment.clone());
        part(file_line(attachment), Body { file, ..Body::default() })
    });
    texts.chain(files).collect()
}

fn part(text: String, body: Body) -> Part {
    Part { text, body: serde_json::to_value(body).unwrap_or(Value::Null) }
}

/// A file in words: what stands for it where it cannot be sent.
pub fn file_line(attachment: &Attachment) -> String {
    let name = file_name(attachment);
    match attachment.media.as_ref().map(|media| &media.source) {
        Some(channel_api::MediaSource::Url(url)) if url.len() <= 1_500 => format!("[file: {name}] <{url}>"),
        _ => format!("[file: {name}]"),
    }
}

/// A file's name, fit for a message and a form.
pub fn file_name(attachment: &Attachment) -> String {
    let name = attachment.name.as_deref().unwrap_or_default();
    let name: String = name.chars().filter(|c| !c.is_control() && !"/\\\"<>[]`*_|~@".contains(*c)).take(100).collect();
    if !name.trim_matches(['.', ' ']).is_empty() {
        return name;
    }
    let mime = attachment.media.as_ref().and_then(|media| media.mime.as_deref()).unwrap_or_default();
    let ending = match mime {
        "image/png" => ".png",
        "image/jpeg" => ".jpg",
        "image/gif" => ".gif",
        "image/webp" => ".webp",
        "audio/ogg" => ".ogg",
        "audio/mpeg" => ".mp3",
        "video/mp4" => ".mp4",
        "application/pdf" => ".pdf",
        "text/plain" => ".txt",
        _ => "",
    };
    format!("file{ending}")
}

/// Buttons as Discord takes them; what does not fit is left out, for the text says what can be typed.
fn components(buttons: &[Vec<Button>]) -> Vec<Value> {
    let mut used: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    for row in buttons.iter().take(MOST_ROWS) {
        let mut shown = Vec::new();
        for button in row.iter().take(MOST_ROWS) {
            let data = button.data.as_str();
            let fits = !data.is_empty() && data.chars().count() <= DATA_CHARS && !button.label.trim().is_empty();
            // Two buttons with the same data would be refused with the whole message.
            if fits && !used.contains(&data) {
                used.push(data);
                let label: String = button.label.chars().take(LABEL_CHARS).collect();
                shown.push(json!({"type": 2, "style": 2, "label": label, "custom_id": data}));
            }
        }
        if !shown.is_empty() {
            rows.push(json!({"type": 1, "components": shown}));
        }
    }
    rows
}

/// Without what no chat shows; line ends are `\n`.
fn clean(source: &str) -> String {
    source
        .replace("\r\n", "\n")
        .replace('\r', "\n")
        .chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .filter(|c| !matches!(c, '\u{FEFF}'))
        .collect()
}

/// Markdown as Discord shows it.
pub fn laid_out(source: &str) -> String {
    let lines: Vec<&str> = source.split('\n').collect();
    let mut out: Vec<String> = Vec::with_capacity(lines.len());
    let mut fence: Option<(char, usize)> = None;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        if let Some((mark, count)) = fence {
            let bare = line.trim();
            if bare.len() >= count && !bare.is_empty() && bare.chars().all(|c| c == mark) {
                fence = None;
                out.push(bare.chars().take(3).map(|_| '`').collect());
            } else {
                out.push(if mark == '~' { line.replace("```", "'''") } else { line.to_owned() });
            }
            continue;
        }
        if let Some((mark, count, info)) = opened(line) {
            fence = Some((mark, count));
            // Discord knows fences of three backticks.
            out.push(format!("```{info}"));
            continue;
        }
        if line.contains('|') && lines.get(at).is_some_and(|rule| is_table_rule(rule)) {
            let mut rows = vec![cells(line)];
            at += 1;
            while let Some(row) = lines.get(at).filter(|row| row.contains('|') && !row.trim().is_empty()) {
                rows.push(cells(row));
                at += 1;
            }
            out.push("```".to_owned());
            out.extend(table(&rows));
            out.push("```".to_owned());
            continue;
        }
        out.push(self::line(line));
    }
    if fence.is_some() {
        out.push("```".to_owned());
    }
    out.join("\n")
}

/// The mark, its count and the language of a line that opens a fence.
fn opened(line: &str) -> Option<(char, usize, String)> {
    let bare = line.trim();
    let mark = bare.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let count = bare.chars().take_while(|c| *c == mark).count();
    if count < 3 || (mark == '`' && bare[count..].contains('`')) {
        return None;
    }
    let word = bare[count..].split_whitespace().next().unwrap_or_default();
    let plain = word.len() <= 32 && word.chars().all(|c| c.is_ascii_alphanumeric() || "+-#._".contains(c));
    // A language of other characters would stand in the code.
    Some((mark, count, if plain { word.to_owned() } else { String::new() }))
}

fn is_table_rule(line: &str) -> bool {
    let bare = line.trim();
    bare.contains('-') && bare.contains('|') && bare.chars().all(|c| matches!(c, '|' | '-' | ':' | ' ' | '\t'))
}

fn cells(line: &str) -> Vec<String> {
    let bare = line.trim();
    let bare = bare.strip_prefix('|').unwrap_or(bare);
    let bare = bare.strip_suffix('|').filter(|rest| !rest.ends_with('\\')).unwrap_or(bare);
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for c in bare.chars() {
        match c {
            '|' if !escaped => cells.push(String::new()),
            '\\' if !escaped => {
                escaped = true;
                continue;
            }
            c => {
                if let Some(cell) = cells.last_mut() {
                    if escaped && c != '|' {
                        cell.push('\\');
                    }
                    cell.push(c);
                }
            }
        }
        escaped = false;
    }
    cells.iter().map(|cell| cell.trim().replace("**", "").replace("```", "'''").replace('`', "")).collect()
}

/// The lines of a table, its columns one under the other.
fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![1; columns];
    for row in rows {
        for (cell, widest) in row.iter().zip(&mut widths) {
            *widest = width(cell).min(WIDEST_COLUMN).max(*widest);
        }
    }
    let mut lines = Vec::with_capacity(rows.len() + 1);
    for (n, row) in rows.iter().enumerate() {
        let padded: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, widest)| format!("{cell}{}", " ".repeat(widest.saturating_sub(width(cell)))))
            .collect();
        lines.push(padded.join(" | ").trim_end().to_owned());
        if n == 0 {
            lines.push(widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("-+-"));
        }
    }
    lines
}

/// How many columns a text takes on the screen: Chinese and emoji two each.
fn width(text: &str) -> usize {
    let columns = |c: char| match u32::from(c) {
        0x0300..=0x036F | 0x200B..=0x200F | 0xFE00..=0xFE0F => 0,
        0x1100..=0x115F | 0x2E80..=0xA4CF | 0xAC00..=0xD7A3 | 0xF900..=0xFAFF | 0xFE30..=0xFE6F | 0xFF01..=0xFF60 => 2,
        0x1F300..=0x1FAFF | 0x20000..=0x3FFFD => 2,
        _ => 1,
    };
    text.chars().map(columns).sum()
}

/// One line outside code.
fn line(line: &str) -> String {
    let bare = line.trim_start();
    let indent = &line[..line.len() - bare.len()];
    let marks = bare.chars().take_while(|c| *c == '#').count();
    if (4..=6).contains(&marks) && bare[marks..].starts_with(' ') {
        let title = bare[marks..].trim().trim_end_matches('#').trim_end().replace("**", "");
        return format!("{indent}**{title}**");
    }
    let rule: String = bare.chars().filter(|c| !c.is_whitespace()).collect();
    if rule.len() >= 3 && ["-", "*", "_"].iter().any(|mark| rule.chars().all(|c| mark.starts_with(c))) {
        return "———".to_owned();
    }
    let mut text = line.to_owned();
    for (mark, shown) in [("- [ ] ", "☐ "), ("- [x] ", "☑ "), ("- [X] ", "☑ "), ("* [ ] ", "☐ "), ("* [x] ", "☑ ")]
    {
        if let Some(rest) = bare.strip_prefix(mark) {
            text = format!("{indent}{shown}{rest}");
            break;
        }
    }
    without_pictures(&text)
}

/// `![words](address)` as the words and the address: Discord shows no pictures in text.
fn without_pictures(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("![") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let found = rest.find("](").and_then(|middle| {
            let end = rest[middle..].find(')')? + middle;
            Some((&rest[2..middle], &rest[middle + 2..end], end + 1))
        });
        match found {
            Some((words, address, end)) if !address.trim().is_empty() => {
                if !words.is_empty() {
                    out.push_str(words);
                    out.push(' ');
                }
                out.push_str(&format!("<{}>", address.trim()));
                rest = &rest[end..];
            }
            _ => {
                out.push_str("![");
                rest = &rest[2..];
            }
        }
    }
    out.push_str(rest);
    out
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
