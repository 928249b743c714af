//! Station 13, delivery: sends the outbox, each lane strictly in order, each part once.
//!
//! A part that is ours is sent by one call and its outcome written, fenced by its epoch. A send that was cut off is
//! `uncertain`: its channel is asked what became of it, and it is repeated only where that cannot be seen twice, or once
//! with a mark. guarantees.md G5.

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use channel_api::{Capabilities, Channel, Clock, Level, Preview, Rate, Reconciled, SendError};
use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    channels::Channels,
    live,
    outbox::{self, LaneWakeUp},
    store::{BootId, LaneKey, NewPart, NextPart, OutboxPart, OutboxStore, PartOutcome, StoreError},
    supervisor::Health,
};

/// The longest pause a platform may ask for in one answer.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// How long a lane of a channel that is not configured (any more) rests.
const NO_CHANNEL_REST_MS: i64 = 60_000;
/// How long a channel that said it is down rests before its lanes try again.
const DOWN_REST: Duration = Duration::from_secs(60);
/// How often all lanes are looked at, in case a wake-up was lost.
const LOOK_AROUND: Duration = Duration::from_secs(30);
/// How long one send may take before it counts as cut off. Above every adapter's own time limit.
const SEND_LIMIT: Duration = Duration::from_secs(60);

/// Sends what the outbox holds.
pub struct Delivery {
    /// The rows.
    pub outbox: Arc<dyn OutboxStore>,
    /// The adapters.
    pub channels: Channels,
    /// Who wakes it.
    pub lanes: LaneWakeUp,
    /// This process.
    pub boot: BootId,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// How fast it may send.
    pub pace: Pace,
    /// Is told what went out.
    pub health: Health,
}

impl Delivery {
    /// Sends until `stopping` is cancelled and then finishes the sends in flight, at most until `abort` is cancelled: what
    /// is cut off then is found as `uncertain` by the next start.
    pub async fn run(self: Arc<Self>, stopping: CancellationToken, abort: CancellationToken) {
        let mut tasks: JoinSet<LaneKey> = JoinSet::new();
        let mut active: HashSet<LaneKey> = HashSet::new();
        let mut again: HashSet<LaneKey> = HashSet::new();
        let mut look_around = true;
        loop {
            if look_around {
                look_around = false;
                match self.outbox.open_lanes().await {
                    Ok(lanes) => self.lanes.wake(lanes.into_iter().map(|(lane, _)| lane)),
                    Err(error) => warn!(%error, "the outbox could not be read"),
                }
            }
            tokio::select! {
                woken = self.lanes.next() => {
                    for (lane, parts) in woken {
                        if !parts.is_empty() || active.insert(lane.clone()) {
                            active.insert(lane.clone());
                            tasks.spawn(Arc::clone(&self).lane(lane, parts, stopping.clone()));
                        } else {
                            again.insert(lane);
                        }
                    }
                }
                Some(ended) = tasks.join_next() => match ended {
                    Ok(lane) => {
                        active.remove(&lane);
                        if again.remove(&lane) {
                            self.lanes.wake([lane]);
                        }
                    }
                    Err(error) => {
                        warn!(%error, "a lane ended unexpectedly");
                        active.clear();
                        look_around = true;
                    }
                },
                () = self.clock.sleep(LOOK_AROUND) => look_around = true,
                () = stopping.cancelled() => break,
            }
        }
        loop {
            tokio::select! {
                ended = tasks.join_next() => if ended.is_none() { return },
                () = abort.cancelled() => {
                    tasks.shutdown().await;
                    return;
                }
            }
        }
    }

    /// Sends one lane until it has nothing due.
    async fn lane(self: Arc<Self>, lane: LaneKey, ready: Vec<OutboxPart>, stopping: CancellationToken) -> LaneKey {
        for part in ready {
            self.send(&lane, part).await;
        }
        while !stopping.is_cancelled() {
            let next = match self.outbox.next_part(&lane, &self.boot, self.clock.now_ms()).await {
                Ok(next) => next,
                Err(error) => {
                    warn!(%error, channel = %lane.channel, "the next part could not be claimed");
                    self.clock.sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            match next {
                NextPart::Send(part) => self.send(&lane, *part).await,
                NextPart::Uncertain(part) => self.look_into(*part).await,
                NextPart::Wait(until) => {
                    let wait = Duration::from_millis((until - self.clock.now_ms()).max(1) as u64);
                    tokio::select! {
                        () = self.clock.sleep(wait) => {}
                        () = stopping.cancelled() => {}
                    }
                }
                NextPart::Blocked | NextPart::Empty => break,
            }
        }
        lane
    }

    async fn send(&self, lane: &LaneKey, part: OutboxPart) {
        let Some(entry) = self.channels.get(&lane.channel) else {
            let not_before = self.clock.now_ms() + NO_CHANNEL_REST_MS;
            let error = "the channel is not configured".to_owned();
            self.settle(&part, PartOutcome::Retry { not_before, error, resend: part.key.resend }).await;
            return;
        };
        let channel = entry.channel.as_ref();
        self.pace.wait(lane, channel, self.clock.as_ref()).await;
        // A panicking adapter may have sent: its part is looked into like any other that was cut off.
        channel_api::crash_point!("part.sending");
        let sending = AssertUnwindSafe(channel.send(&part.to, &part.part, &part.key)).catch_unwind();
        let sent = tokio::select! {
            sent = sending => sent.unwrap_or_else(|_| Err(SendError::Unknown("the adapter panicked".to_owned()))),
            () = self.clock.sleep(SEND_LIMIT) => Err(SendError::Unknown("no answer within the time limit".to_owned())),
        };
        channel_api::crash_point!("part.sent");
        match sent {
            Ok(receipt) => {
                debug!(part = %part.id, channel = %lane.channel, "sent");
                self.health.went_out(&lane.channel, 1, self.clock.now_ms());
                self.settle(&part, PartOutcome::Sent(receipt)).await;
            }
            Err(error) => self.failed(lane, channel, &part, error).await,
        }
    }

    async fn failed(&self, lane: &LaneKey, channel: &dyn Channel, part: &OutboxPart, error: SendError) {
        let now = self.clock.now_ms();
        let text = error.to_string();
        let retry = |wait: Duration| PartOutcome::Retry {
            not_before: now + wait.as_millis() as i64,
            error: text.clone(),
            resend: part.key.resend,
        };
        let outcome = match error {
            SendError::RetryAfter(wait) => {
                let wait = wait.min(LONGEST_RETRY_AFTER);
                self.pace.rest(lane, wait, self.clock.as_ref());
                retry(wait)
            }
            SendError::Retry(_) => retry(pause(channel.capabilities(), part.attempts)),
            SendError::ChannelDown(_) => {
                warn!(channel = %lane.channel, error = %text, "the channel cannot send");
                retry(DOWN_REST.max(pause(channel.capabilities(), part.attempts)))
            }
            SendError::Unknown(why) => PartOutcome::Uncertain(why),
            SendError::Refused(why) => {
                warn!(part = %part.id, channel = %lane.channel, %why, "the platform refused a part for good");
                PartOutcome::Failed(why)
            }
            SendError::Rerender(level) => match self.rerender(channel, part, level).await {
                Ok(()) => return,
                Err(why) => PartOutcome::Failed(why),
            },
        };
        let gone = matches!(outcome, PartOutcome::Failed(_)).then(|| part.key.replaces.clone()).flatten();
        self.settle(part, outcome).await;
        // Nothing will ever take the place of what is shown there.
        if let Some(id) = gone {
            live::take_away(channel, &part.to, &Preview { id, replaced: true }, self.clock.as_ref()).await;
        }
    }

    /// Renders the reply again, plainer, and replaces what was not sent yet. A format refused twice is a failure.
    async fn rerender(&self, channel: &dyn Channel, part: &OutboxPart, level: Level) -> Result<(), String> {
        if part.level == level {
            return Err("the platform refused the plain format too".to_owned());
        }
        let reply = self.outbox.reply_of(&part.id).await.map_err(|error| error.to_string())?;
        let reply = reply.ok_or_else(|| "the reply is no longer stored".to_owned())?;
        let now = self.clock.now_ms();
        let rows = outbox::rows(channel, &reply, level, &part.to, None, now);
        // Parts before this one have arrived: they are not said twice.
        let mut rows: Vec<NewPart> = rows.into_iter().filter(|row| row.seq >= part.key.seq).collect();
        // A preview that waits for this part waits for the one in its place.
        if let Some(first) = rows.first_mut() {
            first.replaces.clone_from(&part.key.replaces);
        }
        if rows.is_empty() {
            return Err("nothing is left to send in the plain format".to_owned());
        }
        self.outbox.replace_parts(&part.id, part.epoch, rows, now).await.map_err(|error| error.to_string())
    }

    /// Finds out what became of a send that was cut off.
    async fn look_into(&self, part: OutboxPart) {
        let now = self.clock.now_ms();
        let since = part.first_try_at.unwrap_or(part.key.created_at);
        let reconciled = match self.channels.get(&part.to.channel) {
            Some(entry) => {
                tokio::select! {
                    found = entry.channel.reconcile(&part.to, &part.part, &part.key, since) => found,
                    () = self.clock.sleep(SEND_LIMIT) => Reconciled::CannotTell,
                }
            }
            None => Reconciled::CannotTell,
        };
        let again = |resend| PartOutcome::Retry { not_before: now, error: "a send was cut off".to_owned(), resend };
        let outcome = match reconciled {
            Reconciled::Found(receipt) => PartOutcome::Sent(receipt),
            Reconciled::Absent | Reconciled::SafeToRepeat => again(part.key.resend),
            // Once, with a mark; cut off again, it stays unknown.
            Reconciled::CannotTell if !part.key.resend => again(true),
            Reconciled::CannotTell => PartOutcome::Unknown("cut off twice; it may or may not have arrived".to_owned()),
        };
        info!(part = %part.id, channel = %part.to.channel, ?outcome, "looked into a send that was cut off");
        self.settle(&part, outcome).await;
    }

    /// Writes the outcome; tries until the store takes it, for a lost receipt would mean a second send.
    async fn settle(&self, part: &OutboxPart, outcome: PartOutcome) {
        let mut wait = Duration::from_millis(100);
        loop {
            match self.outbox.settle_part(&part.id, part.epoch, outcome.clone(), self.clock.now_ms()).await {
                Ok(()) => {
                    channel_api::crash_point!("part.settled");
                    return;
                }
                Err(StoreError::Fenced | StoreError::NotFound) => {
                    debug!(part = %part.id, "someone else settles this part");
                    return;
                }
                Err(error) => {
                    warn!(%error, part = %part.id, "the outcome of a send could not be stored yet");
                    self.clock.sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(5));
                }
            }
        }
    }
}

/// The pause before try `attempts + 1`, ±20 %.
fn pause(capabilities: &Capabilities, attempts: u32) -> Duration {
    let pauses = capabilities.retry_pauses;
    let base = pauses.get(attempts as usize).or(pauses.last()).copied().unwrap_or(Duration::from_secs(5));
    base.mul_f64(0.8 + 0.4 * chance())
}

/// A number in `0.0..1.0`.
fn chance() -> f64 {
    // Without chance a pause is merely not spread.
    f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / (f64::from(u32::MAX) + 1.0)
}

/// Token buckets: one a lane and one a channel, on the monotonic clock.
#[derive(Debug, Default)]
pub struct Pace(Mutex<HashMap<LaneKey, Bucket>>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// The time at which the bucket would be full again.
    full_at: Duration,
    /// Nothing before.
    not_before: Duration,
}

impl Pace {
    /// The most buckets kept; full ones are forgotten when there are more.
    const MOST: usize = 10_000;

    /// Waits until both buckets of a send have a token and takes one of each.
    async fn wait(&self, lane: &LaneKey, channel: &dyn Channel, clock: &dyn Clock) {
        let whole = LaneKey { channel: lane.channel.clone(), lane: String::new() };
        for (key, rate) in [(lane, channel.lane_rate(&lane.lane)), (&whole, channel.capabilities().per_channel)] {
            loop {
                let wait = self.take(key, rate, clock.monotonic());
                if wait.is_zero() {
                    break;
                }
                clock.sleep(wait).await;
            }
        }
    }

    /// Zero when a token was taken, else how long until there is one.
    fn take(&self, key: &LaneKey, rate: Option<Rate>, now: Duration) -> Duration {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rate.is_none() && !buckets.contains_key(key) {
            return Duration::ZERO;
        }
        if buckets.len() >= Self::MOST {
            buckets.retain(|_, bucket| bucket.full_at > now || bucket.not_before > now);
        }
        let bucket = buckets.entry(key.clone()).or_insert(Bucket { full_at: now, not_before: Duration::ZERO });
        if bucket.not_before > now {
            return bucket.not_before - now;
        }
        let Some(rate) = rate else { return Duration::ZERO };
        let full_at = bucket.full_at.max(now) + rate.every;
        let room = rate.every * rate.burst.max(1);
        if full_at - now > room {
            return full_at - now - room;
        }
        bucket.full_at = full_at;
        Duration::ZERO
    }

    /// The platform asked this lane to rest.
    fn rest(&self, lane: &LaneKey, wait: Duration, clock: &dyn Clock) {
        let now = clock.monotonic();
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(lane.clone()).or_insert(Bucket { full_at: now, not_before: now });
        bucket.not_before = bucket.not_before.max(now + wait);
    }
}

#[cfg(test)]
mod tests {
    use channel_api::ChannelId;

    use super::*;

    #[test]
    fn buckets_give_a_burst_and_then_one_each_interval() {
        let pace = Pace::default();
        let lane = LaneKey { channel: ChannelId::new("t", "a"), lane: "1".into() };
        let rate = Some(Rate { burst: 2, every: Duration::from_secs(1) });
        let at = Duration::from_millis;
        assert_eq!(pace.take(&lane, rate, at(0)), Duration::ZERO);
        assert_eq!(pace.take(&lane, rate, at(0)), Duration::ZERO);
        assert_eq!(pace.take(&lane, rate, at(0)), at(1000));
        assert_eq!(pace.take(&lane, rate, at(400)), at(600));
        assert_eq!(pace.take(&lane, rate, at(1000)), Duration::ZERO);
        assert_eq!(pace.take(&lane, rate, at(1000)), at(1000));
        assert_eq!(pace.take(&lane, rate, at(60_000)), Duration::ZERO, "it never holds more than its burst");
        assert_eq!(pace.take(&lane, rate, at(60_000)), Duration::ZERO);
        assert_ne!(pace.take(&lane, rate, at(60_000)), Duration::ZERO);
    }

    static PAUSES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(100)];

    #[test]
    fn pauses_follow_the_channels_table_and_end_with_its_last() {
        let capabilities = Capabilities {
            text_limit: 1,
            text_unit: channel_api::TextUnit::Chars,
            format: channel_api::Format::Plain,
            edits: false,
            typing: false,
            threads: false,
            buttons: false,
            queue: channel_api::QueueMode::Collect,
            refuse_over_cap: false,
            account_in_key: false,
            silence_limit: None,
            expires_after: Duration::from_secs(3600),
            retry_pauses: &PAUSES,
            per_lane: None,
            per_channel: None,
        };
        for (attempts, base) in [(0, 10.0), (1, 100.0), (7, 100.0)] {
            let seconds = pause(&capabilities, attempts).as_secs_f64();
            assert!((base * 0.8..=base * 1.2).contains(&seconds), "{attempts}: {seconds}");
        }
    }
}
