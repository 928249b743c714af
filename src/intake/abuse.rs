//! A sender who runs into the day's budget again and again is not heard for a while, and the owner is told once.
//!
//! Pure but for [`Teller`], which writes the owner's notice and the audit log's line in one transaction. security.md
//! row 39.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use channel_api::{Inbound, Level, Reply, ReplyKind};
use serde_json::json;
use tracing::{info, warn};

use crate::{
    audit::{AuditStore, Event, GATEWAY, Kind},
    chats::Chats,
    lang::{self, Lang},
    outbox::{self, LaneWakeUp},
};

/// So many refusals within [`WITHIN`] are abuse.
const REFUSALS: usize = 5;
const WITHIN: Duration = Duration::from_secs(60 * 60);
/// How long whoever did it is not heard.
const PAUSE: Duration = Duration::from_secs(60 * 60);
/// The most senders remembered: beyond it those go whose time is over, then all.
const MOST: usize = 10_000;

/// Who ran into their budget, and when. Forgotten by a restart. Times are monotonic.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<HashMap<String, Sender>>);

#[derive(Debug, Default)]
struct Sender {
    at: Vec<Duration>,
    until: Option<Duration>,
    told: bool,
}

/// A sender who is not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused {
    /// For how long from now.
    pub left: Duration,
    /// This is the first time it is asked.
    pub new: bool,
}

impl Refusals {
    /// The budget refused this sender (channel and id).
    pub fn refused(&self, sender: &str, now: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.retain(|_, sender| {
                sender.until.is_some_and(|until| now < until) || sender.at.last().is_some_and(|at| now - *at < WITHIN)
            });
            if all.len() >= MOST {
                all.clear();
            }
        }
        let one = all.entry(sender.to_owned()).or_default();
        one.at.retain(|at| now.saturating_sub(*at) < WITHIN);
        one.at.push(now);
        if one.at.len() >= REFUSALS && one.until.is_none_or(|until| now >= until) {
            *one = Sender { at: Vec::new(), until: Some(now + PAUSE), told: false };
        }
    }

    /// Whether this sender is not heard now.
    pub fn paused(&self, sender: &str, now: Duration) -> Option<Paused> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let one = all.get_mut(sender)?;
        let left = one.until?.checked_sub(now).filter(|left| !left.is_zero())?;
        let new = !std::mem::replace(&mut one.told, true);
        Some(Paused { left, new })
    }
}

/// Who was told, within the last hour, that something is the owner's alone. Forgotten by a restart. Times are monotonic.
#[derive(Debug, Default)]
pub struct Told(Mutex<HashMap<String, Duration>>);

impl Told {
    /// Whether this sender (channel and id) is to be told now: once an hour each.
    pub fn first(&self, sender: &str, now: Duration) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(sender).is_some_and(|at| now.saturating_sub(*at) < WITHIN) {
            return false;
        }
        if all.len() >= MOST {
            all.retain(|_, at| now.saturating_sub(*at) < WITHIN);
            // So many within an hour are no people: none of them is told any more.
            if all.len() >= MOST {
                return false;
            }
        }
        all.insert(sender.to_owned(), now);
        true
    }
}

/// Tells the owner.
pub struct Teller {
    /// Where they are.
    pub chats: Chats,
    /// The audit log.
    pub rows: Arc<dyn AuditStore>,
    /// Wakes delivery.
    pub lanes: LaneWakeUp,
}

impl Teller {
    /// Says that a sender is not heard for so long, and writes it down. Best effort: the pause holds either way.
    pub async fn tell(&self, event: &Inbound, left: Duration, at: i64) {
        let who = crate::ledger::sender_key(event);
        info!(
            who,
            minutes = left.as_secs() / 60,
            "a sender ran into the budget again and again and is not heard for a while"
        );
        let detail =
            json!({ "channel": event.channel.as_str(), "sender": event.sender.id, "minutes": left.as_secs() / 60 });
        let what = "sender paused: budget".to_owned();
        let line = Event { at, kind: Kind::Access, who: GATEWAY.to_owned(), what, detail };
        let chat = self.chats.owner("main").await.unwrap_or_default();
        let place = chat.map(|chat| chat.place);
        let entry = place.as_ref().and_then(|place| Some((self.chats.channels.get(&place.address.channel)?, place)));
        let parts = entry.map_or_else(Vec::new, |(entry, place)| {
            let minutes = left.as_secs().div_ceil(60);
            let id = crate::intake::pairing::shown_id(&event.sender.id);
            let text = lang::abuse_paused(Lang::current(), id, &event.channel, minutes);
            let reply = Reply { kind: ReplyKind::Notice, ..Reply::message(text) };
            outbox::rows(entry.channel.as_ref(), &reply, Level::Rich, &place.address, None, at)
        });
        match self.rows.tell(line, parts).await {
            Ok(lanes) => self.lanes.wake(lanes),
            Err(error) => warn!(%error, "the owner could not be told"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_24_whoever_may_not_decide_is_told_so_once_an_hour() {
        let minutes = |n: u64| Duration::from_secs(n * 60);
        let told = Told::default();
        assert!(told.first("a", minutes(0)) && told.first("b", minutes(1)));
        assert!(!told.first("a", minutes(1)) && !told.first("a", minutes(59)));
        assert!(told.first("a", minutes(61)) && !told.first("a", minutes(62)));
        // A crowd is remembered up to a bound, and not answered beyond it.
        assert_eq!((0..MOST + 9).filter(|n| told.first(&format!("c{n}"), minutes(62))).count(), MOST - 1);
    }

    #[test]
    fn row_39_the_fifth_refusal_within_an_hour_pauses_for_an_hour_and_is_told_once() {
        let minutes = |n: u64| Duration::from_secs(n * 60);
        let refusals = Refusals::default();
        for n in 0..4 {
            refusals.refused("a", minutes(n));
            assert_eq!(refusals.paused("a", minutes(n)), None);
        }
        refusals.refused("b", minutes(4));
        refusals.refused("a", minutes(5));
        assert_eq!(refusals.paused("a", minutes(6)), Some(Paused { left: minutes(59), new: true }));
        assert_eq!(refusals.paused("a", minutes(7)), Some(Paused { left: minutes(58), new: false }));
        assert_eq!((refusals.paused("b", minutes(7)), refusals.paused("a", minutes(65))), (None, None));
        // Five in five hours are none.
        for n in 0..9 {
            refusals.refused("c", minutes(n * 16));
            assert_eq!(refusals.paused("c", minutes(n * 16)), None, "{n}");
        }
    }
}
