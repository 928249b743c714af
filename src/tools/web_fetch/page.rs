//! A web page as text: the article in it as Markdown or plain text, else everything readable of it.
//!
//! Pages are hostile input for a parser as much as for a model: a few kilobytes of unclosed tags can cost minutes and
//! gigabytes. So the page is first read tag by tag, in linear time, into a tame copy (no scripts, no styles, no
//! unclosed formatting, few attributes, bounded in tags and depth); only a tame page meets the parser. Pure.

use std::borrow::Cow;

use dom_smoothie::{Config, Readability, TextMode};

/// What a page says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Its title; may be empty.
    pub title: String,
    /// Its text; empty when there is none.
    pub text: String,
}

/// The shape of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Headings, lists, links, tables.
    #[default]
    Markdown,
    /// The words alone.
    Text,
}

/// More tags than this: the page is read without the parser.
const TAGS: usize = 60_000;
/// More tags than this: no article is looked for, since that takes the square of it; the page is shown whole.
const ARTICLE_TAGS: usize = 20_000;
/// More than this many signs that are escaped times bytes: no article is looked for. Writing one out (html5ever 0.40's
/// `write_escaped`) reads all the rest of a text again at each `&` and at each character from U+0080 to U+00BF.
const ESCAPES: usize = 2_000_000_000;
/// The same as [`TAGS`] for elements inside each other; also the parser's limit.
const DEPTH: usize = 200;
/// The most bytes of an attribute's value (data of pictures is longer), and the most attributes of a tag.
const VALUE: usize = 2_048;
const ATTRIBUTES: usize = 24;
/// An article shorter than this, in a page with twice as much text, is taken for a mistake.
const ARTICLE: usize = 300;

/// Reads a page that came from `url`.
pub fn readable(html: &str, url: &str, form: Form) -> Page {
    let tame = Tame::of(html);
    let parsed = if tame.wild { None } else { tame.parsed(url, form) };
    parsed.unwrap_or_else(|| Page { title: one_line(&unescaped(&tame.title)), text: tidy(&unescaped(&tame.text)) })
}

/// A page after the first reading.
#[derive(Default)]
struct Tame {
    html: String,
    /// The words alone, still with entities.
    text: String,
    title: String,
    tags: usize,
    /// Too much of it for the parser: only the words count.
    wild: bool,
}

/// Elements whose content is no text of the page.
const DROPPED: &[&str] =
    &["script", "style", "svg", "iframe", "noembed", "noframes", "template", "object", "applet", "canvas", "math"];
/// Tags that are taken off, their content stays: formatting that a parser carries over into everything after it when it
/// is not closed, and tags that change how the rest is read.
const UNWRAPPED: &[&str] = &[
    "b",
    "big",
    "em",
    "font",
    "i",
    "nobr",
    "s",
    "small",
    "strike",
    "strong",
    "tt",
    "u",
    "plaintext",
    "xmp",
    "listing",
    "frameset",
    "frame",
    "base",
    "noscript",
    "marquee",
    "embed",
    "param",
    "link",
];
/// Formatting that is kept, but never across the bounds of another element.
const INLINE: &[&str] = &["a", "code"];
/// Elements that may stand inside those.
const INSIDE: &[&str] = &["span", "img", "br", "sub", "sup", "wbr", "abbr", "kbd", "mark", "time", "cite", "q"];
const VOID: &[&str] = &["area", "br", "col", "hr", "img", "input", "meta", "source", "track", "wbr"];
/// Elements whose end is often left out; they cannot nest without another element between.
const LOOSE: &[&str] =
    &["p", "li", "dt", "dd", "tr", "td", "th", "option", "thead", "tbody", "tfoot", "html", "head", "body"];
const KEPT: &[&str] = &[
    "href",
    "src",
    "alt",
    "title",
    "class",
    "id",
    "role",
    "lang",
    "dir",
    "name",
    "property",
    "content",
    "colspan",
    "rowspan",
    "start",
    "type",
    "itemprop",
    "rel",
    "datetime",
    "style",
    "hidden",
    "aria-hidden",
];
const BLOCKS: &[&str] = &[
    "address",
    "article",
    "aside",
    "blockquote",
    "br",
    "div",
    "dd",
    "dl",
    "dt",
    "figure",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "hr",
    "li",
    "main",
    "nav",
    "ol",
    "option",
    "p",
    "pre",
    "section",
    "table",
    "tr",
    "ul",
];

impl Tame {
    fn of(html: &str) -> Self {
        let mut tame = Self { html: String::with_capacity(html.len()), ..Self::default() };
        // Open elements that do not close by themselves. An end tag closes all above its element or is left out, so
        // that the parser sees no other nesting than this one.
        let mut open: Vec<String> = Vec::new();
        // Open links and code, the outer first; never one twice.
        let mut inline: Vec<&'static str> = Vec::new();
        let mut rest = html;
        while let Some(at) = rest.find('<') {
            tame.say(&rest[..at]);
            rest = &rest[at..];
            let Some(tag) = Tag::read(rest) else {
                let after = after_markup(rest);
                if after.is_none() {
                    tame.say("&lt;");
                }
                rest = after.unwrap_or(&rest[1..]);
                continue;
            };
            rest = &rest[tag.length..];
            let name = tag.name.to_ascii_lowercase();
            let name = name.as_str();
            if DROPPED.contains(&name) {
                if !tag.closing && !tag.closed {
                    rest = after_end_of(rest, name).1;
                }
                continue;
            }
            if matches!(name, "title" | "textarea") {
                if !tag.closing {
                    let (content, after) = after_end_of(rest, name);
                    rest = after;
                    if name == "title" && tame.title.is_empty() {
                        tame.title = content.to_owned();
                        tame.html.push_str(&format!("<title>{}</title>", content.replace('<', "&lt;")));
                    }
                }
                continue;
            }
            tame.tags += 1;
            if tame.tags > TAGS || open.len() > DEPTH {
                tame.wild = true;
                tame.html = String::new();
            }
            if BLOCKS.contains(&name) && !tame.text.ends_with('\n') {
                tame.text.push('\n');
            } else if matches!(name, "td" | "th") {
                tame.text.push(' ');
            }
            if tame.wild || UNWRAPPED.contains(&name) {
                continue;
            }
            if let Some(name) = INLINE.iter().find(|inline| **inline == name).copied() {
                if let Some(at) = inline.iter().position(|open| *open == name) {
                    tame.close(&mut inline, at);
                }
                if !tag.closing {
                    tag.write(&mut tame.html, name);
                    inline.push(name);
                }
                continue;
            }
            if !INSIDE.contains(&name) {
                tame.close(&mut inline, 0);
            }
            if VOID.contains(&name) || LOOSE.contains(&name) {
                tag.write(&mut tame.html, name);
            } else if !tag.closing {
                tag.write(&mut tame.html, name);
                open.push(name.to_owned());
            } else if let Some(at) = open.iter().rposition(|open| open == name) {
                for name in open.drain(at..).rev() {
                    tame.html.push_str(&format!("</{name}>"));
                }
            }
        }
        tame.say(rest);
        tame
    }

    /// Closes what is open from `at` on, the inner first.
    fn close(&mut self, inline: &mut Vec<&'static str>, at: usize) {
        for name in inline.drain(at..).rev() {
            self.html.push_str(&format!("</{name}>"));
        }
    }

    fn say(&mut self, text: &str) {
        self.text.push_str(text);
        if !self.wild {
            self.html.push_str(text);
        }
    }

    /// The article of the page, else all of it; `None` when it is too deep, or holds no text.
    fn parsed(&self, url: &str, form: Form) -> Option<Page> {
        let text_mode = match form {
            Form::Markdown => TextMode::Markdown,
            Form::Text => TextMode::Formatted,
        };
        let config = Config { text_mode, disable_json_ld: true, max_elements_to_parse: TAGS, ..Config::default() };
        let mut reader = Readability::new(self.html.as_str(), Some(url), Some(config)).ok()?;
        if !is_flat(&reader) {
            return None;
        }
        let whole = match form {
            Form::Markdown => reader.doc.md(None),
            Form::Text => reader.doc.select("body").formatted_text(),
        };
        let whole = tidy(&plain_links(&whole));
        let escapes = self.html.bytes().filter(|byte| matches!(byte, b'&' | 0xc2)).count();
        let cheap = self.tags <= ARTICLE_TAGS && escapes.saturating_mul(self.html.len()) <= ESCAPES;
        let article = if cheap { reader.parse().ok() } else { None };
        let title = article.as_ref().map_or_else(|| unescaped(&self.title), |article| article.title.clone());
        let text = article.map(|article| tidy(&plain_links(&article.text_content))).filter(|text| {
            let chars = text.chars().count();
            chars >= ARTICLE || (chars > 0 && whole.chars().count() < 2 * chars)
        });
        Some(Page { title: one_line(&title), text: text.unwrap_or(whole) }).filter(|page| !page.text.is_empty())
    }
}

/// Markdown with the addresses of its links as they are fetched, `&amp;` being `&`.
fn plain_links(markdown: &str) -> String {
    let mut out = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some(at) = rest.find("](") {
        let end = rest[at..].find([')', '\n', ' ']).map_or(rest.len(), |end| at + end);
        out.push_str(&rest[..at]);
        out.push_str(&rest[at..end].replace("&amp;", "&"));
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// No element of the parsed page lies deeper than [`DEPTH`] (what comes after recurses).
fn is_flat(reader: &Readability) -> bool {
    let mut waiting = vec![(reader.doc.root(), 0usize)];
    while let Some((node, depth)) = waiting.pop() {
        if depth > DEPTH {
            return false;
        }
        waiting.extend(node.children_it(false).map(|child| (child, depth + 1)));
    }
    true
}

/// A tag at the beginning of a text.
struct Tag<'a> {
    name: &'a str,
    closing: bool,
    /// `<… />`.
    closed: bool,
    attributes: Vec<(&'a str, &'a str)>,
    /// Bytes up to and with its `>`.
    length: usize,
}

impl<'a> Tag<'a> {
    /// Reads one as browsers do; `None` when here is none, or it does not end.
    fn read(text: &'a str) -> Option<Self> {
        let bytes = text.as_bytes();
        let closing = bytes.get(1) == Some(&b'/');
        let start = if closing { 2 } else { 1 };
        if !bytes.get(start)?.is_ascii_alphabetic() {
            return None;
        }
        let space = |byte: u8| byte.is_ascii_whitespace();
        let until = |from: usize, stop: &dyn Fn(u8) -> bool| {
            bytes[from..].iter().position(|byte| stop(*byte)).map(|at| from + at)
        };
        let mut at = until(start, &|byte| space(byte) || matches!(byte, b'/' | b'>'))?;
        let mut tag = Self { name: &text[start..at], closing, closed: false, attributes: Vec::new(), length: 0 };
        loop {
            at = until(at, &|byte| !space(byte) && byte != b'/')?;
            if bytes[at] == b'>' {
                tag.closed = bytes[at - 1] == b'/';
                tag.length = at + 1;
                return Some(tag);
            }
            // A `=` here begins a name, odd as it is.
            let end = until(at + 1, &|byte| space(byte) || matches!(byte, b'/' | b'>' | b'='))?;
            // Names of more than one byte may begin with any character.
            let name = text.get(at..end).unwrap_or_default();
            at = until(end, &|byte| !space(byte))?;
            let mut value = "";
            if bytes[at] == b'=' {
                at = until(at + 1, &|byte| !space(byte))?;
                let (from, to) = match bytes[at] {
                    quote @ (b'"' | b'\'') => (at + 1, until(at + 1, &|byte| byte == quote)?),
                    _ => (at, until(at, &|byte| space(byte) || byte == b'>')?),
                };
                value = text.get(from..to).unwrap_or_default();
                at = if from > at { to + 1 } else { to };
            }
            if tag.attributes.len() < ATTRIBUTES && value.len() <= VALUE {
                tag.attributes.push((name, value));
            }
        }
    }

    fn write(&self, html: &mut String, name: &str) {
        html.push_str(if self.closing { "</" } else { "<" });
        html.push_str(name);
        if !self.closing {
            for (name, value) in &self.attributes {
                if KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(name)) {
                    html.push_str(&format!(" {name}=\"{}\"", value.replace('"', "&quot;")));
                }
            }
        }
        html.push('>');
    }
}

/// What comes after a comment, a declaration or a tag that does not end; `None` when `<` is only a character here.
fn after_markup(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    match bytes.get(1)? {
        b'!' if text.starts_with("<!--") => Some(text[4..].find("-->").map_or("", |end| &text[4 + end + 3..])),
        b'!' | b'?' => Some(text.find('>').map_or("", |end| &text[end + 1..])),
        b'/' => Some(text.find('>').map_or("", |end| &text[end + 1..])),
        letter if letter.is_ascii_alphabetic() => Some(""),
        _ => None,
    }
}

/// The content up to the end tag of that name, and what comes after it.
fn after_end_of<'a>(text: &'a str, name: &str) -> (&'a str, &'a str) {
    let mut from = 0;
    while let Some(at) = text[from..].find("</").map(|at| from + at) {
        let after = at + 2 + name.len();
        if text.as_bytes().get(at + 2..after).is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes())) {
            let rest = &text[after..];
            return (&text[..at], rest.find('>').map_or("", |end| &rest[end + 1..]));
        }
        from = at + 2;
    }
    ("", "")
}

/// The entities that plain text is full of.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.as_bytes().iter().take(12).position(|byte| *byte == b';');
        match end.and_then(|end| Some((entity(&rest[1..end])?, end))) {
            Some((c, end)) => {
                out.push(c);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn entity(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => number.parse(),
        };
        return char::from_u32(code.ok()?);
    }
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => ' ',
        "middot" => '·',
        "hellip" => '…',
        "mdash" => '—',
        "ndash" => '–',
        "copy" => '©',
        "deg" => '°',
        _ => return None,
    })
}

/// Without space at line ends, and at most one empty line in a row.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut empty = 0;
    for line in text.lines() {
        let line = line.trim_end();
        if line.trim_start().is_empty() {
            empty += 1;
            continue;
        }
        if !out.is_empty() {
            out.push_str(if empty > 0 { "\n\n" } else { "\n" });
        }
        empty = 0;
        out.push_str(line);
    }
    out
}

fn one_line(text: &str) -> String {
    let words: Vec<Cow<'_, str>> = text.split_whitespace().map(Cow::Borrowed).collect();
    words.join(" ").chars().take(300).collect()
}

#[cfg(test)]
mod tests;
