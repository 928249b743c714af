//! `process`: the commands that `exec` left in the background: what runs, what it wrote, typing into it, ending it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{short, tell},
    exec::{Commands, Job},
    truncate::head_and_tail,
};
use crate::{
    policy::{Asks, Terms},
    secrets::Redactor,
};

/// The longest a call waits for news.
const LONGEST_WAIT: u64 = 60;
/// How long the end of a job may take after it was told to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest text that is typed at once: it has to fit into a pipe.
const LONGEST_INPUT: usize = 16 * 1024;
/// Kept free in the result for the line about the job.
const ROOM_FOR_NOTE: usize = 400;

/// Looks after background commands.
#[derive(Debug)]
pub struct Process {
    commands: Commands,
    redactor: Redactor,
}

impl Process {
    /// For these commands.
    pub fn new(commands: Commands, redactor: Redactor) -> Self {
        Self { commands, redactor }
    }
}

#[derive(Deserialize)]
struct Arguments {
    action: Action,
    id: Option<String>,
    text: Option<String>,
    close: Option<bool>,
    wait: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    List,
    Poll,
    Log,
    Write,
    Kill,
}

#[async_trait]
impl Tool for Process {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "process".to_owned(),
            description:
                "Background commands of exec: list, poll (new output), log (all kept), write (to its input), kill."
                    .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "action": {"type": "string", "enum": ["list", "poll", "log", "write", "kill"]},
                    "id": {"type": "string", "description": "e.g. job-1"},
                    "text": {"type": "string", "description": "To write; end a line with \\n"},
                    "close": {"type": "boolean", "description": "End the input after it"},
                    "wait": {"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT, "description": "poll: seconds to wait for news"},
                },
                "required": ["action"],
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Effect
    }

    fn available(&self) -> bool {
        self.commands.available()
    }

    fn terms(&self) -> Terms {
        // As `exec`: what it shows and types is a command's.
        Terms::of(self.effect()).owner_only().direct_only()
    }

    fn asks(&self, args: &Value) -> Asks {
        // What is typed into a command is as good as a command.
        match args["text"].is_string() {
            true if self.commands.asks_each() => Asks::Always,
            true => Asks::Outside,
            false => Asks::Never,
        }
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { action, id, text, close, wait } = arguments::typed(args)?;
        let jobs = self.commands.jobs().of(&ctx.call.agent);
        if action == Action::List {
            let lines: Vec<String> = jobs.iter().map(|job| line(job, ctx)).collect();
            let text = if lines.is_empty() { "There are no background commands.".to_owned() } else { lines.join("\n") };
            return Ok(text.into());
        }
        let job = match (&id, jobs.as_slice()) {
            (Some(id), jobs) => jobs.iter().find(|job| job.id == id.trim() || job.id == format!("job-{}", id.trim())),
            // With one there is no doubt.
            (None, [only]) => Some(only),
            (None, _) => None,
        };
        let Some(job) = job.cloned() else {
            let known: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let wanted = id.map_or_else(|| "`id` is missing".to_owned(), |id| format!("There is no `{}`", short(&id)));
            return tell(format!("{wanted}. The background commands are: {known}."));
        };
        let stopped = || ToolError::Abort("stopped".to_owned());
        let output = match action {
            Action::List | Action::Log => job.log(&self.redactor),
            Action::Poll => {
                tokio::select! {
                    () = job.until_news() => {}
                    () = ctx.clock.sleep(Duration::from_secs(wait.unwrap_or(0).min(LONGEST_WAIT))) => {}
                    () = ctx.cancel.cancelled() => return Err(stopped()),
                }
                job.news(&self.redactor)
            }
            Action::Write => {
                let text = text.unwrap_or_default();
                if text.len() > LONGEST_INPUT {
                    return tell(
                        "`text` is longer than 16 KiB. Write it into a file and let the command read that.".to_owned(),
                    );
                }
                let written = tokio::select! {
                    written = job.write(&text, close.unwrap_or(false)) => written,
                    () = ctx.clock.sleep(PATIENCE) => Err("it does not read what was typed before"),
                    () = ctx.cancel.cancelled() => return Err(stopped()),
                };
                if let Err(why) = written {
                    return tell(format!("Nothing can be written to {}: {why}. {}", job.id, line(&job, ctx)));
                }
                return Ok(format!("Written. {}", line(&job, ctx)).into());
            }
            Action::Kill => {
                job.kill();
                tokio::select! {
                    () = job.until_ended() => {}
                    () = ctx.clock.sleep(PATIENCE) => {}
                }
                job.news(&self.redactor)
            }
        };
        let most = ctx.output_chars.saturating_sub(ROOM_FOR_NOTE).max(ctx.output_chars / 2);
        let shown = head_and_tail(&output, most, "poll more often, or let it write into a file");
        let gap = if shown.is_empty() || shown.ends_with('\n') { "" } else { "\n" };
        let nothing = if shown.is_empty() { "(no new output)\n" } else { "" };
        Ok(format!("{shown}{gap}{nothing}[{}]", line(&job, ctx)).into())
    }
}

/// ``job-1 runs since 12 s: `make all` ``
fn line(job: &Arc<Job>, ctx: &ToolContext) -> String {
    match job.ended() {
        Some(how) => format!("{} ended, {how}: `{}`", job.id, job.command),
        None => {
            let since = ctx.clock.monotonic().saturating_sub(job.began).as_secs();
            format!("{} runs since {since} s: `{}`", job.id, job.command)
        }
    }
}
