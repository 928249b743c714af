//! Marks on a message that say how the gateway stands to it: seen, in work, failed. Best effort, in memory: whatever a
//! platform does with them, no turn waits or fails.
//!
//! One task keeps them, so that the calls for one message come one after another, and a quick answer shows no flicker.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use channel_api::{Address, Channel, Clock, Inbound, InboundKind, InboxId, Mark};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::{channels::Channels, store::EventRow};

/// How long a mark must hold before it is shown: what is answered sooner gets none. openclaw-parity.md §7.2.
const SETTLES: Duration = Duration::from_millis(700);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);
/// The most messages with a mark; more get none.
const MOST: usize = 1024;
/// A message whose end was never told is forgotten after this long, when there is no room.
const FORGET: Duration = Duration::from_secs(60 * 60);

/// `marks`: whether messages to the bot are marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// Where the platform has reactions.
    #[default]
    On,
    /// Nowhere.
    Off,
}

/// Tells the task what became of messages. Cheap to clone.
#[derive(Clone)]
pub struct Marks {
    channels: Channels,
    general: Switch,
    born: i64,
    asks: mpsc::Sender<Ask>,
}

/// A message that can be marked.
#[derive(Clone, Debug, PartialEq)]
pub struct Marked {
    id: InboxId,
    to: Address,
    platform_id: String,
    /// An earlier process may have marked it.
    old: bool,
}

#[derive(Debug)]
enum Ask {
    Mark(Marked, Mark),
    /// It ended without a word, by a stop or because it was deleted.
    Ended(InboxId),
}

impl Marks {
    /// The handle, and the task's end of it. `general`: where a channel says nothing.
    pub fn new(channels: Channels, general: Switch, clock: Arc<dyn Clock>) -> (Self, Keeper) {
        let (asks, asked) = mpsc::channel(MOST);
        let born = clock.now_ms();
        (Self { channels: channels.clone(), general, born, asks }, Keeper { channels, clock, asked })
    }

    /// The message as something to be marked: only what was said to the bot, where the platform can and the owner has not
    /// switched it off.
    pub fn of(&self, id: &InboxId, inbound: &Inbound, received_at: i64) -> Option<Marked> {
        let entry = self.channels.get(&inbound.channel)?;
        let on = entry.policy.marks.unwrap_or(self.general) == Switch::On;
        if !on || !inbound.addressed() || inbound.kind != InboundKind::Message || entry.channel.live().is_none() {
            return None;
        }
        Some(Marked {
            id: id.clone(),
            to: inbound.address.clone(),
            platform_id: inbound.platform_id.clone(),
            old: received_at < self.born,
        })
    }

    /// Puts a mark in place of the earlier one. Lost when there is too much to do.
    pub fn tell(&self, message: Option<Marked>, mark: Mark) {
        if let Some(message) = message {
            let _ = self.asks.try_send(Ask::Mark(message, mark));
        }
    }

    /// Messages that were settled by a stop or a deletion lose their marks.
    pub fn committed(&self, rows: &[EventRow]) {
        for row in rows.iter().filter(|row| row.ended_unanswered().is_some()) {
            let _ = self.asks.try_send(Ask::Ended(row.task.clone()));
        }
    }
}

/// The task's end.
pub struct Keeper {
    channels: Channels,
    clock: Arc<dyn Clock>,
    asked: mpsc::Receiver<Ask>,
}

/// The marks of one message.
#[derive(Debug)]
struct Row {
    to: Address,
    platform_id: String,
    /// What is there; `None`: not known.
    shown: Option<Mark>,
    wanted: Mark,
    /// When it is shown.
    due: Duration,
    /// A call is under way.
    busy: bool,
}

impl Row {
    fn new(message: Marked) -> Self {
        let shown = if message.old { None } else { Some(Mark::None) };
        let Marked { to, platform_id, .. } = message;
        Self { to, platform_id, shown, wanted: Mark::None, due: Duration::ZERO, busy: false }
    }

    fn want(&mut self, mark: Mark, now: Duration) {
        self.wanted = mark;
        self.due = if ends(mark) { now } else { now + SETTLES };
    }

    fn differs(&self) -> bool {
        self.shown != Some(self.wanted)
    }

    /// Nothing will come after what is shown.
    fn over(&self) -> bool {
        !self.busy && !self.differs() && ends(self.wanted)
    }
}

/// Whether nothing comes after this mark.
fn ends(mark: Mark) -> bool {
    matches!(mark, Mark::Done | Mark::Failed | Mark::None)
}

impl Keeper {
    /// Keeps the marks until it is `ended`. A panic costs the marks that were under way, and nothing else.
    pub async fn run(mut self, ended: CancellationToken) {
        while AssertUnwindSafe(self.keep(&ended)).catch_unwind().await.is_err() {
            error!("the keeper of the marks panicked and begins anew");
            self.clock.sleep(SETTLES).await;
        }
    }

    async fn keep(&mut self, ended: &CancellationToken) {
        let mut rows: HashMap<InboxId, Row> = HashMap::new();
        let mut calls: JoinSet<(InboxId, Mark)> = JoinSet::new();
        loop {
            let now = self.clock.monotonic();
            let mut next = None;
            for (id, row) in rows.iter_mut().filter(|(_, row)| !row.busy && row.differs()) {
                if row.due > now {
                    next = Some(next.map_or(row.due, |next: Duration| next.min(row.due)));
                    continue;
                }
                let Some(entry) = self.channels.get(&row.to.channel) else { continue };
                row.busy = true;
                calls.spawn(call(
                    Arc::clone(&entry.channel),
                    Arc::clone(&self.clock),
                    row.to.clone(),
                    row.platform_id.clone(),
                    id.clone(),
                    row.wanted,
                ));
            }
            rows.retain(|_, row| !row.over());
            let rest = async {
                match next {
                    Some(next) => self.clock.sleep(next.saturating_sub(now)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ask = self.asked.recv() => match ask {
                    // The wait may have been long: the time of the ask is now.
                    Some(Ask::Mark(message, mark)) => {
                        let now = self.clock.monotonic();
                        if rows.len() >= MOST {
                            rows.retain(|_, row| row.due + FORGET > now);
                        }
                        if rows.len() < MOST || rows.contains_key(&message.id) {
                            let id = message.id.clone();
                            rows.entry(id).or_insert_with(|| Row::new(message)).want(mark, now);
                        }
                    }
                    Some(Ask::Ended(id)) => {
                        if let Some(row) = rows.get_mut(&id) {
                            row.want(Mark::None, self.clock.monotonic());
                        }
                    }
                    None => return,
                },
                Some(done) = calls.join_next() => {
                    if let Ok((id, mark)) = done
                        && let Some(row) = rows.get_mut(&id)
                    {
                        row.busy = false;
                        row.shown = Some(mark);
                    }
                }
                () = rest => {}
                () = ended.cancelled() => return,
            }
        }
    }
}

/// One call, whatever comes of it.
async fn call(
    channel: Arc<dyn Channel>,
    clock: Arc<dyn Clock>,
    to: Address,
    platform_id: String,
    id: InboxId,
    mark: Mark,
) -> (InboxId, Mark) {
    if let Some(live) = channel.live() {
        let call = AssertUnwindSafe(live.mark(&to, &platform_id, mark)).catch_unwind();
        tokio::select! {
            done = call => {
                if done.is_err() {
                    error!(channel = %to.channel, "the adapter panicked while it marked a message");
                }
            }
            () = clock.sleep(CALL) => {}
        }
    }
    (id, mark)
}

#[cfg(test)]
mod tests;
