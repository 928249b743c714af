//! `edit`: replaces an exact piece of a text file, keeping its encoding and line ends.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{self, short, tell},
    decode::{self, Content},
};
use crate::policy::Asks;

/// Lines and characters looked at when the nearest line is searched: a hint is not worth more.
const MOST_LINES: usize = 5_000;
const MOST_CHARS: usize = 120;

/// Edits a file.
#[derive(Debug)]
pub struct EditFile;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arguments {
    path: String,
    old_text: String,
    new_text: String,
    #[serde(default)]
    replace_all: bool,
}

#[async_trait]
impl Tool for EditFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "edit".to_owned(),
            description:
                "Replaces oldText, which must occur exactly once in the file, by newText. Read the file first."
                    .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "oldText": {"type": "string", "minLength": 1, "description": "Exact text, with its indentation"},
                    "newText": {"type": "string"},
                    "replaceAll": {"type": "boolean"},
                },
                "required": ["path", "oldText", "newText"],
                "additionalProperties": false,
            }),
        }
    }

    /// A second run mostly finds its old text gone and fails without harm; but where the new text holds the old one
    /// ("a" to "ab", a line added beside a line) it would do it twice. So it is never repeated by the machine.
    fn effect(&self) -> Effect {
        Effect::Effect
    }

    fn asks(&self, args: &Value) -> Asks {
        let path = args["path"].as_str().unwrap_or_default();
        super::asks_before_writing(path)
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { path, old_text, new_text, replace_all } = arguments::typed(args)?;
        broker::on_disk(ctx, "the edit was made all the same", move |files| {
            files.go_on()?;
            let slot = files.slot(&path, false)?;
            let shown = &slot.shown;
            let Some((bytes, stamp)) = slot.read()? else {
                // The reading side knows how to name the neighbours.
                return files
                    .place(&path)
                    .and_then(|place| files.open_file(&place))
                    .and_then(|_| tell(format!("`{shown}` does not exist in the workspace. Create it with write.")));
            };
            let encoding = match decode::sniff(&bytes, true) {
                Content::Text(encoding) => encoding,
                Content::Binary(kind) => return tell(format!("`{shown}` is no text ({kind}); it cannot be edited.")),
            };
            let (text, damaged) = encoding.decode(&bytes);
            if damaged || encoding.encode(&text) != bytes {
                return tell(format!(
                    "`{shown}` holds bytes that are no valid {encoding} text; an edit would change them too. Ask the \
                     user, or write the whole file anew."
                ));
            }
            let done = replaced(&text, &old_text, &new_text, replace_all)
                .map_err(|fault| ToolError::TellModel(fault.told(shown, &text, &old_text)))?;
            files.go_on()?;
            slot.replace(&encoding.encode(&done.text), Some(&stamp))?;
            let times = if done.times == 1 { "once".to_owned() } else { format!("{} times", done.times) };
            Ok(format!("Edited `{shown}`: replaced {times}, first in line {}.", done.line))
        })
        .await
    }
}

/// A text with its piece replaced.
#[derive(Debug, PartialEq)]
struct Replaced {
    text: String,
    times: usize,
    /// Where the first one was, from 1.
    line: usize,
}

/// Why a piece was not replaced.
#[derive(Debug, PartialEq)]
enum Fault {
    Empty,
    Same,
    NotFound { already_there: bool },
    Several { lines: Vec<usize>, times: usize },
}

/// Replaces `old` in `text`: exactly, or with the file's CRLF where `old` was written with LF.
fn replaced(text: &str, old: &str, new: &str, all: bool) -> Result<Replaced, Fault> {
    if old.is_empty() {
        return Err(Fault::Empty);
    }
    if old == new {
        return Err(Fault::Same);
    }
    let crlf = text.matches("\r\n").count() * 2 > text.matches('\n').count();
    let with_crlf = |piece: &str| piece.replace("\r\n", "\n").replace('\n', "\r\n");
    let new = if crlf { with_crlf(new) } else { new.to_owned() };
    let mut old = old.to_owned();
    if !text.contains(&old) && text.contains("\r\n") {
        old = with_crlf(&old);
    }
    let places: Vec<usize> = text.match_indices(&old).map(|(at, _)| at).collect();
    let line_of = |at: usize| text[..at].matches('\n').count() + 1;
    match places.as_slice() {
        [] => Err(Fault::NotFound { already_there: !new.trim().is_empty() && text.contains(&new) }),
        [_, _, ..] if !all => {
            Err(Fault::Several { lines: places.iter().take(5).map(|at| line_of(*at)).collect(), times: places.len() })
        }
        [first, ..] => Ok(Replaced { text: text.replace(&old, &new), times: places.len(), line: line_of(*first) }),
    }
}

impl Fault {
    fn told(&self, shown: &str, text: &str, old: &str) -> String {
        match self {
            Self::Empty => "`oldText` is empty. Give the exact text to replace; use write for a new file.".to_owned(),
            Self::Same => "`oldText` and `newText` are the same, so there is nothing to change.".to_owned(),
            Self::NotFound { already_there } => {
                let hint = if *already_there {
                    "`newText` is already in the file: perhaps the edit was made before.".to_owned()
                } else {
                    nearest(text, old)
                };
                format!("`oldText` was not found in `{shown}`. {hint} Read the file again and copy the text exactly.")
            }
            Self::Several { lines, times } => {
                let lines: Vec<_> = lines.iter().map(usize::to_string).collect();
                let more = if *times > lines.len() { ", …" } else { "" };
                format!(
                    "`oldText` occurs {times} times in `{shown}` (lines {}{more}). Add lines around it until it is \
                     unique, or set replaceAll.",
                    lines.join(", ")
                )
            }
        }
    }
}

/// The line of the file that is most like the first line of what was not found.
fn nearest(text: &str, old: &str) -> String {
    let cut = |line: &str| line.trim().chars().take(MOST_CHARS).collect::<String>();
    let Some(wanted) = old.lines().map(cut).find(|line| !line.is_empty()) else {
        return "It is only white space.".to_owned();
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(MOST_LINES);
    let mut best: Option<(f64, usize, &str)> = None;
    for (n, line) in lines {
        let likeness = strsim::normalized_levenshtein(&wanted, &cut(line));
        if best.is_none_or(|(so_far, ..)| likeness > so_far) {
            best = Some((likeness, n + 1, line));
            if likeness >= 1.0 {
                break;
            }
        }
    }
    match best {
        None => "The file has no text.".to_owned(),
        Some((likeness, n, line)) if likeness >= 1.0 => {
            format!(
                "Line {n} matches its first line but for white space or what follows: `{}`.",
                short(line.trim_end())
            )
        }
        Some((likeness, n, line)) if likeness >= 0.4 => format!("Nearest is line {n}: `{}`.", short(line.trim_end())),
        Some(_) => "No line is like it.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{super::fixture::Fixture, *};
    use crate::tools::decode::{Charset, Encoding};

    async fn edit(house: &Fixture, old: &str, new: &str) -> Result<String, String> {
        house.run(&EditFile, json!({"path": "a.txt", "oldText": old, "newText": new})).await
    }

    #[tokio::test]
    async fn one_exact_piece_is_replaced() {
        let house = Fixture::new();
        house.put("a.txt", "one\n  two\nthree\n");
        assert_eq!(
            edit(&house, "  two\nthree", "  2\n3").await,
            Ok("Edited `a.txt`: replaced once, first in line 2.".to_owned())
        );
        assert_eq!(fs::read_to_string(house.at("a.txt")).expect("there"), "one\n  2\n3\n");
        let all = house.run(&EditFile, json!({"path": "a.txt", "oldText": "\n", "newText": "", "replaceAll": true}));
        assert_eq!(all.await, Ok("Edited `a.txt`: replaced 3 times, first in line 1.".to_owned()));
        assert_eq!(fs::read_to_string(house.at("a.txt")).expect("there"), "one  23");
    }

    #[tokio::test]
    async fn encodings_and_line_ends_are_kept() {
        let house = Fixture::new();
        for (charset, bom) in [(Charset::Gb18030, false), (Charset::Utf16Le, true), (Charset::Utf8, true)] {
            let encoding = Encoding { charset, bom };
            house.put("a.txt", encoding.encode("价格：100 元\r\n数量：二\r\n地址：上海\r\n"));
            edit(&house, "100 元\n数量：二", "200 元\n数量：三\n备注：无").await.expect("edited");
            let bytes = fs::read(house.at("a.txt")).expect("there");
            assert_eq!(bytes, encoding.encode("价格：200 元\r\n数量：三\r\n备注：无\r\n地址：上海\r\n"), "{encoding}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_replaced_is_told_with_the_way_out() {
        let house = Fixture::new();
        house.put("a.txt", "fn main() {\n    let total = 1;\n    let other = 1;\n}\n");
        for (old, new, told) in [
            ("let totl = 1;", "x", "Nearest is line 2: `    let total = 1;`."),
            ("\tlet total = 1;", "x", "Line 2 matches its first line but for white space"),
            ("= 1;", "= 2;", "`oldText` occurs 2 times in `a.txt` (lines 2, 3)."),
            ("let gone = 0;", "let total = 1;", "`newText` is already in the file"),
            ("小龙虾小龙虾小龙虾", "x", "No line is like it."),
            ("}", "}", "are the same"),
        ] {
            let error = edit(&house, old, new).await.expect_err(old);
            assert!(error.contains(told), "{old}: {error}");
        }
        let error = house.run(&EditFile, json!({"path": "b.txt", "oldText": "a", "newText": "b"})).await;
        assert!(error.as_ref().is_err_and(|told| told.contains("Near it in `.`: `a.txt`")), "{error:?}");
        house.put("a.txt", "caf\u{e9}".chars().map(|c| c as u8).collect::<Vec<_>>());
        let error = edit(&house, "caf", "tea").await.expect_err("no valid text");
        assert!(error.contains("no valid UTF-8 text"), "{error}");
        house.put("a.txt", b"\x89PNG\r\n\x1a\n\0");
        let error = edit(&house, "PNG", "x").await.expect_err("binary");
        assert!(error.contains("is no text (PNG image)"), "{error}");
    }

    #[test]
    fn a_file_changed_between_read_and_write_is_left_alone() {
        let house = Fixture::new();
        house.put("a.txt", "mine");
        let files = broker::Broker::open(&house.ctx).expect("it opens");
        let slot = files.slot("a.txt", false).expect("a slot");
        let (_, stamp) = slot.read().expect("readable").expect("there");
        house.put("a.txt", "theirs, later");
        let error = slot.replace(b"edited", Some(&stamp)).expect_err("changed");
        assert!(error.to_string().contains("was changed by someone else"), "{error}");
        assert_eq!(fs::read_to_string(house.at("a.txt")).expect("there"), "theirs, later");
    }
}
