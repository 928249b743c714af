//! The ZIP container of xlsx and ods files, measured before anything believes it: how many parts, how large each is when
//! it is unpacked, and that no single piece of XML can fill the memory. security.md §3.3 rows 19 and 20.

use std::io::{self, BufRead, BufReader, Cursor, Read, Seek};

use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use zip::ZipArchive;

use crate::zip_directory;

/// The largest container that is opened.
pub const LARGEST: u64 = 64 << 20;
/// The most parts of one.
const MOST_PARTS: usize = 4_096;
/// The most bytes of all parts together, unpacked.
const MOST_UNPACKED: u64 = 1 << 30;
/// The most bytes of the table of shared strings, unpacked: all of it is kept in memory.
const MOST_STRINGS: u64 = 64 << 20;
/// The most entries of that table.
const MOST_ENTRIES: u64 = 1_500_000;
/// The most bytes of any other part that is no sheet.
const MOST_OTHER: u64 = 8 << 20;
/// The most bytes of a part that is no XML (a picture).
const MOST_BINARY: u64 = 64 << 20;
/// The longest tag, text or comment of a sheet: a reader of XML keeps one at a time whole.
const LONGEST_PIECE: u64 = 1 << 20;
/// The most bytes of one cell with all that is in it; Excel allows 32,767 characters, each perhaps with a look of its own.
const LARGEST_CELL: u64 = 4 << 20;
/// The deepest nesting of a sheet and the longest name of a tag: names of open tags are kept.
const DEEPEST: u32 = 256;
const LONGEST_NAME: usize = 1_024;
/// As much of a part as tells what it is.
const HEAD: u64 = 4 * 1024;
/// The most cell formats, and the most sheets; Excel allows 65,490 formats.
const MOST_FORMATS: u64 = 100_000;
const MOST_SHEETS: u64 = 5_000;
const MOST_NAMES: u64 = 100_000;

/// Unpacks every part once, keeping nothing.
///
/// # Errors
/// [`Wrong`]: a limit is passed, or it cannot be read.
pub fn measure<R: Read + Seek>(archive: &mut ZipArchive<R>) -> Result<(), Wrong> {
    if archive.len() > MOST_PARTS {
        return wrong(format!("it has more than {MOST_PARTS} parts"));
    }
    let mut left = MOST_UNPACKED;
    for n in 0..archive.len() {
        let part = archive.by_index(n).map_err(Wrong::of_zip)?;
        // Whoever looks a part up may know it by either.
        let raw = String::from_utf8_lossy(part.name_raw()).into_owned();
        let names = [part.name().unwrap_or_default().into_owned(), raw];
        left -= weigh(&names, part, left)?;
    }
    Ok(())
}

/// What is wrong with a container.
#[derive(Debug)]
pub enum Wrong {
    /// In words that follow "the file cannot be used:".
    Told(String),
    /// It could not be read.
    Io(io::Error),
}

impl Wrong {
    fn of_zip(error: zip::result::ZipError) -> Self {
        match error {
            zip::result::ZipError::Io(error) => Self::Io(error),
            error => Self::Told(format!("its container is damaged or locked ({error})")),
        }
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong::Told(why.into()))
}

/// Whether the list of parts is short enough to be read.
///
/// # Errors
/// Those of reading.
pub fn few_parts(container: impl Read + Seek) -> io::Result<bool> {
    zip_directory::is_short(container, MOST_PARTS)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// May be long: it is read as a stream.
    Sheet,
    Strings,
    Other,
    Binary,
}

impl Kind {
    fn of(names: &[String], head: &[u8]) -> Self {
        let named = |end: &str| names.iter().any(|name| name.to_ascii_lowercase().ends_with(end));
        match () {
            () if named("sharedstrings.xml") => Self::Strings,
            () if named("styles.xml") || named(".rels") || named("content_types].xml") => Self::Other,
            () if named("content.xml") => Self::Sheet,
            () if !is_xml(head) => Self::Binary,
            () => match root(head).as_deref() {
                Some("worksheet" | "document-content") => Self::Sheet,
                Some("sst") => Self::Strings,
                _ => Self::Other,
            },
        }
    }

    /// The most bytes of such a part, and what it is in words.
    fn most(self) -> (u64, &'static str) {
        match self {
            Self::Sheet => (MOST_UNPACKED, "a sheet"),
            Self::Strings => (MOST_STRINGS, "its table of texts"),
            Self::Other => (MOST_OTHER, "a part besides the sheets"),
            Self::Binary => (MOST_BINARY, "a picture or another part"),
        }
    }

    /// Whether it may be long, so that what is kept of it at one time has to be short.
    fn is_stream(self) -> bool {
        matches!(self, Self::Sheet | Self::Strings)
    }
}

/// Reads a part of these names to its end; how many bytes it holds. `left` is what all parts may still hold.
fn weigh(names: &[String], mut part: impl Read, left: u64) -> Result<u64, Wrong> {
    let mut head = Vec::new();
    part.by_ref().take(HEAD).read_to_end(&mut head).map_err(Wrong::Io)?;
    let kind = Kind::of(names, &head);
    if kind != Kind::Binary && head.iter().any(|byte| matches!(byte, 0 | 0x1b)) {
        return wrong("its XML is in an encoding that is not taken");
    }
    let (most, what) = kind.most();
    let mut part = Ration {
        from: BufReader::new(Cursor::new(head).chain(part)),
        most: most.min(left),
        taken: 0,
        piece: if kind.is_stream() { LONGEST_PIECE } else { u64::MAX },
        until_piece: u64::MAX,
    };
    let counted = if kind == Kind::Binary { Ok(()) } else { count(kind, &mut part) };
    part.piece = u64::MAX;
    let read = counted.and_then(|()| {
        part.next_piece();
        io::copy(&mut part, &mut io::sink()).map_err(Wrong::Io)
    });
    match read {
        Ok(_) => Ok(part.taken),
        Err(_) if part.taken >= left => wrong("it is larger than 1 GiB when it is unpacked"),
        Err(_) if part.taken >= most => wrong(format!("{what} is larger than {} MiB when it is unpacked", most >> 20)),
        Err(_) if part.taken >= part.until_piece => wrong("it holds a single text of more than 1 MiB"),
        Err(why) => Err(why),
    }
}

/// Hands out no more bytes than a part may hold, and no more than `piece` until the next piece is asked for: a reader of
/// XML that finds no end of a text, a comment or a tag keeps all of it.
struct Ration<R> {
    from: BufReader<R>,
    most: u64,
    taken: u64,
    piece: u64,
    /// Of `taken`.
    until_piece: u64,
}

impl<R: Read> Ration<R> {
    fn next_piece(&mut self) {
        self.until_piece = self.taken.saturating_add(self.piece);
    }
}

impl<R: Read> Read for Ration<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let got = self.fill_buf()?.read(bytes)?;
        self.consume(got);
        Ok(got)
    }
}

impl<R: Read> BufRead for Ration<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let room = self.most.min(self.until_piece).saturating_sub(self.taken);
        let bytes = self.from.fill_buf()?;
        if room == 0 && !bytes.is_empty() {
            return Err(io::Error::other("more than it may hold"));
        }
        Ok(&bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))])
    }

    fn consume(&mut self, bytes: usize) {
        self.taken += bytes as u64;
        self.from.consume(bytes);
    }
}

/// Reads a part piece by piece as those do who are given it next, with the same reader of XML, and counts what they keep.
fn count(kind: Kind, part: &mut Ration<impl Read>) -> Result<(), Wrong> {
    let mut xml = Reader::from_reader(part);
    // Where the ends of tags are not where they belong, what one cell holds could not be told.
    xml.config_mut().check_end_names = kind.is_stream();
    let (mut counts, mut buffer) = (Counts::default(), Vec::new());
    loop {
        buffer.clear();
        xml.get_mut().next_piece();
        let before = xml.buffer_position();
        let event = xml.read_event_into(&mut buffer);
        match event {
            Ok(Event::Eof) => return Ok(()),
            Ok(event) => {
                counts.see(&event, kind)?;
                counts.hold(before, xml.buffer_position())?;
            }
            Err(quick_xml::Error::Io(error)) => return Err(Wrong::Io(error.kind().into())),
            Err(_) if kind.is_stream() => return wrong("its XML is damaged"),
            // Behind a fault it goes on, as for a reader that does not mind.
            Err(_) if xml.buffer_position() > before => {}
            Err(_) => return Ok(()),
        }
    }
}

/// A cell, or a text of the table, that is open.
struct Held {
    depth: u32,
    bytes: u64,
    of_table: bool,
}

/// What is in a part, so far.
#[derive(Default)]
struct Counts {
    depth: u32,
    held: Option<Held>,
    /// Bytes of all texts of the table.
    texts: u64,
    sheets: u64,
    formats: u64,
    names: u64,
    entries: u64,
}

impl Counts {
    fn see(&mut self, event: &Event<'_>, kind: Kind) -> Result<(), Wrong> {
        match event {
            Event::Start(tag) => {
                self.depth = self.depth.saturating_add(1);
                if kind.is_stream() && (self.depth > DEEPEST || tag.name().as_ref().len() > LONGEST_NAME) {
                    return wrong("its tags are nested too deeply");
                }
                self.count(tag)?;
                let name = tag.local_name();
                if self.held.is_none() && matches!(name.as_ref(), "c" | "si") {
                    self.held = Some(Held { depth: self.depth, bytes: 0, of_table: name.as_ref() == "si" });
                }
            }
            Event::Empty(tag) => self.count(tag)?,
            Event::End(_) => {
                self.held = self.held.take().filter(|held| held.depth != self.depth);
                self.depth = self.depth.saturating_sub(1);
            }
            _ => {}
        }
        Ok(())
    }

    /// A piece was read: everything within one cell is kept until it ends, and every text of the table for good.
    fn hold(&mut self, from: u64, to: u64) -> Result<(), Wrong> {
        let Some(held) = &mut self.held else { return Ok(()) };
        held.bytes += to - from;
        self.texts += if held.of_table { to - from } else { 0 };
        match () {
            () if held.bytes > LARGEST_CELL => {
                wrong(format!("one of its cells holds more than {} MiB", LARGEST_CELL >> 20))
            }
            () if self.texts > MOST_STRINGS => {
                wrong(format!("its table of texts is larger than {} MiB when it is unpacked", MOST_STRINGS >> 20))
            }
            () => Ok(()),
        }
    }

    fn count(&mut self, tag: &BytesStart<'_>) -> Result<(), Wrong> {
        let (counter, most, what) = match tag.local_name().as_ref() {
            "sheet" | "table" => (&mut self.sheets, MOST_SHEETS, "sheets"),
            "xf" => (&mut self.formats, MOST_FORMATS, "cell formats"),
            "definedName" => (&mut self.names, MOST_NAMES, "names"),
            "si" => (&mut self.entries, MOST_ENTRIES, "texts"),
            "sst" => return declared(tag),
            _ => return Ok(()),
        };
        *counter += 1;
        if *counter > most { wrong(format!("it has more than {most} {what}")) } else { Ok(()) }
    }
}

/// Memory is made ready for as many texts as are declared, whether they come or not.
fn declared(sst: &str) -> Result<(), Wrong> {
    for piece in sst.split("Count").skip(1) {
        let digits: String = piece
            .trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '=' | '"' | '\'' | '+'))
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        if !digits.is_empty() && digits.parse::<u64>().map_or(true, |count| count > MOST_ENTRIES) {
            return wrong(format!("its table of texts claims more than {MOST_ENTRIES} entries"));
        }
    }
    Ok(())
}

/// Whether bytes begin as XML, in whatever encoding.
fn is_xml(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace() && **byte != 0);
    first == Some(&b'<') || head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff")
}

/// The local name of the root, when it begins within these bytes.
fn root(head: &[u8]) -> Option<String> {
    let mut rest = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    loop {
        rest = rest.trim_ascii_start();
        let inner = rest.strip_prefix(b"<")?;
        let end: &[u8] = match inner.first()? {
            b'?' => b"?>",
            b'!' if inner.starts_with(b"!--") => b"-->",
            b'!' => b">",
            _ => {
                let end = inner.iter().position(|byte| byte.is_ascii_whitespace() || matches!(byte, b'>' | b'/'))?;
                let name = std::str::from_utf8(&inner[..end]).ok()?;
                return Some(name.rsplit(':').next().unwrap_or(name).to_owned());
            }
        };
        let at = inner.windows(end.len()).position(|window| window == end)?;
        rest = &inner[at + end.len()..];
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    fn measured(parts: &[(&str, Vec<u8>)]) -> Result<(), String> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in parts {
            writer.start_file(*name, SimpleFileOptions::default()).expect("a part");
            writer.write_all(bytes).expect("it is written");
        }
        let file = writer.finish().expect("a container");
        match measure(&mut ZipArchive::new(file).expect("it opens")) {
            Ok(()) => Ok(()),
            Err(Wrong::Told(why)) => Err(why),
            Err(Wrong::Io(error)) => Err(error.to_string()),
        }
    }

    fn refused(name: &str, bytes: impl Into<Vec<u8>>) -> String {
        measured(&[(name, bytes.into())]).expect_err(name)
    }

    #[test]
    fn honest_parts_pass() {
        let rows = "<row r=\"1\"><c r=\"A1\" t=\"s\"><v>0</v></c></row>".repeat(50_000);
        let sheet = format!("<?xml version=\"1.0\"?>\n<!-- made -->\n<x:worksheet>{rows}</x:worksheet>");
        let strings = format!("<sst count=\"9\" uniqueCount=\"2\">{}</sst>", "<si><t>a</t></si>".repeat(1000));
        let picture = [b"\x89PNG\r\n\x1a\n".as_slice(), &[0; 3 << 20]].concat();
        let parts = [
            ("xl/worksheets/sheet1.xml", sheet.into_bytes()),
            ("xl/sharedStrings.xml", strings.into_bytes()),
            ("xl/media/image1.png", picture),
            ("xl/empty.xml", Vec::new()),
        ];
        assert_eq!(measured(&parts), Ok(()));
    }

    #[test]
    fn row_19_bombs_are_refused_by_what_they_unpack_to() {
        let text = "x".repeat(2 << 20);
        assert!(refused("a.xml", format!("<worksheet><v>{text}</v></worksheet>")).contains("single text"));
        assert!(refused("a.xml", format!("<worksheet a=\"{text}\"/>")).contains("single text"));
        let many = "<a/>".repeat(2200 << 10);
        assert!(
            refused("theme/theme1.xml", format!("<theme>{many}</theme>"))
                .contains("besides the sheets is larger than 8")
        );
        // A stream of sheets cannot carry what is kept in memory.
        let formats = "<xf/>".repeat(200_000);
        assert!(refused("xl/styles.xml", format!("<styleSheet>{formats}</styleSheet>")).contains("cell formats"));
        let sheets = "<x:sheet name='a'/>".repeat(6_000);
        assert!(refused("xl/workbook.xml", format!("<worksheet>{sheets}</worksheet>")).contains("sheets"));
        let entries = "<si/>".repeat(1_600_000);
        assert!(refused("xl/sharedStrings.xml", format!("<sst>{entries}</sst>")).contains("texts"));
        assert!(refused("XL/SHAREDSTRINGS.XML", vec![b' '; 2 << 20]).contains("single text"));
    }

    #[test]
    fn counts_that_are_only_claimed_are_refused() {
        for tag in [
            "<sst uniqueCount=\"99999999999999999999\">",
            "<s:sst  x='>' uniqueCount = '4000000000'>",
            "<sst\nuniqueCount=\"+1600000\"/>",
        ] {
            assert!(refused("xl/sharedStrings.xml", tag).contains("claims"), "{tag}");
        }
    }

    #[test]
    fn an_encoding_that_hides_tags_is_refused() {
        let wide: Vec<u8> = "<sst uniqueCount=\"9000000\">".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(refused("xl/sharedStrings.xml", wide.clone()).contains("encoding"));
        assert!(refused("other.bin", wide).contains("encoding"));
    }

    /// Bytes that never end, and how many of them were handed out.
    struct Endless<'a> {
        begin: &'a [u8],
        again: &'a [u8],
        handed: usize,
    }

    impl Read for Endless<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            for byte in bytes.iter_mut() {
                let beyond = self.handed.checked_sub(self.begin.len());
                *byte = beyond.map_or_else(|| self.begin[self.handed], |at| self.again[at % self.again.len()]);
                self.handed += 1;
            }
            Ok(bytes.len())
        }
    }

    #[test]
    fn row_19_no_piece_and_no_cell_is_read_that_has_no_end() {
        let piece = (1 << 20) + 100_000;
        let cell = (4 << 20) + 100_000;
        for (begin, again, most, why) in [
            ("<worksheet><!--", "<", piece, "single text"),
            ("<worksheet><!--", "<a>", piece, "single text"),
            ("<worksheet><![CDATA[", "<a>", piece, "single text"),
            ("<worksheet><a b='", "<>", piece, "single text"),
            ("<worksheet><a b=\"", ">", piece, "single text"),
            ("<worksheet>", ">", piece, "single text"),
            ("<worksheet>", "x", piece, "single text"),
            ("<worksheet>", "\n", piece, "single text"),
            ("<worksheet>&", "x>", piece, "single text"),
            ("<worksheet><?x ", "<>", piece, "single text"),
            ("<worksheet><!DOCTYPE x [", "<!ELEMENT a ANY>", piece, "single text"),
            ("<worksheet></", "x", piece, "single text"),
            // Many short pieces that are kept as one.
            ("<worksheet><c><v>", "<!---->x", cell, "one of its cells"),
            ("<worksheet><c><v>", "&amp;", cell, "one of its cells"),
            ("<worksheet><c><is>", "<t>x</t>", cell, "one of its cells"),
            ("<worksheet><c><is>", "<c></c>x", cell, "one of its cells"),
            ("<sst><si><t>", "<a/>", cell, "one of its cells"),
            // The names of tags that are open.
            ("<worksheet>", "<a>", 100_000, "nested too deeply"),
            // Ends that belong to nothing would hide that a cell is still open.
            ("<worksheet><c><v>", "x</y>", 100_000, "damaged"),
        ] {
            let mut part = Endless { begin: begin.as_bytes(), again: again.as_bytes(), handed: 0 };
            let told = match weigh(&["xl/a.xml".to_owned()], &mut part, MOST_UNPACKED) {
                Err(Wrong::Told(why)) => why,
                other => panic!("{begin}{again}: {other:?}"),
            };
            assert!(told.contains(why), "{begin}{again}: {told}");
            assert!(part.handed <= most, "{begin}{again}: {} bytes were handed out", part.handed);
        }
    }

    #[test]
    fn texts_are_counted_whatever_the_part_calls_itself() {
        let text = format!("<si><t>{}</t></si>", "x".repeat((1 << 20) - 100));
        let mut part = Endless { begin: b"<worksheet><sst>", again: text.as_bytes(), handed: 0 };
        let told = weigh(&["xl/a.xml".to_owned()], &mut part, MOST_UNPACKED);
        assert!(matches!(told, Err(Wrong::Told(why)) if why.contains("table of texts is larger than 64")));
        assert!(part.handed < (65 << 20) + 100_000, "{}", part.handed);
        // What is read as the sheets of a document is not taken for a picture.
        let mut part = Endless { begin: b"x", again: b"x", handed: 0 };
        let told = weigh(&["content.xml".to_owned()], &mut part, MOST_UNPACKED);
        assert!(matches!(told, Err(Wrong::Told(why)) if why.contains("single text")));
    }

    #[test]
    fn a_cell_of_many_pieces_and_an_odd_part_pass() {
        let runs = "<r><rPr><b/><sz val=\"11\"/></rPr><t xml:space=\"preserve\">a &amp; b</t></r>".repeat(2_000);
        let cells = format!("<c t=\"inlineStr\"><is>{runs}</is></c>").repeat(40);
        let sheet = format!("<worksheet><sheetData><row>{cells}</row></sheetData></worksheet>");
        // Drawings of old are no good XML.
        let drawing = "<xml xmlns:v='v'><br><v:shape></xml>&nbsp &<";
        let parts = [
            ("xl/worksheets/sheet1.xml", sheet.into_bytes()),
            ("xl/drawings/vmlDrawing1.vml", drawing.as_bytes().to_vec()),
        ];
        assert_eq!(measured(&parts), Ok(()));
        // What they hold is counted behind a fault as well.
        let formats = format!("<styleSheet></b>{}", "<xf/>".repeat(200_000));
        assert!(refused("xl/styles.xml", formats).contains("cell formats"));
    }
}
