//! Markdown as models write it becomes text that reads well without any markup: QQ shows none. Lists, quotes, tables and
//! code are laid out as lines, links become `words (address)`. What is no Markdown stands as it was written. Pure.

use channel_api::{TextUnit, split};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The most bytes of Markdown that are read.
const MOST_BYTES: usize = 256 * 1024;
/// The deepest indentation that is shown.
const DEEPEST: usize = 6;

/// The text that `source` shows. `false`: it was so long that its end is missing.
pub fn plain(source: &str) -> (String, bool) {
    let source = clean(source);
    let end = source.floor_char_boundary(MOST_BYTES);
    let (letters, changed) = lean_letters(&source[..end]);
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let parser = Parser::new_ext(&letters, options);
    let definitions: Vec<(String, String)> = parser
        .reference_definitions()
        .iter()
        .map(|(label, definition)| (label.to_owned(), definition.dest.to_string()))
        .collect();
    let mut writer = Writer { changed, ..Writer::default() };
    for event in parser {
        writer.event(event);
    }
    for (label, address) in definitions {
        let (label, address) = (writer.restored(&label), writer.restored(&address));
        // One that no link used would be lost.
        if !writer.out.contains(&address) {
            writer.block(1);
            writer.write(&format!("{label}: {address}"));
        }
    }
    let out = writer.out.trim_end().trim_start_matches('\n').to_owned();
    // Nothing but markup: shown as it stands.
    let out = if out.trim().is_empty() { source[..end].trim().to_owned() } else { out };
    (out, end == source.len())
}

/// The pieces of a text, at most `limit` characters each. Indentation at the beginning of a line stays.
pub fn pieces(text: &str, limit: usize) -> Vec<String> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    let mut new_line = true;
    while !rest.trim().is_empty() {
        rest = if new_line { rest.trim_start_matches(['\n', '\r']) } else { rest.trim_start() };
        // A line of nothing but spaces before the words.
        while let Some((line, more)) = rest.split_once('\n').filter(|(line, _)| line.trim().is_empty()) {
            let _ = line;
            rest = more;
        }
        let cut = split::piece(rest, limit, TextUnit::Chars);
        let piece = rest[..cut].trim_end();
        if !piece.is_empty() {
            pieces.push(piece.to_owned());
        }
        new_line = rest[..cut].ends_with('\n') || rest[cut..].starts_with('\n');
        rest = &rest[cut..];
    }
    pieces
}

/// Without what no chat shows: NUL and other control characters; line ends are `\n`.
fn clean(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' if chars.peek() == Some(&'\n') => {}
            '\r' => text.push('\n'),
            '\n' | '\t' => text.push(c),
            '\u{7F}'..='\u{9F}' | '\u{FEFF}' => {}
            c if c < ' ' => {}
            c => text.push(c),
        }
    }
    text
}

/// Punctuation and the first letter that stands for it while Markdown is read; all of them take three bytes.
///
/// By CommonMark's rules `**重点：**内容` is not bold, for a closing mark between punctuation and a letter closes
/// nothing. Chinese puts no space there, so to the parser its punctuation has to look like letters.
const LEAN: [(std::ops::RangeInclusive<u32>, u32); 3] =
    [(0x3001..=0x303F, 0xF100), (0xFF01..=0xFF65, 0xF180), (0x2010..=0x2027, 0xF200)];

fn lean_letters(source: &str) -> (String, bool) {
    if source.chars().any(|c| (0xF100..=0xF2FF).contains(&u32::from(c))) {
        return (source.to_owned(), false);
    }
    let lean = |c: char| {
        let code = u32::from(c);
        let place = LEAN.iter().find(|(range, _)| range.contains(&code));
        place.and_then(|(range, first)| char::from_u32(code - range.start() + first)).unwrap_or(c)
    };
    (source.chars().map(lean).collect(), true)
}

fn restored(text: &str) -> String {
    let back = |c: char| {
        let code = u32::from(c);
        if !(0xF100..=0xF2FF).contains(&code) {
            return c;
        }
        let place = LEAN.iter().rev().find(|(_, first)| code >= *first);
        place.and_then(|(range, first)| char::from_u32(code - first + range.start())).unwrap_or(c)
    };
    text.chars().map(back).collect()
}

/// What stands at the beginning of each line.
enum Lead {
    Quote,
    /// The item's mark, until its first line is written; then as many spaces.
    Item {
        mark: Option<String>,
        width: usize,
    },
}

#[derive(Default)]
struct Writer {
    changed: bool,
    out: String,
    /// Newlines to write before the next characters.
    gap: usize,
    leads: Vec<Lead>,
    /// The number of the next item of each open list; `None`: dots.
    lists: Vec<Option<u64>>,
    /// The address of each open link or picture, and where its words begin.
    links: Vec<(String, usize)>,
    code: bool,
    /// The cells of the row that is open.
    row: Option<Vec<String>>,
    cell: Option<String>,
}

impl Writer {
    fn restored(&self, text: &str) -> String {
        if self.changed { restored(text) } else { text.to_owned() }
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) | Event::Code(text) => {
                let text = self.restored(&text);
                self.write(&text);
            }
            Event::InlineHtml(html) | Event::Html(html) => {
                let html = self.restored(&html);
                match html.trim().to_ascii_lowercase().as_str() {
                    "<br>" | "<br/>" | "<br />" => self.line_break(),
                    _ => self.write(&html),
                }
            }
            Event::SoftBreak | Event::HardBreak => self.line_break(),
            Event::Rule => {
                self.block(self.distance());
                self.write("————");
                self.block(self.distance());
            }
            Event::TaskListMarker(done) => self.write(if done { "☑ " } else { "☐ " }),
            Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => {
                let text = self.restored(&text);
                self.write(&text);
            }
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::Heading { .. } | Tag::HtmlBlock | Tag::Table(_) => self.block(self.distance()),
            Tag::BlockQuote(_) => {
                self.block(self.distance());
                self.leads.push(Lead::Quote);
            }
            Tag::CodeBlock(kind) => {
                self.block(self.distance());
                self.code = true;
                // The language is worth a word only where a reader may need it to know what this is.
                let _: CodeBlockKind<'_> = kind;
            }
            Tag::List(first) => {
                self.block(self.distance());
                self.lists.push(first);
            }
            Tag::Item => {
                self.block(1);
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        let mark = format!("{number}. ");
                        *number = number.saturating_add(1);
                        mark
                    }
                    _ => "• ".to_owned(),
                };
                let width = mark.chars().count();
                self.leads.push(Lead::Item { mark: Some(mark), width });
            }
            Tag::TableHead | Tag::TableRow => {
                self.block(1);
                self.row = Some(Vec::new());
            }
            Tag::TableCell => self.cell = Some(String::new()),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                let address = self.restored(&dest_url);
                let start = self.cell.as_ref().unwrap_or(&self.out).len();
                self.links.push((address, start));
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::HtmlBlock | TagEnd::Table => self.block(self.distance()),
            TagEnd::CodeBlock => {
                self.code = false;
                self.block(self.distance());
            }
            TagEnd::BlockQuote(_) => {
                self.leads.pop();
                self.block(self.distance());
            }
            TagEnd::List(_) => {
                self.lists.pop();
                self.block(self.distance());
            }
            TagEnd::Item => {
                if let Some(Lead::Item { mark: Some(_), .. }) = self.leads.last() {
                    self.write("\u{200B}");
                    self.out.pop();
                }
                self.leads.pop();
                self.block(1);
            }
            TagEnd::TableCell => {
                if let (Some(cell), Some(row)) = (self.cell.take(), &mut self.row) {
                    row.push(cell.trim().to_owned());
                }
            }
            TagEnd::TableHead | TagEnd::TableRow => {
                let row = self.row.take().unwrap_or_default().join(" | ");
                self.write(if row.trim().is_empty() { "|" } else { &row });
                self.block(1);
            }
            TagEnd::Link | TagEnd::Image => {
                let Some((address, start)) = self.links.pop() else { return };
                let shown = self.cell.as_ref().unwrap_or(&self.out);
                let words = shown.get(start..).unwrap_or_default().trim();
                let same = address.strip_prefix("mailto:").unwrap_or(&address) == words;
                if address.is_empty() || same {
                    return;
                }
                match words.is_empty() {
                    true => self.write(&address),
                    false => self.write(&format!(" ({address})")),
                }
            }
            _ => {}
        }
    }

    /// The newlines between blocks: within an item they stand close.
    fn distance(&self) -> usize {
        if self.leads.iter().any(|lead| matches!(lead, Lead::Item { .. })) { 1 } else { 2 }
    }

    fn block(&mut self, newlines: usize) {
        if self.cell.is_none() {
            self.gap = self.gap.max(newlines);
        }
    }

    fn line_break(&mut self) {
        match &mut self.cell {
            Some(cell) => cell.push(' '),
            None => self.gap = self.gap.max(1),
        }
    }

    fn write(&mut self, text: &str) {
        if let Some(cell) = &mut self.cell {
            cell.push_str(&text.replace('\n', " "));
            return;
        }
        for (n, line) in text.split('\n').enumerate() {
            if n > 0 {
                // Empty lines of code stay; elsewhere they are made by blocks alone.
                self.gap = if self.code { self.gap + 1 } else { self.gap.max(1) };
            }
            if line.is_empty() {
                continue;
            }
            if self.out.is_empty() || self.gap > 0 {
                if !self.out.is_empty() {
                    self.out.extend(std::iter::repeat_n('\n', self.gap));
                }
                self.gap = 0;
                self.lead();
            }
            self.out.push_str(line);
        }
    }

    fn lead(&mut self) {
        let skipped = self.leads.len().saturating_sub(DEEPEST);
        for (n, lead) in self.leads.iter_mut().enumerate() {
            let shown = n >= skipped;
            match lead {
                Lead::Quote if shown => self.out.push_str("> "),
                Lead::Quote => {}
                Lead::Item { mark, width } => match mark.take() {
                    Some(mark) => self.out.push_str(&mark),
                    None if shown => self.out.extend(std::iter::repeat_n(' ', *width)),
                    None => {}
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_becomes_readable_lines() {
        for (source, expected) in [
            ("**bold** _leaning_ `code` and ~~gone~~ words", "bold leaning code and gone words"),
            ("**重点：**内容，见*这里*。", "重点：内容，见这里。"),
            ("# Title\n\ntext\n\n## Next\ntext", "Title\n\ntext\n\nNext\n\ntext"),
            ("- one\n- two\n  - three\n    - four\n- five", "• one\n• two\n  • three\n    • four\n• five"),
            ("1. a\n2. b\n   - c\n\n3. d", "1. a\n2. b\n   • c\n3. d"),
            ("- [x] done\n- [ ] open\n-", "• ☑ done\n• ☐ open\n•"),
            ("> quoted\n> on\n\nafter", "> quoted\n> on\n\nafter"),
            (
                "see [the page](https://a.example/x) or <https://b.example>",
                "see the page (https://a.example/x) or https://b.example",
            ),
            ("![cat](https://a.example/cat.png)", "cat (https://a.example/cat.png)"),
            (
                "[x][1]\n\n[1]: https://a.example\n[2]: https://b.example",
                "x (https://a.example)\n\n2: https://b.example",
            ),
            ("| a | b |\n|---|---|\n| 1 | **2** |\n\nend", "a | b\n1 | 2\n\nend"),
            (
                "before\n\n```rust\nfn main() {\n\n    x();\n}\n```\n\nafter",
                "before\n\nfn main() {\n\n    x();\n}\n\nafter",
            ),
            ("a\n\n---\n\nb", "a\n\n————\n\nb"),
            ("line one\nline two<br>three", "line one\nline two\nthree"),
            ("<b>tag</b> &amp; [CQ:at,qq=all] @everyone", "<b>tag</b> & [CQ:at,qq=all] @everyone"),
            ("half **open _markup `here", "half **open _markup `here"),
            ("**", "**"),
            ("", ""),
        ] {
            assert_eq!(plain(source), (expected.to_owned(), true), "{source:?}");
        }
    }

    #[test]
    fn pieces_keep_indentation_and_lose_no_words() {
        let code = (0..40).map(|n| format!("    let x{n} = {n};")).collect::<Vec<_>>().join("\n");
        let cut = pieces(&code, 100);
        assert!(cut.len() > 5 && cut.iter().all(|piece| piece.chars().count() <= 100), "{cut:?}");
        assert!(cut.iter().all(|piece| piece.starts_with("    let")), "{cut:?}");
        assert_eq!(cut.join("\n"), code);
        assert_eq!(pieces(" \n\n a b", 2), [" a", "b"]);
        assert!(pieces(" \n ", 5).is_empty());
    }
}
