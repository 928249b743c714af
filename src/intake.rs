//! Station 4, the way in: every event passes the gate, is routed to its session and committed before anyone may
//! acknowledge it. Commands that need no turn are answered here and overtake the queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use channel_api::{
    Accepted, Batch, ChannelId, Clock, ConversationKind, IgnoredReason, Inbound, InboxId, Intake as IntakeSeam,
    IntakeError, Level, Moved, QueueMode, Reply, ReplyKind, Settled, SettledPart,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::{access::Admission, command::Command};
use crate::{
    channels::{Channels, Entry},
    config::LimitsConfig,
    inbox::{QueueConfig, Running, WakeUp},
    journal::Journal,
    lang::{self, Lang},
    outbox::{self, Answers, LaneWakeUp},
    policy::Role,
    session::SessionKey,
    store::{
        Action, BootId, InboxStore, MovedGroup, NewBatch, NewEntry, NewHeard, NewPart, OverCap, SessionChange,
        SessionStore, StoreError, Stored,
    },
    upkeep::Ready,
};

pub mod access;
pub mod command;
pub mod heard;
pub mod wake;

/// The way in.
pub struct Intake {
    /// Where messages are stored.
    pub inbox: Arc<dyn InboxStore>,
    /// For `/status`.
    pub sessions: Arc<dyn SessionStore>,
    /// Whose gates and renderers are used.
    pub channels: Channels,
    /// Queue settings.
    pub queue: QueueConfig,
    /// Limits.
    pub limits: LimitsConfig,
    /// Told when a commit fails, so that `/readyz` says so at once.
    pub ready: Ready,
    /// This process.
    pub boot: BootId,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Wakes workers.
    pub work: WakeUp,
    /// Wakes delivery.
    pub lanes: LaneWakeUp,
    /// Reaches running turns.
    pub running: Running,
    /// Tells watchers.
    pub journal: Journal,
    /// Cancelled when the gateway stops: nothing more is accepted.
    pub stopping: CancellationToken,
    /// Who wrote how often.
    pub senders: SenderRates,
}

/// What the gate and the router made of one event.
enum Routed {
    Store(Box<NewEntry>),
    /// Kept as context of its group.
    Hear(Box<NewHeard>),
    Answer(Accepted),
}

#[async_trait]
impl IntakeSeam for Intake {
    async fn accept(&self, batch: Batch) -> Result<Vec<Accepted>, IntakeError> {
        if self.stopping.is_cancelled() {
            return Err(IntakeError::Busy(Duration::from_secs(5)));
        }
        let load = self.inbox.load().await.map_err(unavailable)?;
        let full = load.queued >= self.limits.max_queued || load.bytes >= self.limits.max_queued_mib << 20;
        let channel = batch.channel.or_else(|| batch.events.first().map(|event| event.channel.clone()));
        let moved = self.moved(channel.as_ref(), batch.moved);
        let mut events = batch.events;
        for event in &mut events {
            // A wake word is a mention: what comes after asks for `mentions_us` alone.
            event.mentions_us |= self.channels.get(&event.channel).is_some_and(|entry| entry.gate.wakes(event));
        }
        // What adds nothing to the queue is let in: `/stop` is what empties it.
        if full && !events.iter().all(|event| self.adds_nothing(event)) {
            warn!(queued = load.queued, bytes = load.bytes, "the gateway is full, nothing more is accepted for now");
            return Err(IntakeError::Busy(Duration::from_secs(5)));
        }
        let mut answers = Vec::with_capacity(events.len());
        let (mut entries, mut heard) = (Vec::new(), Vec::new());
        for event in events {
            match self.route(event).await? {
                Routed::Store(entry) => {
                    answers.push(None);
                    entries.push(*entry);
                }
                Routed::Hear(context) => {
                    answers.push(Some(Accepted::Ignored(IgnoredReason::NotAddressed)));
                    heard.push(*context);
                }
                Routed::Answer(answer) => answers.push(Some(answer)),
            }
        }
        let cursor = match (batch.cursor, channel) {
            (Some(cursor), Some(channel)) => Some((channel, cursor)),
            (Some(_), None) => return Err(IntakeError::Unavailable("a poll position without its channel".to_owned())),
            (None, _) => None,
        };
        if entries.is_empty() && cursor.is_none() && heard.is_empty() && moved.is_empty() {
            return Ok(answers.into_iter().flatten().collect());
        }
        let kept: Vec<Kept> = entries.iter().map(Kept::of).collect();
        channel_api::crash_point!("intake.routed");
        let stored = self.inbox.accept(NewBatch { entries, cursor, heard, moved }).await.map_err(|error| {
            self.ready.store(false);
            unavailable(error)
        })?;
        channel_api::crash_point!("intake.committed");
        let mut stored = stored.into_iter().zip(kept).map(|(stored, kept)| self.answer(stored, kept));
        Ok(answers.into_iter().filter_map(|answer| answer.or_else(|| stored.next())).collect())
    }
}

impl Intake {
    /// The groups that got a new id; from now on their sections of the configuration hold for it.
    fn moved(&self, channel: Option<&ChannelId>, moved: Vec<Moved>) -> Vec<MovedGroup> {
        let Some(entry) = channel.and_then(|channel| self.channels.get(channel)) else { return Vec::new() };
        let at = self.clock.now_ms();
        let moved = moved.into_iter().filter(|moved| moved.from != moved.to);
        moved
            .map(|moved| {
                entry.moved(&moved);
                MovedGroup {
                    channel: entry.channel.id().clone(),
                    account_in_key: entry.channel.capabilities().account_in_key,
                    from: moved.from,
                    to: moved.to,
                    at,
                }
            })
            .collect()
    }

    /// Whether it leaves the queue as long as it is: a command that is answered at once, or nothing for the bot.
    fn adds_nothing(&self, event: &Inbound) -> bool {
        let for_the_bot = self.channels.get(&event.channel).is_some_and(|entry| {
            !matches!(entry.gate.admit(event, false, false), Admission::Context | Admission::Ignore(_))
        });
        !for_the_bot || Command::of(event).is_some_and(|(command, _)| command != Command::New)
    }

    /// Gate, session, mode, command: everything before the commit.
    async fn route(&self, event: Inbound) -> Result<Routed, IntakeError> {
        let Some(entry) = self.channels.get(&event.channel) else {
            return Ok(Routed::Answer(Accepted::Ignored(IgnoredReason::Disabled)));
        };
        let role = match entry.gate.admit(&event, false, false) {
            Admission::Admit(role) => role,
            Admission::Pair => return Ok(ignored(&event, IgnoredReason::SenderNotAllowed)),
            Admission::Context => {
                debug!(channel = %event.channel, sender = %event.sender.id, "not for the bot, kept as context");
                let keep = entry.gate.history(&event.conversation.id);
                let session = entry.session(&event.conversation);
                let context = heard::heard(&event, session, keep, self.clock.now_ms());
                return Ok(Routed::Hear(Box::new(context)));
            }
            Admission::Ignore(why) => return Ok(ignored(&event, why)),
        };
        let now = self.clock.now_ms();
        if let (Some(limit), true) = (self.limits.per_sender_per_min, role < Role::Owner)
            && let Some(wait) = self.senders.take(&event, limit, self.clock.monotonic())
        {
            return Ok(Routed::Answer(Accepted::Full(wait)));
        }
        let session = entry.session(&event.conversation);
        let command = Command::of(&event);
        let lang = |named: Option<Lang>| named.or_else(|| Lang::of_text(&event.text)).unwrap_or_else(Lang::current);
        let id = InboxId::generate();
        let mut queue = event.queue;
        // In a group everybody shares the session: who is a stranger there may look, not steer.
        let shared = event.conversation.kind == ConversationKind::Group;
        let steers = |command: &Command| matches!(command, Command::New | Command::Stop | Command::Queue(Some(_)));
        let action = match command {
            Some((command, named)) if shared && role == Role::Stranger && steers(&command) => {
                let text = lang::command_not_for_strangers(lang(named));
                let reply = Reply { kind: ReplyKind::Notice, ..Reply::message(text) };
                Action::Command { parts: notice(entry, &reply, &event, &id, now), change: SessionChange::None }
            }
            Some((Command::New, _)) => {
                // A row of the queue: it takes effect between the turns before and after it.
                queue = Some(QueueMode::Followup);
                Action::Turn
            }
            Some((command, named)) => {
                let (text, change) = self.obey(&command, entry, &event, role, &session, lang(named)).await?;
                let reply = Reply { kind: ReplyKind::Notice, ..Reply::message(text) };
                Action::Command { parts: notice(entry, &reply, &event, &id, now), change }
            }
            None => Action::Turn,
        };
        let over_cap = if entry.channel.capabilities().refuse_over_cap {
            OverCap::Refuse
        } else {
            let reply = Reply { kind: ReplyKind::Notice, ..Reply::message(lang::queue_full(lang(None))) };
            let notice = || notice(entry, &reply, &event, &id, now);
            // Who did not speak to the bot is told nothing by it.
            OverCap::Collapse(event.addressed().then(notice).unwrap_or_default())
        };
        let more = event.more_expected.map_or(0, |wait| now + wait.as_millis() as i64);
        Ok(Routed::Store(Box::new(NewEntry {
            id,
            agent: entry.agent(&event.conversation).to_owned(),
            role,
            mode: queue.unwrap_or_else(|| entry.mode(self.queue.mode)),
            mode_fixed: queue.is_some(),
            not_before: more,
            hold: event.hold.then(|| self.boot.clone()),
            received_at: now,
            cap: self.queue.cap,
            over_cap,
            action,
            session,
            inbound: event,
        })))
    }

    /// The answer to a command and what it does to the session.
    async fn obey(
        &self,
        command: &Command,
        entry: &Entry,
        event: &Inbound,
        role: Role,
        session: &SessionKey,
        lang: Lang,
    ) -> Result<(String, SessionChange), IntakeError> {
        let row = || async { self.sessions.session(session).await.map_err(unavailable) };
        Ok(match command {
            Command::Help | Command::New => (lang::help(lang), SessionChange::None),
            Command::WhoAmI => {
                let text = lang::whoami(lang, &event.channel, &event.sender.id, role.as_str());
                (text, SessionChange::None)
            }
            Command::Status => {
                let row = row().await?;
                let mode = row.as_ref().and_then(|row| row.mode).unwrap_or_else(|| entry.mode(self.queue.mode));
                let running = row.as_ref().is_some_and(|row| row.running);
                let yes_no = if running { lang::yes(lang) } else { lang::no(lang) };
                let waiting = row.map_or(0, |row| row.pending);
                let text = lang::status(lang, env!("CARGO_PKG_VERSION"), session, yes_no, waiting, mode.as_str());
                (text, SessionChange::None)
            }
            Command::Stop => {
                let busy = row().await?.is_some_and(|row| row.running || row.pending > 0);
                let text = if busy { lang::stopped(lang) } else { lang::nothing_to_stop(lang) };
                (text, SessionChange::Stop)
            }
            Command::Queue(None) => {
                let mode = row().await?.and_then(|row| row.mode).unwrap_or_else(|| entry.mode(self.queue.mode));
                (lang::queue_mode_is(lang, mode.as_str()), SessionChange::None)
            }
            Command::Queue(Some(mode)) => {
                let named = mode.unwrap_or_else(|| entry.mode(self.queue.mode));
                (lang::queue_mode_set(lang, named.as_str()), SessionChange::Mode(*mode))
            }
            Command::BadQueueMode(name) => (lang::queue_mode_unknown(lang, name), SessionChange::None),
        })
    }

    /// Wakes whoever goes on after the commit, and answers the adapter.
    fn answer(&self, stored: Stored, kept: Kept) -> Accepted {
        match stored {
            Stored::New { stops, steers, lanes, collapsed, events, .. } => {
                self.journal.committed(events);
                if stops {
                    self.running.stop(&kept.session);
                }
                if steers {
                    self.running.steer(&kept.session);
                }
                if !lanes.is_empty() {
                    self.lanes.wake(lanes);
                }
                match kept.answered {
                    Some(settled) => {
                        self.journal.settled(&kept.id, &settled);
                        self.journal.look(&kept.id, &kept.session);
                    }
                    None => self.work.wake(),
                }
                debug!(entry = %kept.id, session = %kept.session, collapsed, "accepted");
                Accepted::New(kept.id)
            }
            Stored::Duplicate(id) => {
                debug!(entry = %id, "delivered again, already stored");
                Accepted::Duplicate(id)
            }
            Stored::Conflict => Accepted::Conflict,
            Stored::Full => {
                info!(session = %kept.session, "the session's queue is full, the message was refused");
                Accepted::Full(Duration::from_secs(10))
            }
        }
    }
}

/// What is needed after the commit.
struct Kept {
    id: InboxId,
    session: SessionKey,
    answered: Option<Settled>,
}

impl Kept {
    fn of(entry: &NewEntry) -> Self {
        let answered = match &entry.action {
            Action::Turn => None,
            Action::Command { parts, .. } => Some(Settled { parts: settled_parts(parts), ..Settled::default() }),
        };
        Self { id: entry.id.clone(), session: entry.session.clone(), answered }
    }
}

/// Parts as those see them who wait in place.
pub fn settled_parts(parts: &[NewPart]) -> Vec<SettledPart> {
    parts
        .iter()
        .map(|part| SettledPart {
            id: part.id.clone(),
            seq: part.seq,
            last: part.last,
            part: part.part.clone(),
            created_at: part.created_at,
        })
        .collect()
}

fn notice(entry: &Entry, reply: &Reply, event: &Inbound, id: &InboxId, now: i64) -> Vec<NewPart> {
    let answers = Answers { entry: id, platform_id: &event.platform_id };
    outbox::rows(entry.channel.as_ref(), reply, Level::Rich, &event.address, Some(answers), now)
}

fn ignored(event: &Inbound, why: IgnoredReason) -> Routed {
    debug!(channel = %event.channel, sender = %event.sender.id, why = why.as_str(), "not accepted");
    Routed::Answer(Accepted::Ignored(why))
}

fn unavailable(error: StoreError) -> IntakeError {
    warn!(%error, "a message could not be stored; its platform will deliver it again");
    IntakeError::Unavailable(error.to_string())
}

/// Token buckets of senders, in memory: a restart forgives.
#[derive(Debug, Default)]
pub struct SenderRates(Mutex<HashMap<String, (f64, Duration)>>);

impl SenderRates {
    /// The most senders remembered; the map is emptied of full buckets when it grows past this.
    const MOST: usize = 10_000;

    /// Takes one message of this sender from a bucket of `limit` a minute, or says how long to wait.
    fn take(&self, event: &Inbound, limit: u32, now: Duration) -> Option<Duration> {
        let limit = f64::from(limit.max(1));
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= Self::MOST {
            buckets.retain(|_, (tokens, at)| *tokens + (now - *at).as_secs_f64() * limit / 60.0 < limit);
        }
        let key = format!("{}\n{}", event.channel, event.sender.id);
        let (tokens, at) = buckets.entry(key).or_insert((limit, now));
        *tokens = (*tokens + (now.saturating_sub(*at)).as_secs_f64() * limit / 60.0).min(limit);
        *at = now;
        if *tokens >= 1.0 {
            *tokens -= 1.0;
            None
        } else {
            Some(Duration::from_secs_f64(((1.0 - *tokens) * 60.0 / limit).max(1.0)))
        }
    }
}
