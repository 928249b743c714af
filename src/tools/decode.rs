//! Tells text from binary and gives the text of a file whatever its encoding: UTF-8, UTF-16, GB18030 (with GBK, GB2312).
//!
//! Pure: bytes in, text out. What it guesses is said, so that a reader can doubt it.

use std::{borrow::Cow, fmt};

/// How a text file is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// The character set.
    pub charset: Charset,
    /// Whether it begins with a byte order mark.
    pub bom: bool,
}

/// The character sets that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charset {
    /// The usual one.
    Utf8,
    /// Two bytes a unit, low byte first.
    Utf16Le,
    /// Two bytes a unit, high byte first.
    Utf16Be,
    /// The Chinese national one; GBK and GB2312 are parts of it.
    Gb18030,
}

impl Encoding {
    /// UTF-8 without a mark.
    pub const PLAIN: Self = Self { charset: Charset::Utf8, bom: false };

    /// The bytes of the mark, when there is one.
    fn mark(self) -> &'static [u8] {
        match (self.bom, self.charset) {
            (false, _) => b"",
            (true, Charset::Utf8) => b"\xef\xbb\xbf",
            (true, Charset::Utf16Le) => b"\xff\xfe",
            (true, Charset::Utf16Be) => b"\xfe\xff",
            (true, Charset::Gb18030) => b"\x84\x31\x95\x33",
        }
    }

    /// A decoder for a stream of this encoding's bytes; the mark has to be skipped by [`Encoding::skip_mark`].
    pub fn decoder(self) -> encoding_rs::Decoder {
        let encoding = match self.charset {
            Charset::Utf8 => encoding_rs::UTF_8,
            Charset::Utf16Le => encoding_rs::UTF_16LE,
            Charset::Utf16Be => encoding_rs::UTF_16BE,
            Charset::Gb18030 => encoding_rs::GB18030,
        };
        encoding.new_decoder_without_bom_handling()
    }

    /// The bytes after the mark.
    pub fn skip_mark(self, bytes: &[u8]) -> &[u8] {
        bytes.strip_prefix(self.mark()).unwrap_or(bytes)
    }

    /// The text without its mark, and whether bytes that mean nothing were replaced by U+FFFD.
    pub fn decode(self, bytes: &[u8]) -> (Cow<'_, str>, bool) {
        let bytes = self.skip_mark(bytes);
        if self.charset == Charset::Utf8 {
            let text = String::from_utf8_lossy(bytes);
            let damaged = matches!(text, Cow::Owned(_));
            return (text, damaged);
        }
        let mut decoder = self.decoder();
        let most = decoder.max_utf8_buffer_length(bytes.len()).unwrap_or(bytes.len().saturating_mul(3));
        let mut text = String::with_capacity(most);
        let (_, _, damaged) = decoder.decode_to_string(bytes, &mut text, true);
        (Cow::Owned(text), damaged)
    }

    /// The text as bytes of this encoding, with its mark.
    pub fn encode(self, text: &str) -> Vec<u8> {
        let mut bytes = self.mark().to_vec();
        match self.charset {
            Charset::Utf8 => bytes.extend_from_slice(text.as_bytes()),
            Charset::Utf16Le => bytes.extend(text.encode_utf16().flat_map(u16::to_le_bytes)),
            Charset::Utf16Be => bytes.extend(text.encode_utf16().flat_map(u16::to_be_bytes)),
            Charset::Gb18030 => bytes.extend_from_slice(&encoding_rs::GB18030.encode(text).0),
        }
        bytes
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.charset {
            Charset::Utf8 => "UTF-8",
            Charset::Utf16Le => "UTF-16LE",
            Charset::Utf16Be => "UTF-16BE",
            Charset::Gb18030 => "GB18030",
        })?;
        f.write_str(if self.bom { " with BOM" } else { "" })
    }
}

/// What a file's beginning says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Text, in that encoding.
    Text(Encoding),
    /// No text; the kind in words, e.g. `PNG image`.
    Binary(&'static str),
}

/// Looks at the first bytes of a file; `whole` when they are all there is (else the last character may be cut).
pub fn sniff(sample: &[u8], whole: bool) -> Content {
    let text = |charset, bom| Content::Text(Encoding { charset, bom });
    if sample.starts_with(b"\xff\xfe\0\0") || sample.starts_with(b"\0\0\xfe\xff") {
        return Content::Binary("UTF-32 text, which is not supported");
    }
    for charset in [Charset::Utf8, Charset::Utf16Le, Charset::Utf16Be, Charset::Gb18030] {
        if sample.starts_with(Encoding { charset, bom: true }.mark()) {
            return text(charset, true);
        }
    }
    let has_nul = sample.contains(&0);
    let utf8 = is_utf8(sample, whole);
    if let Some(kind) = magic(sample, has_nul || !utf8) {
        return Content::Binary(kind);
    }
    if has_nul {
        return utf16_without_mark(sample).map_or(Content::Binary("binary data"), |charset| text(charset, false));
    }
    if utf8 {
        return Content::Text(Encoding::PLAIN);
    }
    // A few broken bytes in a UTF-8 text are damage, not another encoding.
    let (mut sound, mut broken) = (0usize, 0usize);
    for chunk in sample.utf8_chunks() {
        sound += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        broken += usize::from(!chunk.invalid().is_empty());
    }
    if sound > broken.saturating_mul(4) {
        return Content::Text(Encoding::PLAIN);
    }
    if is_gb18030(sample, whole) {
        return text(Charset::Gb18030, false);
    }
    let controls = sample.iter().filter(|byte| **byte < 0x20 && !matches!(**byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b));
    if controls.count().saturating_mul(100) < sample.len() {
        return Content::Text(Encoding::PLAIN);
    }
    Content::Binary("binary data")
}

fn is_utf8(sample: &[u8], whole: bool) -> bool {
    match std::str::from_utf8(sample) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && !whole,
    }
}

/// Latin text in UTF-16 has a zero in nearly every second byte, and always the same second one.
fn utf16_without_mark(sample: &[u8]) -> Option<Charset> {
    let pairs = sample.len() / 2;
    let zeros = |first: usize| sample.iter().skip(first).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd) = (zeros(0), zeros(1));
    let mostly = |many: usize, few: usize| pairs >= 2 && many * 10 >= pairs * 3 && few * 50 <= pairs;
    let charset = match () {
        () if mostly(odd, even) => Charset::Utf16Le,
        () if mostly(even, odd) => Charset::Utf16Be,
        () => return None,
    };
    let (text, damaged) = Encoding { charset, bom: false }.decode(&sample[..pairs * 2]);
    let controls = text.chars().filter(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r')).count();
    (!damaged && controls == 0).then_some(charset)
}

/// Whether the bytes decode without a fault into what Chinese text is made of.
fn is_gb18030(sample: &[u8], whole: bool) -> bool {
    let most_cut = if whole { 0 } else { 3.min(sample.len()) };
    (0..=most_cut).any(|cut| {
        let text = encoding_rs::GB18030.decode_without_bom_handling_and_without_replacement(&sample[..sample.len() - cut]);
        text.is_some_and(|text| {
            let (mut likely, mut all) = (0usize, 0usize);
            for c in text.chars().filter(|c| !c.is_ascii()) {
                all += 1;
                likely += usize::from(matches!(c,
                    '\u{2010}'..='\u{2642}' | '\u{3000}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ff00}'..='\u{ffef}'
                    | '\u{20000}'..='\u{3ffff}' | '\u{b7}' | '\u{d7}' | '\u{1f300}'..='\u{1faff}'));
            }
            all > 0 && likely * 10 >= all * 9 && !text.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
        })
    })
}

/// The kind of a binary file by its first bytes. `odd` = it has a zero byte or is not UTF-8: short marks count only then.
fn magic(sample: &[u8], odd: bool) -> Option<&'static str> {
    let at = |from: usize, mark: &[u8]| sample.get(from..).is_some_and(|rest| rest.starts_with(mark));
    const KINDS: &[(&[u8], &str)] = &[
        (b"\x89PNG\r\n\x1a\n", "PNG image"),
        (b"%PDF-", "PDF document"),
        (b"PK\x03\x04", "ZIP archive or Office document (docx, xlsx, pptx)"),
        (b"PK\x05\x06", "empty ZIP archive"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old Office document (doc, xls, ppt)"),
        (b"SQLite format 3\0", "SQLite database"),
        (b"7z\xbc\xaf\x27\x1c", "7z archive"),
        (b"Rar!\x1a\x07", "RAR archive"),
        (b"\xfd7zXZ\0", "XZ archive"),
        (b"\x28\xb5\x2f\xfd", "Zstandard archive"),
        (b"\x7fELF", "Linux program (ELF)"),
        (b"\xcf\xfa\xed\xfe", "macOS program (Mach-O)"),
        (b"\0asm", "WebAssembly module"),
        (b"\xca\xfe\xba\xbe", "Java class or macOS program"),
        (b"OggS\0", "Ogg audio"),
        (b"fLaC\0", "FLAC audio"),
    ];
    const SHORT: &[(&[u8], &str)] = &[
        (b"\xff\xd8\xff", "JPEG image"),
        (b"GIF8", "GIF image"),
        (b"\x1f\x8b", "gzip archive"),
        (b"BZh", "bzip2 archive"),
        (b"ID3", "MP3 audio"),
        (b"\xff\xfb", "MP3 audio"),
        (b"MZ", "Windows program"),
        (b"BM", "BMP image"),
        (b"II*\0", "TIFF image"),
        (b"MM\0*", "TIFF image"),
        (b"\0\0\x01\0", "icon"),
    ];
    let listed = |kinds: &[(&[u8], &'static str)]| kinds.iter().find(|(mark, _)| at(0, mark)).map(|(_, kind)| *kind);
    if let Some(kind) = listed(KINDS) {
        return Some(kind);
    }
    if !odd {
        return None;
    }
    if at(0, b"RIFF") {
        return Some(if at(8, b"WEBP") {
            "WebP image"
        } else if at(8, b"WAVE") {
            "WAV audio"
        } else {
            "RIFF media"
        });
    }
    if at(4, b"ftyp") {
        return Some("MP4 video or HEIC image");
    }
    listed(SHORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHINESE: &str = "小龙虾是一个聊天平台的网关。\n第二行：价格 100 元，地址在上海。\n";

    fn seen(bytes: &[u8]) -> (Content, Option<String>) {
        let content = sniff(bytes, true);
        let text = match content {
            Content::Text(encoding) => Some(encoding.decode(bytes).0.into_owned()),
            Content::Binary(_) => None,
        };
        (content, text)
    }

    #[test]
    fn every_encoding_gives_the_same_text_and_goes_back_to_the_same_bytes() {
        for charset in [Charset::Utf8, Charset::Utf16Le, Charset::Utf16Be, Charset::Gb18030] {
            for bom in [true, false] {
                let encoding = Encoding { charset, bom };
                if matches!(charset, Charset::Utf16Le | Charset::Utf16Be) && !bom {
                    continue; // Chinese UTF-16 without a mark cannot be told from noise; Latin is tested below.
                }
                let bytes = encoding.encode(CHINESE);
                assert_eq!(seen(&bytes), (Content::Text(encoding), Some(CHINESE.to_owned())), "{encoding}");
            }
        }
        for charset in [Charset::Utf16Le, Charset::Utf16Be] {
            let encoding = Encoding { charset, bom: false };
            let bytes = encoding.encode("name,value\r\nalpha,1\r\n");
            assert_eq!(seen(&bytes), (Content::Text(encoding), Some("name,value\r\nalpha,1\r\n".to_owned())));
        }
        assert_eq!(Encoding { charset: Charset::Gb18030, bom: false }.to_string(), "GB18030");
        assert_eq!(Encoding { charset: Charset::Utf16Le, bom: true }.to_string(), "UTF-16LE with BOM");
    }

    #[test]
    fn a_sample_that_ends_in_a_character_is_still_text() {
        let utf8 = CHINESE.as_bytes();
        assert_eq!(sniff(&utf8[..utf8.len() - 5], false), Content::Text(Encoding::PLAIN));
        let gb = Encoding { charset: Charset::Gb18030, bom: false };
        let bytes = gb.encode(CHINESE);
        for cut in 1..8 {
            assert_eq!(sniff(&bytes[..bytes.len() - cut], false), Content::Text(gb), "cut {cut}");
        }
    }

    #[test]
    fn damage_in_utf8_is_not_taken_for_another_encoding() {
        let mut bytes = CHINESE.as_bytes().to_vec();
        bytes.insert(3, 0xff);
        assert_eq!(sniff(&bytes, true), Content::Text(Encoding::PLAIN));
        assert!(Encoding::PLAIN.decode(&bytes).1);
        assert_eq!(sniff(b"caf\xe9 au lait\n", true), Content::Text(Encoding::PLAIN));
    }

    #[test]
    fn binary_files_are_named() {
        for (bytes, kind) in [
            (&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], "PNG image"),
            (b"%PDF-1.7\n%\xe2\xe3", "PDF document"),
            (b"PK\x03\x04\x14\0", "ZIP archive or Office document (docx, xlsx, pptx)"),
            (b"\x7fELF\x02\x01\x01\0", "Linux program (ELF)"),
            (b"\xff\xd8\xff\xe0\0\x10JFIF", "JPEG image"),
            (b"RIFF\x24\0\0\0WAVEfmt ", "WAV audio"),
            (b"\0\0\0\x18ftypmp42", "MP4 video or HEIC image"),
            (b"SQLite format 3\0\x10\0", "SQLite database"),
            (b"\xff\xfe\0\0a\0\0\0", "UTF-32 text, which is not supported"),
            (b"abc\0\x01\x02\xff\xfe\0\0\0", "binary data"),
        ] {
            assert_eq!(sniff(bytes, true), Content::Binary(kind));
        }
        for text in ["BMW is a car\n", "MZ\n", "GIF89a is a format\n", "", "\u{1b}[31mred\n"] {
            assert_eq!(sniff(text.as_bytes(), true), Content::Text(Encoding::PLAIN), "{text}");
        }
    }
}
