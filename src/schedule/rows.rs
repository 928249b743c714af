//! The rows of schedules, and what their store must do: a slot and its run are one transaction.

use async_trait::async_trait;
use channel_api::{ChannelId, InboxId};
use serde::{Deserialize, Serialize};

use super::when::When;
use crate::{
    chats::Place,
    policy::Role,
    session::SessionKey,
    store::{NewEntry, StoreError},
};

/// On what terms a schedule runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The chat where it was set: its result arrives there.
    pub place: Place,
    /// The role of its creator when it was set. A run has this or the creator's present one, whichever is lower.
    pub role: Role,
    /// A session of its own instead of the chat's.
    #[serde(default)]
    pub isolated: bool,
    /// The name of the model in `[models]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// What a schedule is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It waits for its next time.
    Active,
    /// It was to run once, failed, and runs no more unless a person says so.
    Failed,
    /// It runs no more: its creator may no longer write here.
    Stopped,
    /// It has no next time.
    Done,
}

impl State {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Done => "done",
        }
    }

    /// The state of that name; what is unknown does not run.
    pub fn parse(name: &str) -> Self {
        [Self::Active, Self::Failed, Self::Done].into_iter().find(|s| s.as_str() == name).unwrap_or(Self::Stopped)
    }
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleRow {
    /// Its id: `sc_` and eight letters.
    pub id: String,
    /// Who set it: channel and sender id.
    pub creator: String,
    /// The agent that does it.
    pub agent: String,
    /// A few words.
    pub title: String,
    /// What is to be done.
    pub text: String,
    /// When.
    pub when: When,
    /// The zone its times are shown in.
    pub tz: String,
    /// On what terms.
    pub terms: Terms,
    /// The next time by its own words.
    pub slot: Option<i64>,
    /// When it runs next.
    pub due_at: Option<i64>,
    /// What it is doing.
    pub state: State,
    /// Failures in a row.
    pub failures: u32,
    /// Runs so far.
    pub runs: u32,
    /// The run under way.
    pub entry: Option<InboxId>,
    /// The last run.
    pub last_entry: Option<InboxId>,
    /// When it last ran.
    pub last_at: Option<i64>,
    /// Why the last run failed, or why it runs no more.
    pub error: Option<String>,
    /// When it was set.
    pub created_at: i64,
}

impl ScheduleRow {
    /// The key of its creator.
    pub fn creator_of(channel: &ChannelId, sender: &str) -> String {
        format!("{channel} {sender}")
    }

    /// The session of a run that does not use the chat's.
    pub fn own_session(&self) -> SessionKey {
        SessionKey::from(format!("agent:{}:schedule:{}", self.agent, self.id))
    }
}

/// What became of a new schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is kept; so was one of the same id before.
    Added,
    /// Its creator has as many as they may.
    TooMany,
}

/// A run of a schedule.
#[derive(Clone, Debug)]
pub struct Fire {
    /// Which.
    pub id: String,
    /// The slot the row had when it was looked at: somebody else's run in between makes this one nothing.
    pub slot: i64,
    /// What the row has next; none = no more.
    pub next: Option<Next>,
    /// The run.
    pub entry: NewEntry,
    /// Now.
    pub now: i64,
}

/// The next time of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// By its own words.
    pub slot: i64,
    /// When it runs.
    pub due_at: i64,
}

/// What became of a [`Fire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fired {
    /// It is in the queue, now or since a first try.
    Queued(InboxId),
    /// The session's queue is full; nothing changed.
    Full,
    /// The schedule is gone, changed or was run by somebody else.
    Gone,
}

/// What a look at runs found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Schedules whose run failed, and why.
    pub failed: Vec<(String, String)>,
    /// Some runs are under way.
    pub running: bool,
}

/// A change of a schedule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// A few words.
    pub title: Option<String>,
    /// What is to be done.
    pub text: Option<String>,
    /// When, in which zone, and the next time.
    pub when: Option<(When, String, Next)>,
    /// The most active ones of its creator: one that had ended counts again.
    pub most: u32,
}

/// Schedules.
#[async_trait]
pub trait ScheduleStore: Send + Sync + 'static {
    /// Keeps a schedule unless its creator has `most` already. One whose id is known is left as it is.
    async fn add_schedule(&self, row: &ScheduleRow, most: u32) -> Result<Added, StoreError>;

    /// Of this creator, or all; the next one first, those that run no more last.
    async fn schedules(&self, creator: Option<&str>) -> Result<Vec<ScheduleRow>, StoreError>;

    /// One.
    async fn schedule(&self, id: &str) -> Result<Option<ScheduleRow>, StoreError>;

    /// Changes one and sets it going again. `NotFound` if there is none.
    async fn edit_schedule(&self, id: &str, change: &Change) -> Result<Added, StoreError>;

    /// Takes one away. `NotFound` if there is none.
    async fn cancel_schedule(&self, id: &str) -> Result<(), StoreError>;

    /// Those due at `now`, the longest due first.
    async fn due_schedules(&self, now: i64, limit: u32) -> Result<Vec<ScheduleRow>, StoreError>;

    /// When the next one is due.
    async fn next_schedule(&self) -> Result<Option<i64>, StoreError>;

    /// Queues the run of a slot and moves the schedule to its next one, together.
    async fn fire_schedule(&self, fire: Fire) -> Result<Fired, StoreError>;

    /// One runs now, besides its own times. `NotFound` if there is none.
    async fn run_schedule(&self, id: &str, now: i64) -> Result<(), StoreError>;

    /// A run that found no room waits until then.
    async fn put_off_schedule(&self, id: &str, due_at: i64) -> Result<(), StoreError>;

    /// A schedule runs no more: why.
    async fn stop_schedule(&self, id: &str, why: &str) -> Result<(), StoreError>;

    /// Looks at runs that have ended: one that was to run once and did is taken away, a failure is counted and puts the next
    /// run off, a success clears the count.
    async fn reap_schedules(&self, now: i64) -> Result<Reaped, StoreError>;
}
