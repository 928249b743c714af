//! What is wrong in a configuration: where, what, and what to write instead, in both languages.

use std::{
    fmt::{self, Write as _},
    ops::Range,
    path::Path,
};

use channel_api::Said;

use crate::{lang::Lang, terminal};

/// One line in both languages: the language is known only after the file is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    en: String,
    zh: String,
}

impl From<Said> for Line {
    fn from(said: Said) -> Self {
        Self { en: said.en, zh: said.zh }
    }
}

impl Line {
    /// A line from its two forms.
    pub fn new(say: impl Fn(Lang) -> String) -> Self {
        Self { en: say(Lang::En), zh: say(Lang::Zh) }
    }

    /// The same words in both languages (the text of an adapter or of the operating system).
    pub fn as_is(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { zh: text.clone(), en: text }
    }

    /// The line in one language.
    pub fn get(&self, lang: Lang) -> &str {
        match lang {
            Lang::En => &self.en,
            Lang::Zh => &self.zh,
        }
    }

    pub(super) fn map(&self, change: impl Fn(&str) -> String) -> Self {
        Self { en: change(&self.en), zh: change(&self.zh) }
    }
}

/// A line of the catalogue in both languages.
macro_rules! line {
    ($name:ident $(, $arg:expr)* $(,)?) => {
        $crate::config::finding::Line::new(|lang| $crate::lang::$name(lang $(, &$arg)*))
    };
}
pub(crate) use line;

/// One error or warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file as the caller named it; empty when there is none.
    pub file: String,
    /// Where in the file.
    pub place: Option<Place>,
    /// The key, e.g. `channels.webhook.bridge.secret`; empty when it is about the whole file.
    pub key: String,
    /// What is wrong. Holds no secret.
    pub text: Line,
    /// What to write instead.
    pub hint: Option<Line>,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The line's text, made safe for a terminal, secrets masked, cut to a readable length.
    excerpt: String,
    /// Columns before the caret.
    indent: usize,
    /// Carets.
    carets: usize,
}

impl Finding {
    /// About the whole file.
    pub fn about_file(file: &Path, text: Line) -> Self {
        Self { file: shown(file), place: None, key: String::new(), text, hint: None }
    }

    /// With what to write instead.
    pub fn with_hint(mut self, hint: Line) -> Self {
        self.hint = Some(hint);
        self
    }

    /// The finding as a person reads it: `file:line:col: key: what`, the line with a caret under it, and what to do.
    pub fn render(&self, lang: Lang) -> String {
        let mut text = self.file.clone();
        if let Some(place) = &self.place {
            let _ = write!(text, ":{}:{}", place.line, place.column);
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        if !self.key.is_empty() {
            let _ = write!(text, "{}: ", terminal::escape_line(&self.key));
        }
        text.push_str(&terminal::escape(self.text.get(lang)));
        if let Some(place) = &self.place {
            let number = place.line.to_string();
            let blank = " ".repeat(number.len());
            let (indent, carets) = (" ".repeat(place.indent), "^".repeat(place.carets));
            let _ = write!(text, "\n  {number} | {}\n  {blank} | {indent}{carets}", place.excerpt);
        }
        if let Some(hint) = &self.hint {
            let _ = write!(text, "\n  = {}", terminal::escape(hint.get(lang)));
        }
        text
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Lang::current()))
    }
}

pub(super) fn shown(path: &Path) -> String {
    terminal::escape_line(&path.to_string_lossy()).into_owned()
}

/// The text of a file with its name, for places.
#[derive(Clone)]
pub struct Source {
    /// The file as the caller named it.
    pub name: String,
    /// Its text, without a byte order mark.
    pub text: String,
}

impl Source {
    /// The place of a byte range.
    pub fn place(&self, at: Range<usize>) -> Place {
        const SIDE: usize = 60;
        let start = floor(&self.text, at.start);
        let end = floor(&self.text, at.end.max(start));
        let line_start = self.text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |newline| start + newline);
        let line = self.text[..start].bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = self.text[line_start..start].chars().count() + 1;
        // No person reads a line of thousands of characters, and masking looks at the whole of it.
        let masked: Vec<char> = if line_end - line_start > 2000 || self.is_continued(line_start) {
            vec!['…']
        } else {
            mask_line(self.text[line_start..line_end].trim_end_matches('\r')).chars().collect()
        };
        let first = if masked.len() > 1 { (column - 1).saturating_sub(SIDE) } else { 0 };
        let window: String = masked.iter().skip(first).take(2 * SIDE).collect();
        let before: String = masked.iter().skip(first).take((column - 1).saturating_sub(first).min(SIDE)).collect();
        let marked = self.text[start..end.min(line_end)].chars().take(2 * SIDE).collect::<String>();
        Place {
            line,
            column,
            excerpt: terminal::escape_line(&window.replace('\t', " ")).into_owned(),
            indent: terminal::width(&terminal::escape_line(&before.replace('\t', " "))),
            carets: terminal::width(&marked).clamp(1, SIDE),
        }
    }

    /// Whether a line begins inside a `"""` or `'''` string: it may be the rest of a secret and is not shown.
    fn is_continued(&self, line_start: usize) -> bool {
        let before = &self.text[..line_start];
        before.matches("\"\"\"").count() % 2 == 1 || before.matches("'''").count() % 2 == 1
    }

    /// The line number of a byte offset.
    pub fn line_of(&self, offset: usize) -> usize {
        self.text[..floor(&self.text, offset)].bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    pub(super) fn finding(&self, at: Option<Range<usize>>, key: impl Into<String>, text: Line) -> Finding {
        Finding { file: self.name.clone(), place: at.map(|at| self.place(at)), key: key.into(), text, hint: None }
    }
}

fn floor(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// A key whose strings are secret by its name.
pub fn is_secret_name(key: &str) -> bool {
    // `max_tokens_field` and the like count a model's tokens.
    let key = key.to_ascii_lowercase().replace("max_tokens", "");
    ["secret", "token", "key", "passw", "cookie", "credential", "authorization"].iter().any(|word| key.contains(word))
}

/// One line of the file with the values of secret keys and passwords in addresses replaced by as many `*`. Works on text
/// that does not parse, so it masks too much rather than too little.
fn mask_line(line: &str) -> String {
    let mut out: Vec<char> = line.chars().collect();
    let mut i = 0;
    while i < out.len() {
        if out[i] == '=' {
            let mut key_start = i;
            while key_start > 0 && !matches!(out[key_start - 1], '{' | ',' | '[') {
                key_start -= 1;
            }
            let key: String = out[key_start..i].iter().collect();
            if is_secret_name(&key) {
                i = mask_value(&mut out, i + 1);
                continue;
            }
        }
        i += 1;
    }
    mask_userinfo(&mut out);
    out.into_iter().collect()
}

/// Masks from after `=` to the end of the value; returns where it ends.
fn mask_value(out: &mut [char], from: usize) -> usize {
    let mut i = from;
    while i < out.len() && out[i].is_whitespace() {
        i += 1;
    }
    let rest: String = out[i.min(out.len())..].iter().collect();
    // `"${NAME}"` shows nothing secret and is what a reader needs to see.
    for quote in ['"', '\''] {
        if let Some(body) = rest.strip_prefix(quote)
            && let Some(end) = body.find(quote)
            && is_reference(&body[..end])
        {
            return i + body[..end].chars().count() + 2;
        }
    }
    let quote = out.get(i).copied().filter(|c| matches!(c, '"' | '\'' | '[' | '{'));
    let stop = match quote {
        Some(quote @ ('"' | '\'')) => {
            i += 1;
            out[i..].iter().position(|c| *c == quote).map(|n| i + n)
        }
        Some(_) => None,
        None => out[i..].iter().position(|c| matches!(c, ',' | '}' | '#')).map(|n| i + n),
    };
    let end = stop.unwrap_or(out.len());
    for c in &mut out[i..end] {
        if !c.is_whitespace() {
            *c = '*';
        }
    }
    (end + 1).min(out.len()).max(from)
}

fn is_reference(text: &str) -> bool {
    text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).is_some_and(super::env::is_name)
}

fn mask_userinfo(out: &mut [char]) {
    let mut i = 0;
    while i + 2 < out.len() {
        if out[i] == ':' && out[i + 1] == '/' && out[i + 2] == '/' {
            let rest = i + 3;
            let end = out[rest..]
                .iter()
                .position(|c| c.is_whitespace() || matches!(c, '/' | '"' | '\''))
                .map_or(out.len(), |n| rest + n);
            if let Some(at) = out[rest..end].iter().rposition(|c| *c == '@') {
                for c in &mut out[rest..rest + at] {
                    *c = '*';
                }
            }
        }
        i += 1;
    }
}

/// An address without its user and password, for `config show` and errors.
pub fn mask_address(text: &str) -> String {
    let mut out: Vec<char> = text.chars().collect();
    mask_userinfo(&mut out);
    out.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { name: "config.toml".into(), text: text.into() }
    }

    #[test]
    fn secrets_are_masked_in_excerpts_even_when_the_line_does_not_parse() {
        let table = [
            ("token = \"abc def\" # x", "token = \"*** ***\" # x"),
            ("api_key = \"sk-unclosed", "api_key = \"***********"),
            ("a = { secret = 'x1', text = \"/content\" }", "a = { secret = '**', text = \"/content\" }"),
            ("api_key = \"${OPENAI_KEY}\"", "api_key = \"${OPENAI_KEY}\""),
            ("url = \"postgres://me:pw@host/db\"", "url = \"postgres://*****@host/db\""),
            ("bot_token = 123456:abc", "bot_token = **********"),
            ("listen = \"127.0.0.1:3002\"", "listen = \"127.0.0.1:3002\""),
            ("max_tokens_field = \"max_tokens\"", "max_tokens_field = \"max_tokens\""),
        ];
        for (line, masked) in table {
            assert_eq!(mask_line(line), masked);
        }
    }

    #[test]
    fn the_caret_stands_under_the_place_with_wide_characters_before_it() {
        let text = "[agent]\r\n# 你好\r\n名 = 1, x = 2\r\n";
        let start = text.find("x = 2").expect("in the text");
        let place = source(text).place(start..start + 1);
        assert_eq!((place.line, place.column, place.indent, place.carets), (3, 8, 8, 1));
    }

    #[test]
    fn long_lines_and_offsets_beyond_the_end_are_harmless() {
        for (length, shown) in [(500, 120), (5000, 1)] {
            let text = format!("x = \"{}\"", "é".repeat(length));
            let place = source(&text).place(400..999_999);
            assert_eq!(place.excerpt.chars().count(), shown);
        }
        assert_eq!(source("").place(5..9).line, 1);
    }
}
