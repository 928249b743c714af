//! The ZIP container of xlsx and ods files, measured before anything believes it: how many parts, how large each is when
//! it is unpacked, and that no single piece of XML can fill the memory. security.md §3.3 rows 19 and 20.

use std::io::{self, Read, Seek};

use zip::ZipArchive;

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
/// The longest tag or text: a reader of XML keeps one at a time whole.
const LONGEST_PIECE: u64 = 1 << 20;
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
    let mut all = 0u64;
    for n in 0..archive.len() {
        let mut part = archive.by_index(n).map_err(Wrong::of_zip)?;
        let mut meter = Meter::of_part(&String::from_utf8_lossy(part.name_raw()));
        let mut bytes = vec![0u8; 64 * 1024];
        loop {
            let got = part.read(&mut bytes).map_err(Wrong::Io)?;
            if got == 0 {
                meter.end()?;
                break;
            }
            meter.add(&bytes[..got])?;
            all += got as u64;
            if all > MOST_UNPACKED {
                return wrong("it is larger than 1 GiB when it is unpacked".to_owned());
            }
        }
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

fn wrong<T>(why: String) -> Result<T, Wrong> {
    Err(Wrong::Told(why))
}

/// Whether the list of parts is short enough to be read: counts the entries of the directory at the end of the container.
///
/// # Errors
/// Those of reading.
pub fn few_parts(mut file: impl Read) -> io::Result<bool> {
    const MARK: &[u8] = b"PK\x01\x02";
    let mut bytes = vec![0u8; 64 * 1024];
    let (mut kept, mut found) = (0, 0);
    loop {
        let got = file.read(&mut bytes[kept..])?;
        if got == 0 {
            return Ok(true);
        }
        let filled = kept + got;
        found += bytes[..filled].windows(MARK.len()).filter(|window| *window == MARK).count();
        // Packed files inside may hold the mark as well.
        if found > 2 * MOST_PARTS {
            return Ok(false);
        }
        kept = filled.min(MARK.len() - 1);
        bytes.copy_within(filled - kept..filled, 0);
    }
}

/// Judges the bytes of one part as they come.
pub struct Meter {
    /// `None` until enough of its beginning is there.
    kind: Option<Kind>,
    by_name: Option<Kind>,
    head: Vec<u8>,
    total: u64,
    /// Bytes since the last `<` or `>`.
    piece: u64,
    at: At,
    tag: Vec<u8>,
    sheets: u64,
    formats: u64,
    names: u64,
    entries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// May be long: it is read as a stream.
    Sheet,
    Strings,
    Other,
    Binary,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Text,
    /// In the name of a tag.
    Name,
    /// Behind the name `sst`, perhaps in quotes.
    Declaration(Option<u8>),
}

impl Meter {
    /// For a part of that name.
    pub fn of_part(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let by_name = match () {
            () if name.ends_with("sharedstrings.xml") => Some(Kind::Strings),
            () if name.ends_with("styles.xml") || name.ends_with(".rels") || name.ends_with("content_types].xml") => {
                Some(Kind::Other)
            }
            () => None,
        };
        Self {
            kind: None,
            by_name,
            head: Vec::new(),
            total: 0,
            piece: 0,
            at: At::Text,
            tag: Vec::new(),
            sheets: 0,
            formats: 0,
            names: 0,
            entries: 0,
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`Wrong::Told`] when a limit is passed.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        if self.kind.is_some() {
            return self.judge(bytes);
        }
        self.head.extend_from_slice(bytes);
        if self.head.len() < 4 * 1024 { Ok(()) } else { self.end() }
    }

    /// The part ended, or enough of it is there to tell what it is.
    ///
    /// # Errors
    /// As [`Meter::add`].
    pub fn end(&mut self) -> Result<(), Wrong> {
        if self.kind.is_some() {
            return Ok(());
        }
        let head = std::mem::take(&mut self.head);
        let kind = match (is_xml(&head), self.by_name) {
            (_, Some(kind)) => kind,
            (false, None) => Kind::Binary,
            (true, None) => match root(&head).as_deref() {
                Some("worksheet" | "document-content") => Kind::Sheet,
                Some("sst") => Kind::Strings,
                _ => Kind::Other,
            },
        };
        self.kind = Some(kind);
        self.judge(&head)
    }

    fn judge(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        let kind = self.kind.unwrap_or(Kind::Other);
        self.total += bytes.len() as u64;
        let (most, what) = match kind {
            Kind::Sheet => (MOST_UNPACKED, "a sheet"),
            Kind::Strings => (MOST_STRINGS, "its table of texts"),
            Kind::Other => (MOST_OTHER, "a part besides the sheets"),
            Kind::Binary => (MOST_BINARY, "a picture or another part"),
        };
        if self.total > most {
            return wrong(format!("{what} is larger than {} MiB when it is unpacked", most >> 20));
        }
        if kind == Kind::Binary {
            return Ok(());
        }
        for byte in bytes {
            self.step(*byte)?;
        }
        Ok(())
    }

    fn step(&mut self, byte: u8) -> Result<(), Wrong> {
        match byte {
            b'<' | b'>' => self.piece = 0,
            // Neither can stand in XML that is UTF-8 or the like: it would be read otherwise than it is judged here.
            0 | 0x1b => return wrong("its XML is in an encoding that is not taken".to_owned()),
            _ => {
                self.piece += 1;
                if self.piece > LONGEST_PIECE {
                    return wrong("it holds a single text of more than 1 MiB".to_owned());
                }
            }
        }
        match (self.at, byte) {
            (At::Text, b'<') => {
                self.at = At::Name;
                self.tag.clear();
            }
            (At::Text, _) => {}
            (At::Name, b'>' | b' ' | b'/' | b'\t' | b'\n' | b'\r') if !self.tag.is_empty() => {
                self.at = At::Text;
                let declares = self.count()?;
                if declares && !matches!(byte, b'>' | b'/') {
                    self.at = At::Declaration(None);
                    self.tag.clear();
                }
            }
            (At::Name, _) if self.tag.len() < 64 => self.tag.push(byte),
            (At::Name, _) => self.at = At::Text,
            (At::Declaration(None), b'>') => {
                self.at = At::Text;
                return self.declared();
            }
            (At::Declaration(quote), byte) => {
                self.tag.push(byte);
                if self.tag.len() > 8 * 1024 {
                    return wrong("its table of texts begins strangely".to_owned());
                }
                self.at = At::Declaration(match (quote, byte) {
                    (None, b'"' | b'\'') => Some(byte),
                    (Some(open), byte) if open == byte => None,
                    (quote, _) => quote,
                });
            }
        }
        Ok(())
    }

    /// Counts the tag that begins; whether it is the one that declares how many texts there are.
    fn count(&mut self) -> Result<bool, Wrong> {
        let local = self.tag.rsplit(|byte| *byte == b':').next().unwrap_or_default();
        let (counter, most, what) = match local {
            b"sheet" | b"table" => (&mut self.sheets, MOST_SHEETS, "sheets"),
            b"xf" => (&mut self.formats, MOST_FORMATS, "cell formats"),
            b"definedName" => (&mut self.names, MOST_NAMES, "names"),
            b"si" => (&mut self.entries, MOST_ENTRIES, "texts"),
            b"sst" => return Ok(true),
            _ => return Ok(false),
        };
        *counter += 1;
        if *counter > most { wrong(format!("it has more than {most} {what}")) } else { Ok(false) }
    }

    /// Memory is made ready for as many texts as are declared, whether they come or not.
    fn declared(&self) -> Result<(), Wrong> {
        let text = String::from_utf8_lossy(&self.tag);
        for piece in text.split("Count").skip(1) {
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
        // Cut between two reads wherever it may be.
        let mut meter = Meter::of_part("xl/sharedStrings.xml");
        meter.end().expect("nothing is wrong yet");
        let told = "<sst uniqueCount=\"9000000\">".bytes().map(|byte| meter.add(&[byte])).find(Result::is_err);
        assert!(told.is_some());
    }

    #[test]
    fn an_encoding_that_hides_tags_is_refused() {
        let wide: Vec<u8> = "<sst uniqueCount=\"9000000\">".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(refused("xl/sharedStrings.xml", wide.clone()).contains("encoding"));
        assert!(refused("other.bin", wide).contains("encoding"));
    }

    #[test]
    fn a_long_list_of_parts_is_seen_before_it_is_read() {
        let mark = [b"PK\x01\x02".as_slice(), &[7; 42]].concat();
        assert!(few_parts(mark.repeat(4_000).as_slice()).expect("it is read"));
        assert!(!few_parts(mark.repeat(9_000).as_slice()).expect("it is read"));
    }
}
