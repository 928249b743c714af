//! Markdown as plain text: the marks go, the words and lines stay as they are written. Pure.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag};

/// `markdown` without its marks. Lists, tables and quotes read well as they are and stay; a link's address follows its
/// words in brackets.
pub fn plain(markdown: &str) -> String {
    let options = Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TABLES;
    let mut cuts = Cuts { source: markdown, edits: Vec::new() };
    for (event, range) in Parser::new_ext(markdown, options).into_offset_iter() {
        cuts.take(event, range);
    }
    cuts.text()
}

struct Cuts<'a> {
    source: &'a str,
    /// What is replaced by what.
    edits: Vec<(Range<usize>, String)>,
}

impl Cuts<'_> {
    fn take(&mut self, event: Event<'_>, range: Range<usize>) {
        match event {
            Event::Start(Tag::Strong) => self.both_ends(range, 2),
            Event::Start(Tag::Emphasis) => self.both_ends(range, 1),
            Event::Start(Tag::Strikethrough) => {
                let marks = if self.source[range.clone()].starts_with("~~") { 2 } else { 1 };
                self.both_ends(range, marks);
            }
            Event::Start(Tag::Heading { .. }) => {
                let line = &self.source[range.clone()];
                let text = line.trim_start_matches('#');
                if text.len() < line.len() {
                    let words = text.trim_start_matches([' ', '\t']);
                    self.cut(range.start..range.start + (line.len() - words.len()));
                }
            }
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => self.fence(range),
            Event::Code(code) => self.edits.push((range, code.into_string())),
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => self.link(range, &dest_url),
            Event::Text(text) => {
                let escaped = range.start > 0 && self.source.as_bytes()[range.start - 1] == b'\\';
                if escaped && self.source[range.clone()].starts_with(|c: char| c.is_ascii_punctuation()) {
                    self.cut(range.start - 1..range.start);
                }
                if self.source[range.clone()].starts_with('&') && *text != self.source[range.clone()] {
                    self.edits.push((range, text.into_string()));
                }
            }
            _ => {}
        }
    }

    fn cut(&mut self, range: Range<usize>) {
        self.edits.push((range, String::new()));
    }

    fn both_ends(&mut self, range: Range<usize>, marks: usize) {
        if range.len() >= 2 * marks {
            self.cut(range.start..range.start + marks);
            self.cut(range.end - marks..range.end);
        }
    }

    /// The lines of the fence go, the code stays.
    fn fence(&mut self, range: Range<usize>) {
        let block = &self.source[range.clone()];
        let mark = if block.starts_with('~') { '~' } else { '`' };
        let first = block.find('\n').map_or(block.len(), |end| end + 1);
        self.cut(range.start..range.start + first);
        let body = block[first..].trim_end();
        let last = body.rfind('\n').map_or(0, |end| end + 1);
        let closing = body[last..].trim_start_matches(['>', ' ']);
        if closing.len() >= 3 && closing.chars().all(|c| c == mark) {
            // With the line break before it.
            self.cut(range.start + first + last.saturating_sub(1)..range.start + first + body.len());
        }
    }

    fn link(&mut self, range: Range<usize>, url: &str) {
        let link = &self.source[range.clone()];
        let start = if link.starts_with("![") { 2 } else { 1 };
        if link.starts_with('<') && link.ends_with('>') {
            self.both_ends(range, 1);
            return;
        }
        if let (true, Some(middle)) = (link.starts_with(['[', '!']), link.rfind("](")) {
            let words = link.get(start..middle).unwrap_or_default();
            let tail = if words == url || url.is_empty() { String::new() } else { format!(" ({url})") };
            self.cut(range.start..range.start + start);
            self.edits.push((range.start + middle..range.end, tail));
        }
    }

    fn text(mut self) -> String {
        self.edits.sort_by_key(|(range, _)| (range.start, range.end));
        let mut text = String::with_capacity(self.source.len());
        let mut at = 0;
        for (range, instead) in self.edits {
            // What lies in something that was replaced already is gone with it.
            if range.start < at
                || !self.source.is_char_boundary(range.start)
                || !self.source.is_char_boundary(range.end)
            {
                continue;
            }
            text.push_str(&self.source[at..range.start]);
            text.push_str(&instead);
            at = range.end;
        }
        text.push_str(&self.source[at..]);
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn marks_go_and_words_stay() {
        let table = [
            ("**bold** _leaning_ `code` ~~gone~~", "bold leaning code gone"),
            ("***both***", "both"),
            ("# Title\n\ntext", "Title\n\ntext"),
            ("- one\n  - **two**\n\n1. three", "- one\n  - two\n\n1. three"),
            ("[here](https://a.org/x) and <https://b.org>", "here (https://a.org/x) and https://b.org"),
            ("[https://a.org](https://a.org)", "https://a.org"),
            ("![cat](https://a.org/c.png)", "cat (https://a.org/c.png)"),
            ("before\n\n```rust\nlet x = 1;\n```\n\nafter", "before\n\nlet x = 1;\n\nafter"),
            ("```\nopen", "open"),
            ("| a | b |\n|---|---|\n| 1 | 2 |", "| a | b |\n|---|---|\n| 1 | 2 |"),
            ("> quoted **word**", "> quoted word"),
            ("2 \\* 3 &lt; 7 &amp; <b>x</b>", "2 * 3 < 7 & <b>x</b>"),
            ("half **open _markup `here", "half **open _markup `here"),
        ];
        for (markdown, expected) in table {
            assert_eq!(plain(markdown), expected, "{markdown}");
        }
    }

    proptest! {
        #[test]
        fn any_text_loses_no_letter(text in "([a-z龙🎉]|\\*{1,3}|_|`{1,3}|\n|\\[|\\]\\(|\\)|<|>|~~|#|- |\\\\|&lt;|!){0,40}") {
            let read = plain(&text.replace("&lt;", " ").replace("```", "`"));
            let mut rest = read.chars();
            for wanted in text.replace("&lt;", " ").chars().filter(|c| c.is_alphanumeric()) {
                prop_assert!(rest.any(|c| c == wanted), "{text:?} became {read:?}");
            }
        }
    }
}
