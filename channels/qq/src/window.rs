//! How many answers a message got and under which numbers: QQ counts them, refuses a number it saw before, and closes the
//! window for good. Durable, so that a retry after a restart has the number it had. protocols.md §3, §6 rules 3–5 and 9.

use std::{collections::BTreeMap, sync::Arc};

use channel_api::{ChannelKv, Clock, KvError, PartId};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::{render::Weight, target::Target};

/// The records stand in so many rows: the channel's map forgets nothing, so its keys must be few.
const ROWS: u64 = 128;
/// A record is dropped when it is this old: longer than any window.
const KEPT_MS: i64 = 2 * 60 * 60 * 1_000;

/// The answers of one bot.
#[derive(Default)]
pub struct Windows(Mutex<()>);

/// The number of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// `msg_seq`.
    pub seq: u32,
    /// The part had this number before: it may have arrived under it.
    pub again: bool,
}

/// Why there is no number.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// Too long ago.
    #[error("QQ lets a bot answer only for {0} minutes after a message, and they are over")]
    Over(u64),
    /// Nothing to answer.
    #[error("QQ lets a bot answer only, and there is no message that this would answer")]
    NoMessage,
    /// Too many answers.
    #[error("QQ allows {0} answers to one message, and what is left is kept for the end of the answer")]
    Used(usize),
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] KvError),
}

/// The answers to one message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Record {
    /// When it was received, in epoch milliseconds.
    at: i64,
    /// The highest number that was used.
    last: u32,
    /// The parts that have a number.
    parts: BTreeMap<String, u32>,
}

type Row = BTreeMap<String, Record>;

impl Windows {
    /// The number for `part`: the one it had, or the next. Durable when this returns.
    ///
    /// # Errors
    /// [`Closed`]: nothing may be sent.
    pub async fn slot(
        &self,
        kv: &Arc<dyn ChannelKv>,
        clock: &Arc<dyn Clock>,
        target: &Target,
        part: &PartId,
        weight: Weight,
    ) -> Result<Slot, Closed> {
        let answers = target.answers().ok_or(Closed::NoMessage)?;
        if !is_open(clock, target) {
            return Err(Closed::Over(target.window().as_secs().div_ceil(60)));
        }
        let _one_at_a_time = self.0.lock().await;
        let (key, mut row) = read(kv, answers).await?;
        let record = row.entry(answers.to_owned()).or_insert_with(|| Record { at: target.at, ..Record::default() });
        if let Some(seq) = record.parts.get(part.as_str()) {
            return Ok(Slot { seq: *seq, again: true });
        }
        let kept = match weight {
            Weight::End => 0,
            Weight::Middle => 1,
            Weight::Notice => 2,
        };
        if record.parts.len() + kept >= target.most() {
            return Err(Closed::Used(target.most()));
        }
        let seq = record.next(part);
        write(kv, clock, &key, row).await?;
        Ok(Slot { seq, again: false })
    }

    /// A new number for a part whose first form was refused: QQ may or may not have counted that one.
    ///
    /// # Errors
    /// [`KvError`].
    pub async fn renew(
        &self,
        kv: &Arc<dyn ChannelKv>,
        clock: &Arc<dyn Clock>,
        target: &Target,
        part: &PartId,
    ) -> Result<Slot, KvError> {
        let answers = target.answers().unwrap_or_default();
        let _one_at_a_time = self.0.lock().await;
        let (key, mut row) = read(kv, answers).await?;
        let record = row.entry(answers.to_owned()).or_insert_with(|| Record { at: target.at, ..Record::default() });
        let seq = record.next(part);
        write(kv, clock, &key, row).await?;
        Ok(Slot { seq, again: false })
    }

    /// Whether the part has a number under which it may be sent again.
    pub async fn has(&self, kv: &Arc<dyn ChannelKv>, clock: &Arc<dyn Clock>, target: &Target, part: &PartId) -> bool {
        let Some(answers) = target.answers() else { return false };
        let _one_at_a_time = self.0.lock().await;
        let Ok((_, row)) = read(kv, answers).await else { return false };
        is_open(clock, target) && row.get(answers).is_some_and(|record| record.parts.contains_key(part.as_str()))
    }
}

impl Record {
    fn next(&mut self, part: &PartId) -> u32 {
        self.last += 1;
        self.parts.insert(part.as_str().to_owned(), self.last);
        self.last
    }
}

/// Whether it may still be answered.
pub fn is_open(clock: &Arc<dyn Clock>, target: &Target) -> bool {
    let window = i64::try_from(target.window().as_millis()).unwrap_or(i64::MAX);
    clock.now_ms().saturating_sub(target.at) < window
}

async fn read(kv: &Arc<dyn ChannelKv>, answers: &str) -> Result<(String, Row), KvError> {
    let key = format!("answers:{}", place(answers) % ROWS);
    let row = kv.get(&key).await?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    Ok((key, row))
}

async fn write(kv: &Arc<dyn ChannelKv>, clock: &Arc<dyn Clock>, key: &str, mut row: Row) -> Result<(), KvError> {
    let now = clock.now_ms();
    row.retain(|_, record| now.saturating_sub(record.at) < KEPT_MS);
    kv.set(key, &serde_json::to_string(&row).unwrap_or_default()).await
}

/// FNV-1a: the same in every version and process.
fn place(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use channel_api::contract::{FakeClock, MemoryKv};

    use super::*;
    use crate::target::Place;

    fn target(to: Place, msg_id: &str) -> Target {
        Target { to, id: "x".to_owned(), msg_id: Some(msg_id.to_owned()), event_id: None, at: 0 }
    }

    struct Desk {
        windows: Windows,
        kv: Arc<dyn ChannelKv>,
        fake: Arc<FakeClock>,
        clock: Arc<dyn Clock>,
    }

    impl Desk {
        fn new() -> Self {
            let fake = Arc::new(FakeClock::at(0));
            Self { windows: Windows::default(), kv: Arc::new(MemoryKv::default()), clock: fake.clone(), fake }
        }

        async fn slot(&self, target: &Target, part: &str, weight: Weight) -> Result<Slot, String> {
            let part = PartId::from(part);
            let slot = self.windows.slot(&self.kv, &self.clock, target, &part, weight).await;
            slot.map_err(|closed| closed.to_string())
        }
    }

    #[tokio::test]
    async fn rule_3_seqs_for_one_message_are_1_2_3_and_stay_over_a_restart() {
        let mut desk = Desk::new();
        let (one, other) = (target(Place::Group, "m1"), target(Place::Group, "m2"));
        for (n, part) in ["a", "b", "c"].iter().enumerate() {
            let seq = u32::try_from(n + 1).expect("small");
            assert_eq!(desk.slot(&one, part, Weight::Middle).await, Ok(Slot { seq, again: false }));
        }
        desk.windows = Windows::default();
        assert_eq!(desk.slot(&one, "b", Weight::End).await, Ok(Slot { seq: 2, again: true }));
        assert_eq!(desk.slot(&other, "b", Weight::End).await, Ok(Slot { seq: 1, again: false }));
        let renewed = desk.windows.renew(&desk.kv, &desk.clock, &one, &PartId::from("b")).await.expect("a number");
        assert_eq!(renewed, Slot { seq: 4, again: false });
        assert_eq!(desk.slot(&one, "b", Weight::End).await, Ok(Slot { seq: 4, again: true }));
    }

    #[tokio::test]
    async fn rule_9_the_last_number_is_kept_for_the_end() {
        let desk = Desk::new();
        let chat = target(Place::C2c, "m");
        assert!(desk.slot(&chat, "n1", Weight::Notice).await.is_ok());
        assert!(desk.slot(&chat, "n2", Weight::Notice).await.is_ok());
        assert!(desk.slot(&chat, "n3", Weight::Notice).await.is_err(), "no third notice");
        assert!(desk.slot(&chat, "p1", Weight::Middle).await.is_ok());
        assert!(desk.slot(&chat, "p2", Weight::Middle).await.is_err());
        assert!(desk.slot(&chat, "p3", Weight::End).await.is_ok());
        let over = desk.slot(&chat, "p4", Weight::End).await;
        assert!(over.is_err_and(|why| why.contains("4 answers")));
    }

    #[tokio::test]
    async fn windows_close_and_old_records_go() {
        let desk = Desk::new();
        let (group, chat) = (target(Place::Group, "g"), target(Place::C2c, "c"));
        assert!(desk.slot(&group, "a", Weight::End).await.is_ok());
        desk.fake.advance(Duration::from_secs(5 * 60));
        assert!(desk.slot(&group, "a", Weight::End).await.is_err_and(|why| why.contains("5 minutes")));
        assert!(!desk.windows.has(&desk.kv, &desk.clock, &group, &PartId::from("a")).await);
        assert!(desk.slot(&chat, "a", Weight::End).await.is_ok());
        desk.fake.advance(Duration::from_secs(3 * 60 * 60));
        assert!(desk.slot(&chat, "b", Weight::End).await.is_err_and(|why| why.contains("60 minutes")));
    }
}
