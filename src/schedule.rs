//! Schedules: reminders and standing work, each slot done once, by the rights of whoever set it.
//!
//! A run is an errand in the queue, stored in the transaction that moves its schedule on, so a crash can neither lose nor
//! double it. What was missed while the gateway was down is one run that says so.

use std::{sync::Arc, time::Duration};

use channel_api::{Clock, InboxId, Trust};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::{
    rows::{Added, Change, Fire, Fired, Next, ScheduleRow, ScheduleStore, State, Terms},
    when::{Span, When, WhenError, parse_at, shown, zone, zone_name},
};
use crate::{
    chats::{Barred, Chats, Place},
    errand::{Errand, ErrandKind, Order},
    inbox::WakeUp,
    lang::{self, Lang},
    policy::Role,
    store::StoreError,
};

pub mod rows;
pub mod when;

/// How often the rows are looked at when nothing is due: the fallback for a wake-up or a clock that was set.
const LOOK_AROUND: Duration = Duration::from_secs(20);
/// How often while a run is under way, so that its end is noticed.
const WATCH: Duration = Duration::from_secs(1);
/// Runs begun at once after the gateway was down, and the pause before the next ones. openclaw-parity.md §10.
const AT_ONCE: u32 = 5;
const PAUSE: Duration = Duration::from_secs(5);
/// How long a run waits whose session has no room.
const NO_ROOM_MS: i64 = 30_000;
/// A run that begins later than this says so.
const LATE_MS: i64 = 60_000;
/// The longest text and title, in characters.
const MAX_TEXT: usize = 4_000;
const MAX_TITLE: usize = 80;
/// The widest stagger. openclaw-parity.md §10.
const MAX_STAGGER_MS: i64 = 5 * 60_000;

/// `[schedule]`: reminders and standing work.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// The agent may set any.
    pub enabled: bool,
    /// The most that one person has at a time. security.md row 48.
    pub max_per_person: u32,
    /// The least time between two runs of one. security.md row 48.
    pub min_interval: Span,
    /// Cron schedules of full hours are spread over this much of them, each always at the same place; at most `5m`, `0m` =
    /// exactly on time.
    pub stagger: Span,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { enabled: true, max_per_person: 20, min_interval: Span::minutes(5), stagger: Span::default() }
    }
}

/// What is asked for when a schedule is set or changed. Of `at`, `every` and `cron` exactly one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Ask {
    /// Once: a time.
    pub at: Option<String>,
    /// Again and again: a span.
    pub every: Option<String>,
    /// At the times of an expression.
    pub cron: Option<String>,
    /// The zone of `at` and `cron`; the machine's own without it.
    pub tz: Option<String>,
    /// What is to be done.
    pub text: Option<String>,
    /// A few words for lists.
    pub title: Option<String>,
    /// In a session of its own.
    pub isolated: bool,
    /// The name of a model.
    pub model: Option<String>,
    /// A run that nobody wrote asks: one that sets the next one a second ahead would be a loop that is paid for.
    #[serde(skip)]
    pub unattended: bool,
}

/// Why a schedule was not set, a sentence for whoever asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SetError {
    /// Its time cannot be used.
    #[error(transparent)]
    When(#[from] WhenError),
    /// It does not say when, or says it twice.
    #[error("say when: exactly one of `at`, `every` and `cron`")]
    NoWhen,
    /// It does not say what.
    #[error("say what is to be done in `text`, in at most 4000 characters")]
    NoText,
    /// There are too many.
    #[error("there are {0} schedules already, the most one person may have; cancel one first")]
    TooMany(u32),
    /// There is none of that id.
    #[error("there is no schedule `{0}`; list them to see their ids")]
    NoSuch(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Sets, lists and changes schedules. Cheap to clone.
#[derive(Clone)]
pub struct Schedules {
    /// The rows.
    pub rows: Arc<dyn ScheduleStore>,
    /// The settings.
    pub config: ScheduleConfig,
    /// Wakes the scheduler.
    pub woken: WakeUp,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Schedules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schedules").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Schedules {
    /// Sets one for whoever writes in `place`. `key` is what makes a second try of the same call the same schedule.
    ///
    /// # Errors
    /// [`SetError`].
    pub async fn add(
        &self,
        ask: &Ask,
        place: Place,
        role: Role,
        agent: &str,
        key: &str,
    ) -> Result<ScheduleRow, SetError> {
        let now = self.clock.now_ms();
        let text = ask.text.as_deref().map(str::trim).unwrap_or_default();
        if text.is_empty() || text.chars().count() > MAX_TEXT {
            return Err(SetError::NoText);
        }
        let id = id_of(key);
        let (when, tz, next) = self.when(ask, &id, now)?.ok_or(SetError::NoWhen)?;
        let title = ask.title.as_deref().unwrap_or(text);
        let row = ScheduleRow {
            creator: ScheduleRow::creator_of(&place.address.channel, &place.sender.id),
            agent: agent.to_owned(),
            title: short(title),
            text: text.to_owned(),
            when,
            tz,
            terms: Terms { place, role, isolated: ask.isolated, model: ask.model.clone() },
            slot: Some(next.slot),
            due_at: Some(next.due_at),
            state: State::Active,
            failures: 0,
            runs: 0,
            entry: None,
            last_entry: None,
            last_at: None,
            error: None,
            created_at: now,
            id,
        };
        match self.rows.add_schedule(&row, self.config.max_per_person).await? {
            Added::Added => {}
            Added::TooMany => return Err(SetError::TooMany(self.config.max_per_person)),
        }
        self.woken.wake();
        info!(schedule = %row.id, when = %row.when.words(&row.zone()), "a schedule was set");
        Ok(row)
    }

    /// Changes one.
    ///
    /// # Errors
    /// [`SetError`].
    pub async fn edit(&self, id: &str, ask: &Ask) -> Result<ScheduleRow, SetError> {
        let text = ask.text.as_deref().map(str::trim);
        if text.is_some_and(|text| text.is_empty() || text.chars().count() > MAX_TEXT) {
            return Err(SetError::NoText);
        }
        let when = self.when(ask, id, self.clock.now_ms())?;
        let title = ask.title.as_deref().or(text).map(short);
        let change = Change { title, text: text.map(str::to_owned), when, most: self.config.max_per_person };
        let missing = |error| match error {
            StoreError::NotFound => SetError::NoSuch(short(id)),
            error => SetError::Store(error),
        };
        match self.rows.edit_schedule(id, &change).await.map_err(missing)? {
            Added::Added => {}
            Added::TooMany => return Err(SetError::TooMany(self.config.max_per_person)),
        }
        self.woken.wake();
        self.rows.schedule(id).await?.ok_or_else(|| SetError::NoSuch(short(id)))
    }

    /// When it is to run, in which zone, and its first time; `None` when nothing is said of that.
    fn when(&self, ask: &Ask, id: &str, now: i64) -> Result<Option<(When, String, Next)>, SetError> {
        let zone = zone(ask.tz.as_deref())?;
        let least = self.config.min_interval;
        let when = match (ask.at.as_deref(), ask.every.as_deref(), ask.cron.as_deref()) {
            (Some(at), None, None) => {
                let at = parse_at(at, now, &zone)?;
                if ask.unattended && at - now < least.ms() {
                    return Err(WhenError::TooSoon(least).into());
                }
                When::At { at }
            }
            (None, Some(every), None) => When::every(Span::parse(every)?, now, least)?,
            (None, None, Some(cron)) => When::cron(cron, &zone, now, least)?,
            (None, None, None) => return Ok(None),
            _ => return Err(SetError::NoWhen),
        };
        // A time of this very moment is due at once.
        let slot = when.next_after(now - 1).ok_or(SetError::NoWhen)?;
        Ok(Some((when.clone(), zone_name(&zone), next_of(&when, slot, id, self.config.stagger))))
    }
}

impl ScheduleRow {
    /// The zone its times are shown in.
    pub fn zone(&self) -> TimeZone {
        zone(Some(&self.tz)).unwrap_or(TimeZone::UTC)
    }

    /// Its coming times, at most `most`.
    pub fn coming(&self, most: usize) -> Vec<String> {
        let zone = self.zone();
        let next = |slot: &i64| self.when.next_after(*slot);
        std::iter::successors(self.slot, next).take(most).map(|slot| shown(slot, &zone)).collect()
    }
}

/// The id that belongs to a key: the same for a second try.
fn id_of(key: &str) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let hash = Sha256::digest(key.as_bytes());
    let letters = hash.iter().take(8).map(|byte| char::from(LETTERS[usize::from(byte % 32)]));
    format!("sc_{}", letters.collect::<String>())
}

/// The first characters, in one line.
fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_TITLE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// When a slot runs: exactly then, or for a full hour of a cron expression as far behind as its id says.
fn next_of(when: &When, slot: i64, id: &str, stagger: Span) -> Next {
    let most = stagger.ms().min(MAX_STAGGER_MS);
    let full_hour = matches!(when, When::Cron { .. }) && slot % 3_600_000 == 0;
    let behind = if full_hour && most > 0 {
        let hash = Sha256::digest(id.as_bytes());
        i64::from(u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])) % most
    } else {
        0
    };
    Next { slot, due_at: slot.saturating_add(behind) }
}

/// Runs what is due.
pub struct Scheduler {
    /// The brake: nothing is begun while it is on.
    pub halt: crate::halt::Halt,
    /// The schedules.
    pub schedules: Schedules,
    /// Finds chats, asks the gate.
    pub chats: Chats,
    /// Wakes the workers.
    pub work: WakeUp,
    /// The most waiting entries of a session.
    pub cap: u32,
}

impl Scheduler {
    /// Runs until `stopping`.
    pub async fn run(self: Arc<Self>, stopping: CancellationToken) {
        while !stopping.is_cancelled() {
            let wait = match self.halt.is_on() {
                true => LOOK_AROUND,
                false => self.pass().await.unwrap_or_else(|error| {
                    warn!(%error, "the schedules could not be read");
                    LOOK_AROUND
                }),
            };
            tokio::select! {
                () = self.schedules.woken.woken() => {}
                () = self.schedules.clock.sleep(wait) => {}
                () = stopping.cancelled() => {}
            }
        }
    }

    /// Looks at runs that ended, begins those that are due; how long until the next look.
    async fn pass(&self) -> Result<Duration, StoreError> {
        let rows = &self.schedules.rows;
        let now = self.schedules.clock.now_ms();
        let reaped = rows.reap_schedules(now).await?;
        for (id, why) in &reaped.failed {
            warn!(schedule = %id, why, "a scheduled run failed: see `crawfish schedule list`");
        }
        let due = rows.due_schedules(now, AT_ONCE).await?;
        for row in &due {
            if let Err(error) = self.fire(row, now).await {
                warn!(schedule = %row.id, %error, "a schedule that is due could not begin its run; it is tried again");
            }
        }
        if due.len() >= AT_ONCE as usize {
            return Ok(PAUSE);
        }
        let most = if reaped.running || !due.is_empty() { WATCH } else { LOOK_AROUND };
        let next = rows.next_schedule().await?;
        let until =
            next.map(|at| Duration::from_millis(at.saturating_sub(self.schedules.clock.now_ms()).max(0) as u64));
        Ok(until.map_or(most, |until| until.min(most)))
    }

    /// Begins one run.
    async fn fire(&self, row: &ScheduleRow, now: i64) -> Result<(), StoreError> {
        let rows = &self.schedules.rows;
        let Some(slot) = row.slot else { return rows.stop_schedule(&row.id, "it has no next time").await };
        let lang = Lang::current();
        let place = &row.terms.place;
        let found = match self.chats.role(place) {
            Ok(role) => {
                let role = role.min(row.terms.role);
                let Some((_, agent)) = self.chats.session(place) else { return Ok(()) };
                self.chats.heard(place.clone(), role, &agent).await?.map(|place| (place, role))
            }
            Err(barred) => Err(barred),
        };
        let (place, role) = match found {
            Ok(found) => found,
            Err(barred) => {
                let why = match barred {
                    Barred::Blocked => lang::schedule_creator_blocked(lang),
                    Barred::NotAllowed => lang::schedule_creator_out(lang),
                    Barred::Unheard(key) => lang::unheard(lang, &row.terms.place.address.channel, key),
                    Barred::NoChannel => lang::schedule_no_channel(lang, &row.terms.place.address.channel),
                };
                warn!(schedule = %row.id, %why, "a schedule runs no more");
                return rows.stop_schedule(&row.id, &why).await;
            }
        };
        if role == Role::Stranger {
            let why = lang::schedule_creator_out(lang);
            warn!(schedule = %row.id, %why, "a schedule runs no more");
            return rows.stop_schedule(&row.id, &why).await;
        }
        let Some((session, agent)) = self.chats.session(&place) else { return Ok(()) };
        let session = if row.terms.isolated { row.own_session() } else { session };
        let due = row.when.due(slot, now);
        let next = due.next.map(|slot| next_of(&row.when, slot, &row.id, self.schedules.config.stagger));
        let order = Order {
            errand: Errand {
                kind: ErrandKind::Schedule,
                id: row.id.clone(),
                model: row.terms.model.clone(),
                parent: None,
                depth: 1,
                tick: None,
            },
            platform_id: format!("schedule:{}:{}", row.id, due.slot),
            session,
            agent,
            role,
            sender: place.sender,
            conversation: place.conversation,
            address: place.address,
            text: words(row, due.slot, due.missed, now),
            attachments: Vec::new(),
            trust: Trust::Own,
            not_before: 0,
        };
        let fire = Fire { id: row.id.clone(), slot, next, entry: order.entry(now, self.cap), now };
        channel_api::crash_point!("schedule.due");
        let fired = rows.fire_schedule(fire).await?;
        channel_api::crash_point!("schedule.fired");
        match fired {
            Fired::Queued(entry) => self.queued(row, &entry, due.missed),
            Fired::Full => {
                debug!(schedule = %row.id, "the session's queue is full; the run waits");
                rows.put_off_schedule(&row.id, now + NO_ROOM_MS).await?;
            }
            Fired::Gone => {}
        }
        Ok(())
    }

    fn queued(&self, row: &ScheduleRow, entry: &InboxId, missed: u32) {
        self.work.wake();
        info!(schedule = %row.id, %entry, missed, "a scheduled run was queued");
    }
}

/// What the model reads when a schedule is due.
fn words(row: &ScheduleRow, slot: i64, missed: u32, now: i64) -> String {
    let zone = row.zone();
    let (due, late) = (shown(slot, &zone), now - slot > LATE_MS);
    let mut text = match Lang::of_text(&row.text).unwrap_or_else(Lang::current) {
        Lang::En => {
            let mut text = format!(
                "[schedule {}, set here on {}; due {due}]\n{}\n\nIts time has come: do it now, or say it here as a message to \
                 whoever asked. It is set already; do not schedule it again.",
                row.id,
                shown(row.created_at, &zone),
                row.text
            );
            if late {
                text.push_str(" The gateway was not running at that time; say that it comes late.");
            }
            if missed > 0 {
                text.push_str(&format!(" {missed} earlier times were missed; this one run stands for all of them."));
            }
            text
        }
        Lang::Zh => {
            let mut text = format!(
                "［定时任务 {}，{} 在此设置；应于 {due} 执行］\n{}\n\n时间到了：现在就做，或者把提醒直接发给当时提出的人。任务已经设好，不要再设一次。",
                row.id,
                shown(row.created_at, &zone),
                row.text
            );
            if late {
                text.push_str("当时网关没有运行，请说明提醒来晚了。");
            }
            if missed > 0 {
                text.push_str(&format!("之前错过了 {missed} 次，这一次一并代表。"));
            }
            text
        }
    };
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_its_call() {
        assert_eq!(id_of("turn call"), id_of("turn call"));
        assert_ne!(id_of("turn call"), id_of("turn call 2"));
        assert_eq!(id_of("x").len(), 11);
    }

    #[test]
    fn full_hours_are_spread_when_that_is_asked_for_and_always_alike() {
        let cron = When::Cron { expr: "0 8 * * *".to_owned(), tz: "UTC".to_owned() };
        let at = |stagger| next_of(&cron, 3_600_000, "sc_abc", stagger).due_at;
        assert_eq!(at(Span::default()), 3_600_000);
        let behind = at(Span::minutes(60));
        assert!((3_600_000..3_600_000 + MAX_STAGGER_MS).contains(&behind), "{behind}");
        assert_eq!(behind, at(Span::minutes(60)));
        assert_eq!(next_of(&cron, 3_660_000, "sc_abc", Span::minutes(5)).due_at, 3_660_000);
    }
}
