//! `memory_search`: passages of MEMORY.md and the notes below memory/ that answer a question, with where they stand.

use std::{io::Read, path::Path};

use async_trait::async_trait;
use cap_fs_ext::{FollowSymlinks, MetadataExt, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::fs::{Dir, OpenOptions};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{self, Broker, short, tell, visible},
    decode::{self, Content},
    walk::{Next, walk},
};
use crate::{
    memory::{self, Note},
    policy::Terms,
};

/// The file that holds what lasts.
pub const MEMORY: &str = "MEMORY.md";
/// The folder of the notes.
pub const FOLDER: &str = "memory";
/// Results, at most.
const MOST_RESULTS: usize = 8;
/// Read of one note, at most.
const LARGEST_NOTE: u64 = 1024 * 1024;
/// Read of all notes, at most.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// Searches the notes.
#[derive(Debug)]
pub struct SearchMemory;

#[derive(Deserialize)]
struct Arguments {
    query: String,
    limit: Option<usize>,
}

#[async_trait]
impl Tool for SearchMemory {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "memory_search".to_owned(),
            description:
                "Searches MEMORY.md and memory/ by words (Chinese or English) and gives the best passages with \
                          their source."
                    .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "The words to look for"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_RESULTS, "description": "Most passages (default 6)"},
                },
                "required": ["query"],
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn terms(&self) -> Terms {
        Terms::of(self.effect()).owner_only().direct_only()
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { query, limit } = arguments::typed(args)?;
        if query.trim().is_empty() {
            return tell("`query` is empty. Give the words to look for.".to_owned());
        }
        broker::on_disk(ctx, "ask with fewer words or a smaller limit", move |files| {
            let notes = Notes::read(files)?;
            if notes.read.is_empty() {
                return Ok(format!("(there are no notes yet: neither {MEMORY} nor a file in {FOLDER}/ holds any)"));
            }
            let found = memory::search(&notes.read, &query, limit.unwrap_or(6).clamp(1, MOST_RESULTS));
            let mut text = String::new();
            for passage in &found.passages {
                let (first, last) = passage.lines;
                text.push_str(&format!("{}\nSource: {}#L{first}-L{last}\n\n", passage.text, passage.path));
            }
            if found.passages.is_empty() {
                text = format!("(nothing about `{}` in {} notes)\n", short(&query), notes.read.len());
            } else if found.all > found.passages.len() {
                text.push_str(&format!("[{} of {} passages]\n", found.passages.len(), found.all));
            }
            if notes.left_out > 0 {
                text.push_str(&format!(
                    "[{} files were not searched: linked, unreadable or too large]\n",
                    notes.left_out
                ));
            }
            Ok(text)
        })
        .await
    }
}

/// Whether a path, as the broker shows it, is that of a note.
pub fn is_note(path: &str) -> bool {
    let folder = path.split_once('/').is_some_and(|(folder, rest)| folder == FOLDER && !rest.is_empty());
    path == MEMORY || (folder && has_ending(path))
}

fn has_ending(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, ending)| ending.eq_ignore_ascii_case("md"))
}

/// All notes of a workspace.
#[derive(Default)]
struct Notes {
    read: Vec<Note>,
    bytes: u64,
    /// Files that were no plain, readable text of a sensible size.
    left_out: usize,
}

impl Notes {
    fn read(files: &Broker) -> Result<Self, ToolError> {
        let mut notes = Self::default();
        let workspace = files.open_dir(&files.place(".")?)?;
        if workspace.symlink_metadata(MEMORY).is_ok() {
            notes.take(&workspace, Path::new(MEMORY), MEMORY.to_owned());
        }
        // A link instead of the folder is not followed, and neither is one below it.
        if workspace.symlink_metadata(FOLDER).is_ok_and(|metadata| metadata.is_dir()) {
            let folder = files.open_dir(&files.place(FOLDER)?)?;
            walk(files, folder, true, |entry| {
                if !entry.kind.is_dir() && has_ending(entry.path) {
                    notes.take(entry.dir, Path::new(entry.name), format!("{FOLDER}/{}", visible(entry.path)));
                }
                Ok(if notes.bytes > MOST_BYTES { Next::Enough } else { Next::On })
            })?;
        }
        Ok(notes)
    }

    fn take(&mut self, dir: &Dir, name: &Path, path: String) {
        match text_of(dir, name) {
            Some(text) => {
                self.bytes += text.len() as u64;
                if !text.trim().is_empty() {
                    self.read.push(Note { path, text });
                }
            }
            None => self.left_out += 1,
        }
    }
}

/// The text of a plain file; `None` when it is none, or too large.
fn text_of(dir: &Dir, name: &Path) -> Option<String> {
    let mut options = OpenOptions::new();
    options.read(true).nonblock(true).follow(FollowSymlinks::No);
    let file = dir.open_with(name, &options).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.nlink() > 1 || metadata.len() > LARGEST_NOTE {
        return None;
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(LARGEST_NOTE).read_to_end(&mut bytes).ok()?;
    match decode::sniff(&bytes, true) {
        Content::Text(encoding) => Some(encoding.decode(&bytes).0.into_owned()),
        Content::Binary(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::Fixture, *};

    async fn search(house: &Fixture, query: &str) -> String {
        house.run(&SearchMemory, json!({"query": query})).await.expect("it searches")
    }

    #[tokio::test]
    async fn passages_come_with_their_source() {
        let house = Fixture::new();
        assert!(search(&house, "tea").await.starts_with("(there are no notes yet"));
        house
            .put("MEMORY.md", "# People\nAda likes tea.\n")
            .put("memory/2026-03-22-伪指令问题修复总结.md", "# 总结\n\n写出来的调用没有执行。\n")
            .put("memory/old/2025-01-01.MD", "Tea was bought.\n")
            .put("memory/gbk.md", encoding_rs::GBK.encode("这是一份用旧编码写的笔记，里面提到了高铁车票和座位。\n").0)
            .put("memory/data.json", "tea tea tea")
            .put("notes.md", "tea is not a note here");
        assert_eq!(
            search(&house, "伪指令").await,
            "# 总结\n\n写出来的调用没有执行。\nSource: memory/2026-03-22-伪指令问题修复总结.md#L1-L3\n\n"
        );
        let both = search(&house, "TEA").await;
        assert!(both.contains("MEMORY.md#L1-L2") && both.contains("memory/old/2025-01-01.MD#L1-L1"), "{both}");
        assert_eq!(both.matches("Source:").count(), 2, "{both}");
        assert!(search(&house, "高铁").await.contains("memory/gbk.md#L1-L1"));
        assert_eq!(search(&house, "giraffe").await, "(nothing about `giraffe` in 4 notes)\n");
        assert!(house.run(&SearchMemory, json!({"query": " "})).await.is_err());
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn links_and_giants_are_left_out() {
        let house = Fixture::new();
        house.put("memory/a.md", "secret of the tea\n").put("memory/huge.md", vec![b'x'; 1 << 21]);
        let outside = house.top.path().join("outside");
        std::os::unix::fs::symlink(outside.join("secret.txt"), house.at("memory/link.md")).expect("a link");
        std::os::unix::fs::symlink(&outside, house.at("memory/folder")).expect("a link");
        std::fs::hard_link(outside.join("secret.txt"), house.at("MEMORY.md")).expect("a link");
        let text = search(&house, "secret").await;
        assert!(text.contains("memory/a.md#L1-L1") && text.contains("[3 files were not searched"), "{text}");
        let other = Fixture::new();
        std::os::unix::fs::symlink(&outside, other.at("memory")).expect("a link");
        assert!(search(&other, "secret").await.starts_with("(there are no notes yet"));
    }

    #[test]
    fn only_notes_are_notes() {
        for note in ["MEMORY.md", "memory/a.md", "memory/b/c.md", "memory/2026-03-22-春节.MD"] {
            assert!(is_note(note), "{note}");
        }
        for other in ["memory.md", "memory", "memory/", "memory/a.txt", "USER.md", "skills/memory/a.md", "memoryx/a.md"]
        {
            assert!(!is_note(other), "{other}");
        }
    }

    /// 1,000 notes of a person who writes every day. The bound is generous: debug builds and busy machines.
    #[tokio::test]
    async fn a_thousand_notes_are_searched_at_once() {
        let house = Fixture::new();
        for n in 0..1000 {
            let text = format!(
                "# Day {n}\n\n{}\n项目{n}的进展：完成了数据库迁移的第{n}步。\n",
                "Some words of that day.\n".repeat(30)
            );
            house.put(&format!("memory/{:04}-01-01.md", 1000 + n), text);
        }
        let began = house.ctx.clock.monotonic();
        let text = search(&house, "项目777 数据库迁移").await;
        let took = house.ctx.clock.monotonic() - began;
        println!("1,000 notes took {took:?}");
        assert!(text.contains("memory/1777-01-01.md"), "{text}");
        assert!(took.as_secs() < 10, "{took:?}");
    }
}
