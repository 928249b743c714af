//! Text with marks, as Telegram sees it: one visible string, and beside it which of its bytes are bold, code or a link.
//! It is cut into pieces here and each piece written as HTML or as plain text, so both forms have the same borders. Pure.

use std::{fmt::Write, ops::Range};

use channel_api::{TextUnit, split};

/// The most bytes of HTML in one message; a piece whose tags take more is sent without them.
const HTML_BYTES: usize = 32 * 1024;
/// A link is kept in one piece unless it is longer than this many bytes.
const WHOLE_BYTES: usize = 1024;

/// How one run of characters looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// In the block quote with this number.
    pub quote: Option<u32>,
    /// In this link, an index into the text's links.
    pub link: Option<u32>,
    /// In this code block, an index into the text's languages.
    pub pre: Option<u32>,
    /// Code within a line.
    pub code: bool,
    /// Bold.
    pub bold: bool,
    /// Italic.
    pub italic: bool,
    /// Struck through.
    pub strike: bool,
    /// Hidden until it is tapped.
    pub spoiler: bool,
    /// Shown in the plain form only: what the tags say in the other, such as the address of a link.
    pub plain_only: bool,
}

/// A run: from the end of the one before to `end`, in one style.
#[derive(Clone, Copy, Debug)]
struct Run {
    end: usize,
    style: Style,
}

/// Visible text and its marks.
#[derive(Clone, Debug, Default)]
pub struct Text {
    text: String,
    runs: Vec<Run>,
    links: Vec<String>,
    languages: Vec<String>,
    /// Ranges that are kept in one piece where that is possible, in order.
    whole: Vec<Range<usize>>,
}

/// One message's share of a [`Text`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its bytes.
    pub range: Range<usize>,
    /// The text goes on, and nothing of what follows will be sent.
    pub cut_off: bool,
}

impl Text {
    /// Adds characters in one style.
    pub fn push(&mut self, text: &str, style: Style) {
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        let end = self.text.len();
        match self.runs.last_mut() {
            Some(run) if run.style == style => run.end = end,
            _ => self.runs.push(Run { end, style }),
        }
    }

    /// A new link, for [`Style::link`].
    pub fn link(&mut self, url: &str) -> u32 {
        self.links.push(url.to_owned());
        u32::try_from(self.links.len() - 1).unwrap_or(u32::MAX)
    }

    /// A new code block in this language (empty: none), for [`Style::pre`].
    pub fn code_block(&mut self, language: &str) -> u32 {
        self.languages.push(language.to_owned());
        u32::try_from(self.languages.len() - 1).unwrap_or(u32::MAX)
    }

    /// What was added since byte `start` is kept in one piece, if it is short.
    pub fn keep_whole(&mut self, start: usize) {
        let end = self.text.len();
        let apart = self.whole.last().is_none_or(|last| last.end <= start);
        if start < end && end - start <= WHOLE_BYTES && apart {
            self.whole.push(start..end);
        }
    }

    /// The visible text, with what only the plain form shows.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The style of the last character.
    pub fn last_style(&self) -> Option<Style> {
        self.runs.last().map(|run| run.style)
    }

    /// Pieces of at most `limit` UTF-16 units each and at most `most` of them. When there would be more, the last one is
    /// marked and leaves `note` units free.
    pub fn pieces(&self, limit: usize, most: usize, note: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = self.after_white_space(0);
        while at < self.text.len() && pieces.len() < most {
            let last = pieces.len() + 1 == most;
            let mut cut = self.cut(at, limit);
            let cut_off = last && !self.is_blank(cut..self.text.len());
            if cut_off {
                cut = self.cut(at, limit.saturating_sub(note));
            }
            let range = at..at + self.text[at..cut].trim_end().len();
            // Code keeps its indentation, but lines of nothing are no message.
            if !self.is_blank(range.clone()) {
                pieces.push(Piece { range, cut_off });
            }
            at = self.after_white_space(cut);
        }
        pieces
    }

    /// Where a piece that begins at `at` ends.
    fn cut(&self, at: usize, limit: usize) -> usize {
        let cut = at + split::piece(&self.text[at..], limit, TextUnit::Utf16);
        let index = self.whole.partition_point(|whole| whole.end <= cut);
        match self.whole.get(index) {
            Some(whole) if whole.start < cut && !self.is_blank(at..whole.start.max(at)) => whole.start,
            _ => cut,
        }
    }

    /// Where the next piece begins: white space at a cut is dropped, the indentation of a line of code is not.
    fn after_white_space(&self, cut: usize) -> usize {
        let rest = &self.text[cut..];
        let next = cut + rest.len() - rest.trim_start().len();
        if next == self.text.len() || self.style_at(next).pre.is_none() {
            return next;
        }
        if self.text[cut..next].contains('\n') {
            return self.text[..next].rfind('\n').map_or(next, |newline| newline + 1);
        }
        if self.style_at(cut).pre.is_some() { cut } else { next }
    }

    /// Nothing of it would be seen with tags.
    fn is_blank(&self, range: Range<usize>) -> bool {
        self.runs_in(range).all(|(text, style)| style.plain_only || text.trim().is_empty())
    }

    fn style_at(&self, at: usize) -> Style {
        let index = self.runs.partition_point(|run| run.end <= at);
        self.runs.get(index).map_or(Style::default(), |run| run.style)
    }

    fn runs_in(&self, range: Range<usize>) -> impl Iterator<Item = (&str, Style)> {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        let mut at = range.start;
        self.runs[first..].iter().map_while(move |run| {
            let end = run.end.min(range.end);
            if at >= end {
                return None;
            }
            let text = &self.text[at..end];
            at = end;
            Some((text, run.style))
        })
    }

    /// A range as plain text.
    pub fn plain(&self, range: Range<usize>) -> &str {
        &self.text[range]
    }

    /// A range as Telegram's HTML: every tag that is opened is closed, in order.
    pub fn html(&self, range: Range<usize>) -> String {
        let mut html = String::with_capacity(range.len() * 5 / 4);
        let mut open: Vec<Tag> = Vec::new();
        for (text, style) in self.runs_in(range.clone()) {
            if style.plain_only {
                continue;
            }
            let wanted = Tag::of(style);
            let kept = open.iter().zip(&wanted).take_while(|(open, wanted)| open == wanted).count();
            for tag in open.drain(kept..).rev() {
                html.push_str(tag.closing(self));
            }
            for tag in &wanted[kept..] {
                self.open(*tag, &mut html);
            }
            open = wanted;
            escape(text, &mut html);
        }
        for tag in open.into_iter().rev() {
            html.push_str(tag.closing(self));
        }
        if html.len() > HTML_BYTES {
            html.clear();
            escape(&self.text[range], &mut html);
        }
        html
    }

    fn open(&self, tag: Tag, html: &mut String) {
        match tag {
            Tag::Quote(_) => html.push_str("<blockquote>"),
            Tag::Link(link) => {
                html.push_str("<a href=\"");
                escape(self.links.get(link as usize).map_or("", String::as_str), html);
                html.push_str("\">");
            }
            Tag::Spoiler => html.push_str("<tg-spoiler>"),
            Tag::Bold => html.push_str("<b>"),
            Tag::Italic => html.push_str("<i>"),
            Tag::Strike => html.push_str("<s>"),
            Tag::Code => html.push_str("<code>"),
            Tag::Pre(pre) => match self.language(pre) {
                "" => html.push_str("<pre>"),
                language => {
                    let _ = write!(html, "<pre><code class=\"language-{language}\">");
                }
            },
        }
    }

    /// Only characters that cannot leave the attribute.
    fn language(&self, pre: u32) -> &str {
        self.languages.get(pre as usize).map_or("", String::as_str)
    }
}

/// One HTML tag, in the order they are nested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Quote(u32),
    Link(u32),
    Spoiler,
    Bold,
    Italic,
    Strike,
    Code,
    Pre(u32),
}

impl Tag {
    /// Outermost first. Telegram allows nothing inside code, and neither link nor code in the other.
    fn of(style: Style) -> Vec<Self> {
        let mut tags = Vec::new();
        tags.extend(style.quote.map(Self::Quote));
        if let Some(pre) = style.pre {
            tags.push(Self::Pre(pre));
            return tags;
        }
        if style.code && style.link.is_none() {
            tags.push(Self::Code);
            return tags;
        }
        tags.extend(style.link.map(Self::Link));
        tags.extend(style.spoiler.then_some(Self::Spoiler));
        tags.extend(style.bold.then_some(Self::Bold));
        tags.extend(style.italic.then_some(Self::Italic));
        tags.extend(style.strike.then_some(Self::Strike));
        tags
    }

    fn closing(self, text: &Text) -> &'static str {
        match self {
            Self::Quote(_) => "</blockquote>",
            Self::Link(_) => "</a>",
            Self::Spoiler => "</tg-spoiler>",
            Self::Bold => "</b>",
            Self::Italic => "</i>",
            Self::Strike => "</s>",
            Self::Code => "</code>",
            Self::Pre(pre) if text.language(pre).is_empty() => "</pre>",
            Self::Pre(_) => "</code></pre>",
        }
    }
}

/// The four characters that mean something in Telegram's HTML.
pub fn escape(text: &str, html: &mut String) {
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            c => html.push(c),
        }
    }
}
