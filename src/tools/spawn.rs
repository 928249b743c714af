//! `spawn`: gives a task to a sub-agent with a session of its own. Nobody waits for it: its result comes back as a message.

use std::sync::Arc;

use async_trait::async_trait;
use channel_api::Trust;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments};
use crate::{
    errand::{Errand, ErrandKind, Order},
    inbox::WakeUp,
    policy::{Role, Terms},
    session::SessionKey,
    store::StoreError,
    subagents::{DEEPEST, Spawned, Subagent, SubagentStore, SubagentsConfig},
};

/// The most characters of a task, and of what a sub-agent is called.
const TASK_CHARS: usize = 16_000;
const LABEL_CHARS: usize = 40;

/// Starts sub-agents.
pub struct SpawnAgent {
    /// Where they are kept; `None` where no turn runs.
    pub nest: Option<Nest>,
    /// How many, how long.
    pub config: SubagentsConfig,
}

/// What sub-agents stand on.
#[derive(Clone)]
pub struct Nest {
    /// Their rows.
    pub subagents: Arc<dyn SubagentStore>,
    /// Wakes the workers.
    pub work: WakeUp,
}

#[derive(Deserialize)]
struct Arguments {
    task: String,
    label: Option<String>,
    tools: Option<Vec<String>>,
}

#[async_trait]
impl Tool for SpawnAgent {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "spawn".to_owned(),
            description: "Gives a self-contained task to a sub-agent; its result comes later as a message.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "task": {"type": "string", "description": "All it must know: it sees nothing of this chat"},
                    "label": {"type": "string"},
                    "tools": {"type": "array", "items": {"type": "string"}, "description": "Default: yours"},
                },
                "required": ["task"],
                "additionalProperties": false,
            }),
        }
    }

    /// The session of the sub-agent comes from the call: a second run of the same call finds it.
    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn terms(&self) -> Terms {
        Terms { least: Role::Trusted, ..Terms::of(Effect::Read) }
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { task, label, tools } = arguments::typed(args)?;
        let tell = |text: &str| ToolError::TellModel(text.to_owned());
        let nest = self.nest.as_ref().ok_or_else(|| tell("No sub-agent can be started here."))?;
        let call = &ctx.call;
        let depth = call.errand.as_ref().map_or(0, |errand| errand.depth);
        if depth >= DEEPEST {
            return Err(tell("Not started: no person asked for this, sub-agents did. Do it yourself, or answer."));
        }
        let task = task.trim();
        if task.is_empty() || task.chars().count() > TASK_CHARS {
            return Err(tell("Not started: the task is empty or too long. Put long material into a file and name it."));
        }
        let failed =
            |error: StoreError| ToolError::TellModel(format!("It could not be stored ({error}). Try once more."));
        let own = match call.session.is_subagent() {
            true => nest.subagents.subagent(&call.session).await.map_err(failed)?,
            false => None,
        };
        // Never more than its parent has.
        let tools = match (own.and_then(|own| own.tools), tools) {
            (Some(have), Some(wanted)) => Some(wanted.into_iter().filter(|tool| have.contains(tool)).collect()),
            (have, wanted) => wanted.or(have),
        };
        let key = call.key(0);
        let session = SessionKey::subagent(&call.agent, &key);
        let label = label.as_deref().map(str::trim).filter(|label| !label.is_empty()).unwrap_or(task);
        let label = channel_label(label);
        let order = Order {
            errand: Errand {
                kind: ErrandKind::Spawn,
                id: format!("sub-agent “{label}”"),
                model: None,
                parent: Some(call.session.clone()),
                depth: depth + 1,
                tick: None,
            },
            platform_id: format!("spawn:{key}"),
            session: session.clone(),
            agent: call.agent.clone(),
            role: call.asker.role,
            sender: call.inbound.sender.clone(),
            conversation: call.inbound.conversation.clone(),
            address: call.inbound.address.clone(),
            text: task.to_owned(),
            attachments: Vec::new(),
            trust: Trust::Own,
            not_before: 0,
        };
        let now = ctx.clock.now_ms();
        let subagent = Subagent {
            session: session.clone(),
            parent: call.session.clone(),
            label: label.clone(),
            tools,
            rounds: self.config.max_rounds,
            created_at: now,
            ended_at: None,
        };
        match nest.subagents.spawn(subagent, order.entry(now, u32::MAX), self.config.at_once).await.map_err(failed)? {
            Spawned::TooMany(most) => Err(ToolError::TellModel(format!(
                "Not started: {most} sub-agents of this chat run already, more are not allowed. Their results will come."
            ))),
            Spawned::New | Spawned::Known => {
                nest.work.wake();
                Ok(format!(
                    "Started sub-agent “{label}” ({session}). Do not wait or ask for it: its result comes as a message here. \
                     End your turn, or go on with something else."
                )
                .into())
            }
        }
    }
}

/// One short line.
fn channel_label(text: &str) -> String {
    let plain = super::broker::visible(text.lines().next().unwrap_or_default());
    let label: String =
        plain.chars().map(|c| if matches!(c, '<' | '>' | '"' | '“' | '”') { '\'' } else { c }).collect();
    match label.char_indices().nth(LABEL_CHARS) {
        Some((end, _)) => format!("{}…", label[..end].trim_end()),
        None => label,
    }
}
