//! Station 12: turns a reply into rows of the outbox, and the wake-up between commit 2 and delivery.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use channel_api::{Address, Channel, InboxId, Level, PartId, Reply};
use tokio::sync::Notify;

use crate::store::{LaneKey, NewPart, OutboxPart};

/// What a reply answers.
#[derive(Clone, Copy, Debug)]
pub struct Answers<'a> {
    /// The message.
    pub entry: &'a InboxId,
    /// Its platform id; `None` when no platform knows it.
    pub platform_id: Option<&'a str>,
}

impl<'a> Answers<'a> {
    /// What answers a message of the platform.
    pub fn message(entry: &'a InboxId, platform_id: &'a str) -> Self {
        Self { entry, platform_id: Some(platform_id) }
    }
}

/// The rows of one reply, rendered for its channel. Pure but for the ids.
pub fn rows(
    channel: &dyn Channel,
    reply: &Reply,
    level: Level,
    to: &Address,
    answers: Option<Answers<'_>>,
    now: i64,
) -> Vec<NewPart> {
    let reply = channel.screened(reply);
    let parts = channel.render(&reply, level);
    let count = parts.len();
    let expires_at = now.saturating_add(channel.capabilities().expires_after.as_millis() as i64);
    parts
        .into_iter()
        .enumerate()
        .map(|(index, part)| NewPart {
            id: PartId::generate(),
            entry: answers.map(|answers| answers.entry.clone()),
            in_reply_to: answers.and_then(|answers| answers.platform_id.map(str::to_owned)),
            replaces: None,
            to: to.clone(),
            seq: index as u32 + 1,
            last: index + 1 == count,
            part,
            reply: (index == 0).then(|| reply.clone().into_owned()),
            level,
            created_at: now,
            expires_at,
        })
        .collect()
}

/// Wakes delivery for lanes: armed before the query, each lane at most once, with parts that are already ours to send.
#[derive(Clone, Debug, Default)]
pub struct LaneWakeUp(Arc<Lanes>);

#[derive(Debug, Default)]
struct Lanes {
    waiting: Mutex<HashMap<LaneKey, Vec<OutboxPart>>>,
    notify: Notify,
}

impl LaneWakeUp {
    /// These lanes have something to send.
    pub fn wake(&self, lanes: impl IntoIterator<Item = LaneKey>) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in lanes {
            waiting.entry(lane).or_default();
        }
        drop(waiting);
        self.0.notify.notify_one();
    }

    /// These parts are `sending` and ours.
    pub fn send(&self, parts: Vec<OutboxPart>) {
        if parts.is_empty() {
            return;
        }
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for part in parts {
            let lane = LaneKey { channel: part.to.channel.clone(), lane: part.to.lane.clone() };
            waiting.entry(lane).or_default().push(part);
        }
        drop(waiting);
        self.0.notify.notify_one();
    }

    /// Waits for lanes and takes them all. Cancel-safe.
    pub async fn next(&self) -> HashMap<LaneKey, Vec<OutboxPart>> {
        loop {
            let notified = self.0.notify.notified();
            let taken = std::mem::take(&mut *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.is_empty() {
                return taken;
            }
            notified.await;
        }
    }
}
