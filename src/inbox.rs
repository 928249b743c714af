//! Station 5, the queue of sessions: its settings, the wake-up between intake and workers, and the way to reach a turn
//! that runs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use channel_api::QueueMode;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::session::SessionKey;

/// `[agent.queue]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// What happens to messages that arrive while a turn of their session runs. `None` = what suits the channel.
    pub mode: Option<QueueMode>,
    /// How long, in milliseconds, what arrived during a turn is gathered before the next one starts.
    pub debounce_ms: u32,
    /// The most waiting messages of one session.
    pub cap: u32,
    /// What a change of a message does that a turn works on or has answered.
    pub edits: Edits,
}

/// What a change of a message does when it comes too late for its turn. It never starts a turn of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edits {
    /// Nothing.
    #[default]
    Ignore,
    /// The next turn of the session is told what it says now.
    Annotate,
}

impl Default for QueueConfig {
    /// Collect by the channel's default, 1 s, 20: the values OpenClaw's users know (openclaw-parity.md §2.4).
    fn default() -> Self {
        Self { mode: None, debounce_ms: 1000, cap: 20, edits: Edits::Ignore }
    }
}

/// A wake-up between two stations that meet in rows: armed before the query, so that none is missed; losing one costs
/// no more than the poll interval.
#[derive(Clone, Debug, Default)]
pub struct WakeUp(Arc<Notify>);

impl WakeUp {
    /// Wakes the other side, now or when it next waits.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Waits for a wake-up. Cancel-safe.
    pub async fn woken(&self) {
        self.0.notified().await;
    }
}

/// The turns that run in this process, so that a stop word or a steering message reaches them at once. The truth is in
/// the rows: after a restart the claim finds there what was said here.
#[derive(Clone, Debug, Default)]
pub struct Running(Arc<Mutex<HashMap<SessionKey, Handle>>>);

/// A way to reach one running turn.
#[derive(Clone, Debug, Default)]
pub struct Handle {
    /// Cancelled when the turn is to stop.
    pub stop: CancellationToken,
    /// Told when entries wait to be absorbed.
    pub steer: Arc<Notify>,
    /// Asked for before the turn registered: looked at once, then cleared.
    early: bool,
}

impl Running {
    /// Registers a claimed turn. A stop that came between the claim and this call is already in the handle.
    pub fn begin(&self, session: &SessionKey) -> Handle {
        let mut turns = self.lock();
        match turns.get_mut(session) {
            Some(handle) if handle.early => {
                handle.early = false;
                handle.clone()
            }
            _ => {
                let handle = Handle::default();
                turns.insert(session.clone(), handle.clone());
                handle
            }
        }
    }

    /// A turn of this session runs here.
    pub fn has(&self, session: &SessionKey) -> bool {
        self.lock().get(session).is_some_and(|handle| !handle.early)
    }

    /// The turn has ended.
    pub fn end(&self, session: &SessionKey) {
        self.lock().remove(session);
    }

    /// The turn lost its session to somebody else, who may have begun one of theirs under the same key: only its own
    /// handle goes.
    pub fn end_fenced(&self, session: &SessionKey, steer: &Arc<Notify>) {
        let mut turns = self.lock();
        if turns.get(session).is_some_and(|handle| Arc::ptr_eq(&handle.steer, steer)) {
            turns.remove(session);
        }
    }

    /// The store said that a turn of this session runs and is to stop.
    pub fn stop(&self, session: &SessionKey) {
        self.reach(session).stop.cancel();
    }

    /// The store said that a turn of this session runs and may absorb an entry.
    pub fn steer(&self, session: &SessionKey) {
        self.reach(session).steer.notify_one();
    }

    /// Stops every turn.
    pub fn stop_all(&self) {
        for handle in self.lock().values() {
            handle.stop.cancel();
        }
    }

    fn reach(&self, session: &SessionKey) -> Handle {
        self.lock().entry(session.clone()).or_insert_with(|| Handle { early: true, ..Handle::default() }).clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, Handle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fenced_turn_takes_its_own_handle_with_it_and_no_other() {
        let running = Running::default();
        let session = SessionKey::from("agent:main:main".to_owned());
        let (old, new) = (running.begin(&session), running.begin(&session));
        running.end_fenced(&session, &old.steer);
        running.stop(&session);
        assert!(new.stop.is_cancelled(), "the new turn is still reached");
        running.end_fenced(&session, &new.steer);
        assert!(running.lock().is_empty());
    }

    #[test]
    fn a_stop_between_claim_and_start_is_not_lost() {
        let running = Running::default();
        let session = SessionKey::from("agent:main:main".to_owned());
        running.stop(&session);
        assert!(running.begin(&session).stop.is_cancelled());
        running.end(&session);
        assert!(!running.begin(&session).stop.is_cancelled());
    }
}
