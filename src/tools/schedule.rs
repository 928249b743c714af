//! `schedule`: sets, lists, changes and cancels reminders and standing work of the chat it is used in.
//!
//! The answer names the computed local time, so that the model and the person see a mistake before it happens.

use async_trait::async_trait;
use channel_api::ConversationKind;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments};
use crate::{
    chats::{Chats, Place},
    errand::ErrandKind,
    policy::{Asks, Role},
    schedule::{
        Ask, Schedules, SetError,
        rows::{ScheduleRow, State},
        when::{Span, shown},
    },
};

/// Coming times that are shown.
const SHOWN: usize = 3;
/// The most rows of a list.
const ROWS: usize = 40;

/// The tool.
pub struct Schedule(Option<(Schedules, Chats)>);

impl Schedule {
    /// Over these schedules and chats; `None` where only the tool's description is asked for.
    pub fn new(parts: Option<(Schedules, Chats)>) -> Self {
        Self(parts)
    }
}

#[derive(Deserialize)]
struct Args {
    action: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(flatten)]
    ask: Ask,
}

#[async_trait]
impl Tool for Schedule {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "schedule".to_owned(),
            description:
                "Reminders and repeated work in this chat. add: text and at, every or cron; tell the local time \
                          it answers. edit, cancel: id."
                    .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "action": { "type": "string", "enum": ["add", "list", "edit", "cancel"] },
                    "text": { "type": "string" },
                    "at": { "type": "string", "description": "2026-12-01T08:00, 08:00, in 20m" },
                    "every": { "type": "string", "description": "2h" },
                    "cron": { "type": "string", "description": "0 8 * * 1-5" },
                    "tz": { "type": "string" },
                    "title": { "type": "string" },
                    "isolated": { "type": "boolean", "description": "without this chat's history" },
                    "id": { "type": "string" }
                },
                "required": ["action"],
                "additionalProperties": false
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Effect
    }

    fn asks(&self, args: &Value) -> Asks {
        if matches!(args["action"].as_str(), Some("add" | "edit")) { Asks::Outside } else { Asks::Never }
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Args { action, id, mut ask } = arguments::typed(args)?;
        let call = &ctx.call;
        ask.unattended = call.errand.is_some();
        if call.errand.as_ref().is_some_and(|errand| matches!(errand.kind, ErrandKind::Hook | ErrandKind::Wake)) {
            return Err(tell("a hook's run sets nothing: it belongs to nobody whose rights it could keep"));
        }
        let (inbound, role) = (&call.inbound, call.asker.role);
        // Strangers and members do not get here; a second look costs nothing.
        if role < Role::Trusted {
            return Err(tell("only trusted people can set schedules"));
        }
        let creator = ScheduleRow::creator_of(&inbound.address.channel, &inbound.sender.id);
        let all = role == Role::Owner && inbound.conversation.kind == ConversationKind::Direct;
        let (schedules, chats) = self.0.as_ref().ok_or_else(|| tell("nothing can be set from here"))?;
        let now = schedules.clock.now_ms();
        let own = async |id: Option<&str>| -> Result<ScheduleRow, ToolError> {
            let id = id.map(str::trim).filter(|id| !id.is_empty()).ok_or_else(|| tell("`id` is needed"))?;
            let row = schedules.rows.schedule(id).await.map_err(|error| refused(error.into()))?;
            let row = row.filter(|row| all || row.creator == creator);
            row.ok_or_else(|| refused(SetError::NoSuch(id.chars().take(40).collect())))
        };
        let text = match action.as_str() {
            "add" => {
                let place = Place {
                    conversation: inbound.conversation.clone(),
                    address: inbound.address.clone(),
                    sender: inbound.sender.clone(),
                };
                let heard = chats.heard(place, role, &call.agent).await.map_err(|error| refused(error.into()))?;
                let place = heard.map_err(|barred| tell(&barred.for_model()))?;
                let elsewhere = place.address != inbound.address;
                let key = format!("{} {}", call.turn, call.call_id);
                let row = schedules.add(&ask, place, role, &call.agent, &key).await.map_err(refused)?;
                match elsewhere {
                    true => {
                        let channel = &row.terms.place.address.channel;
                        format!(
                            "Set {}. It comes in the owner's chat on {channel}: nobody gets it here.",
                            told(&row, now)
                        )
                    }
                    false => format!("Set {}.", told(&row, now)),
                }
            }
            "edit" => {
                let row = own(id.as_deref()).await?;
                let row = schedules.edit(&row.id, &ask).await.map_err(refused)?;
                format!("Changed {}.", told(&row, now))
            }
            "cancel" => {
                let row = own(id.as_deref()).await?;
                schedules.rows.cancel_schedule(&row.id).await.map_err(|error| refused(error.into()))?;
                format!("Cancelled {} \"{}\".", row.id, row.title)
            }
            "list" => {
                let filter = (!all).then_some(creator.as_str());
                let rows = schedules.rows.schedules(filter).await.map_err(|error| refused(error.into()))?;
                listed(&rows, now)
            }
            other => return Err(tell(&format!("`{other}` is not one of add, list, edit and cancel"))),
        };
        Ok(ToolOutput::from(text))
    }
}

/// One schedule with its coming times.
fn told(row: &ScheduleRow, now: i64) -> String {
    let coming = row.coming(if row.when.is_once() { 1 } else { SHOWN });
    let first = coming.first().map_or("never", String::as_str);
    let wait = row.slot.map_or(0, |slot| slot.saturating_sub(now).max(0).unsigned_abs());
    // To the minute, but the last minutes to the second.
    let wait = if wait >= 600_000 { wait.div_ceil(60_000) * 60_000 } else { wait.div_ceil(1000) * 1000 };
    let wait = Span(std::time::Duration::from_millis(wait));
    let mut text = format!("{} \"{}\": {first} (in {wait})", row.id, row.title);
    if coming.len() > 1 {
        text.push_str(&format!(", then {}; {}", coming[1..].join(", "), row.when.words(&row.zone())));
    }
    text
}

fn listed(rows: &[ScheduleRow], now: i64) -> String {
    if rows.is_empty() {
        return "There are no schedules.".to_owned();
    }
    let mut lines: Vec<String> = rows
        .iter()
        .take(ROWS)
        .map(|row| {
            let mut line = match row.state {
                State::Active => told(row, now),
                state => {
                    let last = row.last_at.map(|at| format!(", last {}", shown(at, &row.zone()))).unwrap_or_default();
                    format!("{} \"{}\": {}{last}", row.id, row.title, state.as_str())
                }
            };
            if let Some(error) = &row.error {
                line.push_str(&format!(" [{error}]"));
            }
            line
        })
        .collect();
    if rows.len() > ROWS {
        lines.push(format!("… and {} more", rows.len() - ROWS));
    }
    lines.join("\n")
}

fn refused(error: SetError) -> ToolError {
    tell(&error.to_string())
}

fn tell(text: &str) -> ToolError {
    ToolError::TellModel(text.to_owned())
}
