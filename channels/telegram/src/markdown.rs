//! Markdown as models write it becomes a [`Text`]: lists, quotes, tables and code laid out as lines, inline markup as
//! marks. What is no Markdown stands in the text as it was written, raw HTML too. Pure.

use std::ops::Range;

use pulldown_cmark::{Alignment, CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd, TextMergeWithOffset};

use crate::text::{Style, Text};

/// The most bytes of visible text that are laid out; more than fits the messages of one answer.
const MOST_BYTES: usize = 256 * 1024;
/// The most bytes of Markdown that are read.
const MOST_SOURCE_BYTES: usize = 384 * 1024;
/// The most cells of one table.
const MOST_CELLS: usize = 50_000;
/// The widest a column of a table is made, in columns of the screen; longer cells stick out.
const WIDEST_COLUMN: usize = 40;
/// The deepest indentation of a list and the most marks of a quote that are shown.
const DEEPEST: usize = 6;
/// The longest address that becomes a link; a longer one is shown.
const LONGEST_URL: usize = 512;

/// What `source` shows. `false`: it was so long that its end is missing.
pub fn read(source: &str) -> (Text, bool) {
    let source = clean(source);
    let end = source.floor_char_boundary(MOST_SOURCE_BYTES);
    let mut whole = end == source.len();
    let source = lean_letters(&source[..end]);
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut writer = Writer::new(&source.text, source.changed);
    for (event, range) in TextMergeWithOffset::new(Parser::new_ext(&source.text, options).into_offset_iter()) {
        if writer.text.as_str().len() > MOST_BYTES {
            whole = false;
            break;
        }
        writer.event(event, range);
    }
    if whole {
        writer.gap(source.text.len());
    }
    whole &= !writer.cut && writer.text.as_str().len() <= MOST_BYTES;
    let mut text = writer.text;
    if text.as_str().trim().is_empty() {
        // Nothing but markup: shown as it stands.
        text = Text::default();
        text.push(source.restored(&source.text).trim(), Style::default());
    }
    (text, whole)
}

/// Without what no chat shows: NUL and other control characters; line ends are `\n`.
fn clean(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => {
                if chars.peek() != Some(&'\n') {
                    text.push('\n');
                }
            }
            '\n' | '\t' => text.push(c),
            '\0' => text.push('\u{FFFD}'),
            '\u{7F}'..='\u{9F}' | '\u{FEFF}' => {}
            c if c < ' ' => {}
            c => text.push(c),
        }
    }
    text
}

/// A text whose East Asian punctuation is replaced by letters of the private use area, of the same length in bytes.
///
/// By CommonMark's rules `**重点：**内容` is not bold, for a closing mark between punctuation and a letter closes
/// nothing. Chinese puts no space there, so to the parser its punctuation has to look like letters.
struct Lean {
    text: String,
    changed: bool,
}

/// Punctuation and the first letter that stands for it; all of them take three bytes of UTF-8.
const LEAN: [(std::ops::RangeInclusive<u32>, u32); 3] =
    [(0x3001..=0x303F, 0xF100), (0xFF01..=0xFF65, 0xF180), (0x2010..=0x2027, 0xF200)];

fn lean_letters(source: &str) -> Lean {
    if source.chars().any(|c| (0xF100..=0xF2FF).contains(&u32::from(c))) {
        return Lean { text: source.to_owned(), changed: false };
    }
    let lean = |c: char| {
        let code = u32::from(c);
        let place = LEAN.iter().find(|(range, _)| range.contains(&code));
        place.and_then(|(range, first)| char::from_u32(code - range.start() + first)).unwrap_or(c)
    };
    Lean { text: source.chars().map(lean).collect(), changed: true }
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

impl Lean {
    fn restored(&self, text: &str) -> String {
        if self.changed { restored(text) } else { text.to_owned() }
    }
}

/// A link that is open.
struct Link {
    /// Where its text begins, in the text or in the cell.
    start: usize,
    url: String,
    /// Its text is a link; otherwise the address is written after it.
    linked: bool,
    /// Within another link: only its text counts.
    nested: bool,
}

#[derive(Default)]
struct Table {
    columns: Vec<Alignment>,
    rows: Vec<Vec<String>>,
    cells: usize,
}

struct Writer<'s> {
    source: &'s str,
    lean: bool,
    text: Text,
    /// Newlines to write before the next characters.
    newlines: usize,
    /// The mark of a list item that has no text yet.
    marker: Option<String>,
    /// How far the source is written.
    done: usize,
    /// The number of the next item in each open list; `None`: bullets.
    lists: Vec<Option<u64>>,
    items: usize,
    quotes: usize,
    quote_number: u32,
    bold: usize,
    italic: usize,
    strike: usize,
    /// For each open `*…*`, whether it is shown in italics.
    emphases: Vec<bool>,
    /// For each open `~…~`, whether it is one that strikes through.
    strikes: Vec<bool>,
    links: Vec<Link>,
    /// The number of the link that is open.
    link: Option<u32>,
    pre: Option<u32>,
    table: Option<Table>,
    /// Something was left out.
    cut: bool,
}

impl<'s> Writer<'s> {
    fn new(source: &'s str, lean: bool) -> Self {
        Self {
            source,
            lean,
            text: Text::default(),
            newlines: 0,
            marker: None,
            done: 0,
            lists: Vec::new(),
            items: 0,
            quotes: 0,
            quote_number: 0,
            bold: 0,
            italic: 0,
            strike: 0,
            emphases: Vec::new(),
            strikes: Vec::new(),
            links: Vec::new(),
            link: None,
            pre: None,
            table: None,
            cut: false,
        }
    }

    fn event(&mut self, event: Event<'_>, range: Range<usize>) {
        match event {
            Event::Start(tag) => self.start(tag, range),
            Event::End(tag) => self.end(tag, range),
            Event::Text(text) => {
                let text = self.restored(&text);
                if self.pre.is_some() {
                    self.code_lines(&text);
                } else if self.source[range.clone()].contains('\\') {
                    self.write(&text, self.style());
                } else {
                    self.with_spoilers(&text);
                }
                self.done = self.done.max(range.end);
            }
            Event::Code(text) => {
                let text = self.restored(&text);
                self.write(&text, Style { code: true, ..self.style() });
                self.done = self.done.max(range.end);
            }
            Event::Html(html) | Event::InlineHtml(html) => {
                let html = self.restored(&html);
                if matches!(html.trim().to_ascii_lowercase().as_str(), "<br>" | "<br/>" | "<br />") {
                    self.line_break();
                } else {
                    self.lines(&html);
                }
                self.done = self.done.max(range.end);
            }
            Event::SoftBreak | Event::HardBreak => self.line_break(),
            Event::Rule => {
                self.gap(range.start);
                self.write("———", self.style());
                self.finish(range);
            }
            Event::TaskListMarker(done) => {
                let mark = if done { "☑ " } else { "☐ " };
                if self.marker.is_some() {
                    self.marker = Some(mark.to_owned());
                } else {
                    self.write(mark, self.style());
                }
            }
            Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => {
                let text = self.restored(&text);
                self.write(&text, self.style());
            }
        }
    }

    fn start(&mut self, tag: Tag<'_>, range: Range<usize>) {
        match tag {
            Tag::Emphasis => {
                // `2*3*4` is a product and nothing in italics.
                let word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
                let before = self.source[..range.start].chars().next_back();
                let after = self.source[range.end..].chars().next();
                let literal = self.source[range.start..].starts_with('*') && word(before) && word(after);
                self.emphases.push(!literal);
                if literal {
                    self.write("*", self.style());
                } else {
                    self.italic += 1;
                }
            }
            Tag::Strong => self.bold += 1,
            Tag::Strikethrough => {
                // `3~5天，10~20元` is two ranges and nothing struck through: only `~~` is.
                let strikes = self.source[range.start..].starts_with("~~");
                self.strikes.push(strikes);
                if strikes {
                    self.strike += 1;
                } else {
                    self.write("~", self.style());
                }
            }
            Tag::Link { link_type: LinkType::Email, dest_url, .. } => self.start_link(&format!("mailto:{dest_url}")),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => self.start_link(&dest_url),
            Tag::Heading { .. } => {
                self.gap(range.start);
                self.bold += 1;
            }
            Tag::BlockQuote(_) => {
                self.gap(range.start);
                self.quotes += 1;
                if self.quotes == 1 {
                    self.quote_number += 1;
                }
            }
            Tag::CodeBlock(kind) => {
                self.gap(range.start);
                self.before_code();
                let language = match kind {
                    CodeBlockKind::Fenced(info) => language(&info),
                    CodeBlockKind::Indented => String::new(),
                };
                self.pre = Some(self.text.code_block(&language));
            }
            Tag::List(first) => {
                self.gap(range.start);
                self.lists.push(first);
            }
            Tag::Item => self.start_item(range.start),
            Tag::Table(columns) => {
                self.gap(range.start);
                self.table = Some(Table { columns, ..Table::default() });
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            Tag::TableCell => {
                if let Some(table) = &mut self.table {
                    table.cells += 1;
                    if table.cells <= MOST_CELLS
                        && let Some(row) = table.rows.last_mut()
                    {
                        row.push(String::new());
                    }
                }
            }
            _ => self.gap(range.start),
        }
    }

    fn end(&mut self, tag: TagEnd, range: Range<usize>) {
        match tag {
            TagEnd::Emphasis => {
                if self.emphases.pop() == Some(true) {
                    self.italic = self.italic.saturating_sub(1);
                } else {
                    self.write("*", self.style());
                }
            }
            TagEnd::Strong => self.bold = self.bold.saturating_sub(1),
            TagEnd::Strikethrough => {
                if self.strikes.pop() == Some(true) {
                    self.strike = self.strike.saturating_sub(1);
                } else {
                    self.write("~", self.style());
                }
            }
            TagEnd::Link | TagEnd::Image => self.end_link(),
            TagEnd::Heading(_) => self.bold = self.bold.saturating_sub(1),
            TagEnd::BlockQuote(_) => {
                self.quotes = self.quotes.saturating_sub(1);
                return;
            }
            TagEnd::CodeBlock => {
                self.pre = None;
                self.newlines = 1;
            }
            TagEnd::List(_) => {
                self.lists.pop();
                return;
            }
            TagEnd::Item => {
                if self.marker.is_some() {
                    self.line();
                }
                self.items = self.items.saturating_sub(1);
                return;
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    let pre = Some(self.text.code_block(""));
                    let style = Style { pre, ..self.style() };
                    self.before_code();
                    self.text.push(&lay_out(&table), style);
                    self.cut |= table.cells > MOST_CELLS;
                }
            }
            TagEnd::TableHead | TagEnd::TableRow => self.end_row(range.clone()),
            _ => {}
        }
        self.finish(range);
    }

    fn restored(&self, text: &str) -> String {
        if self.lean { restored(text) } else { text.to_owned() }
    }

    /// The source up to the end of `range` is written.
    fn finish(&mut self, range: Range<usize>) {
        let end = self.source[..range.end].trim_end_matches(['\n', ' ', '>']).len().max(range.start);
        self.done = self.done.max(end);
    }

    /// A block begins at `start`: it stands as far from the one before as in the source. What the parser says nothing
    /// about in between, the definitions of links, is shown as it was written.
    fn gap(&mut self, start: usize) {
        if start <= self.done {
            return;
        }
        let gap = &self.source[self.done..start];
        self.done = start;
        let mut defines = false;
        let mut newlines = 0;
        for line in gap.split('\n') {
            let bare = line.trim_start_matches(|c: char| c.is_ascii_digit() || " >\t-*+.)".contains(c));
            defines = (defines && !bare.trim().is_empty()) || (bare.starts_with('[') && bare.contains("]:"));
            if defines {
                self.newlines = self.newlines.max(newlines).clamp(1, 2);
                let line = self.restored(bare.trim_end());
                self.write(&line, self.style());
                newlines = 0;
            }
            newlines += 1;
        }
        // One less than lines.
        self.newlines = self.newlines.max(newlines.saturating_sub(1).min(2));
    }

    fn line_break(&mut self) {
        if self.table.is_some() {
            self.write(" ", self.style());
        } else {
            self.newlines = self.newlines.max(1);
        }
    }

    fn style(&self) -> Style {
        Style {
            quote: (self.quotes > 0).then_some(self.quote_number),
            link: self.link,
            pre: None,
            code: false,
            bold: self.bold > 0,
            italic: self.italic > 0,
            strike: self.strike > 0,
            spoiler: false,
            plain_only: false,
        }
    }

    /// The style of what lies between the last characters and the next.
    fn between(&self) -> Style {
        let quote = self.text.last_style().and_then(|last| last.quote);
        Style { quote: quote.filter(|_| quote == self.style().quote), ..Style::default() }
    }

    /// Writes newlines that are due, the beginning of the new line, and the mark of the item.
    fn line(&mut self) {
        let fresh = self.text.as_str().is_empty();
        if !fresh && self.newlines > 0 {
            self.text.push(&"\n\n"[..self.newlines.min(2)], self.between());
        }
        let begins = fresh || self.newlines > 0;
        self.newlines = 0;
        let style = Style { quote: self.style().quote, ..Style::default() };
        if begins {
            if self.quotes > 0 {
                self.text.push("> ", Style { plain_only: true, ..style });
                self.text.push(&"> > > > > > "[..2 * (self.quotes - 1).min(DEEPEST)], style);
            }
            let depth = self.items.saturating_sub(usize::from(self.marker.is_some()));
            self.text.push(&"            "[..2 * depth.min(DEEPEST)], style);
        }
        if let Some(marker) = self.marker.take() {
            self.text.push(&marker, style);
        }
    }

    /// As [`Self::line`], but code begins at the margin.
    fn before_code(&mut self) {
        if self.marker.is_some() {
            self.line();
            self.newlines = 1;
        }
        if !self.text.as_str().is_empty() && self.newlines > 0 {
            self.text.push(&"\n\n"[..self.newlines.min(2)], self.between());
        }
        self.newlines = 0;
    }

    /// Writes characters of one line.
    fn write(&mut self, text: &str, style: Style) {
        if text.is_empty() {
            return;
        }
        if let Some(table) = &mut self.table {
            if table.cells <= MOST_CELLS
                && let Some(cell) = table.rows.last_mut().and_then(|row| row.last_mut())
            {
                cell.extend(text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }));
            }
            return;
        }
        self.line();
        self.text.push(text, style);
    }

    fn lines(&mut self, text: &str) {
        for (n, line) in text.split('\n').enumerate() {
            if n > 0 {
                self.line_break();
            }
            self.write(line, self.style());
        }
    }

    /// The lines of a code block; the newline at its end is not shown.
    fn code_lines(&mut self, text: &str) {
        let style = Style { pre: self.pre, quote: self.style().quote, ..Style::default() };
        let (lines, ends) = text.strip_suffix('\n').map_or((text, false), |lines| (lines, true));
        if self.newlines > 0 {
            self.text.push("\n", style);
        }
        self.text.push(lines, style);
        self.newlines = usize::from(ends);
    }

    /// Writes text in which `||hidden||` is a spoiler. `a || b` is not.
    fn with_spoilers(&mut self, text: &str) {
        let outside = |c: Option<char>| c.is_none_or(|c| !c.is_ascii() || c.is_whitespace() || ".,!?:;".contains(c));
        let mut rest = text;
        let mut before = None;
        while let Some((head, tail)) = rest.split_once("||") {
            let found = tail.split_once("||").filter(|(hidden, after)| {
                outside(head.chars().next_back().or(before))
                    && outside(after.chars().next())
                    && !hidden.contains('|')
                    && !hidden.starts_with(char::is_whitespace)
                    && !hidden.ends_with(char::is_whitespace)
                    && !hidden.is_empty()
            });
            self.write(head, self.style());
            match found {
                Some((hidden, after)) => {
                    self.write(hidden, Style { spoiler: true, ..self.style() });
                    rest = after;
                }
                None => {
                    self.write("||", self.style());
                    rest = tail;
                }
            }
            before = Some('|');
        }
        self.write(rest, self.style());
    }

    fn start_item(&mut self, start: usize) {
        self.gap(start);
        if self.marker.is_some() {
            self.line();
        }
        let depth = self.lists.len();
        self.items += 1;
        self.marker = Some(match self.lists.last_mut() {
            Some(Some(number)) => {
                let marker = format!("{number}. ");
                *number = number.saturating_add(1);
                marker
            }
            _ => ["• ", "◦ ", "▪ "][depth.saturating_sub(1).min(2)].to_owned(),
        });
    }

    /// Cells beyond the last column are dropped by Markdown's rules, not by ours.
    fn end_row(&mut self, range: Range<usize>) {
        let more = self.source.get(self.done..range.end).unwrap_or_default();
        let more = self.restored(more.trim_matches(|c: char| c == '|' || c.is_whitespace()));
        if let Some(row) = self.table.as_mut().and_then(|table| table.rows.last_mut())
            && !more.is_empty()
        {
            row.push(more);
        }
    }

    fn start_link(&mut self, url: &str) {
        let url = self.restored(url);
        let nested = !self.links.is_empty();
        let start = match self.table.as_ref() {
            Some(table) => table.rows.last().and_then(|row| row.last()).map_or(0, String::len),
            None => {
                self.line();
                self.text.as_str().len()
            }
        };
        let linked = !nested && self.table.is_none() && url.len() <= LONGEST_URL && is_link(&url);
        if linked {
            self.link = Some(self.text.link(&url));
        }
        self.links.push(Link { start, url, linked, nested });
    }

    /// The address follows the text: for eyes where it is no link, in the plain form where it is.
    fn end_link(&mut self) {
        let Some(link) = self.links.pop() else { return };
        let shown = match self.table.as_ref() {
            Some(table) => table.rows.last().and_then(|row| row.last()).map_or("", String::as_str),
            None => self.text.as_str(),
        };
        let shown = shown.get(link.start..).unwrap_or_default().trim();
        if shown.is_empty() {
            self.write(&link.url, self.style());
        } else if !link.nested && !link.url.is_empty() && !says(shown, &link.url) {
            let address = format!(" ({})", link.url);
            self.write(&address, Style { plain_only: link.linked, ..self.style() });
        }
        if link.linked {
            self.link = None;
        }
        if self.table.is_none() {
            self.text.keep_whole(link.start);
        }
    }
}

/// An address that Telegram opens.
fn is_link(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once(':') else { return false };
    let known = ["http", "https", "tg", "mailto"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    // A link to a person notifies them.
    let names = scheme.eq_ignore_ascii_case("tg") && rest.trim_start_matches('/').to_lowercase().starts_with("user");
    known && !names && !rest.is_empty() && !url.contains(char::is_whitespace)
}

/// The text of a link is its address already.
fn says(shown: &str, url: &str) -> bool {
    let bare = |text: &str| {
        let text = text.strip_prefix("mailto:").unwrap_or(text);
        let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
        text.trim_end_matches('/').to_owned()
    };
    bare(shown) == bare(url)
}

/// The language of a code block: the first word of its info string, of characters that need no escape.
fn language(info: &str) -> String {
    let word = info.split(|c: char| c.is_whitespace() || ",{".contains(c)).next().unwrap_or_default();
    let known = |c: &char| c.is_ascii_alphanumeric() || "+-#._".contains(*c);
    if word.chars().all(|c| known(&c)) { word.chars().take(32).collect() } else { String::new() }
}

/// The lines of a table, its columns one under the other.
fn lay_out(table: &Table) -> String {
    let columns = table.rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![0; columns];
    for row in &table.rows {
        for (cell, widest) in row.iter().zip(&mut widths) {
            *widest = width(cell.trim()).min(WIDEST_COLUMN).max(*widest);
        }
    }
    let mut text = String::new();
    for (n, row) in table.rows.iter().enumerate() {
        if row.is_empty() {
            continue;
        }
        if text.len() > MOST_BYTES {
            break;
        }
        if n > 0 {
            text.push('\n');
        }
        let mut line = String::new();
        for (column, (cell, widest)) in row.iter().zip(&widths).enumerate() {
            let cell = cell.trim();
            let room = widest.saturating_sub(width(cell));
            let before = match table.columns.get(column) {
                Some(Alignment::Right) => room,
                Some(Alignment::Center) => room / 2,
                _ => 0,
            };
            if column > 0 {
                line.push_str(" | ");
            }
            line.extend(std::iter::repeat_n(' ', before));
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', room - before));
        }
        text.push_str(line.trim_end());
        if n == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "-".repeat((*width).max(1))).collect();
            text.push('\n');
            text.push_str(&rules.join("-+-"));
        }
    }
    text
}

/// How many columns a text takes on the screen: Chinese and emoji two each.
fn width(text: &str) -> usize {
    let mut joined = false;
    let mut width = 0;
    for c in text.chars() {
        let columns = match u32::from(c) {
            0x200D => {
                joined = true;
                continue;
            }
            0x0300..=0x036F | 0x200B..=0x200F | 0x20D0..=0x20FF | 0xFE00..=0xFE0F | 0x1F3FB..=0x1F3FF => 0,
            0x1100..=0x115F
            | 0x2E80..=0x303E
            | 0x3041..=0xA4CF
            | 0xAC00..=0xD7A3
            | 0xF900..=0xFAFF
            | 0xFE30..=0xFE6F
            | 0xFF01..=0xFF60
            | 0xFFE0..=0xFFE6
            | 0x1F300..=0x1FAFF
            | 0x20000..=0x3FFFD => 2,
            _ => 1,
        };
        width += if joined { 0 } else { columns };
        joined = false;
    }
    width
}
