//! Work the gateway gives itself: a reminder, a heartbeat, a hook, a sub-agent, a word from another session. Each is an inbox
//! row like a person's message, so that order, queue, crash safety and delivery are the same path.
//!
//! What makes an errand happen once is its `platform_id` (`schedule:<id>:<slot>`): the inbox keeps it unique within its
//! channel. Decides nothing about rights: an order carries the role of whoever it is done for.

use std::sync::Arc;

use channel_api::{
    Address, Attachment, ChannelId, Clock, Conversation, Inbound, InboundKind, InboxId, QueueMode, Sender, Trust,
};
use serde::{Deserialize, Serialize};

use crate::{
    inbox::WakeUp,
    policy::Role,
    session::SessionKey,
    store::{Action, InboxStore, NewBatch, NewEntry, OverCap, StoreError, Stored},
};

/// The sender of what a program asked for, which has no chat and no rights but those its section gives it.
pub const PROGRAM: &str = "hook";

/// Whether a program asked for it, and no person.
pub fn is_programs(sender: &Sender) -> bool {
    sender.is_bot && sender.id == PROGRAM
}

/// What is done, and for whom it reports. Kept with its inbox row as JSON; fields that came later have defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Errand {
    /// What kind of work it is.
    pub kind: ErrandKind,
    /// The id of what started it: a schedule's, a run's, a turn's.
    pub id: String,
    /// The name of the model it asks for in `[models]`; `None` = the session's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The session that hears the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionKey>,
    /// How many errands stand between it and a person's message; 0 = none gave it.
    #[serde(default)]
    pub depth: u8,
    /// It is judged as a heartbeat: nothing is said, and nothing is left of it, when nothing needs attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick: Option<TickTerms>,
}

/// How the answer of a heartbeat or a wake is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickTerms {
    /// Its request has no history.
    pub light: bool,
    /// The longest acknowledgement, in characters.
    pub ack_max_chars: usize,
    /// A bare acknowledgement is sent, too.
    pub show_ok: bool,
    /// Alerts are sent.
    pub show_alerts: bool,
}

/// The kinds of errands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrandKind {
    /// A look around at a fixed time; an acknowledgement leaves no trace.
    Heartbeat,
    /// Something that was to be done at this time.
    Schedule,
    /// Something happened that the session should know of.
    Wake,
    /// A program asked for it over HTTP.
    Hook,
    /// A sub-agent's task, in a session of its own.
    Spawn,
    /// What a sub-agent or another session answers.
    Report,
    /// A word from another session.
    Message,
    /// The conversation's older messages are to be summarised.
    Compact,
}

impl ErrandKind {
    /// Its name in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Heartbeat => "heartbeat",
            Self::Schedule => "schedule",
            Self::Wake => "wake",
            Self::Hook => "hook",
            Self::Spawn => "spawn",
            Self::Report => "report",
            Self::Message => "message",
            Self::Compact => "compact",
        }
    }
}

/// An errand to be queued.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// What it is.
    pub errand: Errand,
    /// Its key: unique within the channel, the same for a second try.
    pub platform_id: String,
    /// Where it runs.
    pub session: SessionKey,
    /// The agent of that session.
    pub agent: String,
    /// The role of whoever it is done for: what the turn may do.
    pub role: Role,
    /// Who that is.
    pub sender: Sender,
    /// The conversation whose session it is.
    pub conversation: Conversation,
    /// Where the answer goes; its channel is that of the row.
    pub address: Address,
    /// What the model reads.
    pub text: String,
    /// Files that belong to it.
    pub attachments: Vec<Attachment>,
    /// Whether the words are those of whoever it is done for; `Relayed` words carry no orders.
    pub trust: Trust,
    /// Not begun before this time, in epoch milliseconds; 0 = at once.
    pub not_before: i64,
}

impl Order {
    /// The row it becomes: a turn of its own, never merged with a person's message and never put off because of one.
    pub fn entry(self, now: i64, cap: u32) -> NewEntry {
        let channel: ChannelId = self.address.channel.clone();
        NewEntry {
            id: InboxId::generate(),
            session: self.session,
            agent: self.agent,
            role: self.role,
            inbound: Inbound {
                channel,
                platform_id: self.platform_id,
                fingerprint: None,
                kind: InboundKind::Message,
                about: None,
                conversation: self.conversation,
                sender: self.sender,
                text: self.text,
                attachments: self.attachments,
                mentions_us: true,
                reply_to: None,
                at: None,
                address: self.address,
                trust: self.trust,
                more_expected: None,
                queue: Some(QueueMode::Followup),
                hold: false,
            },
            errand: Some(self.errand),
            mode: QueueMode::Followup,
            mode_fixed: true,
            alone: true,
            not_before: self.not_before,
            hold: None,
            received_at: now,
            cap,
            over_cap: OverCap::Refuse,
            action: Action::Turn,
        }
    }
}

/// Why an errand was not queued, named by what the caller does next.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ErrandError {
    /// The session has as many waiting messages as it may: try later, or say so.
    #[error("the session's queue is full")]
    Full,
    /// The store did not take it: try again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The way into the queue for the gateway's own work. Cheap to clone.
#[derive(Clone)]
pub struct Errands {
    /// The queue.
    pub inbox: Arc<dyn InboxStore>,
    /// Wakes the workers.
    pub work: WakeUp,
    /// The most waiting entries of a session.
    pub cap: u32,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl Errands {
    /// Queues an errand, committed when this returns. One whose `platform_id` is known already is the one that is known.
    ///
    /// # Errors
    /// [`ErrandError`].
    pub async fn give(&self, order: Order) -> Result<InboxId, ErrandError> {
        let entry = order.entry(self.clock.now_ms(), self.cap);
        let id = entry.id.clone();
        let batch = NewBatch { entries: vec![entry], ..NewBatch::default() };
        let stored = self.inbox.accept(batch).await?.pop();
        self.work.wake();
        match stored {
            Some(Stored::New { .. }) => Ok(id),
            Some(Stored::Duplicate(known)) => Ok(known),
            _ => Err(ErrandError::Full),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_an_older_version_stored_is_read() {
        let errand: Errand = serde_json::from_value(json!({ "kind": "schedule", "id": "sc_1" })).expect("it is one");
        let expected =
            Errand { kind: ErrandKind::Schedule, id: "sc_1".into(), model: None, parent: None, depth: 0, tick: None };
        assert_eq!(errand, expected);
    }
}
