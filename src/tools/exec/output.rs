//! What a command writes, kept within bounds while it comes: the head and the tail stay, the middle is counted.

use std::{borrow::Cow, collections::VecDeque};

use crate::{
    secrets::Redactor,
    tools::{
        broker::size,
        decode::{self, Charset, Content},
        truncate,
    },
};

/// Kept of the head, and as much of the tail, at least.
const LEAST: usize = 64 * 1024;
/// Kept of the head, and as much of the tail, at most.
const MOST: usize = 1024 * 1024;
/// Where the middle was left out, this much on both sides of it may hold the piece of a secret and is not shown.
const EDGE: usize = 4 * 1024;

/// The output of one command.
pub struct Output {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Bytes the head and the tail may each have.
    each: usize,
    total: u64,
}

impl Output {
    /// Keeps enough for a result of `output_chars` characters.
    pub fn new(output_chars: usize) -> Self {
        let each = (output_chars * 4 + EDGE).clamp(LEAST, MOST);
        Self { head: Vec::new(), tail: VecDeque::new(), each, total: 0 }
    }

    /// Takes what came.
    pub fn add(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = self.each - self.head.len();
        let (head, rest) = bytes.split_at(bytes.len().min(room));
        self.head.extend_from_slice(head);
        // Of more than fits only the end can stay.
        let rest = &rest[rest.len().saturating_sub(self.each)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.each);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// Whether its end reads as that of a program that looked for a network: what libc, curl and Python say then.
    pub fn misses_the_network(&self) -> bool {
        const SAID: [&str; 6] = [
            "could not resolve ",
            "name resolution",
            "name or service not known",
            "network is unreachable",
            "couldn't connect to server",
            "unable to resolve host",
        ];
        let end = if self.tail.is_empty() { self.head.len() } else { 0 };
        let head = &self.head[end.saturating_sub(EDGE)..end];
        let tail = self.tail.iter().skip(self.tail.len().saturating_sub(EDGE));
        let bytes: Vec<u8> = head.iter().chain(tail).copied().collect();
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        SAID.iter().any(|said| text.contains(said))
    }

    /// The text, decoded, without secrets, in at most `chars` characters; `None` when nothing was written.
    pub fn text(mut self, redactor: &Redactor, chars: usize) -> Option<String> {
        const HOW: &str = "write the output into a file and read that, or use head, tail or grep";
        if self.total == 0 {
            return None;
        }
        let kept = self.head.len() + self.tail.len();
        let middle = self.total - kept as u64;
        let tail: &[u8] = self.tail.make_contiguous();
        if middle == 0 {
            self.head.extend_from_slice(tail);
            let text = decoded(&self.head);
            return Some(truncate::head_and_tail(&redactor.redact(&text), chars, HOW));
        }
        let (head, tail) = (decoded(&self.head), decoded(tail));
        let (head, tail) = (redactor.redact(&head), redactor.redact(&tail));
        let (head, tail) = (before_edge(&head), after_edge(&tail));
        let note = format!("\n[… of {} in all the middle was not kept; {HOW} …]\n", size(self.total));
        let room = chars.saturating_sub(note.chars().count());
        let head: String = head.chars().take(room * 7 / 10).collect();
        let rest = room - room * 7 / 10;
        let skip = tail.chars().count().saturating_sub(rest);
        let tail: String = tail.chars().skip(skip).collect();
        Some(format!("{head}{note}{tail}"))
    }
}

/// The head without its last, incomplete line, or without the edge.
fn before_edge(head: &str) -> &str {
    let edge = head.floor_char_boundary(head.len().saturating_sub(EDGE));
    head.rfind('\n').filter(|at| *at >= edge).map_or(&head[..edge], |at| &head[..at])
}

/// The tail without its first, incomplete line, or without the edge.
fn after_edge(tail: &str) -> &str {
    let edge = tail.ceil_char_boundary(EDGE.min(tail.len()));
    tail.find('\n').filter(|at| *at < edge).map_or(&tail[edge..], |at| &tail[at + 1..])
}

/// The text of these bytes. What is neither UTF-8 nor UTF-16 is GB18030 where it reads well as such: the code page of
/// consoles in China, and of files that a command shows.
pub(super) fn decoded(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        // A zero byte between names (`find -print0`) is shown, not sent.
        return if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{2400}")) } else { Cow::Borrowed(text) };
    }
    match decode::sniff(bytes, false) {
        Content::Text(encoding) => {
            let (text, damaged) = encoding.decode(bytes);
            if damaged && encoding.charset != Charset::Utf8 { String::from_utf8_lossy(bytes) } else { text }
        }
        Content::Binary(kind) => Cow::Owned(format!("({}: {kind}; it is not shown)\n", size(bytes.len() as u64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::Secret;

    fn of(pieces: &[&[u8]], chars: usize) -> Option<String> {
        let mut output = Output::new(chars);
        for piece in pieces {
            output.add(piece);
        }
        output.text(&Redactor::default(), chars)
    }

    #[test]
    fn what_fits_is_whole_and_in_order() {
        assert_eq!(of(&[], 1000), None);
        assert_eq!(of(&[b"one\n", b"two\n"], 1000).as_deref(), Some("one\ntwo\n"));
        // A character that came in two pieces.
        let text = "小龙虾".as_bytes();
        assert_eq!(of(&[&text[..4], &text[4..]], 1000).as_deref(), Some("小龙虾"));
    }

    #[test]
    fn a_flood_keeps_head_and_tail_in_bounded_memory() {
        let mut output = Output::new(16_000);
        let line = b"the same line over and over again\n";
        output.add(b"FIRST\n");
        for _ in 0..200_000 {
            output.add(line);
        }
        output.add(b"LAST\n");
        assert!(output.head.len() + output.tail.len() <= 2 * MOST);
        assert!(output.tail.capacity() <= 4 * LEAST.max(16_000 * 4 + EDGE));
        let text = output.text(&Redactor::default(), 16_000).expect("some");
        assert!(text.starts_with("FIRST\nthe same"), "{}", &text[..100]);
        assert!(text.ends_with("again\nLAST\n"));
        assert!(text.contains("of 6.5 MiB in all the middle was not kept"), "{text}");
        assert!(text.chars().count() <= 16_000);
        // One piece larger than everything.
        let mut output = Output::new(200);
        output.add(&vec![b'x'; 3 * MOST]);
        assert_eq!(output.total, 3 * MOST as u64);
        assert!(output.text(&Redactor::default(), 200).expect("some").chars().count() <= 200);
    }

    #[test]
    fn bytes_that_are_no_utf8_are_read_as_what_they_are() {
        let (gbk, _, _) = encoding_rs::GBK.encode("目录中没有这个文件，请检查路径是否正确。\n");
        assert_eq!(of(&[&gbk], 1000).as_deref(), Some("目录中没有这个文件，请检查路径是否正确。\n"));
        assert_eq!(of(&[b"a\0b\0"], 1000).as_deref(), Some("a\u{2400}b\u{2400}"));
        let png = of(&[b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe\xfd"], 1000).expect("some");
        assert!(png.contains("PNG image; it is not shown"), "{png}");
        let broken = of(&[b"fine \xff\xfe not fine\n"], 1000).expect("some");
        assert!(broken.contains("fine") && broken.contains("not fine"), "{broken}");
    }

    #[test]
    fn a_secret_is_taken_out_also_where_the_middle_is_cut() {
        let secret = Secret::new("sk-canary-0123456789");
        let redactor = Redactor::new([&secret]);
        let mut output = Output::new(1000);
        output.add(b"key: sk-canary-0123456789\n");
        assert_eq!(output.text(&redactor, 1000).as_deref(), Some("key: [redacted]\n"));
        // Half of it is the last of the head, half the first of the tail.
        for shift in 0..40 {
            let mut output = Output::new(1000);
            let each = output.each;
            output.add(&vec![b'.'; each - shift]);
            output.add(secret.expose().as_bytes());
            output.add(&vec![b'.'; each]);
            let text = output.text(&redactor, 500_000).expect("some");
            assert!(!text.contains("canary") && !text.contains("sk-c"), "{shift}");
            assert!(!text.contains("6789"), "{shift}");
        }
    }
}
