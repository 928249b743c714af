//! What is durable: one small trait a station, each method one whole transaction, and the rows that cross them.
//!
//! Nothing here belongs to one database. `store/sqlite` implements it for one machine; the conformance suite
//! (`store/conformance.rs`) says what every implementation must do. Times are epoch milliseconds and only for display,
//! back-off and schedules; order comes from sequence numbers alone.

use std::{collections::HashSet, sync::Arc};

use async_trait::async_trait;
use channel_api::{
    Address, ChannelId, Inbound, InboxId, Level, Moved, Part, PartId, Preview, QueueMode, Receipt, Reply, SendKey,
    Settled, StepId, TurnId,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    chats::ChatStore,
    errand::Errand,
    heartbeat::rows::InitiativeStore,
    lang::Lang,
    ledger::money::{Cost, Costs},
    model::{Message, Usage},
    plan::PlanStore,
    policy::Role,
    schedule::rows::ScheduleStore,
    session::SessionKey,
    subagents::{Handback, SubagentStore},
    tools::Effect,
};

pub mod config;
pub mod note;
pub mod sqlite;

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(test)]
mod conformance_approvals;
#[cfg(test)]
mod conformance_initiative;
#[cfg(test)]
mod model_test;

/// Why the store did not do it, named by what the caller does next.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// The claim is no longer ours: drop everything, write nothing, tell nobody.
    #[error("the claim was taken over")]
    Fenced,
    /// Not now (disk full, locked, connection gone): do not acknowledge, try again.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The database is damaged: stop with exit code 65 and change nothing.
    #[error("the database is damaged: {0}")]
    Corrupt(String),
    /// There is no such row.
    #[error("not found")]
    NotFound,
}

/// One start of one process: `bt_` and a ULID. Claims name it, so that a restart can tell its own from a dead one's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(String);

impl BootId {
    /// A new one.
    pub fn generate() -> Self {
        Self(format!("bt_{}", ulid::Ulid::generate()))
    }

    /// As stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for BootId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Stations 4 and 5: the inbox and the queue of sessions.

/// The durable inbox and the queue over it.
#[async_trait]
pub trait InboxStore: Send + Sync + 'static {
    /// Commit 1: stores new entries (and a channel's poll position) together; answers in the order of `entries`.
    /// An entry whose (channel, platform id) is known is not stored again. An entry over its cap is refused or
    /// collapsed as it asks. Commands are stored settled, their parts with them, and take effect on the session here.
    /// The answers to `pairings` follow those to `entries`: a [`Stored::Asked`] each.
    ///
    /// Moves come first: the sessions of the old id get the new one (where one exists already, it is kept and the old one
    /// stays beside it), with what waits, runs and was heard in them; a turn that runs there is fenced off and goes on
    /// under the new key. Then what was heard, each message once. Last, after the entries of the same batch, changes and
    /// deletions of earlier messages, each event once: a [`Stored::Amended`] each, after the answers to `pairings`.
    async fn accept(&self, batch: NewBatch) -> Result<Vec<Stored>, StoreError>;

    /// Takes up to `ask.max` sessions that have due entries and no lease, oldest turn first (round-robin between
    /// sessions), each with the entries of its next turn:
    /// * the entries of an interrupted turn, exactly those, with `resume` set, or else
    /// * the head entry and, when its mode is `collect`, what follows it of the same sender, in mode `collect` and due,
    ///   up to `ask.max_entries`; `steer` and `interrupt` entries are taken like `followup` ones; then entries stored as
    ///   collapsed that directly follow.
    ///
    /// Attempts are counted here, before any work.
    async fn claim(&self, ask: &ClaimAsk) -> Result<Vec<Claim>, StoreError>;

    /// When a suspect of either kind is due. A start makes them; afterwards they only become fewer.
    async fn next_suspect(&self) -> Result<NextSuspect, StoreError>;

    /// The earliest time at which a session that is not claimable now becomes so (debounce, back-off, parking).
    async fn next_due(&self, now: i64) -> Result<Option<i64>, StoreError>;

    /// Hands the session's waiting `steer` entries of this turn's sender to the running turn.
    async fn absorb(&self, lease: &Lease, now: i64) -> Result<Vec<InboxEntry>, StoreError>;

    /// Whether the running turn was told to stop: a stop word, or a newer entry in mode `interrupt`.
    async fn stop_asked(&self, lease: &Lease) -> Result<bool, StoreError>;

    /// Commit 2: transcript, last steps, parts and settled entries together; frees the session. When entries wait, the
    /// session becomes due `debounce_ms` after the newest of them arrived (mode `collect`) or at once (other modes).
    async fn finish(&self, finish: Finish) -> Result<Finished, StoreError>;

    /// Gives entries back without an outcome: a drain (`failure` none, counts as nothing) or a retryable error. The fifth
    /// retryable error makes a dead letter (`Released::Dead`), for which `apology` parts are stored.
    async fn release(&self, release: Release) -> Result<Released, StoreError>;

    /// Frees the worker but holds the lane: the same turn, with its entries, is claimable again at `until` or after
    /// [`InboxStore::unpark`].
    async fn park(&self, lease: &Lease, until: i64) -> Result<(), StoreError>;

    /// Ends a parking early.
    async fn unpark(&self, session: &SessionKey) -> Result<(), StoreError>;

    /// What became of a message; `None` while it waits or runs, or if there is none.
    async fn settled(&self, id: &InboxId) -> Result<Option<Settled>, StoreError>;

    /// The id and channel of a stored message by its platform id.
    async fn find(&self, channel: &ChannelId, platform_id: &str) -> Result<Option<InboxId>, StoreError>;

    /// What waits in the whole gateway.
    async fn load(&self) -> Result<Load, StoreError>;

    /// Dead letters, newest first, after `after` (a row's sequence) if given.
    async fn dead_letters(&self, after: Option<i64>, limit: u32) -> Result<Vec<DeadLetter>, StoreError>;

    /// Puts a dead letter back into its session's queue, its counts reset, or settles it for good.
    async fn resolve_dead(&self, id: &InboxId, how: DeadResolution, now: i64) -> Result<(), StoreError>;
}

/// Entries that are committed together.
#[derive(Clone, Debug, Default)]
pub struct NewBatch {
    /// The entries, in order.
    pub entries: Vec<NewEntry>,
    /// Strangers who ask to be let in, in order.
    pub pairings: Vec<NewPairing>,
    /// A channel's poll position.
    pub cursor: Option<(ChannelId, channel_api::Cursor)>,
    /// What was said in groups and not to the bot, in order.
    pub heard: Vec<NewHeard>,
    /// Groups that got a new id.
    pub moved: Vec<MovedGroup>,
    /// Earlier messages that were changed or deleted, in order.
    pub amendments: Vec<Amendment>,
}

/// An earlier message was changed or deleted. A message that waits for its turn follows; one that a turn works on, or has
/// answered, does not, and no turn is ever started by it.
#[derive(Clone, Debug, PartialEq)]
pub struct Amendment {
    /// The event: its key, its session, who and when, and what a group that hears it is told.
    pub event: NewHeard,
    /// The platform's id of the earlier message.
    pub about: String,
    /// Whose message it must be; `None`: the platform does not say who deleted it, and anybody's of this session is meant.
    pub sender: Option<String>,
    /// What happened to it.
    pub change: Change,
}

/// What happened to an earlier message.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It says something else now.
    Edit {
        /// What.
        text: String,
        /// Its files; none = as before.
        attachments: Vec<channel_api::Attachment>,
        /// What the next turn is told when a turn works on it or has answered it.
        note: Option<String>,
    },
    /// It is gone.
    Delete,
}

/// What became of an [`Amendment`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Amended {
    /// The message waits and says the new words.
    Replaced(InboxId),
    /// The message waited and is settled (`silent` = `deleted`): the row written for watchers.
    Removed(EventRow),
    /// Nothing for the queue: it is too late, somebody else's message, not known, or this event was here before.
    Nothing,
}

/// A group message that starts nothing and is kept as context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHeard {
    /// The session whose next turn is told of it.
    pub session: SessionKey,
    /// Where it came from.
    pub channel: ChannelId,
    /// The platform's id: with the channel its key.
    pub platform_id: String,
    /// The sender's id.
    pub sender: String,
    /// The sender's name.
    pub name: Option<String>,
    /// The words, already cut.
    pub text: String,
    /// When it was received.
    pub at: i64,
    /// The most of them that wait in this session: the oldest go.
    pub keep: u32,
}

/// A message of a group that a turn is told of as context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Order.
    pub seq: i64,
    /// The sender's id.
    pub sender: String,
    /// The sender's name.
    pub name: Option<String>,
    /// The words.
    pub text: String,
    /// When it was received.
    pub at: i64,
}

/// A group that got a new id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedGroup {
    /// Its channel.
    pub channel: ChannelId,
    /// The account is part of the channel's session keys.
    pub account_in_key: bool,
    /// The id it had.
    pub from: String,
    /// The id it has.
    pub to: String,
    /// When that was told.
    pub at: i64,
}

/// A message that passed the gate.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// Its id.
    pub id: InboxId,
    /// The session it belongs to.
    pub session: SessionKey,
    /// The agent of that session.
    pub agent: String,
    /// The sender's role.
    pub role: Role,
    /// The event.
    pub inbound: Inbound,
    /// What it is when no person wrote it.
    pub errand: Option<Errand>,
    /// The queue mode it is stored with when the session has none of its own.
    pub mode: QueueMode,
    /// `mode` holds whatever the session says (a synchronous caller).
    pub mode_fixed: bool,
    /// It shares its turn with nothing, not even with what was stored over the cap: an errand, a command of the queue.
    pub alone: bool,
    /// Not claimed before this time; 0 = at once.
    pub not_before: i64,
    /// The boot that holds a connection open for the answer.
    pub hold: Option<BootId>,
    /// When it was received.
    pub received_at: i64,
    /// The most waiting entries of the session.
    pub cap: u32,
    /// What to do over the cap.
    pub over_cap: OverCap,
    /// What it starts.
    pub action: Action,
}

/// What an entry over its session's cap becomes.
#[derive(Clone, Debug)]
pub enum OverCap {
    /// Not stored: [`Stored::Full`].
    Refuse,
    /// Stored as collapsed: it joins the turn of the entry before it; at ten times the cap it is refused all the same. The
    /// parts (a visible notice) are stored with the first collapsed entry only.
    Collapse(Vec<NewPart>),
}

/// What an entry starts.
#[derive(Clone, Debug)]
pub enum Action {
    /// A turn.
    Turn,
    /// A command that is answered at intake and overtakes the queue.
    Command {
        /// Its answer.
        parts: Vec<NewPart>,
        /// What it does to the session.
        change: SessionChange,
    },
}

/// What a command does to its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// Nothing.
    None,
    /// Sets the session's queue mode; `None` goes back to the channel's.
    Mode(Option<QueueMode>),
    /// Sets what stands below its answers.
    Footer(Footer),
    /// Stops the running turn and settles what waits (`silent` = `stopped`).
    Stop,
}

/// What became of a [`NewEntry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Stored.
    New {
        /// Its sequence number: order within everything.
        seq: i64,
        /// It was collapsed into the entry before it.
        collapsed: bool,
        /// A turn of the session runs and this entry tells it to stop.
        stops: bool,
        /// A turn of the session runs and may absorb this entry.
        steers: bool,
        /// Sessions of sub-agents whose turns run and were told to stop.
        children: Vec<SessionKey>,
        /// Lanes that got parts in this commit.
        lanes: Vec<LaneKey>,
        /// The rows written for watchers: the end of a command, and of what it settled.
        events: Vec<EventRow>,
    },
    /// Known, with the same fingerprint (or none).
    Duplicate(InboxId),
    /// Known, with another fingerprint.
    Conflict,
    /// Over the cap; not stored.
    Full,
    /// What became of a [`NewPairing`].
    Asked(Asked),
    /// What became of an [`Amendment`].
    Amended(Amended),
}

/// What a claim asks for.
#[derive(Clone, Debug)]
pub struct ClaimAsk {
    /// Who claims.
    pub boot: BootId,
    /// Now.
    pub now: i64,
    /// The most sessions.
    pub max: u32,
    /// The most entries of one turn.
    pub max_entries: u32,
    /// Ordinary sessions, or one suspect.
    pub kind: ClaimKind,
}

/// When a suspect is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextSuspect {
    /// At this time, in epoch milliseconds; 0 = it waits for nothing.
    Due(i64),
    /// Those that are left wait behind a turn of their session that runs or is parked.
    Behind,
    /// There is none.
    None,
}

/// Which sessions a claim takes. What ran when a process died is suspect until a step of it is recorded as finished, or
/// the turn ends or fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimKind {
    /// Those without suspects.
    Ordinary,
    /// One whose next turn is suspect. A crash counts against the newest of these claims, until the next one is asked for.
    Suspect,
    /// One whose next turn has had a crash counted against it. The caller asks for it only when it has shown that it lives
    /// without it: a process that is killed again and again from outside must not bury the innocent.
    Feared,
}

/// The right to write the outcome of one turn. Every completion is fenced by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The session.
    pub session: SessionKey,
    /// Raised by every claim and every takeover.
    pub epoch: i64,
    /// Who holds it.
    pub boot: BootId,
    /// The turn.
    pub turn: TurnId,
}

/// A claimed session: one turn's work.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The right to finish it.
    pub lease: Lease,
    /// The session's agent.
    pub agent: String,
    /// The session's generation: raised by `/new`; history is read within it.
    pub generation: i64,
    /// What the session chose for itself.
    pub choice: SessionChoice,
    /// The entries, oldest first; never empty.
    pub entries: Vec<InboxEntry>,
    /// What was heard in the session since its last finished turn, oldest first. A turn that goes on has what it had; the
    /// end of the turn ([`InboxStore::finish`]) forgets it, so that it is in exactly one.
    pub backlog: Vec<Heard>,
    /// Steps of the interrupted turn, in order; `None` for a new turn.
    pub resume: Option<Vec<StepRecord>>,
    /// What the interrupted turn shows of its answer: updated or replaced, never shown a second time.
    pub shown: Option<Shown>,
    /// It runs alone because it ran when the process died.
    pub suspect: bool,
    /// The rows the claim wrote for watchers.
    pub events: Vec<EventRow>,
}

/// What a turn shows of its answer before it is whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// Where.
    pub to: Address,
    /// What the adapter needs to change it.
    pub preview: Preview,
}

/// A stored message.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxEntry {
    /// Order.
    pub seq: i64,
    /// Its id.
    pub id: InboxId,
    /// The sender's role.
    pub role: Role,
    /// The event.
    pub inbound: Inbound,
    /// Its queue mode.
    pub mode: QueueMode,
    /// When it was received.
    pub received_at: i64,
    /// Retryable failures so far.
    pub attempts: u32,
    /// It was over the cap.
    pub collapsed: bool,
    /// What it is when no person wrote it.
    pub errand: Option<Errand>,
}

/// Commit 2.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The right.
    pub lease: Lease,
    /// All entries of the turn, absorbed ones too, oldest first. The newest is answered, the others are merged into it.
    pub entries: Vec<InboxId>,
    /// How it ended.
    pub outcome: TurnOutcome,
    /// What the conversation gains, in order.
    pub transcript: Vec<Message>,
    /// Steps not recorded yet.
    pub steps: Vec<StepRecord>,
    /// What is sent.
    pub parts: Vec<NewPart>,
    /// Opens a new generation after the transcript (`/new`).
    pub new_generation: bool,
    /// Takes the place of the session's older messages, and of the summary before it.
    pub summary: Option<Summary>,
    /// What is to be done next, queued with this commit.
    pub then: Option<Box<NewEntry>>,
    /// What the whole turn took, interrupted tries included.
    pub usage: Usage,
    /// What the whole turn cost.
    pub costs: Costs,
    /// Sets the session's model (`/model`); `Some(None)` goes back to the agent's.
    pub model: Option<Option<String>>,
    /// Findings for the trace (a claim without a step, a repaired argument), one line each.
    pub notes: Vec<String>,
    /// Now.
    pub now: i64,
    /// The debounce of mode `collect`.
    pub debounce_ms: i64,
    /// Set the first part of each lane that has no other open part to `sending` at once (the caller sends it).
    pub claim_parts: bool,
    /// What it gives to another session.
    pub handback: Option<Handback>,
    /// What the turn shows of its answer is not replaced by a part: it stays in the turn's row until somebody has taken it
    /// away ([`TurnStore::left_previews`]).
    pub preview_left: bool,
    /// The session looks as if it had not been: its time of last activity stays. The caller leaves the transcript empty.
    pub traceless: bool,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnOutcome {
    /// With an answer.
    Replied,
    /// With silence: the reason's name.
    Silent(String),
    /// It failed: one plain line. The parts hold the notice.
    Failed(String),
    /// It was stopped by a person or a newer message.
    Stopped,
}

/// What [`InboxStore::finish`] did.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Lanes with pending parts to wake.
    pub lanes: Vec<LaneKey>,
    /// Parts that are already `sending`, ours to send now.
    pub sending: Vec<OutboxPart>,
    /// Parts held for a waiting caller.
    pub held: bool,
    /// Entries wait in this session.
    pub more: bool,
    /// Sessions of sub-agents whose turns run and were told to stop (`/new`).
    pub children: Vec<SessionKey>,
    /// The rows written for watchers.
    pub events: Vec<EventRow>,
}

/// Gives a claim back.
#[derive(Clone, Debug)]
pub struct Release {
    /// The right.
    pub lease: Lease,
    /// The entries.
    pub entries: Vec<InboxId>,
    /// The retryable failure; `None` for a drain.
    pub failure: Option<String>,
    /// Not claimed again before.
    pub not_before: i64,
    /// Stored when this makes a dead letter. Where a part of it replaces the turn's preview, the turn's row forgets that.
    pub apology: Vec<NewPart>,
    /// Now.
    pub now: i64,
}

/// What became of a [`Release`].
#[derive(Clone, Debug)]
pub enum Released {
    /// It waits again.
    Queued,
    /// It is a dead letter; lanes that got the apology.
    Dead {
        /// Lanes to wake.
        lanes: Vec<LaneKey>,
        /// The rows written for watchers.
        events: Vec<EventRow>,
    },
}

/// What waits in the whole gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Entries that wait or run.
    pub queued: u64,
    /// Their payload in bytes.
    pub bytes: u64,
}

/// A message that could not be processed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Order.
    pub seq: i64,
    /// Its id.
    pub id: InboxId,
    /// The session.
    pub session: SessionKey,
    /// The event.
    pub inbound: Inbound,
    /// Why.
    pub error: String,
    /// Retryable failures.
    pub attempts: u32,
    /// Crashes while it ran alone.
    pub crashes: u32,
    /// When it was received.
    pub received_at: i64,
}

/// What a person decides about a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadResolution {
    /// Queue it again.
    Retry,
    /// Let it go.
    Drop,
}

// ---------------------------------------------------------------------------------------------------------------------
// Station 9: the journal of a turn.

/// The journal of turns.
#[async_trait]
pub trait TurnStore: Send + Sync + 'static {
    /// Records steps (inserts, or replaces by id), fenced by the lease. Returns the rows written for watchers:
    /// `tool_start` for a started tool step, `tool_end` for a finished one. A finished step clears the suspicion against
    /// the turn's entries. Durable when it returns if `durable`; else it survives a killed process but perhaps not a
    /// power cut.
    async fn record(&self, lease: &Lease, steps: Vec<StepRecord>, durable: bool) -> Result<Vec<EventRow>, StoreError>;

    /// The last messages of a session's generation that no summary stands for, oldest first: at most `max_messages` and `max_bytes` of JSON, never
    /// beginning between a call and its results (cut forward to a user message). Once there are more, the window begins
    /// at a multiple of half of `max_messages` in the session's own count, so that it moves in steps and not with every
    /// turn: the turns of one step share their beginning, and a provider's prompt cache hits.
    async fn window(
        &self,
        session: &SessionKey,
        generation: i64,
        max_messages: u32,
        max_bytes: u64,
    ) -> Result<Window, StoreError>;

    /// The messages of [`TurnStore::window`].
    async fn history(
        &self,
        session: &SessionKey,
        generation: i64,
        max_messages: u32,
        max_bytes: u64,
    ) -> Result<Vec<Message>, StoreError> {
        let window = self.window(session, generation, max_messages, max_bytes).await?;
        Ok(window.rows.into_iter().map(|row| row.message).collect())
    }

    /// What the journal says of the newest request to a model in this session: a step's `args`.
    async fn last_request(&self, session: &SessionKey) -> Result<Option<Value>, StoreError>;

    /// Stores what a running turn shows of its answer, fenced by the lease. It survives a killed process but perhaps not a
    /// power cut.
    async fn keep_preview(&self, lease: &Lease, shown: &Shown) -> Result<(), StoreError>;

    /// What turns show that have ended without a word in its place, oldest first.
    async fn left_previews(&self, limit: u32) -> Result<Vec<(TurnId, Shown)>, StoreError>;

    /// It was taken away. Nothing happens when the turn shows nothing.
    async fn forget_preview(&self, turn: &TurnId) -> Result<(), StoreError>;

    /// A turn with its steps and parts, for the trace.
    async fn trace(&self, turn: &TurnId) -> Result<Option<TurnTrace>, StoreError>;

    /// The turns that answered a message, or the last turns of a session, newest first.
    async fn turns(&self, of: TurnsOf, limit: u32) -> Result<Vec<TurnRow>, StoreError>;
}

/// The part of a conversation that the model is sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// What the messages before it come to, once somebody has said so.
    pub summary: Option<Summary>,
    /// Its messages, oldest first.
    pub rows: Vec<Placed>,
    /// Older messages exist that neither it nor the summary holds.
    pub more: bool,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Order, over all sessions.
    pub seq: i64,
    /// Its number within its session, from 0.
    pub place: i64,
    /// The message.
    pub message: Message,
}

/// What older messages come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The `seq` of the last message it stands for.
    pub upto: i64,
    /// How many messages it stands for.
    pub messages: u32,
    /// Its text.
    pub text: String,
}

/// Whose turns.
#[derive(Clone, Debug)]
pub enum TurnsOf {
    /// Those of one message.
    Entry(InboxId),
    /// Those of one session.
    Session(SessionKey),
    /// All.
    All,
}

/// One model or tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its id.
    pub id: StepId,
    /// Order within the turn, from 0.
    pub n: u32,
    /// The round (model call) it belongs to, from 1.
    pub round: u32,
    /// Which try of the same call this is, from 1.
    pub attempt: u32,
    /// Model or tool.
    pub kind: StepKind,
    /// For tools: our call id.
    pub call_id: Option<String>,
    /// The model's or tool's name.
    pub name: String,
    /// For tools: what a second run would do.
    pub effect: Option<Effect>,
    /// How far it came.
    pub state: StepState,
    /// For tools: the arguments as run (JSON). For the model: what was asked in short (counts, section hashes).
    pub args: Value,
    /// For tools: the result as the model reads it (a string). For the model: the whole response (text, calls, opaque).
    pub result: Value,
    /// When it began.
    pub started_at: i64,
    /// How long it took, in milliseconds.
    pub ms: i64,
    /// For the model: tokens.
    pub usage: Usage,
    /// For the model, when it answered: its row in the ledger, written with the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<Spent>,
}

/// What a call of a model is in the ledger, besides its tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// The agent that asked.
    pub agent: String,
    /// Channel and sender id of who is answered; empty = nobody.
    pub sender: String,
    /// The model that answered, by its name in the configuration.
    pub model: String,
    /// What for: `turn`, or a word for what else a model was asked.
    pub purpose: String,
    /// The day it was paid, `2026-11-30`, by the gateway's time zone.
    pub day: String,
    /// What it cost; `None` = the model has no price.
    pub cost: Option<Cost>,
}

/// What a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// A model call.
    Llm,
    /// A tool call.
    Tool,
}

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// Committed before it runs.
    Started,
    /// It ended with a result.
    Finished,
    /// It ended with an error the model read.
    Failed,
    /// It began in a process that died; its outcome is unknown and it was not repeated.
    Interrupted,
}

/// A turn, for people.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TurnRow {
    /// Its id.
    pub id: TurnId,
    /// The session.
    pub session: SessionKey,
    /// `running`, `replied`, `silent`, `failed`, `stopped`.
    pub state: String,
    /// The silence's reason or the failure's line.
    pub reason: Option<String>,
    /// The message it answered.
    pub entry: Option<InboxId>,
    /// When the oldest of its messages was received.
    pub received_at: i64,
    /// When it began.
    pub started_at: i64,
    /// When it ended.
    pub ended_at: Option<i64>,
    /// What it cost.
    pub usage: Usage,
    /// Findings.
    pub notes: Vec<String>,
}

/// Everything about a turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TurnTrace {
    /// The turn.
    pub turn: TurnRow,
    /// The messages it answered: id and text.
    pub entries: Vec<(InboxId, String)>,
    /// Its steps, in order.
    pub steps: Vec<StepRecord>,
    /// What was sent.
    pub parts: Vec<PartRow>,
}

// ---------------------------------------------------------------------------------------------------------------------
// Stations 12 and 13: the outbox.

/// One target of one channel: `(channel, lane)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneKey {
    /// The channel.
    pub channel: ChannelId,
    /// Its lane.
    pub lane: String,
}

/// A part to be stored.
#[derive(Clone, Debug)]
pub struct NewPart {
    /// Its id and its idempotency key.
    pub id: PartId,
    /// The message it answers; `None` for what nobody asked for.
    pub entry: Option<InboxId>,
    /// The platform id of that message.
    pub in_reply_to: Option<String>,
    /// The preview whose place it takes ([`SendKey::replaces`]).
    pub replaces: Option<String>,
    /// Where it goes.
    pub to: Address,
    /// From 1 within its reply.
    pub seq: u32,
    /// The last of its reply.
    pub last: bool,
    /// The rendered part.
    pub part: Part,
    /// The reply it was rendered from, kept with the first part, for rendering again plainer.
    pub reply: Option<Reply>,
    /// How it was rendered.
    pub level: Level,
    /// When it was made.
    pub created_at: i64,
    /// Not sent after this time.
    pub expires_at: i64,
}

/// A part that is ours to send or to look into.
#[derive(Clone, Debug)]
pub struct OutboxPart {
    /// Its id.
    pub id: PartId,
    /// Raised by every claim of the part; completions are fenced by it.
    pub epoch: i64,
    /// Where it goes.
    pub to: Address,
    /// What identifies the send.
    pub key: SendKey,
    /// The rendered part.
    pub part: Part,
    /// How it was rendered.
    pub level: Level,
    /// Tries before this one.
    pub attempts: u32,
    /// When its first try began.
    pub first_try_at: Option<i64>,
    /// Not sent after this time.
    pub expires_at: i64,
}

/// A word to another chat.
#[derive(Clone, Debug)]
pub struct Word {
    /// Who says it: the running turn's hold on its session.
    pub lease: Lease,
    /// What is sent; their ids are the same for a second try.
    pub parts: Vec<NewPart>,
    /// The session it is said to, and the text for its history; `None` when that is the same session.
    pub heard: Option<(SessionKey, String)>,
    /// Now.
    pub now: i64,
}

/// The outbox.
#[async_trait]
pub trait OutboxStore: Send + Sync + 'static {
    /// Stores what a running turn says to another chat, as parts that answer nobody, and in that session's history.
    /// Once: a first part that is stored already changes nothing. The lanes to wake. `Fenced` when the turn does not hold
    /// its session (any more).
    async fn say(&self, word: Word) -> Result<Vec<LaneKey>, StoreError>;

    /// Every lane that has open parts (pending, uncertain), with the time its first one is due.
    async fn open_lanes(&self) -> Result<Vec<(LaneKey, i64)>, StoreError>;

    /// The first open part of a lane and what to do with it. A due pending part becomes `sending`, durably, before this
    /// returns; parts past their time become `expired` on the way.
    async fn next_part(&self, lane: &LaneKey, boot: &BootId, now: i64) -> Result<NextPart, StoreError>;

    /// Writes what became of a part that is ours, fenced by its epoch.
    async fn settle_part(&self, id: &PartId, epoch: i64, what: PartOutcome, now: i64) -> Result<(), StoreError>;

    /// Replaces a refused part and the unsent ones after it by plainer ones (same reply), keeping place and order.
    async fn replace_parts(&self, id: &PartId, epoch: i64, parts: Vec<NewPart>, now: i64) -> Result<(), StoreError>;

    /// The reply that a part was rendered from.
    async fn reply_of(&self, id: &PartId) -> Result<Option<Reply>, StoreError>;

    /// Marks held parts as sent: their caller has them. Parts that are no longer held are left alone. Returns lanes to
    /// wake: what waited behind them is free.
    async fn handed_over(&self, entry: &InboxId, parts: &[PartId], now: i64) -> Result<Vec<LaneKey>, StoreError>;

    /// Nobody waits for this message any more: its held parts become pending, later ones are not held. Returns lanes to
    /// wake.
    async fn release_hold(&self, entry: &InboxId, now: i64) -> Result<Vec<LaneKey>, StoreError>;

    /// Parts in trouble or in work, for people: newest first.
    async fn parts(&self, filter: PartFilter, limit: u32) -> Result<Vec<PartRow>, StoreError>;
}

/// What is next in a lane.
#[derive(Clone, Debug)]
pub enum NextPart {
    /// Ours to send now.
    Send(Box<OutboxPart>),
    /// A send was cut off; ours to find out what became of it.
    Uncertain(Box<OutboxPart>),
    /// Nothing before this time.
    Wait(i64),
    /// The first part is held for a waiting caller or in the hands of another sender.
    Blocked,
    /// Nothing open.
    Empty,
}

/// What became of a part.
#[derive(Clone, Debug, PartialEq)]
pub enum PartOutcome {
    /// It arrived.
    Sent(Receipt),
    /// It was not sent; again at this time, counted as a try.
    Retry {
        /// When.
        not_before: i64,
        /// Why.
        error: String,
        /// The next send is a marked resend.
        resend: bool,
    },
    /// Cut off; to be looked into.
    Uncertain(String),
    /// It may or may not have arrived, and nothing more will be done.
    Unknown(String),
    /// Refused for good.
    Failed(String),
    /// Its time passed.
    Expired,
}

/// Which parts.
#[derive(Clone, Debug, Default)]
pub struct PartFilter {
    /// Of this message.
    pub entry: Option<InboxId>,
    /// In this state.
    pub state: Option<String>,
}

/// A part, for people.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartRow {
    /// Its id.
    pub id: PartId,
    /// The channel.
    pub channel: ChannelId,
    /// The lane.
    pub lane: String,
    /// `pending held sending uncertain sent unknown failed expired`.
    pub state: String,
    /// The text as a person reads it.
    pub text: String,
    /// Tries.
    pub attempts: u32,
    /// The last error.
    pub error: Option<String>,
    /// The platform's id.
    pub receipt: Option<String>,
    /// When it was made.
    pub created_at: i64,
    /// When it was settled.
    pub settled_at: Option<i64>,
}

// ---------------------------------------------------------------------------------------------------------------------
// Sessions, for people and for commands.

/// Sessions and what was said in them.
#[async_trait]
pub trait SessionStore: Send + Sync + 'static {
    /// One session.
    async fn session(&self, key: &SessionKey) -> Result<Option<SessionRow>, StoreError>;

    /// Sessions, last active first; `after` is the previous page's last `updated_at` and key.
    async fn sessions(&self, after: Option<(i64, SessionKey)>, limit: u32) -> Result<Vec<SessionRow>, StoreError>;

    /// What was said, oldest first, all generations; `after` is a sequence number.
    async fn messages(&self, key: &SessionKey, after: i64, limit: u32) -> Result<Vec<MessageRow>, StoreError>;

    /// Messages that contain `text` (any case), newest first.
    async fn search(&self, text: &str, limit: u32) -> Result<Vec<MessageRow>, StoreError>;

    /// Opens a new generation, as `/new` does.
    async fn reset(&self, key: &SessionKey, now: i64) -> Result<Vec<SessionKey>, StoreError>;
}

/// A session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionRow {
    /// Its key.
    pub key: SessionKey,
    /// Its agent.
    pub agent: String,
    /// Its own queue mode, if set.
    pub mode: Option<QueueMode>,
    /// Entries that wait.
    pub pending: u32,
    /// A turn runs.
    pub running: bool,
    /// Parked until.
    pub parked_until: Option<i64>,
    /// The generation.
    pub generation: i64,
    /// Messages stored.
    pub messages: u64,
    /// Tokens of all turns.
    pub usage: Usage,
    /// When it began.
    pub created_at: i64,
    /// When something last happened.
    pub updated_at: i64,
    /// What it chose for itself.
    #[serde(default)]
    pub choice: SessionChoice,
}

/// What a session chose for itself in chat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionChoice {
    /// The model, by its name in the configuration; `None` = the agent's.
    pub model: Option<String>,
    /// What stands below its answers.
    pub footer: Footer,
}

/// What stands below the answers of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Footer {
    /// Nothing.
    #[default]
    Off,
    /// The tokens of the turn.
    Tokens,
    /// Its tokens and its cost.
    Full,
}

impl Footer {
    /// Its name in rows and commands.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Tokens => "tokens",
            Self::Full => "full",
        }
    }

    /// That of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Off, Self::Tokens, Self::Full].into_iter().find(|footer| footer.as_str() == name)
    }
}

/// A stored message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageRow {
    /// Order.
    pub seq: i64,
    /// The session.
    pub session: SessionKey,
    /// The generation.
    pub generation: i64,
    /// The turn.
    pub turn: TurnId,
    /// The message.
    pub message: Message,
    /// When.
    pub created_at: i64,
}

// ---------------------------------------------------------------------------------------------------------------------
// What models cost.

/// The ledger: one row a call of a model. Those of a turn are written with their steps ([`StepRecord::spent`]).
#[async_trait]
pub trait LedgerStore: Send + Sync + 'static {
    /// Writes what belongs to no step. The same id of the same turn is written once.
    async fn spend(&self, spend: NewSpend) -> Result<(), StoreError>;

    /// Everything of one day, summed by session, sender and currency.
    async fn spent_on(&self, day: &str) -> Result<Vec<DaySpent>, StoreError>;

    /// Sums for people: by the day the newest first, else what took the most tokens first.
    async fn spent(&self, ask: &SpentAsk) -> Result<Vec<SpentRow>, StoreError>;
}

/// What was spent outside of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSpend {
    /// Its id, unique in its turn.
    pub id: String,
    /// The turn it belongs to, if any.
    pub turn: Option<TurnId>,
    /// The session it belongs to, if any.
    pub session: Option<SessionKey>,
    /// Who, what and when.
    pub spent: Spent,
    /// The tokens.
    pub usage: Usage,
    /// When.
    pub at: i64,
}

/// What one sender spent in one session and one currency on one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaySpent {
    /// The session.
    pub session: Option<SessionKey>,
    /// Channel and sender id.
    pub sender: String,
    /// Tokens of requests and answers.
    pub tokens: u64,
    /// Money.
    pub cost: Option<Cost>,
}

/// What is asked of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentAsk {
    /// What the rows are summed by.
    pub by: SpentBy,
    /// Of what.
    pub of: SpentOf,
    /// From this day on, `2026-11-01`.
    pub since: Option<String>,
    /// Up to this day.
    pub until: Option<String>,
    /// At most so many sums.
    pub limit: u32,
}

/// What rows of the ledger are summed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpentBy {
    /// All in one; its key is empty.
    Total,
    /// The day.
    #[default]
    Day,
    /// The model's name in the configuration.
    Model,
    /// Channel and sender id.
    Sender,
    /// The session.
    Session,
    /// The agent.
    Agent,
    /// What for.
    Purpose,
}

/// Which rows of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpentOf {
    /// All.
    All,
    /// Those of a session.
    Session(SessionKey),
    /// Those of the last turn of a session that cost anything.
    LastTurn(SessionKey),
    /// Those of a sender: channel and sender id.
    Sender(String),
}

/// A sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpentRow {
    /// What it is the sum of.
    pub key: String,
    /// Answers of models.
    pub calls: u64,
    /// Tokens.
    pub usage: Usage,
    /// Money, each currency by itself.
    pub costs: Costs,
}

// ---------------------------------------------------------------------------------------------------------------------
// Who was let in and who was shut out.

/// The most strangers of one channel whose requests wait. openclaw-parity.md §7.1.
pub const MAX_PAIRINGS: u32 = 3;

/// Pairing requests, and who was approved or blocked. Every set is small: requests are bounded, the others grow only by a
/// person's own decision.
#[async_trait]
pub trait AccessStore: Send + Sync + 'static {
    /// All of it: requests that wait at `now`, oldest first, then approved and blocked senders in the order of their keys.
    async fn access(&self, now: i64) -> Result<AccessRows, StoreError>;

    /// Lets in whoever asked with this code: the request goes, the right and the parts that `welcome` makes are stored, in
    /// one transaction. A code that was approved before changes nothing and is answered again. `NotFound` for a code that
    /// is wrong, rejected or past its hour: the three look alike.
    async fn approve(&self, approve: Approve) -> Result<Approved, StoreError>;

    /// Refuses a request: the sender hears nothing more until its hour is over. `NotFound` as in
    /// [`AccessStore::approve`].
    async fn reject(&self, scope: Option<&str>, code: &str, now: i64) -> Result<PairingRow, StoreError>;

    /// Takes an approval back and ends what the sender has in direct chats. `NotFound` when nobody of that id was approved
    /// in this scope.
    async fn revoke(&self, who: &Who, now: i64) -> Result<Ended, StoreError>;

    /// Shuts a sender out: approvals and requests in the scope go, and what the sender has anywhere in it ends.
    async fn block(&self, who: &Who, now: i64) -> Result<Ended, StoreError>;

    /// Ends a block. `NotFound` when there is none of exactly this scope.
    async fn unblock(&self, who: &Who, now: i64) -> Result<(), StoreError>;

    /// Ends what a sender has: turns that run or would be resumed are told to stop, waiting messages are settled
    /// (`silent` = `stopped`). `directs` = in direct chats only.
    async fn end(&self, who: &Who, directs: bool, now: i64) -> Result<Ended, StoreError>;

    /// Ends what runs or would be resumed, whoever's it is, and what waits for sub-agents; other waiting messages stay.
    /// `by` is the owner who said so: with its row in the audit log.
    async fn end_all(&self, by: &str, now: i64) -> Result<Ended, StoreError>;
}

/// A sender, on one channel (`telegram:main`) or on every account of a kind (`telegram`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Who {
    /// The channel or the kind.
    pub scope: String,
    /// The platform's id.
    pub sender: String,
}

/// A stranger's request, with the code that was made for it.
#[derive(Clone, Debug)]
pub struct NewPairing {
    /// The channel.
    pub channel: ChannelId,
    /// The platform's id of the sender.
    pub sender: String,
    /// A name for people.
    pub name: Option<String>,
    /// The code, if it is needed.
    pub code: String,
    /// The language they write.
    pub lang: Lang,
    /// Where they hear of it.
    pub address: Address,
    /// What they are told, stored with the request or not at all.
    pub parts: Vec<NewPart>,
    /// Now.
    pub at: i64,
    /// When the code is good no more.
    pub expires_at: i64,
}

/// What became of a [`NewPairing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Stored, and its parts with it: lanes to wake.
    New {
        /// The lanes.
        lanes: Vec<LaneKey>,
    },
    /// The sender has a code that is still good, or was let in meanwhile. Nothing was stored.
    Again,
    /// Rejected, blocked, or [`MAX_PAIRINGS`] others wait. Nothing was stored.
    Silence,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairingRow {
    /// The channel.
    pub channel: ChannelId,
    /// The platform's id of the sender.
    pub sender: String,
    /// A name for people.
    pub name: Option<String>,
    /// The code.
    pub code: String,
    /// The language they write.
    pub lang: Lang,
    /// When they asked.
    pub created_at: i64,
    /// When the code is good no more.
    pub expires_at: i64,
}

/// Somebody who was let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovedRow {
    /// The channel.
    pub channel: ChannelId,
    /// The platform's id of the sender.
    pub sender: String,
    /// A name for people.
    pub name: Option<String>,
    /// What they may.
    pub role: Role,
    /// When they were let in.
    pub created_at: i64,
}

/// Somebody who is shut out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedRow {
    /// The channel or the kind.
    pub scope: String,
    /// The platform's id of the sender.
    pub sender: String,
    /// Since when.
    pub created_at: i64,
}

/// Everything about access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRows {
    /// Requests that wait.
    pub pairings: Vec<PairingRow>,
    /// Those who were let in.
    pub approved: Vec<ApprovedRow>,
    /// Those who are shut out.
    pub blocked: Vec<BlockedRow>,
}

/// Lets somebody in.
#[derive(Clone)]
pub struct Approve {
    /// The channel or kind it was asked on; `None` = wherever.
    pub scope: Option<String>,
    /// The code.
    pub code: String,
    /// The role. `None` = member, or owner when `may_own` and nobody approved is one.
    pub role: Option<Role>,
    /// The configuration names no owner.
    pub may_own: bool,
    /// Makes what the person is told.
    pub welcome: Welcome,
    /// Now.
    pub now: i64,
}

/// Makes the parts that tell a person that they were let in, with what role, and whether that made them the first owner.
/// Called within a transaction that may be run again: pure but for the ids.
pub type Welcome = Arc<dyn Fn(&PairingRow, &Address, Role, bool) -> Vec<NewPart> + Send + Sync>;

/// What an approval did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approved {
    /// The right.
    pub row: ApprovedRow,
    /// It made the first owner.
    pub first_owner: bool,
    /// It was approved before; nothing changed.
    pub again: bool,
    /// Lanes that got parts.
    pub lanes: Vec<LaneKey>,
}

/// What ended with somebody's rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Sessions whose running turn was told to stop.
    pub running: Vec<SessionKey>,
    /// Messages that waited and are settled now.
    pub settled: u64,
    /// The rows written for watchers.
    pub events: Vec<EventRow>,
}

// ---------------------------------------------------------------------------------------------------------------------
// Channels' own map, events for watchers, upkeep.

/// The channels' own small maps, and the groups that moved.
#[async_trait]
pub trait ChannelStore: Send + Sync + 'static {
    /// A value.
    async fn kv_get(&self, channel: &ChannelId, key: &str) -> Result<Option<String>, StoreError>;

    /// Stores a value.
    async fn kv_set(&self, channel: &ChannelId, key: &str, value: &str) -> Result<(), StoreError>;

    /// Every group that ever got a new id, in the order in which that was told.
    async fn moves(&self) -> Result<Vec<(ChannelId, Moved)>, StoreError>;
}

/// Events, as `/sse` shows them.
#[async_trait]
pub trait EventStore: Send + Sync + 'static {
    /// Events after a sequence number, oldest first.
    async fn events(&self, after: i64, filter: EventFilter, limit: u32) -> Result<Vec<EventRow>, StoreError>;

    /// The newest sequence number; 0 when there is none.
    async fn last_event(&self) -> Result<i64, StoreError>;
}

/// Which events.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Of this task.
    pub task: Option<InboxId>,
    /// Of this session.
    pub session: Option<SessionKey>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// Order; the SSE id.
    pub seq: i64,
    /// The message.
    pub task: InboxId,
    /// Its session.
    pub session: SessionKey,
    /// `turn_started tool_start tool_end task_complete task_failed`.
    pub kind: String,
    /// The rest of the event's JSON object (without `type`, `taskId`, `session`).
    pub data: Value,
    /// When.
    pub at: i64,
}

impl EventRow {
    /// The message ended without a word because a person stopped it or deleted it: why. Nobody else tells of that.
    pub fn ended_unanswered(&self) -> Option<&str> {
        let why = self.data["silent"].as_str().filter(|_| self.kind == "task_complete");
        why.filter(|why| matches!(*why, "stopped" | "deleted"))
    }
}

/// Opening, recovery and upkeep.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// Voids all claims of other boots in one transaction: their running entries wait again as suspects (those that ran
    /// alone are counted; the third time makes a dead letter), a `sending` part becomes `uncertain`, a held part
    /// pending, and every counter is set right. A dead letter's sender gets what `apology` makes of it, in the same
    /// transaction.
    async fn recover(&self, boot: &BootId, now: i64, apology: Apology) -> Result<Recovered, StoreError>;

    /// The wall clock was set `by_ms` forward (or back, when negative) while the gateway ran: pauses, debounces and
    /// expiries end when they would have ended.
    async fn clock_was_set(&self, by_ms: i64) -> Result<(), StoreError>;

    /// Deletes at most 500 rows of what is past its time; true when there may be more.
    async fn prune(&self, now: i64, keep: &Retention) -> Result<bool, StoreError>;

    /// The names of kept files ([`channel_api::MediaSource::Stored`]) that waiting messages, running turns and parts on
    /// their way out still need.
    async fn files_in_use(&self) -> Result<HashSet<String>, StoreError>;

    /// Looks at every page of the database: `Corrupt` when it is damaged. Takes its time; meant for the background.
    async fn check(&self) -> Result<(), StoreError>;

    /// Writes and reads back one row: true only when commits work.
    async fn probe(&self, now: i64) -> Result<(), StoreError>;

    /// Moves what is in the log into the database file, off the writer's path where there is one.
    async fn checkpoint(&self) -> Result<(), StoreError>;

    /// Closes it after everything queued was committed.
    async fn close(&self);
}

/// Makes the parts that tell a message's sender that it could not be processed. Called within a transaction that may be
/// run again: pure but for the ids.
pub type Apology = Arc<dyn Fn(&InboxId, &Inbound) -> Vec<NewPart> + Send + Sync>;

/// Says nothing: for tests and tools that look at the rows alone.
pub fn no_apology() -> Apology {
    Arc::new(|_, _| Vec::new())
}

/// What a start found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Entries that were running.
    pub entries: u64,
    /// Of them, now dead letters.
    pub dead: u64,
    /// Parts that were being sent.
    pub uncertain: u64,
}

/// How long things are kept, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Dedupe keys of settled entries (never below 72 h).
    pub keys_ms: i64,
    /// Bodies of steps.
    pub step_bodies_ms: i64,
    /// Events.
    pub events_ms: i64,
    /// Settled parts.
    pub parts_ms: i64,
    /// Dead letters.
    pub dead_ms: i64,
    /// What was heard in groups and never told.
    pub heard_ms: i64,
}

impl Default for Retention {
    /// Keys 7 days, step bodies 14 days (design.md §4), events 3 days, parts 14 days, dead letters 14 days,
    /// what was heard 7 days.
    fn default() -> Self {
        const DAY: i64 = 24 * 60 * 60 * 1000;
        Self {
            keys_ms: 7 * DAY,
            step_bodies_ms: 14 * DAY,
            events_ms: 3 * DAY,
            parts_ms: 14 * DAY,
            dead_ms: 14 * DAY,
            heard_ms: 7 * DAY,
        }
    }
}

/// All of them, for the wiring alone.
pub trait Store:
    InboxStore
    + crate::approvals::ApprovalStore
    + TurnStore
    + OutboxStore
    + SessionStore
    + LedgerStore
    + AccessStore
    + ChannelStore
    + EventStore
    + note::NoteStore
    + Upkeep
    + ChatStore
    + ScheduleStore
    + InitiativeStore
    + PlanStore
    + SubagentStore
    + crate::audit::AuditStore
{
}

impl<T> Store for T where
    T: InboxStore
        + crate::approvals::ApprovalStore
        + TurnStore
        + OutboxStore
        + SessionStore
        + LedgerStore
        + AccessStore
        + ChannelStore
        + EventStore
        + note::NoteStore
        + PlanStore
        + SubagentStore
        + crate::audit::AuditStore
        + Upkeep
        + ChatStore
        + ScheduleStore
        + InitiativeStore
{
}
