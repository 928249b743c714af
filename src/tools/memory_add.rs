//! `memory_add`: an entry in the day's note. Who may decide what is remembered has it written; what others ask for, and what
//! a turn read from outside, waits in quarantine for the owner.

use std::sync::Arc;

use async_trait::async_trait;
use channel_api::Trust;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::tell,
    memory_search::{failed, scope_of},
};
use crate::{
    memory::{
        Memory,
        held::{Asked, MOST_CHARS, Why},
    },
    policy::{Role, Terms},
};

/// Adds to the notes.
#[derive(Debug)]
pub struct AddMemory(Option<Arc<Memory>>);

impl AddMemory {
    /// To the memory of an agent.
    pub fn new(memory: Option<Arc<Memory>>) -> Self {
        Self(memory)
    }
}

#[derive(Deserialize)]
struct Arguments {
    text: String,
}

#[async_trait]
impl Tool for AddMemory {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "memory_add".to_owned(),
            description: "Adds to today's note in memory/.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "With names and dates"},
                },
                "required": ["text"],
                "additionalProperties": false,
            }),
        }
    }

    /// The same entry is written once a day.
    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    /// A member may ask; it then waits for the owner.
    fn terms(&self) -> Terms {
        Terms { least: Role::Member, ..Terms::of(self.effect()) }
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { text } = arguments::typed(args)?;
        let chars = text.trim().chars().count();
        if chars == 0 || chars > MOST_CHARS {
            return tell(format!("`text` has {chars} characters; an entry has 1 to {MOST_CHARS}."));
        }
        let (memory, scope) = scope_of(ctx, &self.0)?;
        let call = &ctx.call;
        let why = match () {
            () if call.asker.role < Role::Trusted => Some(Why::Member),
            () if call.outside || call.inbound.trust == Trust::Relayed => Some(Why::Untrusted),
            () => None,
        };
        let Some(why) = why else {
            let path = memory.remember(&scope, &text).await.map_err(failed)?;
            return Ok(ToolOutput::from(format!("Noted in `{path}`.")));
        };
        let asked = Asked::by(&call.inbound, call.asker.role, why);
        let Some(id) = memory.hold(&scope, &text, asked).await.map_err(failed)? else {
            return tell("Not kept: too much waits for the owner's decision already.".to_owned());
        };
        let because = match why {
            Why::Member => "only the owner decides what is remembered",
            Why::Untrusted => "this turn read things from outside",
        };
        Ok(ToolOutput::from(format!(
            "Not remembered yet: {because}. It waits in quarantine until the owner runs `crawfish memory quarantine accept {id}`. \
             Say so."
        )))
    }
}
