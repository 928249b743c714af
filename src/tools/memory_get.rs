//! `memory_get`: lines of a note, after a search has told where.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{self, tell},
    memory_search::scope_of,
    read,
};
use crate::memory::{Area, FOLDER, MEMORY, Memory};

/// Reads a note.
#[derive(Debug)]
pub struct GetMemory(Option<Arc<Memory>>);

impl GetMemory {
    /// On the memory of an agent.
    pub fn new(memory: Option<Arc<Memory>>) -> Self {
        Self(memory)
    }
}

#[derive(Deserialize)]
struct Arguments {
    path: String,
    from: Option<usize>,
    lines: Option<usize>,
}

#[async_trait]
impl Tool for GetMemory {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "memory_get".to_owned(),
            description: "Reads lines of MEMORY.md or of a note in memory/.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "From a Source line"},
                    "from": {"type": "integer", "minimum": 1},
                    "lines": {"type": "integer", "minimum": 1},
                },
                "required": ["path"],
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { path, from, lines } = arguments::typed(args)?;
        let (memory, scope) = scope_of(ctx, &self.0)?;
        // A member's files are elsewhere; notes lie in the agent's workspace, and the scope says which.
        let notes = ToolContext { workspace: memory.workspace().to_owned(), readable: Vec::new(), ..ctx.clone() };
        broker::on_disk(&notes, "read on with from and lines", move |files| {
            let (path, named) = source(&path);
            let place = files.note(path)?;
            let shown = place.to_string();
            match Area::of(&shown) {
                Some(area) if scope.sees(&area) && files.exists(&place) => {}
                // What may not be seen is not told from what is not there.
                Some(_) => return Ok(format!("(there is no note `{shown}`)")),
                None => {
                    return tell(format!(
                        "`{shown}` is no note. Notes are {MEMORY} and the .md files in {FOLDER}/; for others use `read`."
                    ));
                }
            }
            let from = from.or(named.map(|(first, _)| first));
            let lines = lines.or(named.and_then(|(first, last)| last.checked_sub(first)).map(|more| more + 1));
            read::page(files, &place, from, lines)
        })
        .await
    }
}

/// A path as a Source line has it, `memory/a.md#L3-L9`: the path, and first and last line.
fn source(written: &str) -> (&str, Option<(usize, usize)>) {
    let number = |text: &str| text.strip_prefix('L').and_then(|digits| digits.parse::<usize>().ok());
    let parsed = written.rsplit_once("#L").and_then(|(path, _)| {
        let lines = &written[path.len() + 1..];
        let (first, last) = lines.split_once('-').unwrap_or((lines, lines));
        Some((path, Some((number(first)?, number(last)?))))
    });
    parsed.unwrap_or((written, None))
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::Fixture, *};

    #[tokio::test]
    async fn lines_of_notes_are_read_and_nothing_else() {
        let house = Fixture::new();
        let dir = tempfile::tempdir().expect("a folder");
        let store = crate::store::sqlite::SqliteStore::open(&dir.path().join("t.db")).await.expect("opens");
        let (workspace, clock) = (house.ctx.workspace.clone(), Arc::clone(&house.ctx.clock));
        let memory = Arc::new(Memory::new("main", workspace, Arc::new(store), clock, None, Arc::default()));
        let get = GetMemory::new(Some(memory));
        house.put("memory/a#L.md", "one\ntwo\nthree\nfour\n").put("USER.md", "private\n");
        for (args, told) in [
            (json!({"path": "memory/a#L.md"}), "one\ntwo\nthree\nfour\n"),
            (json!({"path": "memory/a#L.md#L2-L3"}), "two\nthree\n\n[lines 2-3 of 4; go on with offset=4]"),
            (json!({"path": "memory/a#L.md", "from": 4}), "four\n\n[lines 4-4 of 4]"),
            (json!({"path": "memory/none.md"}), "(there is no note `memory/none.md`)"),
            (json!({"path": "MEMORY.md"}), "(there is no note `MEMORY.md`)"),
        ] {
            assert_eq!(house.run(&get, args.clone()).await.as_deref(), Ok(told), "{args}");
        }
        for path in ["USER.md", "memory/../USER.md", "../outside/secret.txt", "memory", "skills/weather/SKILL.md"] {
            house.run(&get, json!({"path": path})).await.expect_err(path);
        }
    }
}
