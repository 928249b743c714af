//! `grep`: lines of files that fit a regular expression, whatever their encoding.

use std::{io::Read, path::Path};

use async_trait::async_trait;
use cap_fs_ext::{FollowSymlinks, MetadataExt, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::fs::{File, OpenOptions};
use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{self, Broker, short, tell, visible},
    decode::{self, Content},
    find::{glob, prefix},
    walk::{Next, walk},
};

/// Matching lines shown when no limit is given, and the most of one file when several are searched.
const DEFAULT_LIMIT: usize = 200;
const MOST_OF_ONE_FILE: usize = 50;
/// Larger files are stepped over in a folder; one that is named is searched up to here.
const LARGEST_FILE: u64 = 10 * 1024 * 1024;
/// Bytes read in one call, at most.
const MOST_BYTES: u64 = 256 * 1024 * 1024;
/// Characters shown of one line.
const LINE_CHARS: usize = 400;
/// Compiled size of an expression: far above any honest one, far below what hurts.
const EXPRESSION_SIZE: usize = 1024 * 1024;

/// Searches in files.
#[derive(Debug)]
pub struct GrepFiles;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arguments {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default)]
    literal: bool,
    context: Option<usize>,
    limit: Option<usize>,
}

#[async_trait]
impl Tool for GrepFiles {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "grep".to_owned(),
            description: "Searches text files line by line for a regular expression; shows path:line: text.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "pattern": {"type": "string", "minLength": 1},
                    "path": {"type": "string"},
                    "glob": {"type": "string"},
                    "ignoreCase": {"type": "boolean"},
                    "literal": {"type": "boolean"},
                    "context": {"type": "integer", "minimum": 0, "maximum": 20},
                    "limit": {"type": "integer", "minimum": 1},
                },
                "required": ["pattern"],
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let args: Arguments = arguments::typed(args)?;
        broker::on_disk(ctx, "use a narrower pattern, path or glob", move |files| search(files, &args)).await
    }
}

fn search(files: &Broker, args: &Arguments) -> Result<String, ToolError> {
    let expression = expression(args)?;
    let only = args.glob.as_deref().filter(|glob| !glob.trim().is_empty()).map(glob).transpose()?;
    let place = files.place(args.path.as_deref().filter(|path| !path.trim().is_empty()).unwrap_or("."))?;
    let mut found = Found {
        expression,
        context: args.context.unwrap_or(0).min(20),
        limit: args.limit.unwrap_or(DEFAULT_LIMIT).max(1),
        ..Found::default()
    };
    if files.is_dir(&place) {
        let prefix = prefix(&place.to_string());
        let whole = walk(files, &place, false, |entry| {
            if !entry.kind.is_file() || only.as_ref().is_some_and(|only| !only.is_match(entry.path)) {
                return Ok(Next::On);
            }
            let mut options = OpenOptions::new();
            options.read(true).nonblock(true).follow(FollowSymlinks::No);
            let Ok(file) = entry.dir.open_with(Path::new(entry.name), &options) else {
                found.unread += 1;
                return Ok(Next::On);
            };
            let plain = file.metadata().is_ok_and(|it| it.is_file() && it.nlink() <= 1 && it.len() <= LARGEST_FILE);
            if !plain {
                found.unread += 1;
                return Ok(Next::On);
            }
            found.search(file, &format!("{prefix}{}", visible(entry.path)), MOST_OF_ONE_FILE);
            Ok(if found.full() { Next::Enough } else { Next::On })
        })?;
        found.whole = whole;
    } else {
        let (file, metadata) = files.open_file(&place)?;
        found.whole = metadata.len() <= LARGEST_FILE;
        found.search(file, &place.to_string(), usize::MAX);
        if let Some(kind) = found.binary {
            return Ok(format!("(`{place}` is no text: {kind})"));
        }
    }
    Ok(found.told(&args.pattern, &place.to_string()))
}

fn expression(args: &Arguments) -> Result<Regex, ToolError> {
    let pattern = if args.literal { regex::escape(&args.pattern) } else { args.pattern.clone() };
    let built = RegexBuilder::new(&pattern)
        .case_insensitive(args.ignore_case)
        .size_limit(EXPRESSION_SIZE)
        .dfa_size_limit(EXPRESSION_SIZE)
        .build();
    match built {
        Ok(expression) => Ok(expression),
        Err(regex::Error::CompiledTooBig(_)) => {
            tell("`pattern` is too large an expression. Use a simpler one, with smaller repetitions.".to_owned())
        }
        Err(error) => {
            // Its last line says what is wrong; the ones above draw the place.
            let why = error.to_string();
            let why = why.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned();
            tell(format!(
                "`pattern` is no valid regular expression: {}. Look-around and back-references do not exist here; set \
                 literal to search for plain text.",
                short(&why)
            ))
        }
    }
}

/// What was found so far.
struct Found {
    expression: Regex,
    context: usize,
    limit: usize,
    lines: Vec<String>,
    matches: usize,
    /// Files whose further matches were left out.
    cut_files: usize,
    /// Files that were no plain, readable text file of a sensible size.
    unread: usize,
    binary: Option<&'static str>,
    bytes: u64,
    whole: bool,
}

impl Default for Found {
    fn default() -> Self {
        Self {
            expression: Regex::new("").expect("the empty expression is valid"),
            context: 0,
            limit: DEFAULT_LIMIT,
            lines: Vec::new(),
            matches: 0,
            cut_files: 0,
            unread: 0,
            binary: None,
            bytes: 0,
            whole: true,
        }
    }
}

impl Found {
    fn full(&self) -> bool {
        self.matches > self.limit || self.bytes > MOST_BYTES
    }

    /// Adds the matches of one file, `most` of them.
    fn search(&mut self, file: File, shown: &str, most: usize) {
        let mut bytes = Vec::new();
        if file.take(LARGEST_FILE).read_to_end(&mut bytes).is_err() {
            self.unread += 1;
            return;
        }
        self.bytes += bytes.len() as u64;
        let encoding = match decode::sniff(&bytes, (bytes.len() as u64) < LARGEST_FILE) {
            Content::Text(encoding) => encoding,
            Content::Binary(kind) => {
                self.binary = Some(kind);
                return;
            }
        };
        let (text, _) = encoding.decode(&bytes);
        // Most files hold no match at all: one look at the whole spares the lines.
        if !self.expression.is_match(&text) && !self.is_anchored() {
            return;
        }
        let lines: Vec<&str> = text.lines().collect();
        let (mut here, mut shown_to) = (0usize, 0usize);
        for (n, line) in lines.iter().enumerate() {
            if !self.expression.is_match(line) {
                continue;
            }
            here += 1;
            if here > most {
                self.cut_files += 1;
                return;
            }
            self.matches += 1;
            if self.matches > self.limit {
                return;
            }
            let from = n.saturating_sub(self.context).max(shown_to);
            let to = (n + self.context + 1).min(lines.len());
            if self.context > 0 && from > shown_to && here > 1 {
                self.lines.push("--".to_owned());
            }
            for (at, line) in lines.iter().enumerate().take(to).skip(from) {
                let mark = if at == n || (at > n && self.expression.is_match(line)) { ':' } else { '-' };
                let text = if at == n { around_match(line, &self.expression) } else { cut(line) };
                self.lines.push(format!("{shown}{mark}{}{mark} {text}", at + 1));
            }
            shown_to = shown_to.max(to);
        }
    }

    /// Whether the expression may fit a line without fitting the text: `^`, `$` and `\A` mean something else there.
    fn is_anchored(&self) -> bool {
        let pattern = self.expression.as_str();
        pattern.contains(['^', '$']) || ["\\A", "\\z", "\\b", "\\B"].iter().any(|anchor| pattern.contains(anchor))
    }

    fn told(mut self, pattern: &str, place: &str) -> String {
        if self.matches == 0 {
            self.lines.push(format!("(no matches for `{}` in `{place}`)", short(pattern)));
        }
        if self.matches > self.limit {
            self.lines.push(format!("[more than {} matches; use a narrower pattern or a higher limit]", self.limit));
        }
        if self.cut_files > 0 {
            self.lines.push(format!(
                "[{} files have more than {MOST_OF_ONE_FILE} matches; search in one of them for the rest]",
                self.cut_files
            ));
        }
        if self.unread > 0 {
            self.lines.push(format!("[{} files were not searched: too large, linked or unreadable]", self.unread));
        }
        if !self.whole || self.bytes > MOST_BYTES {
            self.lines.push("[not everything was searched; give a narrower path]".to_owned());
        }
        self.lines.join("\n")
    }
}

/// The line, or what of it lies around its first match.
fn around_match(line: &str, expression: &Regex) -> String {
    let start = expression.find(line).map_or(0, |found| line[..found.start()].chars().count());
    if start + 40 < LINE_CHARS {
        return cut(line);
    }
    let rest: String = line.chars().skip(start - 40).collect();
    format!("…{}", cut(&rest))
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(LINE_CHARS) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::Fixture, *};
    use crate::tools::decode::{Charset, Encoding};

    async fn grep(house: &Fixture, args: Value) -> Result<String, String> {
        house.run(&GrepFiles, args).await
    }

    #[tokio::test]
    async fn lines_are_found_in_every_encoding() {
        let house = Fixture::new();
        let text = "第一行\n地址：上海浦东\n第三行\n";
        house.put("utf8.txt", text).put("skip.bin", b"\x7fELF\0 shanghai").put("target/x.txt", text);
        house.put("gb.txt", Encoding { charset: Charset::Gb18030, bom: false }.encode(text));
        house.put("u16.txt", Encoding { charset: Charset::Utf16Be, bom: true }.encode(text));
        assert_eq!(
            grep(&house, json!({"pattern": "上海"})).await.as_deref(),
            Ok("gb.txt:2: 地址：上海浦东\nu16.txt:2: 地址：上海浦东\nutf8.txt:2: 地址：上海浦东")
        );
        assert_eq!(
            grep(&house, json!({"pattern": "^地址.*东$", "glob": "g*.txt"})).await.as_deref(),
            Ok("gb.txt:2: 地址：上海浦东")
        );
        assert_eq!(
            grep(&house, json!({"pattern": "上海", "path": "gb.txt", "context": 1})).await.as_deref(),
            Ok("gb.txt-1- 第一行\ngb.txt:2: 地址：上海浦东\ngb.txt-3- 第三行")
        );
        assert_eq!(
            grep(&house, json!({"pattern": "x", "path": "skip.bin"})).await.as_deref(),
            Ok("(`skip.bin` is no text: Linux program (ELF))")
        );
        assert_eq!(grep(&house, json!({"pattern": "北京"})).await.as_deref(), Ok("(no matches for `北京` in `.`)"));
        assert_eq!(
            grep(&house, json!({"pattern": "weather", "path": "skills", "ignoreCase": true})).await.as_deref(),
            Ok("skills/weather/SKILL.md:1: # Weather")
        );
    }

    #[tokio::test]
    async fn caps_hold_and_are_told() {
        let house = Fixture::new();
        house.put("many.txt", "hit\n".repeat(300)).put("one.txt", "hit\n");
        let text = grep(&house, json!({"pattern": "hit"})).await.expect("matches");
        assert_eq!(text.lines().filter(|line| line.ends_with(": hit")).count(), MOST_OF_ONE_FILE + 1);
        assert!(text.ends_with("[1 files have more than 50 matches; search in one of them for the rest]"), "{text}");
        let text = grep(&house, json!({"pattern": "hit", "path": "many.txt", "limit": 2})).await.expect("matches");
        assert_eq!(
            text,
            "many.txt:1: hit\nmany.txt:2: hit\n[more than 2 matches; use a narrower pattern or a higher limit]"
        );
        house.put("wide.txt", format!("{}needle{}", "x".repeat(100_000), "y".repeat(100_000)));
        let text = grep(&house, json!({"pattern": "needle"})).await.expect("a match");
        assert!(text.starts_with("wide.txt:1: …xxx") && text.contains("needleyyy") && text.len() < 500, "{text}");
    }

    #[tokio::test]
    async fn row_47_bad_and_hostile_expressions_end_in_one_sentence() {
        let house = Fixture::new();
        house.put("a.txt", format!("{}b\n", "a".repeat(100_000))).put("c.txt", "a(b\n");
        let told = grep(&house, json!({"pattern": "a(b"})).await.expect_err("unclosed");
        assert!(told.contains("is no valid regular expression: unclosed group"), "{told}");
        assert_eq!(grep(&house, json!({"pattern": "a(b", "literal": true})).await.as_deref(), Ok("c.txt:1: a(b"));
        let told = grep(&house, json!({"pattern": "((a{1000}){1000}){1000}"})).await.expect_err("too large");
        assert!(told.contains("too large an expression"), "{told}");
        assert!(grep(&house, json!({"pattern": "(a+)+$"})).await.as_deref().is_ok_and(|text| text.starts_with("(no")));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn what_may_not_be_read_is_not_searched() {
        let house = Fixture::new();
        house.put("real.txt", "SECRET of ours\n");
        std::os::unix::fs::symlink("../outside", house.at("out")).expect("a link");
        std::os::unix::fs::symlink("../outside/secret.txt", house.at("out.txt")).expect("a link");
        std::fs::hard_link(house.top.path().join("outside/secret.txt"), house.at("hard.txt")).expect("a hard link");
        let made = std::process::Command::new("mkfifo").arg(house.at("pipe")).status().expect("mkfifo runs");
        assert!(made.success());
        assert_eq!(
            grep(&house, json!({"pattern": "SECRET"})).await.as_deref(),
            Ok("real.txt:1: SECRET of ours\n[1 files were not searched: too large, linked or unreadable]")
        );
    }
}
