//! Groups that became supergroups: Telegram gives them a new id, and what waits for the old one has to follow.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use channel_api::ChannelKv;
use tracing::warn;

/// The most chats that are remembered in memory; the rest is read from the channel's map again.
const MOST: usize = 10_000;
/// The longest chain of moves that is followed. A group moves once; more is a mistake in the map.
const MOST_MOVES: usize = 3;

/// Where chats went. Without a map (before the channel runs) only in memory.
#[derive(Default)]
pub struct Moves {
    /// A chat that stayed is remembered too, so that not every message asks the store.
    known: Mutex<HashMap<i64, Option<i64>>>,
    kv: OnceLock<Arc<dyn ChannelKv>>,
}

impl Moves {
    /// Keeps moves in this map from now on.
    pub fn keep_in(&self, kv: Arc<dyn ChannelKv>) {
        let _ = self.kv.set(kv);
    }

    /// The id that a chat has now.
    pub async fn now(&self, chat: i64) -> i64 {
        let mut chat = chat;
        for _ in 0..MOST_MOVES {
            // Only groups move, and their ids are negative.
            match if chat < 0 { self.next(chat).await } else { None } {
                Some(new) => chat = new,
                None => break,
            }
        }
        chat
    }

    /// A chat has a new id.
    pub async fn remember(&self, old: i64, new: i64) {
        if old == new {
            return;
        }
        self.know(old, Some(new));
        if let Some(kv) = self.kv.get()
            && let Err(error) = kv.set(&key(old), &new.to_string()).await
        {
            warn!(%error, "where a group moved could not be stored; Telegram will say it again");
        }
    }

    async fn next(&self, chat: i64) -> Option<i64> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&chat).copied();
        if let Some(known) = known {
            return known;
        }
        let kv = self.kv.get()?;
        match kv.get(&key(chat)).await {
            Ok(stored) => {
                let new = stored.and_then(|new| new.parse().ok());
                self.know(chat, new);
                new
            }
            Err(error) => {
                warn!(%error, "where a group moved could not be read");
                None
            }
        }
    }

    fn know(&self, chat: i64, new: Option<i64>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(chat, new);
    }
}

fn key(chat: i64) -> String {
    format!("moved:{chat}")
}

#[cfg(test)]
mod tests {
    use channel_api::contract::MemoryKv;

    use super::*;

    #[tokio::test]
    async fn a_move_is_followed_after_a_restart_too() {
        let kv: Arc<MemoryKv> = Arc::default();
        let moves = Moves::default();
        moves.keep_in(kv.clone());
        assert_eq!(moves.now(-5).await, -5);
        moves.remember(-5, -1_005).await;
        moves.remember(-1_005, -1_006).await;
        assert_eq!((moves.now(-5).await, moves.now(5).await), (-1_006, 5));
        let restarted = Moves::default();
        assert_eq!(restarted.now(-5).await, -5, "it has no map yet");
        restarted.keep_in(kv);
        assert_eq!(restarted.now(-5).await, -1_006);
    }

    #[tokio::test]
    async fn a_circle_ends() {
        let moves = Moves::default();
        moves.remember(-1, -2).await;
        moves.remember(-2, -1).await;
        assert!([-1, -2].contains(&moves.now(-1).await));
    }
}
