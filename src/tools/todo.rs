//! `todo`: the plan of a long task, kept for the session and shown while it changes.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments};
use crate::{
    plan::{Plan, Plans},
    policy::{Role, Terms},
    store::StoreError,
};

/// Keeps the plan.
pub struct Todo {
    /// Where; `None` where no turn runs (`crawfish prompt show`).
    pub plans: Option<Plans>,
}

#[derive(Deserialize)]
struct Arguments {
    items: Option<Vec<Value>>,
    set: Option<Map<String, Value>>,
}

#[async_trait]
impl Tool for Todo {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "todo".to_owned(),
            description: "The plan of a task with several steps; people see it live.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "items": {
                        "type": "array",
                        "items": {"type": ["object", "string"]},
                        "description": "All: {text, state: pending|doing|done|dropped}",
                    },
                    "set": {"type": "object", "description": "States by number: {\"1\": \"done\"}"},
                },
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    /// It changes nothing but what the session shows of itself.
    fn terms(&self) -> Terms {
        Terms { least: Role::Member, ..Terms::of(Effect::Read) }
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { items, set } = arguments::typed(args)?;
        let plans = self.plans.as_ref().ok_or_else(|| ToolError::TellModel("No plan is kept here.".to_owned()))?;
        let call = &ctx.call;
        let failed = |error: StoreError| match error {
            StoreError::Fenced => ToolError::Abort(error.to_string()),
            error => ToolError::TellModel(format!("The plan was not kept ({error}). Try once more, or go on without.")),
        };
        if items.is_none() && set.is_none() {
            let kept = plans.of(&call.session).await.map_err(failed)?;
            return Ok(kept.map_or_else(|| "(there is no plan)".to_owned(), |kept| kept.plan.for_model()).into());
        }
        let plan = match items {
            Some(items) => Plan::of(&items),
            None => Ok(plans.of(&call.session).await.map_err(failed)?.map(|kept| kept.plan).unwrap_or_default()),
        };
        let plan = plan.and_then(|plan| plan.with(&set.unwrap_or_default())).map_err(ToolError::TellModel)?;
        plans.put(&call.lease, &plan, ctx.clock.now_ms()).await.map_err(failed)?;
        Ok(plan.for_model().into())
    }
}
