//! `write`: puts a whole text file into the workspace.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments, broker};
use crate::policy::Asks;

/// Writes a file, new or over the old one.
#[derive(Debug)]
pub struct WriteFile;

#[derive(Deserialize)]
struct Arguments {
    path: String,
    content: String,
}

#[async_trait]
impl Tool for WriteFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "write".to_owned(),
            description: "Writes a text file in the workspace, replacing what was there. To change a part use edit."
                .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "content": {"type": "string"},
                },
                "required": ["path", "content"],
                "additionalProperties": false,
            }),
        }
    }

    /// The same bytes land at the same place however often it runs.
    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn asks(&self, args: &Value) -> Asks {
        let path = args["path"].as_str().unwrap_or_default();
        super::asks_before_writing(path)
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { path, content } = arguments::typed(args)?;
        broker::on_disk(ctx, "it was written all the same", move |files| {
            files.go_on()?;
            let slot = files.slot(&path, true)?;
            let replaced = slot.replace(content.as_bytes(), None)?;
            let lines = content.lines().count();
            let verb = if replaced { "Replaced" } else { "Created" };
            Ok(format!("{verb} `{}`: {} bytes, {lines} lines.", slot.shown, content.len()))
        })
        .await
    }
}
