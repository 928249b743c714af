//! Foreign text on a terminal or in a log file: shown, never obeyed.
//!
//! security.md row 46: escape sequences, control characters and invisible direction marks are written out as `\u{…}`, so
//! that a message cannot move the cursor, set the clipboard or hide a part of itself.

use std::{borrow::Cow, fmt::Write as _};

use crate::untrusted;

/// `text` with everything a terminal would obey written out; line breaks and tabs stay.
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_but(text, |c| c == '\n' || c == '\t')
}

/// Like [`escape`], on one line: line breaks and tabs are written out too.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape_but(text, |_| false)
}

fn escape_but(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| is_obeyed(c) && !keep(c)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_obeyed(c) || keep(c) => shown.push(c),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if (c as u32) < 0x80 => {
                let _ = write!(shown, "\\x{:02x}", c as u32);
            }
            c => {
                let _ = write!(shown, "\\u{{{:x}}}", c as u32);
            }
        }
    }
    Cow::Owned(shown)
}

/// C0, DEL, C1, line separators, and whatever hides or turns text.
pub fn is_obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') || untrusted::is_hidden(c)
}

/// A word for a shell's command line: as it is where it is plain, in quotes otherwise.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '%' | '+' | '=' | ',');
    match !text.is_empty() && text.chars().all(plain) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("'{}'", text.replace('\'', r"'\''"))),
    }
}

/// How many columns a terminal gives `text`: two for East Asian wide characters and emoji. An estimate for lining up.
pub fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> usize {
    match c as u32 {
        0x0300..=0x036f | 0x200b..=0x200d | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1f64f
        | 0x1f680..=0x1f9ff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// At most `columns` of `text`, with `…` where it was cut.
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut room = columns.saturating_sub(1);
    let mut short = String::new();
    for c in text.chars() {
        match room.checked_sub(char_width(c)) {
            Some(rest) => room = rest,
            None => break,
        }
        short.push(c);
    }
    short.push('…');
    Cow::Owned(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_46_nothing_a_terminal_would_obey_survives() {
        let table = [
            ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
            ("\x1b]8;;http://evil\x1b\\x\u{9b}31m", "\\x1b]8;;http://evil\\x1b\\x\\u{9b}31m"),
            ("a\u{202e}b\u{2066}\u{e0041}", "a\\u{202e}b\\u{2066}\\u{e0041}"),
            ("你好 👍🏽 👨‍👩‍👧\n\tok", "你好 👍🏽 👨‍👩‍👧\n\tok"),
            ("a\rb", "a\\rb"),
        ];
        for (text, shown) in table {
            assert_eq!(escape(text), shown);
        }
        assert_eq!(escape_line("a\nb\tc"), "a\\nb\\tc");
    }

    #[test]
    fn words_for_a_shell_are_one_word() {
        assert_eq!(shell_word("/srv/bot/.env"), "/srv/bot/.env");
        assert_eq!(shell_word("/srv/my bot/$x"), "'/srv/my bot/$x'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
    }

    #[test]
    fn wide_characters_count_twice_and_cuts_fit() {
        assert_eq!(width("ab 你好"), 7);
        assert_eq!(cut("你好世界", 5), "你好…");
        assert_eq!(cut("你好", 4), "你好");
        assert_eq!(cut("abcdef", 1), "…");
    }
}
