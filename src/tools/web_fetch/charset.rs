//! The characters of a body: by its byte order mark, its header, what the page says of itself, else by its bytes. Pure.

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

use crate::tools::decode::{self, Content};

/// Where a page must say its encoding (the HTML standard: within the first kilobyte; real pages are later).
const HEAD: usize = 4_096;

/// The text of a body. What means nothing becomes U+FFFD.
pub fn decoded(body: &[u8], content_type: &str, html: bool) -> String {
    if let Some((encoding, mark)) = Encoding::for_bom(body) {
        return encoding.decode_without_bom_handling(&body[mark..]).0.into_owned();
    }
    let named = label_in(content_type.as_bytes()).or_else(|| if html { declared(body) } else { None });
    let utf8 = std::str::from_utf8(body);
    let encoding = match (named, &utf8) {
        // Servers that know nothing say Latin-1; what is valid UTF-8 beyond ASCII is no Latin-1 by accident.
        (Some(encoding), Ok(text)) if encoding == WINDOWS_1252 && !text.is_ascii() => UTF_8,
        (Some(encoding), _) => encoding,
        (None, Ok(_)) => UTF_8,
        (None, Err(_)) => {
            return match decode::sniff(body, false) {
                Content::Text(encoding) => encoding.decode(body).0.into_owned(),
                Content::Binary(_) => String::from_utf8_lossy(body).into_owned(),
            };
        }
    };
    encoding.decode_without_bom_handling(body).0.into_owned()
}

/// The encoding that `<meta charset>` or `<meta http-equiv>` names. A page that can be read byte by byte is not UTF-16,
/// whatever it says.
fn declared(body: &[u8]) -> Option<&'static Encoding> {
    let head = &body[..body.len().min(HEAD)];
    let mut rest = head;
    while let Some(at) = find(rest, b"<meta") {
        rest = &rest[at + 5..];
        let tag = &rest[..rest.iter().position(|byte| *byte == b'>').unwrap_or(rest.len())];
        if let Some(encoding) = label_in(tag) {
            return Some(if encoding.is_ascii_compatible() { encoding } else { UTF_8 });
        }
    }
    None
}

/// The encoding after `charset=`, quoted or not.
fn label_in(text: &[u8]) -> Option<&'static Encoding> {
    let mut rest = text;
    while let Some(at) = find(rest, b"charset") {
        rest = rest[at + 7..].trim_ascii_start();
        let Some(value) = rest.strip_prefix(b"=") else { continue };
        let value = value.trim_ascii_start();
        let value = value.strip_prefix(b"\"").or_else(|| value.strip_prefix(b"'")).unwrap_or(value);
        let end =
            value.iter().position(|byte| matches!(byte, b'"' | b'\'' | b';' | b' ' | b'/')).unwrap_or(value.len());
        return Encoding::for_label(&value[..end]);
    }
    None
}

/// Where `wanted` (in small letters) stands, in capitals or not.
fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window.eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_is_found_wherever_it_is_named() {
        let text = "天气：北京，晴，25°C。今天适合出门散步。";
        let gbk = encoding_rs::GBK.encode(text).0.into_owned();
        let big5 = encoding_rs::BIG5.encode("天氣預報：臺北").0.into_owned();
        let meta = |tag: &str, body: &[u8]| [b"<html><head>".as_slice(), tag.as_bytes(), b"</head>", body].concat();
        for (body, content_type, html) in [
            (gbk.clone(), "text/plain; charset=GBK", false),
            (gbk.clone(), "text/html;charset=\"gb2312\"", true),
            (gbk.clone(), "text/html; Charset = gb18030", true),
            (meta("<META CHARSET='gbk'>", &gbk), "text/html", true),
            (meta("<meta name=x><meta http-equiv=Content-Type content=\"text/html; charset=gb2312\">", &gbk), "", true),
            (gbk.clone(), "text/plain", false),
            (text.as_bytes().to_vec(), "text/plain", false),
            (text.as_bytes().to_vec(), "text/html; charset=ISO-8859-1", true),
            (text.as_bytes().to_vec(), "text/html; charset=nonsense", true),
            (meta("<meta charset=utf-16>", text.as_bytes()), "text/html", true),
            ([b"\xef\xbb\xbf", text.as_bytes()].concat(), "text/html; charset=gbk", true),
            (
                text.encode_utf16().flat_map(u16::to_le_bytes).fold(vec![0xff, 0xfe], |mut all, byte| {
                    all.push(byte);
                    all
                }),
                "text/plain",
                false,
            ),
        ] {
            let read = decoded(&body, content_type, html);
            assert!(read.ends_with(text), "{content_type}: {read}");
        }
        assert_eq!(decoded(&big5, "text/html; charset=big5", true), "天氣預報：臺北");
        assert_eq!(decoded(b"caf\xe9", "text/html; charset=latin1", true), "café");
        assert_eq!(decoded(b"a\xffb", "text/plain; charset=utf-8", false), "a\u{fffd}b");
        // A header wins over the page.
        let both = meta("<meta charset=gbk>", "é".as_bytes());
        assert!(decoded(&both, "text/html; charset=utf-8", true).ends_with('é'));
    }
}
