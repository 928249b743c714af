//! `read`: a text file page by page, decoded; a binary one is named instead of dumped.

use std::io::{self, Read};

use async_trait::async_trait;
use cap_std::fs::File;
use encoding_rs::Decoder;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{self, Broker, Place, size, tell},
    decode::{self, Content, Encoding},
};

/// The most text of one page, in bytes, and what the encoding is guessed from.
const PAGE_BYTES: usize = 2 * 1024 * 1024;
/// How far into a file a page can lie.
const DEEPEST: u64 = 256 * 1024 * 1024;
/// Up to this size the lines after the page are counted, so that the total can be told.
const COUNTED_SIZE: u64 = 16 * 1024 * 1024;
/// Kept free in the result for the line that tells about the page.
const ROOM_FOR_NOTE: usize = 320;

/// Reads a file.
#[derive(Debug)]
pub struct ReadFile;

#[derive(Deserialize)]
struct Arguments {
    path: String,
    offset: Option<usize>,
    limit: Option<usize>,
}

#[async_trait]
impl Tool for ReadFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "read".to_owned(),
            description: "Reads a text file. A long one comes in pages: its last line tells the next offset."
                .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "offset": {"type": "integer", "minimum": 0, "description": "First line, from 1"},
                    "limit": {"type": "integer", "minimum": 1},
                },
                "required": ["path"],
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { path, offset, limit } = arguments::typed(args)?;
        broker::on_disk(ctx, "read on with offset and limit", move |files| {
            page(files, &files.place(&path)?, offset, limit)
        })
        .await
    }
}

/// The lines of a file from `offset` (from 1), `limit` of them, with a note on what is left out.
///
/// # Errors
/// [`ToolError::TellModel`] when it cannot be read.
pub(super) fn page(
    files: &Broker,
    place: &Place<'_>,
    offset: Option<usize>,
    limit: Option<usize>,
) -> Result<String, ToolError> {
    let (mut file, metadata) = files.open_file(place)?;
    let mut sample = Vec::new();
    let unreadable = |error: io::Error| ToolError::TellModel(format!("`{place}` cannot be read: {}.", error.kind()));
    (&mut file).take(PAGE_BYTES as u64).read_to_end(&mut sample).map_err(unreadable)?;
    if sample.is_empty() {
        return Ok("(empty file)".to_owned());
    }
    let encoding = match decode::sniff(&sample, sample.len() < PAGE_BYTES) {
        Content::Text(encoding) => encoding,
        Content::Binary(kind) => {
            return Ok(format!("[`{place}` is no text: {kind}, {}. It is not shown.]", size(metadata.len())));
        }
    };
    let first = offset.unwrap_or(1).max(1);
    let wanted = Wanted { first, lines: limit.unwrap_or(usize::MAX), chars: page_chars(files.output_chars) };
    let page = Page::of(files, &sample, file, encoding, wanted, metadata.len()).map_err(|stop| match stop {
        Stop::Io(error) => unreadable(error),
        Stop::Told(error) => error,
    })?;
    page.told(&place.to_string(), encoding, first)
}

/// Characters of a page within a result of `output_chars`.
fn page_chars(output_chars: usize) -> usize {
    output_chars.saturating_sub(ROOM_FOR_NOTE).max(output_chars / 2).min(PAGE_BYTES / 4)
}

struct Wanted {
    /// From 1.
    first: usize,
    lines: usize,
    chars: usize,
}

enum Stop {
    Io(io::Error),
    Told(ToolError),
}

/// The wanted lines of a file.
#[derive(Default)]
struct Page {
    text: String,
    chars: usize,
    /// Whole lines in `text`.
    lines: usize,
    /// The page's only line was longer than the page: it is cut.
    long_line: bool,
    /// The page ended before the file did.
    more: bool,
    /// All lines of the file, when it was read to its end.
    total: Option<usize>,
    crlf: bool,
    damaged: bool,
}

impl Page {
    /// Reads on from `sample` through `rest` until the page is full, and further to count lines while that is cheap.
    fn of(
        files: &Broker,
        sample: &[u8],
        rest: File,
        encoding: Encoding,
        wanted: Wanted,
        file_len: u64,
    ) -> Result<Self, Stop> {
        let mut page = Self::default();
        let mut source = encoding.skip_mark(sample).chain(rest.take(DEEPEST));
        let mut decoder = encoding.decoder();
        let mut bytes = vec![0u8; 64 * 1024];
        let mut line = Line { number: 1, length: 0, start: 0 };
        let mut full = false;
        let mut any = false;
        loop {
            files.go_on().map_err(Stop::Told)?;
            let got = source.read(&mut bytes).map_err(Stop::Io)?;
            let piece = decoded(&mut decoder, &bytes[..got], got == 0, &mut page.damaged);
            any |= !piece.is_empty();
            for c in piece.chars() {
                if !full {
                    full = page.take(c, &line, &wanted);
                }
                line.length += 1;
                if c == '\n' {
                    if !full && line.number >= wanted.first {
                        page.lines += 1;
                    }
                    line = Line { number: line.number + 1, length: 0, start: page.text.len() };
                    full = full || page.lines >= wanted.lines;
                }
            }
            if got == 0 {
                break;
            }
            if full && file_len > COUNTED_SIZE {
                page.more = true;
                return Ok(page);
            }
        }
        if !full && file_len > DEEPEST {
            page.more = true;
            return Ok(page);
        }
        let total = if any && line.length == 0 { line.number - 1 } else { line.number };
        if !full && line.length > 0 && line.number >= wanted.first {
            page.lines += 1;
        }
        page.total = Some(total);
        page.more = wanted.first - 1 + page.lines < total;
        Ok(page)
    }

    /// Takes one character of a line that may be wanted; true when the page is full.
    fn take(&mut self, c: char, line: &Line, wanted: &Wanted) -> bool {
        if line.number < wanted.first {
            return false;
        }
        if c == '\n' && self.text.ends_with('\r') && self.text.len() > line.start {
            self.crlf = true;
            self.text.pop();
            self.chars -= 1;
        }
        // The newline itself always fits: a line is whole with it.
        if self.chars < wanted.chars || c == '\n' {
            self.text.push(c);
            self.chars += 1;
            return false;
        }
        if self.lines == 0 {
            // One line longer than a page: its head is all that can be shown.
            self.long_line = true;
            self.lines = 1;
        } else {
            self.text.truncate(line.start);
        }
        true
    }

    /// The page, and below it what has to be known about it.
    fn told(mut self, place: &str, encoding: Encoding, first: usize) -> Result<String, ToolError> {
        if self.lines == 0 {
            return match self.total {
                Some(total) => tell(format!("`{place}` has only {total} lines; offset {first} is past its end.")),
                None => tell(format!("Line {first} of `{place}` lies too deep in the file. Search it with grep.")),
            };
        }
        let last = first + self.lines - 1;
        let mut notes = Vec::new();
        if encoding != Encoding::PLAIN {
            notes.push(format!("decoded from {encoding}"));
        }
        if self.damaged {
            notes.push("bytes that are no valid text show as \u{fffd}".to_owned());
        }
        if self.crlf {
            notes.push("line ends are CRLF".to_owned());
        }
        if self.long_line {
            notes.push(format!("line {first} is too long for one page and was cut: search in it with grep"));
        }
        if self.more || first > 1 {
            let of = self.total.map_or_else(String::new, |total| format!(" of {total}"));
            notes.push(format!("lines {first}-{last}{of}"));
        }
        if self.more {
            notes.push(format!("go on with offset={}", last + 1));
        }
        if !notes.is_empty() {
            let gap = if self.text.ends_with('\n') { "\n" } else { "\n\n" };
            self.text.push_str(&format!("{gap}[{}]", notes.join("; ")));
        }
        Ok(if self.text.is_empty() { "\n".to_owned() } else { self.text })
    }
}

/// Where in the file, and in the page, the reader is.
struct Line {
    number: usize,
    /// Characters of it so far.
    length: usize,
    /// Where it begins in the page's text.
    start: usize,
}

fn decoded(decoder: &mut Decoder, bytes: &[u8], last: bool, damaged: &mut bool) -> String {
    let most = decoder.max_utf8_buffer_length(bytes.len()).unwrap_or(bytes.len() * 4);
    let mut text = String::with_capacity(most);
    let (_, _, replaced) = decoder.decode_to_string(bytes, &mut text, last);
    *damaged |= replaced;
    text
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::Fixture, *};
    use crate::tools::decode::Charset;

    async fn read(house: &Fixture, args: Value) -> Result<String, String> {
        house.run(&ReadFile, args).await
    }

    #[tokio::test]
    async fn encodings_and_line_ends_are_told() {
        let house = Fixture::new();
        let text = "第一行：小龙虾\n第二行：网关\n";
        house
            .put("plain.txt", text)
            .put("empty.txt", "")
            .put("crlf.txt", "a\r\nb\r\n")
            .put("pic.png", b"\x89PNG\r\n\x1a\n\0");
        house.put("open.txt", "no newline");
        for (name, charset, bom) in
            [("gb.txt", Charset::Gb18030, false), ("u16.txt", Charset::Utf16Le, true), ("bom.txt", Charset::Utf8, true)]
        {
            house.put(name, Encoding { charset, bom }.encode(text));
        }
        for (name, shown) in [
            ("plain.txt", text.to_owned()),
            ("empty.txt", "(empty file)".to_owned()),
            ("open.txt", "no newline".to_owned()),
            ("crlf.txt", "a\nb\n\n[line ends are CRLF]".to_owned()),
            ("gb.txt", format!("{text}\n[decoded from GB18030]")),
            ("u16.txt", format!("{text}\n[decoded from UTF-16LE with BOM]")),
            ("bom.txt", format!("{text}\n[decoded from UTF-8 with BOM]")),
            ("pic.png", "[`pic.png` is no text: PNG image, 9 B. It is not shown.]".to_owned()),
        ] {
            assert_eq!(read(&house, json!({"path": name})).await, Ok(shown), "{name}");
        }
    }

    #[tokio::test]
    async fn pages_follow_each_other_without_a_gap() {
        let mut house = Fixture::new();
        house.ctx.output_chars = 2_000;
        let text: String = (1..=1000).map(|n| format!("第{n}行 of the file\n")).collect();
        house.put("long.txt", &text);
        let (mut offset, mut seen, mut pages) = (1, String::new(), 0);
        loop {
            let page = read(&house, json!({"path": "long.txt", "offset": offset})).await.expect("a page");
            let (shown, note) = page.rsplit_once("\n[").expect("a note");
            seen.push_str(shown);
            pages += 1;
            let Some((_, next)) = note.split_once("go on with offset=") else { break };
            assert!(note.contains(" of 1000; "), "{note}");
            offset = next.trim_end_matches(']').parse().expect("a number");
        }
        assert_eq!(seen, text);
        assert!(pages > 5, "{pages}");
        let two = read(&house, json!({"path": "long.txt", "offset": 3, "limit": 2})).await.expect("a page");
        assert_eq!(two, "第3行 of the file\n第4行 of the file\n\n[lines 3-4 of 1000; go on with offset=5]");
        let last = read(&house, json!({"path": "long.txt", "offset": 1000})).await.expect("a page");
        assert_eq!(last, "第1000行 of the file\n\n[lines 1000-1000 of 1000]");
        let past = read(&house, json!({"path": "long.txt", "offset": 1001})).await.expect_err("past the end");
        assert_eq!(past, "`long.txt` has only 1000 lines; offset 1001 is past its end.");
    }

    #[tokio::test]
    async fn a_line_longer_than_a_page_is_cut_and_the_next_one_reached() {
        let mut house = Fixture::new();
        house.ctx.output_chars = 1_000;
        house.put("wide.json", format!("{}\nsecond\n", "龙".repeat(500_000)));
        let page = read(&house, json!({"path": "wide.json"})).await.expect("a page");
        assert!(page.contains("line 1 is too long for one page") && page.ends_with("go on with offset=2]"), "{page}");
        assert_eq!(
            read(&house, json!({"path": "wide.json", "offset": 2})).await,
            Ok("second\n\n[lines 2-2 of 2]".to_owned())
        );
    }

    #[tokio::test]
    async fn a_large_file_is_read_where_it_is_asked_for() {
        let house = Fixture::new();
        let text: String = (1..=400_000).map(|n| format!("row {n:>60}\n")).collect();
        assert!(text.len() as u64 > COUNTED_SIZE);
        house.put("large.csv", text);
        let page = read(&house, json!({"path": "large.csv", "offset": 399_999, "limit": 1})).await.expect("a page");
        assert!(page.starts_with("row ") && page.contains("399999\n\n[lines 399999-399999"), "{page}");
        let first = read(&house, json!({"path": "large.csv", "limit": 1})).await.expect("a page");
        assert!(first.ends_with("[lines 1-1; go on with offset=2]"), "{first}");
    }
}
