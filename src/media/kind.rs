//! What a file is, told from its first bytes. What a sender says of it counts only among kinds of text, which bytes do
//! not tell apart, and among those that are archives in fact. Pure.

use crate::tools::decode::{Content, sniff};

/// How much of a file's beginning is looked at.
pub const HEAD: usize = 8 * 1024;

const TEXT: &str = "text/plain";
const BINARY: &str = "application/octet-stream";

/// The media type of a file that begins with `head` (`whole` when that is all of it) and was declared as `said`.
pub fn media_type(head: &[u8], whole: bool, said: Option<&str>) -> String {
    let said = said.and_then(declared);
    // QQ's and WeChat's voice.
    if head.strip_prefix(b"\x02").unwrap_or(head).starts_with(b"#!SILK_V3") {
        return "audio/silk".to_owned();
    }
    // Before anything takes its first two bytes for those of a script.
    if head.starts_with(b"#!AMR") {
        return "audio/amr".to_owned();
    }
    match infer::get(head).map(|kind| kind.mime_type()) {
        // Opus is Ogg to everyone who takes voice.
        Some("audio/opus") => "audio/ogg".to_owned(),
        Some("application/zip") => said.filter(|said| is_zipped(said)).unwrap_or("application/zip".to_owned()),
        Some(kind) if !is_text(kind) => kind.to_owned(),
        found => match sniff(head, whole) {
            Content::Text(_) if head.is_empty() => BINARY.to_owned(),
            Content::Text(_) => said.filter(|said| is_text(said)).unwrap_or_else(|| found.unwrap_or(TEXT).to_owned()),
            Content::Binary(_) => BINARY.to_owned(),
        },
    }
}

/// A name's usual ending for this type, without the dot; `None` when it does not tell.
pub fn ending(mime: &str) -> Option<&'static str> {
    Some(match mime {
        "image/jpeg" => "jpg",
        "image/png" => "png",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "image/bmp" => "bmp",
        "image/heif" => "heic",
        "image/avif" => "avif",
        "image/svg+xml" => "svg",
        "audio/mpeg" => "mp3",
        "audio/ogg" => "ogg",
        "audio/m4a" => "m4a",
        "audio/x-wav" => "wav",
        "audio/x-flac" => "flac",
        "audio/amr" => "amr",
        "audio/aac" => "aac",
        "audio/silk" => "silk",
        "video/mp4" => "mp4",
        "video/webm" => "webm",
        "video/quicktime" => "mov",
        "application/pdf" => "pdf",
        _ => return None,
    })
}

/// A type as its sender wrote it, in the form we compare; `None` when it is none.
fn declared(said: &str) -> Option<String> {
    let said = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'+' | b'-' | b'_');
    (said.len() <= 100 && said.matches('/').count() == 1 && said.bytes().all(plain)).then_some(said)
}

fn is_text(mime: &str) -> bool {
    let (kind, of) = mime.split_once('/').unwrap_or_default();
    kind == "text"
        || of.ends_with("+xml")
        || of.ends_with("+json")
        || (kind == "application"
            && ["json", "xml", "yaml", "x-yaml", "toml", "javascript", "sql", "x-sh", "x-ndjson", "csv", "rtf"]
                .contains(&of))
}

/// Formats that are zip archives.
fn is_zipped(mime: &str) -> bool {
    mime.starts_with("application/vnd.") || ["application/epub+zip", "application/java-archive"].contains(&mime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_tell_and_a_declared_type_counts_only_for_text() {
        let png: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
        let zip: &[u8] = b"PK\x03\x04\x14\0\0\0\x08\0";
        let sheet = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";
        let gbk = b"\xc4\xe3\xba\xc3\xa3\xac\xca\xc0\xbd\xe7";
        for (head, said, found) in [
            (png, None, "image/png"),
            (png, Some("text/html"), "image/png"),
            (b"\xff\xd8\xff\xe0\0\x10JFIF\0", Some("image/png"), "image/jpeg"),
            (
                b"OggS\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x13OpusHead\x01",
                Some("audio/mpeg"),
                "audio/ogg",
            ),
            (b"\x02#!SILK_V3\x0c\0", Some("audio/amr"), "audio/silk"),
            (b"#!AMR\n\x3c", None, "audio/amr"),
            (b"%PDF-1.7\n", Some("image/png"), "application/pdf"),
            (zip, Some(sheet), sheet),
            (zip, Some("image/png"), "application/zip"),
            (zip, None, "application/zip"),
            (b"a,b\n1,2\n", Some("text/csv; charset=utf-8"), "text/csv"),
            (b"a,b\n1,2\n", Some("image/png"), "text/plain"),
            (b"a,b\n1,2\n", Some("no type"), "text/plain"),
            (b"{\"a\": 1}", Some("application/json"), "application/json"),
            (b"<!DOCTYPE html><html>", None, "text/html"),
            (gbk, None, "text/plain"),
            (b"\0\x01\x02\x03\xff\xfe\xfd", Some("image/png"), "application/octet-stream"),
            (b"", Some("image/png"), "application/octet-stream"),
        ] {
            assert_eq!(media_type(head, true, said), found, "{head:?} as {said:?}");
        }
    }
}
