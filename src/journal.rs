//! What happens, live: the events of `/sse`, the terminal and whoever waits in place.
//!
//! Rows with a sequence number are durable and come from the store after their commit; text deltas have none and are
//! never stored.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use channel_api::{InboxId, LiveEvent, Settled};
use serde_json::Value;
use tokio::sync::{broadcast, mpsc};

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

impl LiveRow {
    /// The kind of [`Journal::look`], which is no event.
    pub const LOOK: &str = "look";

    /// Brings the texts that are being written up to date: a text begins anew with each tool and ends with its turn.
    pub fn apply_to(&self, texts: &mut HashMap<InboxId, String>) {
        match self.kind.as_str() {
            "text_delta" => {
                let text = texts.entry(self.task.clone()).or_default();
                if self.data["replace"] == true {
                    text.clear();
                }
                text.push_str(self.data["text"].as_str().unwrap_or_default());
            }
            Self::LOOK => {}
            _ => {
                texts.remove(&self.task);
            }
        }
    }
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
    rows: broadcast::Sender<LiveRow>,
    texts: Arc<Mutex<HashMap<InboxId, String>>>,
    waiters: Arc<Mutex<HashMap<InboxId, Vec<mpsc::Sender<LiveEvent>>>>>,
}

impl Journal {
    /// Room for this many events a watcher may lag behind.
    const LAG: usize = 4096;
    /// Room for this many events of one message; a slow waiter loses deltas, never the end.
    const WAITER_LAG: usize = 64;
    /// The most texts kept for those who come in the middle; beyond it all are forgotten.
    const TEXTS: usize = 4096;

    /// A journal nobody watches yet.
    pub fn new() -> Self {
        Self { rows: broadcast::Sender::new(Self::LAG), texts: Arc::default(), waiters: Arc::default() }
    }

    /// Tells watchers of rows that were committed. Messages that were settled by a stop or a deletion have no other herald:
    /// those who wait for one are told here.
    pub fn committed(&self, rows: Vec<EventRow>) {
        for row in rows {
            if let Some(why) = row.ended_unanswered() {
                self.settled(&row.task, &Settled { silent: Some(why.to_owned()), ..Settled::default() });
            }
            self.live(row.into());
        }
    }

    /// Tells watchers of something that is not stored.
    pub fn live(&self, row: LiveRow) {
        // Kept and told under one lock, so that a new watcher gets each piece of a text exactly once.
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        row.apply_to(&mut texts);
        if texts.len() > Self::TEXTS {
            texts.clear();
        }
        // An error only says that nobody watches.
        let _ = self.rows.send(row);
    }

    /// Rows of this message's session were committed and told to nobody: watchers read them from the store.
    pub fn look(&self, task: &InboxId, session: &SessionKey) {
        let (task, session) = (task.clone(), session.clone());
        self.live(LiveRow { seq: None, task, session, kind: LiveRow::LOOK.to_owned(), data: Value::Null });
    }

    /// Whether anyone would see a delta of this message: spares the making of it.
    pub fn watched(&self, task: &InboxId) -> bool {
        self.rows.receiver_count() > 0 || self.waiting().contains_key(task)
    }

    /// Everything from now on.
    pub fn watch(&self) -> broadcast::Receiver<LiveRow> {
        self.rows.subscribe()
    }

    /// Everything from now on, and the texts that are being written: what was told of each before the first row to come.
    pub fn watch_with_texts(&self) -> (broadcast::Receiver<LiveRow>, HashMap<InboxId, String>) {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        (self.rows.subscribe(), texts.clone())
    }

    /// One message from now on, until it is settled.
    pub fn wait_for(&self, task: &InboxId) -> mpsc::Receiver<LiveEvent> {
        // One place beyond the lag is kept for the end.
        let (sender, receiver) = mpsc::channel(Self::WAITER_LAG + 1);
        self.waiting().entry(task.clone()).or_default().push(sender);
        receiver
    }

    /// Tells those who wait for one message.
    pub fn tell(&self, task: &InboxId, event: LiveEvent) {
        let mut waiting = self.waiting();
        if let Some(senders) = waiting.get_mut(task) {
            senders.retain(|sender| !sender.is_closed());
            for sender in senders.iter().filter(|sender| sender.capacity() > 1) {
                let _ = sender.try_send(event.clone());
            }
            if senders.is_empty() {
                waiting.remove(task);
            }
        }
    }

    /// The message has ended: tells those who wait, once.
    pub fn settled(&self, task: &InboxId, settled: &Settled) {
        for sender in self.waiting().remove(task).unwrap_or_default() {
            // The place kept for it is free: nothing else is sent below a capacity of two.
            let _ = sender.try_send(LiveEvent::Settled(settled.clone()));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<InboxId, Vec<mpsc::Sender<LiveEvent>>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_message_that_was_stopped_is_told() {
        let journal = Journal::new();
        let task = InboxId::generate();
        let mut waiter = journal.wait_for(&task);
        journal.committed(vec![EventRow {
            seq: 1,
            task: task.clone(),
            session: SessionKey::web("main", None),
            kind: "task_complete".to_owned(),
            data: serde_json::json!({ "silent": "stopped" }),
            at: 0,
        }]);
        let stopped = Settled { silent: Some("stopped".to_owned()), ..Settled::default() };
        assert_eq!(waiter.try_recv(), Ok(LiveEvent::Settled(stopped)));
    }

    #[test]
    fn the_end_arrives_even_when_the_waiter_is_slow() {
        let journal = Journal::new();
        let task = InboxId::generate();
        let mut waiter = journal.wait_for(&task);
        for n in 0..1000 {
            journal.tell(&task, LiveEvent::Text(n.to_string()));
        }
        journal.settled(&task, &Settled::default());
        let mut last = None;
        while let Ok(event) = waiter.try_recv() {
            last = Some(event);
        }
        assert_eq!(last, Some(LiveEvent::Settled(Settled::default())));
        assert!(!journal.watched(&task));
    }
}
