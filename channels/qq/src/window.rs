//! How many answers a message got and under which numbers: QQ counts them, refuses a number it saw before, and closes the
//! window for good. Durable, so that a retry after a restart has the number it had. protocols.md §3, §6 rules 3–5 and 9.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use channel_api::{ChannelKv, Clock, KvError, PartId};
use serde::{Deserialize, Serialize};

use crate::{
    render::Weight,
    target::{Place, Target},
};

/// The records stand in so many rows: the channel's map forgets nothing, so its keys must be few.
const ROWS: u64 = 128;
/// A record is dropped when it is this old: longer than any window.
const KEPT_MS: i64 = 2 * 60 * 60 * 1_000;

/// The most conversations whose newest message is known.
const CONVERSATIONS: usize = 2_000;

/// The answers of one bot.
#[derive(Default)]
pub struct Windows {
    one_at_a_time: tokio::sync::Mutex<()>,
    /// The newest message of each conversation since the start: what comes late may answer that one.
    newest: Mutex<HashMap<(Place, String), Target>>,
}

/// The number of one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What is answered: the target that was asked for, or a newer message of the same conversation.
    pub target: Target,
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
    /// The parts that answer another message instead, because this one could be answered no more.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    elsewhere: BTreeMap<String, Target>,
}

type Row = BTreeMap<String, Record>;

/// What the records stand in, and the time.
#[derive(Clone, Copy)]
pub struct Desk<'a> {
    pub kv: &'a Arc<dyn ChannelKv>,
    pub clock: &'a Arc<dyn Clock>,
}

impl Windows {
    /// A message came that may be answered.
    pub fn heard(&self, target: &Target) {
        if target.answers().is_none() {
            return;
        }
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (target.to, target.id.clone());
        if newest.len() >= CONVERSATIONS && !newest.contains_key(&key) {
            let oldest = newest.iter().min_by_key(|(_, target)| target.at).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| newest.remove(&oldest));
        }
        newest.insert(key, target.clone());
    }

    fn newer(&self, target: &Target) -> Option<Target> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.get(&(target.to, target.id.clone())).filter(|newest| newest.answers() != target.answers()).cloned()
    }

    /// The number for `part`: the one it had, or the next. Durable when this returns.
    ///
    /// # Errors
    /// [`Closed`]: nothing may be sent.
    pub async fn slot(&self, desk: Desk<'_>, target: &Target, part: &PartId, weight: Weight) -> Result<Slot, Closed> {
        let _one_at_a_time = self.one_at_a_time.lock().await;
        let own = desk.record(target).await?;
        if let Some(other) = own.elsewhere.get(part.as_str()) {
            return desk.number(other, part, weight).await;
        }
        let closed = match desk.number(target, part, weight).await {
            Err(closed @ (Closed::Over(_) | Closed::NoMessage | Closed::Used(_))) => closed,
            other => return other,
        };
        // A part that has a number here may have arrived: it goes nowhere else.
        let newer = self.newer(target).filter(|newer| desk.is_open(newer) && !own.parts.contains_key(part.as_str()));
        let Some(newer) = newer else { return Err(closed) };
        if desk.record(&newer).await?.parts.len() + weight.kept() >= newer.most() {
            return Err(closed);
        }
        let now = desk.clock.now_ms();
        desk.change(target, |own| {
            own.at = now;
            own.elsewhere.insert(part.as_str().to_owned(), newer.clone());
        })
        .await?;
        desk.number(&newer, part, weight).await
    }

    /// A new number for a part whose first form was refused: QQ may or may not have counted that one.
    ///
    /// # Errors
    /// [`KvError`].
    pub async fn renew(&self, desk: Desk<'_>, target: &Target, part: &PartId) -> Result<Slot, KvError> {
        let _one_at_a_time = self.one_at_a_time.lock().await;
        let seq = desk.change(target, |record| record.next(part)).await?;
        Ok(Slot { target: target.clone(), seq, again: false })
    }

    /// Whether the part has a number under which it may be sent again.
    pub async fn has(&self, desk: Desk<'_>, target: &Target, part: &PartId) -> bool {
        let _one_at_a_time = self.one_at_a_time.lock().await;
        let Ok(own) = desk.record(target).await else { return false };
        let (place, record) = match own.elsewhere.get(part.as_str()) {
            Some(other) => (other.clone(), desk.record(other).await.unwrap_or_default()),
            None => (target.clone(), own),
        };
        desk.is_open(&place) && record.parts.contains_key(part.as_str())
    }
}

impl Desk<'_> {
    /// Whether it may still be answered.
    fn is_open(self, target: &Target) -> bool {
        let window = i64::try_from(target.window().as_millis()).unwrap_or(i64::MAX);
        self.clock.now_ms().saturating_sub(target.at) < window
    }

    async fn number(self, target: &Target, part: &PartId, weight: Weight) -> Result<Slot, Closed> {
        if target.answers().is_none() {
            return Err(Closed::NoMessage);
        }
        if !self.is_open(target) {
            return Err(Closed::Over(target.window().as_secs().div_ceil(60)));
        }
        let slot = |seq, again| Slot { target: target.clone(), seq, again };
        let record = self.record(target).await?;
        if let Some(seq) = record.parts.get(part.as_str()) {
            return Ok(slot(*seq, true));
        }
        if record.parts.len() + weight.kept() >= target.most() {
            return Err(Closed::Used(target.most()));
        }
        Ok(slot(self.change(target, |record| record.next(part)).await?, false))
    }

    async fn record(self, target: &Target) -> Result<Record, KvError> {
        let (_, mut row, name) = self.row(target).await?;
        Ok(row.remove(&name).unwrap_or_default())
    }

    async fn change<T>(self, target: &Target, change: impl FnOnce(&mut Record) -> T) -> Result<T, KvError> {
        let (key, mut row, name) = self.row(target).await?;
        let result = change(row.entry(name).or_insert_with(|| Record { at: target.at, ..Record::default() }));
        let now = self.clock.now_ms();
        row.retain(|_, record| now.saturating_sub(record.at) < KEPT_MS);
        self.kv.set(&key, &serde_json::to_string(&row).unwrap_or_default()).await?;
        Ok(result)
    }

    /// The row that a record stands in, and the record's name there.
    async fn row(self, target: &Target) -> Result<(String, Row, String), KvError> {
        let name = target.answers().map_or_else(|| format!("{:?} {}", target.to, target.id), str::to_owned);
        let key = format!("answers:{}", place(&name) % ROWS);
        let row = self.kv.get(&key).await?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok((key, row, name))
    }
}

impl Weight {
    /// How many answers must be left after it.
    fn kept(self) -> usize {
        match self {
            Self::End => 0,
            Self::Middle => 1,
            Self::Notice => 2,
        }
    }
}

impl Record {
    fn next(&mut self, part: &PartId) -> u32 {
        self.last += 1;
        self.parts.insert(part.as_str().to_owned(), self.last);
        self.last
    }
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

    fn target(to: Place, msg_id: &str) -> Target {
        Target { to, id: "x".to_owned(), msg_id: Some(msg_id.to_owned()), event_id: None, at: 0 }
    }

    struct Books {
        windows: Windows,
        kv: Arc<dyn ChannelKv>,
        fake: Arc<FakeClock>,
        clock: Arc<dyn Clock>,
    }

    impl Books {
        fn new() -> Self {
            let fake = Arc::new(FakeClock::at(0));
            Self { windows: Windows::default(), kv: Arc::new(MemoryKv::default()), clock: fake.clone(), fake }
        }

        fn desk(&self) -> Desk<'_> {
            Desk { kv: &self.kv, clock: &self.clock }
        }

        /// The message that is answered, the number, and whether the part had it before.
        async fn slot(&self, target: &Target, part: &str, weight: Weight) -> Result<(String, u32, bool), String> {
            let slot = self.windows.slot(self.desk(), target, &PartId::from(part), weight).await;
            let slot = slot.map_err(|closed| closed.to_string())?;
            Ok((slot.target.answers().unwrap_or_default().to_owned(), slot.seq, slot.again))
        }
    }

    #[tokio::test]
    async fn rule_3_seqs_for_one_message_are_1_2_3_and_stay_over_a_restart() {
        let mut books = Books::new();
        let (one, other) = (target(Place::Group, "m1"), target(Place::Group, "m2"));
        let number = |answers: &str, seq, again| Ok((answers.to_owned(), seq, again));
        for (seq, part) in (1..).zip(["a", "b", "c"]) {
            assert_eq!(books.slot(&one, part, Weight::Middle).await, number("m1", seq, false));
        }
        books.windows = Windows::default();
        assert_eq!(books.slot(&one, "b", Weight::End).await, number("m1", 2, true));
        assert_eq!(books.slot(&other, "b", Weight::End).await, number("m2", 1, false));
        let renewed = books.windows.renew(books.desk(), &one, &PartId::from("b")).await.expect("a number");
        assert_eq!((renewed.seq, renewed.again), (4, false));
        assert_eq!(books.slot(&one, "b", Weight::End).await, number("m1", 4, true));
    }

    #[tokio::test]
    async fn rule_9_the_last_number_is_kept_for_the_end() {
        let books = Books::new();
        let chat = target(Place::C2c, "m");
        assert!(books.slot(&chat, "n1", Weight::Notice).await.is_ok());
        assert!(books.slot(&chat, "n2", Weight::Notice).await.is_ok());
        assert!(books.slot(&chat, "n3", Weight::Notice).await.is_err(), "no third notice");
        assert!(books.slot(&chat, "p1", Weight::Middle).await.is_ok());
        assert!(books.slot(&chat, "p2", Weight::Middle).await.is_err());
        assert!(books.slot(&chat, "p3", Weight::End).await.is_ok());
        let over = books.slot(&chat, "p4", Weight::End).await;
        assert!(over.is_err_and(|why| why.contains("4 answers")));
    }

    #[tokio::test]
    async fn windows_close() {
        let books = Books::new();
        let (group, chat) = (target(Place::Group, "g"), target(Place::C2c, "c"));
        assert!(books.slot(&group, "a", Weight::End).await.is_ok());
        books.fake.advance(Duration::from_secs(5 * 60));
        assert!(books.slot(&group, "a", Weight::End).await.is_err_and(|why| why.contains("5 minutes")));
        assert!(!books.windows.has(books.desk(), &group, &PartId::from("a")).await);
        assert!(books.slot(&chat, "a", Weight::End).await.is_ok());
        books.fake.advance(Duration::from_secs(3 * 60 * 60));
        assert!(books.slot(&chat, "b", Weight::End).await.is_err_and(|why| why.contains("60 minutes")));
    }

    #[tokio::test]
    async fn what_comes_late_answers_a_newer_message_of_the_same_conversation_and_stays_with_it() {
        let mut books = Books::new();
        let old = target(Place::Group, "old");
        assert!(books.slot(&old, "sent", Weight::Middle).await.is_ok());
        books.fake.advance(Duration::from_secs(6 * 60));
        let at = books.clock.now_ms();
        let newer = Target { at, ..target(Place::Group, "newer") };
        let other = Target { id: "y".to_owned(), at, ..target(Place::Group, "other") };
        books.windows.heard(&other);
        assert!(books.slot(&old, "late", Weight::End).await.is_err(), "another group's message is not ours to answer");
        books.windows.heard(&newer);
        let number = |answers: &str, seq, again| Ok((answers.to_owned(), seq, again));
        assert_eq!(books.slot(&old, "late", Weight::End).await, number("newer", 1, false));
        assert!(books.slot(&old, "sent", Weight::Middle).await.is_err(), "it may have arrived already");
        books.windows.heard(&Target { at, ..target(Place::Group, "newest") });
        assert_eq!(books.slot(&old, "late", Weight::End).await, number("newer", 1, true), "a retry changes nothing");
        books.windows = Windows::default();
        assert_eq!(books.slot(&old, "late", Weight::End).await, number("newer", 1, true), "nor does a restart");
        assert!(books.windows.has(books.desk(), &old, &PartId::from("late")).await);
    }

    #[tokio::test]
    async fn the_newest_messages_of_so_many_conversations_are_known_and_no_more() {
        let books = Books::new();
        for n in 0..=CONVERSATIONS {
            let at = i64::try_from(n).expect("small");
            books.windows.heard(&Target { id: n.to_string(), at, ..target(Place::C2c, "m") });
        }
        let known = books.windows.newest.lock().expect("no panic");
        assert_eq!(known.len(), CONVERSATIONS);
        assert!(!known.contains_key(&(Place::C2c, "0".to_owned())));
    }
}
