//! How rows look on a terminal: lined up, times local, foreign text escaped.

use std::io::{IsTerminal as _, Write as _};

use serde::Serialize;

use crate::{
    lang::{self, Lang},
    terminal,
};

/// Writes a line to standard output; a reader that went away (`| head`) ends the output, not the program.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", terminal::escape(text));
}

/// Writes JSON for programs: control characters are escaped by JSON itself.
pub fn json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let _ = writeln!(std::io::stdout(), "{}", escape_c1(&text));
}

/// JSON leaves DEL, C1 and what turns or hides text as they are; terminals do not.
fn escape_c1(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            // The line breaks of JSON itself.
            '\n' => out.push(c),
            c if terminal::is_obeyed(c) => {
                out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
            }
            c => out.push(c),
        }
        out
    })
}

/// One compact line of JSON.
pub fn json_line(value: &impl Serialize) {
    let text = serde_json::to_string(value).unwrap_or_default();
    let _ = writeln!(std::io::stdout(), "{}", escape_c1(&text));
    let _ = std::io::stdout().flush();
}

/// Writes rows in columns as wide as their widest cell; the last column takes what is left and is cut on a terminal.
pub fn table(head: &[&str], rows: &[Vec<String>]) {
    let cells = |row: &Vec<String>| row.iter().map(|c| terminal::escape_line(c).into_owned()).collect::<Vec<_>>();
    let lang = Lang::current();
    let mut all = vec![head.iter().map(|name| lang::table_head(lang, name).to_owned()).collect::<Vec<_>>()];
    all.extend(rows.iter().map(cells));
    let last = head.len().saturating_sub(1);
    let widths: Vec<usize> = (0..last)
        .map(|i| all.iter().map(|row| terminal::width(row.get(i).map_or("", |c| c))).max().unwrap_or(0))
        .collect();
    let columns: usize = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok()).unwrap_or(120);
    let room = columns.saturating_sub(widths.iter().map(|w| w + 2).sum()).max(20);
    let is_terminal = std::io::stdout().is_terminal();
    for row in &all {
        let mut text = String::new();
        for (i, cell) in row.iter().enumerate() {
            if i < last {
                text.push_str(cell);
                text.push_str(&" ".repeat(widths[i] + 2 - terminal::width(cell).min(widths[i])));
            } else if is_terminal {
                text.push_str(&terminal::cut(cell, room));
            } else {
                text.push_str(cell);
            }
        }
        line(text.trim_end());
    }
}

/// Epoch milliseconds as local time.
pub fn time(ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(at) => at.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => ms.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_programs_moves_no_terminal_either() {
        assert_eq!(escape_c1("\"a\u{9b}31m\u{202e}\""), "\"a\\u009b31m\\u202e\"");
        let hidden = "x\u{200b}\u{e0041}\u{e0101}❤\u{fe0f}";
        let json = escape_c1(&serde_json::Value::from(hidden).to_string());
        assert_eq!(json, "\"x\\u200b\\udb40\\udc41\\udb40\\udd01❤\u{fe0f}\"");
        assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), hidden);
        assert!(time(0).starts_with("19"));
        assert_eq!(time(i64::MAX), i64::MAX.to_string());
    }
}
