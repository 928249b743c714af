//! What happens, live: the events of `/sse`, the terminal and whoever waits in place.
//!
//! Rows with a sequence number are durable and come from the store after their commit; text deltas have none and are
//! never stored.

use channel_api::InboxId;
use serde_json::Value;
use tokio::sync::broadcast;

use crate::{session::SessionKey, store::EventRow};

/// One event for watchers.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRow {
    /// The journal's sequence number; `None` for deltas.
    pub seq: Option<i64>,
    /// The message.
    pub task: InboxId,
    /// Its session.
    pub session: SessionKey,
    /// `turn_started text_delta text_reset tool_start tool_end task_complete task_failed`.
    pub kind: String,
    /// The rest of the event's JSON object.
    pub data: Value,
}

impl From<EventRow> for LiveRow {
    fn from(row: EventRow) -> Self {
        Self { seq: Some(row.seq), task: row.task, session: row.session, kind: row.kind, data: row.data }
    }
}

/// Spreads events to everyone who watches. A slow watcher loses the oldest and is told so; it then reads the rows from
/// the store.
#[derive(Clone, Debug)]
pub struct Journal {
    sender: broadcast::Sender<LiveRow>,
}

impl Journal {
    /// Room for this many events a watcher may lag behind.
    const LAG: usize = 4096;

    /// A journal nobody watches yet.
    pub fn new() -> Self {
        Self { sender: broadcast::Sender::new(Self::LAG) }
    }

    /// Tells watchers of rows that were committed.
    pub fn committed(&self, rows: Vec<EventRow>) {
        for row in rows {
            self.live(row.into());
        }
    }

    /// Tells watchers of something that is not stored.
    pub fn live(&self, row: LiveRow) {
        // An error only says that nobody watches.
        let _ = self.sender.send(row);
    }

    /// Whether anyone watches: spares the making of deltas.
    pub fn watched(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    /// Everything from now on.
    pub fn watch(&self) -> broadcast::Receiver<LiveRow> {
        self.sender.subscribe()
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}
