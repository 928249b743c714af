//! What the tests of the tools stand on: a workspace, a skills folder and a place outside, all in one temporary folder.

use std::{fs, path::PathBuf, sync::Arc};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Tool, ToolContext, ToolError};
use crate::clock::SystemClock;

/// A temporary house for files.
pub struct Fixture {
    /// Holds `workspace`, `skills` and `outside` (with `secret.txt`).
    pub top: tempfile::TempDir,
    /// For calls.
    pub ctx: ToolContext,
}

impl Fixture {
    /// An empty workspace, a skills folder with one skill, and a secret outside.
    pub fn new() -> Self {
        let top = tempfile::tempdir().expect("a temporary folder");
        for folder in ["workspace", "skills/weather", "outside"] {
            fs::create_dir_all(top.path().join(folder)).expect("a folder");
        }
        fs::write(top.path().join("skills/weather/SKILL.md"), "# Weather\n").expect("a file");
        fs::write(top.path().join("outside/secret.txt"), "TOP SECRET\n").expect("a file");
        let ctx = ToolContext {
            workspace: top.path().join("workspace"),
            readable: vec![top.path().join("skills")],
            media: top.path().join("media"),
            output_chars: 16_000,
            cancel: CancellationToken::new(),
            clock: Arc::new(SystemClock::new()),
        };
        Self { top, ctx }
    }

    /// A path in the workspace.
    pub fn at(&self, path: &str) -> PathBuf {
        self.ctx.workspace.join(path)
    }

    /// Puts a file into the workspace.
    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, content).expect("a file");
        self
    }

    /// Runs a call; an error for the model is `Err`. Every text that comes back is checked: never empty, within its
    /// limit, and free of the host's paths and of the secret.
    pub async fn run(&self, tool: &dyn Tool, args: Value) -> Result<String, String> {
        let result = match tool.call(args, &self.ctx).await {
            Ok(output) => Ok(output.text),
            Err(ToolError::TellModel(text)) => Err(text),
            Err(ToolError::Abort(why)) => panic!("aborted: {why}"),
        };
        let text = match &result {
            Ok(text) | Err(text) => text,
        };
        assert!(!text.is_empty());
        assert!(text.chars().count() <= self.ctx.output_chars.max(2_000), "{} characters", text.len());
        assert!(!text.contains("TOP SECRET"), "{text}");
        result
    }
}
