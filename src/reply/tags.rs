//! Reads and removes what a model writes for the gateway inside an answer: reply tags and `MEDIA:` lines.
//!
//! `[[reply_to_current]]`, `[[reply_to:<id>]]`, `[[audio_as_voice]]` (any case, blanks inside allowed) and lines that
//! are `MEDIA:<path or URL>` (openclaw-parity.md §3.2). Inside code they are quoted and stay.

use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::code::{Step, marks_and, walk};
use super::token;

/// Which message an answer is a reply to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyTo {
    /// The model did not say: the channel's own setting decides.
    #[default]
    Auto,
    /// The message that is being answered.
    Current,
    /// A message by its platform id.
    Id(String),
}

/// What the tags of an answer said. Of several ids the last counts, and an id counts more than "current".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tags {
    pub reply_to: ReplyTo,
    pub media: Vec<String>,
    pub audio_as_voice: bool,
}

/// Media lines taken from one answer; further ones stay visible as text.
pub const MAX_MEDIA: usize = 32;
const MAX_MEDIA_BYTES: usize = 4096;

static CONSTRUCTS: LazyLock<Regex> = LazyLock::new(|| {
    marks_and(
        r"\[\[[ \t]{0,16}(?i:reply_to_current|audio_as_voice|reply_to[ \t]{0,16}:[^\[\]\r\n]{0,256})[ \t]{0,16}\]\]|^[ \t]{0,16}MEDIA:[^\n]*",
    )
});

/// Removes tags and media lines from `text` and notes in `tags` what they said.
pub(super) fn strip(text: &str, growing: bool, tags: &mut Tags) -> String {
    if !text.contains("[[") && !text.contains("MEDIA:") && !growing {
        return text.to_owned();
    }
    let mut visible = walk(text, &CONSTRUCTS, growing, tail, |out, start, end| {
        let found = &text[start..end];
        if let Some(value) = found.trim_start().strip_prefix("MEDIA:") {
            if growing && end == text.len() {
                return Step::Hold;
            }
            return match media(value) {
                Some(path) if tags.media.len() < MAX_MEDIA => {
                    tags.media.push(path);
                    Step::Resume((end + 1).min(text.len()))
                }
                _ => Step::Keep,
            };
        }
        let inside = found[2..found.len() - 2].trim();
        let lower = inside.to_ascii_lowercase();
        match lower.as_str() {
            "audio_as_voice" => tags.audio_as_voice = true,
            "reply_to_current" => {
                if tags.reply_to == ReplyTo::Auto {
                    tags.reply_to = ReplyTo::Current;
                }
            }
            _ => {
                let id = inside.split_once(':').map_or("", |(_, id)| id).trim();
                if is_id(id) {
                    tags.reply_to = ReplyTo::Id(id.to_owned());
                }
            }
        }
        // The blanks around a tag go with it: one stays between words, none at the ends of a line.
        let after = &text[end..];
        let next = after.trim_start_matches([' ', '\t']);
        let mut resume = end;
        let ends_line = next.is_empty() || next.starts_with(['\n', '\r']);
        let at_line_start = out.is_empty() || out.ends_with('\n');
        if ends_line {
            out.truncate(out.trim_end_matches([' ', '\t']).len());
        }
        if at_line_start || ends_line || out.ends_with([' ', '\t']) {
            resume = text.len() - next.len();
        }
        let at_line_start = out.is_empty() || out.ends_with('\n');
        if at_line_start && ends_line {
            let newline = next.strip_prefix("\r\n").or_else(|| next.strip_prefix('\n'));
            resume = text.len() - newline.unwrap_or(next).len();
        }
        Step::Resume(resume)
    });
    if growing {
        visible.truncate(visible.trim_end_matches([' ', '\t']).len());
    }
    visible
}

fn is_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 128
        && !id.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '<' | '>' | '[' | ']'))
}

/// The path or URL of a media line; `None` when the line is a sentence.
fn media(value: &str) -> Option<String> {
    let value = value.trim();
    let quoted = ['`', '"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    let mut path = quoted.unwrap_or(value).trim();
    if let Some((first, rest)) = path.split_once([' ', '\t'])
        && token::is_only_token(rest)
    {
        path = first;
    }
    let rooted = ["http://", "https://", "file:", "/", "./", "../", "~/", "\\\\"]
        .iter()
        .any(|prefix| path.starts_with(prefix))
        || (path.len() > 3 && path.as_bytes()[0].is_ascii_alphabetic() && matches!(path.get(1..3), Some(":\\" | ":/")));
    let named = !path.contains(char::is_whitespace) && path.contains(['.', '/', '\\']);
    let fits = !path.is_empty() && path.len() <= MAX_MEDIA_BYTES && !path.contains(char::is_control);
    ((rooted || named || (quoted.is_some() && path.contains('.'))) && fits).then(|| path.to_owned())
}

/// From where the end of a growing text could be the beginning of a tag or a media line.
fn tail(text: &str, pos: usize) -> usize {
    let rest = &text[pos..];
    let mut hold = text.len();
    if let Some(open) = rest.rfind("[[").map(|at| pos + at) {
        let body = &text[open..];
        if body.len() <= 340 && !body.contains(['\n', '\r']) && !body[2..].contains("]]") {
            hold = open;
        }
    }
    if hold == text.len() && rest.ends_with('[') {
        hold -= 1;
    }
    let line_start = text.rfind('\n').map_or(0, |at| at + 1);
    if line_start >= pos {
        let line = text[line_start..].trim_start_matches([' ', '\t']);
        if "MEDIA:".starts_with(line) || line.starts_with("MEDIA:") {
            hold = hold.min(line_start);
        }
    }
    hold
}
