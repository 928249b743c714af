//! A model's Markdown as Feishu's cards and posts show it, and as plain text. Pure.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The most tables of one card; Feishu refuses the whole card above it.
pub const MOST_TABLES: usize = 5;

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

/// Fit for a card: nobody is named by it, pictures are links (a card knows only uploaded ones), and of the tables the ones
/// above `most` are shown as code.
pub fn for_card(text: &str, most: usize) -> String {
    let mut tables = 0;
    let mut inside_table = 0;
    // What is changed, from the back to the front: a range and what stands there instead.
    let mut changes: Vec<(Range<usize>, String)> = Vec::new();
    for (event, range) in parser(text).into_offset_iter() {
        match event {
            Event::Start(Tag::Table(_)) => {
                tables += 1;
                inside_table += 1;
                if tables > most {
                    let table = text[range.clone()].trim_end_matches('\n').to_owned();
                    let end = range.start + table.len();
                    changes.push((range.start..end, format!("```\n{table}\n```")));
                }
            }
            Event::End(TagEnd::Table) => inside_table -= 1,
            // In a table that is shown as code nothing is changed.
            Event::Start(Tag::Image { .. })
                if !(inside_table > 0 && tables > most) && text[range.start..].starts_with('!') =>
            {
                changes.push((range.start..range.start + 1, String::new()));
            }
            _ => {}
        }
    }
    let mut fit = text.to_owned();
    for (range, instead) in changes.into_iter().rev() {
        fit.replace_range(range, &instead);
    }
    harmless(&fit)
}

/// The same text, and `<at …>` names nobody in it: an unseen joiner stands behind the bracket. security.md row 31.
pub fn harmless(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let (before, from) = rest.split_at(at + 1);
        safe.push_str(before);
        let name = from.trim_start_matches([' ', '\t', '/']);
        let names = name.as_bytes().get(..2).is_some_and(|two| two.eq_ignore_ascii_case(b"at"))
            && !name[2..].starts_with(|c: char| c.is_ascii_alphanumeric());
        let person = name.as_bytes().get(..6).is_some_and(|six| six.eq_ignore_ascii_case(b"person"));
        if names || person {
            safe.push('\u{2060}');
        }
        rest = from;
    }
    safe.push_str(rest);
    safe
}

/// As people read it without markup; the Markdown itself where that would lose something.
pub fn plain(text: &str) -> String {
    let plain = Plain::default().read(text);
    let mut rest = plain.chars().filter(|c| c.is_alphanumeric());
    let whole = text.chars().filter(|c| c.is_alphanumeric()).all(|wanted| rest.any(|c| c == wanted));
    harmless(if whole && !plain.trim().is_empty() { &plain } else { text })
}

#[derive(Default)]
struct Plain {
    out: String,
    /// The open lists: the number of the next item, or none.
    lists: Vec<Option<u64>>,
    links: Vec<(String, usize)>,
    quotes: usize,
    first_cell: bool,
    /// What an open code block ends with.
    fence: &'static str,
}

impl Plain {
    fn read(mut self, text: &str) -> String {
        for event in parser(text) {
            self.event(event);
        }
        self.out.trim_matches('\n').to_owned()
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.out.push_str(&text),
            Event::Code(code) => self.out.push_str(&code),
            Event::SoftBreak | Event::HardBreak => self.line(),
            Event::Rule => {
                self.block();
                self.out.push_str("———");
            }
            Event::FootnoteReference(name) => self.out.push_str(&format!("[{name}]")),
            Event::TaskListMarker(_) | Event::InlineMath(_) | Event::DisplayMath(_) => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::Heading { .. } | Tag::HtmlBlock
                if !self.out.ends_with("• ") && !self.out.ends_with(". ") =>
            {
                self.block();
            }
            Tag::BlockQuote(_) => {
                self.block();
                self.quotes += 1;
                self.out.push_str("> ");
            }
            Tag::CodeBlock(kind) => {
                self.block();
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.fence = "```";
                self.out.push_str(&format!("```{language}\n"));
            }
            Tag::List(first) => {
                if self.lists.is_empty() {
                    self.block();
                }
                self.lists.push(first);
            }
            Tag::Item => {
                self.line();
                let depth = self.lists.len().saturating_sub(1);
                self.out.push_str(&"  ".repeat(depth.min(8)));
                match self.lists.last_mut() {
                    Some(Some(number)) => {
                        let mark = format!("{number}. ");
                        *number += 1;
                        self.out.push_str(&mark);
                    }
                    _ => self.out.push_str("• "),
                }
            }
            Tag::Table(_) => self.block(),
            Tag::TableHead | Tag::TableRow => {
                self.line();
                self.first_cell = true;
            }
            Tag::TableCell if !std::mem::take(&mut self.first_cell) => self.out.push_str(" | "),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push((dest_url.to_string(), self.out.len()));
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::BlockQuote(_) => self.quotes = self.quotes.saturating_sub(1),
            TagEnd::CodeBlock => {
                if !self.out.ends_with('\n') {
                    self.out.push('\n');
                }
                self.out.push_str(self.fence);
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                if let Some((link, from)) = self.links.pop()
                    && !link.is_empty()
                    && self.out.get(from..) != Some(link.as_str())
                {
                    self.out.push_str(&format!(" ({link})"));
                }
            }
            _ => {}
        }
    }

    /// A new line, unless one has just begun.
    fn line(&mut self) {
        if !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push('\n');
            self.out.push_str(&"> ".repeat(self.quotes.min(4)));
        }
    }

    /// A new paragraph.
    fn block(&mut self) {
        if self.out.is_empty() || self.out.ends_with("> ") {
            return;
        }
        let kept = self.out.trim_end_matches('\n').len();
        self.out.truncate(kept);
        self.out.push_str("\n\n");
        self.out.push_str(&"> ".repeat(self.quotes.min(4)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sixth_table_is_shown_as_code() {
        let table = "| a | b |\n|---|---|\n| 1 | 2 |";
        let text = [table; 6].join("\n\nand\n\n");
        let fit = for_card(&text, MOST_TABLES);
        assert!(fit.ends_with(&format!("and\n\n```\n{table}\n```")), "{fit}");
        assert_eq!(fit.matches("```").count(), 2);
        assert_eq!(for_card(&text, 6), text);
        assert_eq!(for_card(&text, 0).matches("```").count(), 12);
        let in_code = format!("```\n{text}\n```");
        assert_eq!(for_card(&in_code, 0), in_code, "a table in a fence is none");
    }

    #[test]
    fn nobody_is_named_by_what_a_model_writes() {
        for text in ["<at id=all></at>", "<at user_id=\"all\">x</at>", "< AT id=ou_1>", "</at>", "<person id='x'>"] {
            assert!(!for_card(text, 5).replace('\u{2060}', "").is_empty());
            let fit = for_card(text, 5).to_lowercase();
            assert!(
                !fit.contains("<at") && !fit.contains("< at") && !fit.contains("</at") && !fit.contains("<person"),
                "{fit}"
            );
            assert!(!plain(text).to_lowercase().contains("<at"));
        }
        assert_eq!(harmless("a < b, <attr>, <b>"), "a < b, <attr>, <b>");
    }

    #[test]
    fn a_picture_becomes_a_link() {
        let fit = for_card("see ![a cat](https://x.test/c.png) and `![no](y)`", 5);
        assert_eq!(fit, "see [a cat](https://x.test/c.png) and `![no](y)`");
    }

    #[test]
    fn plain_text_reads_well() {
        let text = "# Title\n\nSome **bold** and [a link](https://x.test) <https://y.test>.\n\n- one\n- two\n  1. three\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```rust\nlet a = 1;\n```\n";
        let expected = "Title\n\nSome bold and a link (https://x.test) https://y.test.\n\n• one\n• two\n  1. three\n\n> quoted\n\na | b\n1 | 2\n\n```rust\nlet a = 1;\n```";
        assert_eq!(plain(text), expected);
    }

    proptest! {
        #[test]
        fn any_text_keeps_its_letters(text in "(\\||-|\\n|#|`|\\*|_|!|\\[|\\]|\\(|\\)|<|>|at|a|数| |1\\.|&amp;|~){0,60}") {
            for fit in [for_card(&text, 1), for_card(&text, 0), plain(&text)] {
                let mut rest = fit.chars().filter(|c| c.is_alphanumeric());
                for wanted in text.chars().filter(|c| c.is_alphanumeric()) {
                    prop_assert!(rest.any(|c| c == wanted), "{text:?} -> {fit:?}");
                }
            }
        }
    }

    #[test]
    fn row_31_nobody_is_named_by_what_a_model_wrote() {
        for text in [
            "<at user_id=\"all\">x</at>",
            "<at id=all></at>",
            "< AT user_id='all'/>",
            "\\<at user_id=\"all\"\\>",
            "&lt;at user_id=\"all\"&gt;",
            "<person id=\"ou_1\"></person>",
            "**<at** id=all>",
        ] {
            for shown in [plain(text), for_card(text, MOST_TABLES)] {
                let lower = shown.to_lowercase().replace([' ', '/'], "");
                assert!(!lower.contains("<at") && !lower.contains("<person"), "{shown:?} of {text:?}");
            }
        }
    }
}
