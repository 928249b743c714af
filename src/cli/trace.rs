//! `crawfish trace <turn or message>`: everything that happened in one turn.

use std::path::Path;

use channel_api::TurnId;
use clap::Args;
use serde_json::Value;

use super::{
    exit::Exit,
    reach::{self, Reach},
    show,
};
use crate::{
    config::Env,
    inspect::Query,
    ledger::money::Costs,
    store::{StepKind, StepState, TurnRow, TurnTrace},
    terminal,
};

/// Shows what happened in one turn. 显示一次处理的全过程。
#[derive(Debug, Args)]
pub struct Trace {
    /// The turn's id (`tn_…`), or that of a message it answered (`in_…`, the `taskId`).
    id: String,
    /// Whole arguments and results. 显示完整内容。
    #[arg(long)]
    full: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Trace {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Reach::through(config, env, async |reach| {
            let trace = self.ask(reach).await?;
            if self.json {
                show::json(&trace);
            } else {
                self.print(&trace);
            }
            Ok(())
        })
    }

    async fn ask(&self, reach: &Reach) -> Result<TurnTrace, Exit> {
        let mut turn = TurnId::from(self.id.as_str());
        if self.id.starts_with("in_") {
            let query = Query::Turns { task: Some(self.id.as_str().into()), session: None, limit: 1 };
            let turns: Vec<TurnRow> = reach.ask(&query, "turns").await?;
            turn = turns.into_iter().next().ok_or_else(reach::not_found)?.id;
        }
        reach.ask(&Query::Turn(turn), "trace").await
    }

    fn print(&self, trace: &TurnTrace) {
        let turn = &trace.turn;
        let took = turn.ended_at.map_or_else(String::new, |end| format!(" {} ms", end - turn.started_at));
        let reason = turn.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        show::line(&format!("{} {}{reason} · {}{took}", turn.id, turn.state, turn.session));
        let usage = turn.usage;
        let mut costs = Costs::default();
        trace.steps.iter().filter_map(|step| step.spent.as_ref()?.cost).for_each(|cost| costs.add(cost));
        let cost = if costs.is_empty() { String::new() } else { format!(" · {costs}") };
        show::line(&format!(
            "{} · {} + {} tokens, {} cached{cost}",
            show::time(turn.started_at),
            usage.input,
            usage.output,
            usage.cached
        ));
        for (id, text) in &trace.entries {
            show::line(&format!("← {id} {}", self.short(text)));
        }
        for step in &trace.steps {
            let mark = match step.state {
                StepState::Started => "…",
                StepState::Finished => "✓",
                StepState::Failed => "✗",
                StepState::Interrupted => "?",
            };
            let kind = match step.kind {
                StepKind::Llm => "model",
                StepKind::Tool => "tool",
            };
            let again = if step.attempt > 1 { format!(" (#{})", step.attempt) } else { String::new() };
            let tokens = match step.usage {
                usage if usage.total() == 0 => String::new(),
                usage => format!(" · {} + {} tokens, {} cached", usage.input, usage.output, usage.cached),
            };
            let cost = step.spent.as_ref().and_then(|spent| spent.cost);
            let cost = cost.map_or_else(String::new, |cost| format!(" · {cost}"));
            show::line(&format!("{mark} {}. {kind} {}{again} · {} ms{tokens}{cost}", step.n + 1, step.name, step.ms));
            for value in [&step.args, &step.result] {
                if !value.is_null() {
                    show::line(&format!("    {}", self.short(&flat(value))));
                }
            }
        }
        for part in &trace.parts {
            let error = part.error.as_ref().map_or_else(String::new, |error| format!(" ({error})"));
            show::line(&format!("→ {} {} {}{error} {}", part.id, part.channel, part.state, self.short(&part.text)));
        }
        for note in &turn.notes {
            show::line(&format!("! {note}"));
        }
    }

    fn short(&self, text: &str) -> String {
        if self.full { text.to_owned() } else { terminal::cut(&terminal::escape_line(text), 160).into_owned() }
    }
}

fn flat(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
