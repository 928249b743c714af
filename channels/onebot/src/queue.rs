//! Events between the connections that bring them and the one place that takes them in, in order. Bounded: OneBot has no
//! acknowledgement, so what does not fit is lost, counted and told.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::target::Chat;

/// The most events that wait.
const EVENTS: usize = 2_048;
/// The most bytes of events that wait.
const BYTES: usize = 64 * 1024 * 1024;

/// What waits.
pub struct Item {
    /// The bot that it happened to.
    pub bot: String,
    /// What must stay in order: events of one lane, a chat's name.
    pub lane: String,
    /// What happened.
    pub what: What,
    /// Told whether it was stored, as soon as that is known.
    pub told: Option<oneshot::Sender<bool>>,
    _room: Room,
}

/// Kinds of things that happen.
pub enum What {
    /// An event, and the chat it belongs to, if any.
    Event(Option<Chat>, Value),
    /// The bot can be heard and called again: what was said in between is asked for.
    Connected,
}

/// The bytes an item takes up while it lives.
struct Room {
    held: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Both ends of the queue.
pub struct Queue {
    sender: mpsc::Sender<Item>,
    /// For `run`.
    pub receiver: tokio::sync::Mutex<mpsc::Receiver<Item>>,
    held: Arc<AtomicUsize>,
    tally: Mutex<BTreeMap<&'static str, u64>>,
}

impl Default for Queue {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(EVENTS);
        let receiver = tokio::sync::Mutex::new(receiver);
        Self { sender, receiver, held: Arc::default(), tally: Mutex::default() }
    }
}

impl Queue {
    /// Adds something of about `bytes`. `false`: there is no room, and it is lost.
    pub fn add(&self, bot: &str, what: What, bytes: usize, told: Option<oneshot::Sender<bool>>) -> bool {
        let room = Room { held: self.held.clone(), bytes };
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let lane = match &what {
            What::Event(Some(chat), _) => format!("{bot} {}", chat.name()),
            What::Event(None, _) | What::Connected => bot.to_owned(),
        };
        let item = Item { bot: bot.to_owned(), lane, what, told, _room: room };
        let fits = held <= BYTES && self.sender.try_send(item).is_ok();
        if !fits {
            let lost = self.count("event_lost");
            if lost.is_power_of_two() {
                warn!(lost, "the gateway takes no events in and no more can wait: they are lost");
            }
        }
        fits
    }

    /// Counts one more of `reason` and says how many there were.
    pub fn count(&self, reason: &'static str) -> u64 {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let count = tally.entry(reason).or_default();
        *count += 1;
        *count
    }

    /// How many there were of `reason`.
    #[cfg(test)]
    pub fn counted(&self, reason: &str) -> u64 {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).get(reason).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_room_comes_back() {
        let queue = Queue::default();
        assert!(queue.add("1", What::Connected, BYTES, None));
        assert!(!queue.add("1", What::Connected, 1, None));
        assert_eq!(queue.counted("event_lost"), 1);
        let first = queue.receiver.try_lock().expect("free").try_recv().expect("one waits");
        drop(first);
        for _ in 0..EVENTS {
            assert!(queue.add("1", What::Connected, 0, None));
        }
        assert!(!queue.add("1", What::Connected, 0, None));
        assert_eq!(queue.counted("event_lost"), 2);
    }
}
