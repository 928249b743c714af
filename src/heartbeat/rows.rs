//! The rows of what the gateway does unasked: ticks and calls of programs.

use async_trait::async_trait;
use channel_api::InboxId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    session::SessionKey,
    store::{NewEntry, StoreError},
};

/// What became of one tick, or of a call of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// `queued running done failed`.
    pub state: String,
    /// The session it runs in.
    pub session: String,
    /// The turn that did it.
    pub turn: Option<String>,
    /// Why nothing was said.
    pub silent: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// The answer.
    pub reply: Option<String>,
    /// What became of each part of it: `{"state","error"}`.
    pub parts: Vec<Value>,
}

/// The last tick of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TickRow {
    /// Whose.
    pub agent: String,
    /// Its slot.
    pub slot: i64,
    /// When it was decided.
    pub at: i64,
    /// `ran`, or why it did not.
    pub result: String,
    /// The last one that ran.
    pub entry: Option<InboxId>,
}

/// A tick as it is decided.
#[derive(Clone, Debug)]
pub struct Tick {
    /// Whose.
    pub agent: String,
    /// Its slot.
    pub slot: i64,
    /// `ran`, or why it did not.
    pub result: String,
    /// What runs, if anything does.
    pub entry: Option<NewEntry>,
    /// Now.
    pub now: i64,
}

/// A call of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HookRow {
    /// Its id: `hk_` and a ULID.
    pub id: String,
    /// The caller's own key.
    pub key: Option<String>,
    /// Of the body.
    pub fingerprint: String,
    /// `wake` or `agent`.
    pub kind: String,
    /// The agent.
    pub agent: String,
    /// What it says.
    pub text: String,
    /// Not before this time.
    pub due_at: i64,
    /// The inbox row it became.
    pub entry: Option<InboxId>,
    /// When it came.
    pub created_at: i64,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    /// It is kept.
    New,
    /// Known: the first one's id.
    Again(String),
    /// The key is known with another body.
    Conflict,
    /// The session's queue is full; nothing was kept.
    Full,
}

/// What became of entries that were given to the queue with other rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// In the queue, now or since a first try.
    Queued(InboxId),
    /// Nothing was to be queued.
    Nothing,
    /// The queue is full; nothing changed.
    Full,
}

/// Ticks and calls.
#[async_trait]
pub trait InitiativeStore: Send + Sync + 'static {
    /// The last tick of an agent.
    async fn last_tick(&self, agent: &str) -> Result<Option<TickRow>, StoreError>;

    /// The last tick of every agent that ever ticked.
    async fn last_ticks(&self) -> Result<Vec<TickRow>, StoreError>;

    /// Keeps what was decided about a slot, and queues its run with it. A slot that is known already stays as it is.
    async fn tick(&self, tick: Tick) -> Result<Given, StoreError>;

    /// The text of the last alert that a tick or wake sent into this session since `after`.
    async fn last_alert(&self, session: &SessionKey, after: i64) -> Result<Option<String>, StoreError>;

    /// Keeps a call; with an entry, queues it in the same transaction.
    async fn call(&self, row: &HookRow, entry: Option<NewEntry>) -> Result<Called, StoreError>;

    /// One call.
    async fn hook(&self, id: &str) -> Result<Option<HookRow>, StoreError>;

    /// Wakes that wait for their turn and are due, oldest first.
    async fn waiting_wakes(&self, agent: &str, now: i64, limit: u32) -> Result<Vec<HookRow>, StoreError>;

    /// Queues one turn for these wakes.
    async fn wake(&self, ids: &[String], entry: NewEntry) -> Result<Given, StoreError>;

    /// How a run stands; `None` when its row is gone.
    async fn run_state(&self, entry: &InboxId) -> Result<Option<RunState>, StoreError>;
}
