//! Station 5, the queue of sessions: its settings and the wake-up between intake and workers.

use std::sync::Arc;

use channel_api::QueueMode;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

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
}

impl Default for QueueConfig {
    /// Collect by the channel's default, 1 s, 20: the values OpenClaw's users know (openclaw-parity.md §2.4).
    fn default() -> Self {
        Self { mode: None, debounce_ms: 1000, cap: 20 }
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
