//! Station 4, the way in: every event passes the gate, is routed to its session and committed before anyone may
//! acknowledge it. Commands that need no turn are answered here and overtake the queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use channel_api::{
    Accepted, Batch, Button, ChannelId, Clock, ConversationKind, IgnoredReason, Inbound, InboundKind, InboxId,
    Intake as IntakeSeam, IntakeError, Level, Mark, Moved, QueueMode, Reply, ReplyKind, Settled, SettledPart, Trust,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::{
    access::Admission,
    command::{Command, ModelWish, Pair, UsageWish, Word},
    pairing::{Access, AccessError, SenderRights, shown_id},
    turned_away::TurnedAway,
};
use crate::{
    approvals::{Always, Approval, Approvals, By, Decided, Decision, How, visible},
    audit::acting_as,
    channels::{self, Channels, Entry},
    config::LimitsConfig,
    halt::Halt,
    inbox::{Edits, QueueConfig, Running, WakeUp},
    journal::Journal,
    lang::{self, Lang},
    ledger::{self, Ledger},
    marks::{Marked, Marks},
    outbox::{self, Answers, LaneWakeUp},
    plan::Plans,
    policy::Role,
    session::SessionKey,
    skills::Shelf,
    store::{
        Action, Amended, Amendment, Asked, BootId, Change, Footer, InboxStore, MovedGroup, NewBatch, NewEntry,
        NewHeard, NewPairing, NewPart, OverCap, SessionChange, SessionStore, SpentAsk, SpentBy, SpentOf, StoreError,
        Stored, TurnStore, Who,
    },
    subagents::SubagentStore,
    supervisor::{self, Health},
    upkeep::Ready,
};

pub mod abuse;
pub mod access;
pub mod command;
pub mod context;
pub mod heard;
pub mod pairing;
pub mod route;
pub mod turned_away;
pub mod wake;

/// The least room in a session for what the next turn is told of changed messages.
const NOTES: u32 = 20;
/// The most rows of buttons.
const BUTTON_ROWS: usize = 8;

/// The way in.
pub struct Intake {
    /// Where messages are stored.
    pub inbox: Arc<dyn InboxStore>,
    /// For `/status`.
    pub sessions: Arc<dyn SessionStore>,
    /// For `/context`.
    pub turns: Arc<dyn TurnStore>,
    /// Whose gates and renderers are used.
    pub channels: Channels,
    /// Who was let in and who is shut out.
    pub access: Arc<Access>,
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
    /// How the channels are, for `/status`.
    pub health: Health,
    /// For `/todo`.
    pub plans: Plans,
    /// For `/status`.
    pub subagents: Arc<dyn SubagentStore>,
    /// What waits for an owner's word.
    pub approvals: Approvals,
    /// Tells watchers.
    pub journal: Journal,
    /// Marks messages.
    pub marks: Marks,
    /// Cancelled when the gateway stops: nothing more is accepted.
    pub stopping: CancellationToken,
    /// Who wrote how often.
    pub senders: SenderRates,
    /// What the gate turned away, for `doctor`.
    pub turned_away: TurnedAway,
    /// For `/usage`.
    pub ledger: Arc<Ledger>,
    /// Tells the owner who is not heard for a while; `None`: nobody is told.
    pub teller: Option<abuse::Teller>,
    /// Who was told that this is the owner's.
    pub refused: abuse::Told,
    /// The brake, and what reaches background commands.
    pub halt: Halt,
    /// The skills, whose commands `/help` names.
    pub shelf: Arc<Shelf>,
}

/// What the gate and the router made of one event.
enum Routed {
    Store(Box<NewEntry>),
    /// Kept as context of its group.
    Hear(Box<NewHeard>),
    /// A stranger asks to be let in.
    Ask(Box<NewPairing>),
    /// An earlier message was changed or deleted.
    Amend(Box<Amendment>),
    Answer(Accepted),
}

/// What one event waits for.
enum Slot {
    Answer(Accepted),
    Entry,
    Pairing,
    Amendment,
}

#[async_trait]
impl IntakeSeam for Intake {
    fn wants_files(&self, event: &Inbound) -> bool {
        let Some(entry) = self.channels.get(&event.channel) else { return false };
        let woken = (!event.mentions_us && entry.gate.wakes(event)).then(|| event.as_if_addressed());
        let event = woken.as_ref().unwrap_or(event);
        let rights = self.access.rights(&event.channel, &event.sender.id);
        matches!(entry.gate.admit(event, rights.paired, rights.blocked), Admission::Admit(_))
    }

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
            // A wake word is a mention, and so is a press of the bot's button: what comes after asks for `mentions_us` alone.
            event.mentions_us |= event.kind == InboundKind::Button;
            event.mentions_us |= self.channels.get(&event.channel).is_some_and(|entry| entry.gate.wakes(event));
        }
        // What adds nothing to the queue is let in: `/stop` is what empties it, and strangers have no place in it.
        if full && !events.iter().all(|event| self.adds_nothing(event)) {
            warn!(queued = load.queued, bytes = load.bytes, "the gateway is full, nothing more is accepted for now");
            return Err(IntakeError::Busy(Duration::from_secs(5)));
        }
        let losses = self.access.losses();
        let mut slots = Vec::with_capacity(events.len());
        let (mut entries, mut heard, mut pairings, mut amendments) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for event in events {
            slots.push(match self.route(event).await? {
                Routed::Store(entry) => {
                    entries.push(*entry);
                    Slot::Entry
                }
                Routed::Hear(context) => {
                    heard.push(*context);
                    Slot::Answer(Accepted::Ignored(IgnoredReason::NotAddressed))
                }
                Routed::Ask(pairing) => {
                    pairings.push(*pairing);
                    Slot::Pairing
                }
                Routed::Amend(amendment) => {
                    amendments.push(*amendment);
                    Slot::Amendment
                }
                Routed::Answer(answer) => Slot::Answer(answer),
            });
        }
        let cursor = match (batch.cursor, channel) {
            (Some(cursor), Some(channel)) => Some((channel, cursor)),
            (Some(_), None) => return Err(IntakeError::Unavailable("a poll position without its channel".to_owned())),
            (None, _) => None,
        };
        let mut kept = entries.iter().map(|entry| self.kept(entry)).collect::<Vec<_>>().into_iter();
        let nothing = entries.is_empty() && pairings.is_empty() && heard.is_empty() && amendments.is_empty();
        if nothing && cursor.is_none() && moved.is_empty() {
            let answer = |slot| if let Slot::Answer(answer) = slot { Some(answer) } else { None };
            return Ok(slots.into_iter().filter_map(answer).collect());
        }
        let count = entries.len();
        channel_api::crash_point!("intake.routed");
        let batch = NewBatch { entries, pairings, cursor, heard, moved, amendments };
        let mut of_entries = self.inbox.accept(batch).await.map_err(|error| {
            self.ready.store(false);
            unavailable(error)
        })?;
        channel_api::crash_point!("intake.committed");
        let mut of_others = of_entries.split_off(count.min(of_entries.len())).into_iter();
        let mut of_entries = of_entries.into_iter();
        let mut answers = Vec::with_capacity(slots.len());
        for slot in slots {
            answers.extend(match slot {
                Slot::Answer(answer) => Some(answer),
                Slot::Pairing | Slot::Amendment => of_others.next().map(|stored| self.asked(stored)),
                Slot::Entry => match of_entries.next().zip(kept.next()) {
                    Some((stored, mut kept)) => {
                        let sender = kept.sender.take();
                        let answer = self.answer(stored, kept);
                        // Whoever lost their rights between the gate and the commit: nobody else looks at this row.
                        if self.access.losses() != losses
                            && let Some(sender) = sender
                        {
                            self.look_again(&sender).await;
                        }
                        Some(answer)
                    }
                    None => None,
                },
            });
        }
        Ok(answers)
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
        let Some(entry) = self.channels.get(&event.channel) else { return true };
        if matches!(event.kind, InboundKind::Edit | InboundKind::Deleted) {
            return true;
        }
        let rights = self.access.rights(&event.channel, &event.sender.id);
        let admitted = matches!(entry.gate.admit(event, rights.paired, rights.blocked), Admission::Admit(_));
        !admitted || Command::of(event).is_some_and(|(command, _)| !command.waits_its_turn())
    }

    /// Gate, session, mode, command: everything before the commit.
    async fn route(&self, event: Inbound) -> Result<Routed, IntakeError> {
        let Some(entry) = self.channels.get(&event.channel) else {
            return Ok(Routed::Answer(Accepted::Ignored(IgnoredReason::Disabled)));
        };
        let now = self.clock.now_ms();
        let rights = self.access.rights(&event.channel, &event.sender.id);
        if matches!(event.kind, InboundKind::Edit | InboundKind::Deleted) {
            return Ok(self.amend(entry, event, rights, now));
        }
        let role = match entry.gate.admit(&event, rights.paired, rights.blocked) {
            Admission::Admit(role) => role,
            Admission::Pair => {
                return Ok(Routed::Ask(Box::new(self.access.request(entry, &event, now).map_err(unavailable)?)));
            }
            Admission::Context => {
                debug!(channel = %event.channel, sender = %event.sender.id, "not for the bot, kept as context");
                self.turned_away.remember(&event, IgnoredReason::NotAddressed, true, None, now);
                let keep = entry.gate.history(&event.conversation.id);
                let session = entry.session_of(&event);
                let context = heard::heard(&event, session, keep, now);
                return Ok(Routed::Hear(Box::new(context)));
            }
            Admission::Ignore(why) => {
                let scope = rights.blocked.then(|| self.access.block_scope(&event.channel, &event.sender.id)).flatten();
                self.turned_away.remember(&event, why, false, scope, now);
                return Ok(ignored(&event, why));
            }
        };
        if role < Role::Owner
            && let Some(paused) = self.ledger.refusals().paused(&ledger::sender_key(&event), self.clock.monotonic())
        {
            self.turned_away.remember(&event, IgnoredReason::Blocked, false, None, now);
            if let (true, Some(teller)) = (paused.new, &self.teller) {
                teller.tell(&event, paused.left, now).await;
            }
            return Ok(ignored(&event, IgnoredReason::Blocked));
        }
        if let (Some(limit), true) = (self.limits.per_sender_per_min, role < Role::Owner)
            && let Some(wait) = self.senders.take(&event, limit, self.clock.monotonic())
        {
            return Ok(Routed::Answer(Accepted::Full(wait)));
        }
        let session = entry.session_of(&event);
        let mut command = Command::of(&event);
        if command.is_none() {
            command = self.answered(&event, role, &session, now).await?.map(|word| (Command::Approve(word), None));
        }
        if event.kind == InboundKind::Button && command.is_none() {
            // Of an earlier version, or nobody's: words that no person wrote start no turn.
            return Ok(ignored(&event, IgnoredReason::NothingToAnswer));
        }
        let lang = |named: Option<Lang>| named.or_else(|| Lang::of_text(&event.text)).unwrap_or_else(Lang::current);
        let id = InboxId::generate();
        let (mut queue, mut alone) = (event.queue, false);
        // In a group everybody shares the session: who is a stranger there may look, not steer.
        let shared = event.conversation.kind == ConversationKind::Group;
        let steers = |command: &Command| {
            matches!(
                command,
                Command::New
                    | Command::Compact(_)
                    | Command::Stop
                    | Command::Queue(Some(_))
                    | Command::Model(ModelWish::Default | ModelWish::Named(_))
                    | Command::Usage(UsageWish::Below(_))
            )
        };
        let action = match command {
            Some((command, named)) if shared && role == Role::Stranger && steers(&command) => {
                let text = lang::command_not_for_strangers(lang(named));
                let reply = Reply { kind: ReplyKind::Notice, ..Reply::message(text) };
                Action::Command { parts: notice(entry, &reply, &event, &id, now), change: SessionChange::None }
            }
            Some((command, _)) if command.waits_its_turn() => {
                // A row of the queue: it takes effect between the turns before and after it.
                (queue, alone) = (Some(QueueMode::Followup), true);
                Action::Turn
            }
            Some((command, named)) => {
                let asked = Asking { entry, event: &event, role, rights, lang: lang(named) };
                let answer = self.answer_to(&command, &asked, &session).await;
                let (text, buttons, change) = answer.unwrap_or_else(|error| {
                    // Its message is accepted all the same: what cannot be read now may never be, and behind a message
                    // that is delivered again and again others would wait for ever.
                    warn!(%error, "what a command needs cannot be read");
                    let stops = command == Command::Stop;
                    let change = if stops { SessionChange::Stop } else { SessionChange::None };
                    let text = if stops { lang::stopped(asked.lang) } else { lang::command_failed(asked.lang) };
                    (text, Vec::new(), change)
                });
                let reply = Reply { kind: ReplyKind::Notice, buttons, ..Reply::message(text) };
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
            agent: entry.agent(&event.conversation, channels::sender(&event)).to_owned(),
            role,
            mode: queue.unwrap_or_else(|| entry.mode(self.queue.mode)),
            mode_fixed: queue.is_some(),
            alone,
            not_before: more,
            hold: event.hold.then(|| self.boot.clone()),
            received_at: now,
            cap: self.queue.cap,
            over_cap,
            action,
            session,
            inbound: event,
            errand: None,
        })))
    }

    /// One line a channel: how it is, when the last message came and the last answer went.
    fn channel_lines(&self, lang: Lang) -> String {
        let now = self.clock.now_ms();
        let chats = self.health.all().into_iter().filter(|(id, _)| !matches!(id.kind(), "web" | "console"));
        chats
            .map(|(id, health)| {
                let [came, went] = [health.last_in, health.last_out].map(|at| supervisor::ago(lang, now, at));
                format!("\n{}", lang::status_channel(lang, id, health.words(lang), came, went))
            })
            .collect()
    }

    /// The models that have given no answer for long, or wait for the owner to do something.
    fn model_lines(&self, lang: Lang) -> String {
        let now = self.clock.now_ms();
        let down = self.health.models().down(self.clock.monotonic());
        down.iter().map(|down| format!("\n{}", down.line(lang, now))).collect()
    }

    /// What a change or a deletion of an earlier message does: it passes the gate by its sender, and is theirs alone to
    /// make. A platform that does not say who deleted a message has checked that they might.
    fn amend(&self, entry: &Entry, event: Inbound, rights: SenderRights, now: i64) -> Routed {
        let unnamed = event.kind == InboundKind::Deleted && event.sender.id.is_empty();
        let why = match entry.gate.admit(&event, rights.paired, rights.blocked) {
            _ if unnamed => None,
            Admission::Admit(_) | Admission::Context => None,
            Admission::Pair => Some(IgnoredReason::NothingToAnswer),
            Admission::Ignore(why) => Some(why),
        };
        // Commands are said anew: what waits as a message does not become one.
        let commands = event.kind == InboundKind::Edit && Command::parse(&event.text).is_some();
        let (None, false, Some(about)) = (why, commands, event.about.clone()) else {
            return ignored(&event, why.unwrap_or(IgnoredReason::NothingToAnswer));
        };
        let annotates = self.queue.edits == Edits::Annotate;
        let group = event.conversation.kind == ConversationKind::Group;
        let keep = if group { entry.gate.history(&event.conversation.id) } else { 0 };
        let keep = if annotates { keep.max(NOTES) } else { keep };
        let heard = heard::heard(&event, entry.session_of(&event), keep, now);
        let change = match event.kind {
            InboundKind::Deleted => Change::Delete,
            _ => Change::Edit {
                note: annotates.then(|| format!("[changed an earlier message to:] {}", heard.text)),
                text: event.text,
                attachments: event.attachments,
            },
        };
        let sender = (!unnamed).then_some(event.sender.id);
        Routed::Amend(Box::new(Amendment { event: heard, about, sender, change }))
    }

    /// The answer to a command, its buttons, and what it does to the session.
    async fn answer_to(
        &self,
        command: &Command,
        asked: &Asking<'_>,
        session: &SessionKey,
    ) -> Result<(String, Vec<Vec<Button>>, SessionChange), StoreError> {
        let (text, change) = if command.is_about_access() {
            (self.decide(command, asked).await?, SessionChange::None)
        } else {
            self.obey(command, asked, session).await?
        };
        Ok((text, self.buttons(command, asked).await?, change))
    }

    /// The buttons under the answer to a command: what can be said next, in the language of the answer.
    async fn buttons(&self, command: &Command, asked: &Asking<'_>) -> Result<Vec<Vec<Button>>, StoreError> {
        let Asking { event, role, lang, .. } = *asked;
        let button = |label: String, data: String| Button { label, data };
        Ok(match command {
            Command::Queue(None) | Command::BadQueueMode(_) => {
                let modes: &[&[&str]] = match lang {
                    Lang::En => &[&["collect", "followup"], &["steer", "interrupt"], &["default"]],
                    Lang::Zh => &[&["合并", "逐条"], &["插入", "打断"], &["默认"]],
                };
                let one = |mode: &&str| button((*mode).to_owned(), lang::queue_button(lang, mode));
                modes.iter().map(|row| row.iter().map(one).collect()).collect()
            }
            Command::Pair(Pair::List)
                if role == Role::Owner
                    && event.trust == Trust::Own
                    && event.conversation.kind == ConversationKind::Direct =>
            {
                let rows = self.access.pairings().await?.pairings;
                let decide = |code: &str| {
                    vec![
                        button(lang::pairing_let_in(lang, code), lang::pairing_approve_button(lang, code)),
                        button(lang::pairing_refuse(lang, code), lang::pairing_reject_button(lang, code)),
                    ]
                };
                rows.iter().take(BUTTON_ROWS).map(|row| decide(&row.code)).collect()
            }
            _ => Vec::new(),
        })
    }

    /// The answer to a command and what it does to the session.
    async fn obey(
        &self,
        command: &Command,
        asked: &Asking<'_>,
        session: &SessionKey,
    ) -> Result<(String, SessionChange), StoreError> {
        let Asking { entry, event, role, lang, .. } = *asked;
        let row = || async { self.sessions.session(session).await };
        let skills = || self.shelf.held().help(lang).map(|line| format!("\n{line}")).unwrap_or_default();
        Ok(match command {
            Command::Help if role == Role::Owner => {
                (format!("{}\n{}{}", lang::help(lang), lang::help_owner(lang), skills()), SessionChange::None)
            }
            Command::Help if role > Role::Stranger => (lang::help(lang) + &skills(), SessionChange::None),
            Command::Help | Command::New | Command::Compact(_) | Command::Model(_) => {
                (lang::help(lang), SessionChange::None)
            }
            // The files and their sizes are the owner's.
            Command::Context if role == Role::Stranger => (lang::command_not_for_strangers(lang), SessionChange::None),
            Command::Context => {
                let last = self.turns.last_request(session).await?;
                let row = row().await?;
                (context::said(lang, last.as_ref(), row.map_or(0, |row| row.messages)), SessionChange::None)
            }
            Command::WhoAmI => {
                let text = lang::whoami(lang, &event.channel, &event.sender.id, role.as_str(), asked.why());
                (text, SessionChange::None)
            }
            Command::Status => {
                let row = row().await?;
                let mode = row.as_ref().and_then(|row| row.mode).unwrap_or_else(|| entry.mode(self.queue.mode));
                let running = row.as_ref().is_some_and(|row| row.running);
                let yes_no = if running { lang::yes(lang) } else { lang::no(lang) };
                let waiting = row.map_or(0, |row| row.pending);
                let mut text = lang::status(lang, env!("CARGO_PKG_VERSION"), session, yes_no, waiting, mode.as_str());
                let agent = entry.agent(&event.conversation, channels::sender(event));
                text.push_str(&format!("\n{}", lang::status_agent(lang, agent)));
                let subagents = self.subagents.subagents(session).await?;
                if !subagents.is_empty() {
                    let labels: Vec<&str> = subagents.iter().map(|subagent| subagent.label.as_str()).collect();
                    text.push('\n');
                    text.push_str(&lang::status_subagents(lang, labels.len(), lang.listed(labels)));
                }
                if self.halt.is_on() {
                    text.push_str(&format!("\n{}", lang::halt_said(lang)));
                }
                if role == Role::Owner {
                    text.push_str(&self.channel_lines(lang));
                    text.push_str(&self.model_lines(lang));
                }
                (text, SessionChange::None)
            }
            Command::Todo => {
                let kept = self.plans.of(session).await?;
                let plan = kept.filter(|kept| !kept.plan.items.is_empty()).map(|kept| kept.plan.for_chat());
                (plan.unwrap_or_else(|| lang::plan_none(lang)), SessionChange::None)
            }
            Command::Stop => {
                let busy = row().await?.is_some_and(|row| row.running || row.pending > 0)
                    || !self.subagents.subagents(session).await?.is_empty();
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
            Command::Usage(UsageWish::Show) => (self.usage(asked, session).await?, SessionChange::None),
            Command::Usage(UsageWish::Below(footer)) => {
                let text = match footer {
                    Footer::Off => lang::usage_below_off(lang),
                    Footer::Tokens => lang::usage_below_tokens(lang),
                    Footer::Full => lang::usage_below_full(lang),
                };
                (text, SessionChange::Footer(*footer))
            }
            Command::Usage(UsageWish::Unclear(word)) => (lang::usage_unknown(lang, word), SessionChange::None),
            Command::BadQueueMode(name) => (lang::queue_mode_unknown(lang, name), SessionChange::None),
            // Decided before, by `decide`.
            Command::Pair(_) | Command::Block(_) | Command::Unblock(_) | Command::StopAll | Command::Approve(_) => {
                (lang::owner_only(lang), SessionChange::None)
            }
        })
    }

    /// What models took and cost: in this conversation, and for the sender; an owner in a direct chat sees everybody's.
    async fn usage(&self, asked: &Asking<'_>, session: &SessionKey) -> Result<String, StoreError> {
        let Asking { event, role, lang, .. } = *asked;
        let sum = async |of: SpentOf, since: Option<String>| -> Result<String, StoreError> {
            let ask = SpentAsk { by: SpentBy::Total, of, since, until: None, limit: 1 };
            let sum = self.ledger.store().spent(&ask).await?.pop().unwrap_or_default();
            Ok(ledger::line_of(lang, sum.calls, &sum.usage, &sum.costs))
        };
        let sender = || SpentOf::Sender(ledger::sender_key(event));
        let (day, month) = (self.ledger.day(), self.ledger.month());
        let mut lines = vec![
            lang::usage_last_turn(lang, sum(SpentOf::LastTurn(session.clone()), None).await?),
            lang::usage_session(lang, sum(SpentOf::Session(session.clone()), None).await?),
            lang::usage_you_today(lang, sum(sender(), Some(day.clone())).await?),
            lang::usage_you_month(lang, sum(sender(), Some(month.clone())).await?),
        ];
        if role == Role::Owner && event.conversation.kind == ConversationKind::Direct {
            lines.push(lang::usage_all_today(lang, sum(SpentOf::All, Some(day)).await?));
            lines.push(lang::usage_all_month(lang, sum(SpentOf::All, Some(month)).await?));
        }
        Ok(lines.join("\n"))
    }

    /// Does what an owner says about who may write; the answer. Done before the commit of the command's row: everything
    /// here is the same when it is done twice, and a message that is stored already does nothing.
    async fn decide(&self, command: &Command, asked: &Asking<'_>) -> Result<String, StoreError> {
        let Asking { entry, event, role, rights, lang } = *asked;
        if role != Role::Owner || event.trust == Trust::Relayed {
            // Whoever tries on and on is told once an hour of each command: an answer each would be theirs to order.
            let which = format!("{} {:?}", ledger::sender_key(event), std::mem::discriminant(command));
            if !self.refused.first(&which, self.clock.monotonic()) {
                return Ok(String::new());
            }
            let by_pairing = rights.paired == Some(Role::Owner) && event.conversation.kind == ConversationKind::Group;
            return Ok(if by_pairing { lang::owner_only_paired(lang) } else { lang::owner_only(lang) });
        }
        if self.inbox.find(&event.channel, &event.platform_id).await?.is_some() {
            return Ok(String::new());
        }
        let by = || ledger::sender_key(event);
        let said = match command {
            Command::Pair(_) if event.conversation.kind == ConversationKind::Group => {
                Ok(lang::pairing_not_in_groups(lang))
            }
            Command::StopAll => self.stop_all(event, lang).await,
            Command::Pair(what) => acting_as(by(), self.pair(what, lang)).await,
            Command::Block(named) => acting_as(by(), self.block(named.as_deref(), entry, event, lang)).await,
            Command::Unblock(named) => acting_as(by(), self.unblock(named.as_deref(), entry, event, lang)).await,
            Command::Approve(_) if event.conversation.kind == ConversationKind::Group => {
                Ok(lang::approval_only_direct(lang))
            }
            Command::Approve(what) => Ok(self.approve(what, &entry.session_of(event), event, lang).await?),
            _ => Ok(lang::help(lang)),
        };
        said.or_else(|error| match error {
            AccessError::Locked(wait) => Ok(lang::pairing_locked(lang, wait.as_secs().div_ceil(60))),
            AccessError::NoSuchSender => Ok(lang::cli_nothing(lang)),
            AccessError::NoSuchCode => Ok(lang::pairing_ask_anew(lang)),
            AccessError::BadWho(_) => Ok(lang::block_usage(lang)),
            AccessError::Store(error) => Err(error),
        })
    }

    /// Stops whatever runs, whoever's it is.
    async fn stop_all(&self, event: &Inbound, lang: Lang) -> Result<String, AccessError> {
        // What runs ends whether or not the rows can be written.
        self.running.stop_all();
        let jobs = self.halt.end_jobs();
        let ended = self.access.end_all(&ledger::sender_key(event)).await?;
        // Also those that registered meanwhile.
        self.running.stop_all();
        info!(turns = ended.running.len(), jobs, "an owner stopped everything");
        Ok(lang::stopped_all(lang, ended.running.len(), jobs))
    }

    /// The plain answer of an owner to what they were asked in this chat: the whole message is the word, and something waits.
    async fn answered(
        &self,
        event: &Inbound,
        role: Role,
        session: &SessionKey,
        now: i64,
    ) -> Result<Option<Word>, IntakeError> {
        let Some(decision) = Decision::answered(&event.text) else { return Ok(None) };
        let plain = event.kind == InboundKind::Message && event.trust == Trust::Own && event.attachments.is_empty();
        if role != Role::Owner || event.conversation.kind == ConversationKind::Group || !plain {
            return Ok(None);
        }
        let waiting = self.waiting(session, now).await.map_err(unavailable)?;
        if waiting.is_empty() {
            return Ok(None);
        }
        if let Some(quoted) = &event.reply_to {
            // A word to something else is none; to what cannot be told, it is asked.
            return Ok(match quoted.text.as_deref().filter(|_| quoted.ours) {
                Some(text) => waiting
                    .iter()
                    .find(|row| text.contains(&row.id))
                    .map(|row| Word::Decide { id: row.id.clone(), decision }),
                None => quoted.ours.then_some(Word::Which),
            });
        }
        // The talk here went on since: it may be the answer to that.
        let talked = self.sessions.session(session).await.map_err(unavailable)?.map_or(0, |row| row.updated_at);
        let parked_here = waiting.iter().any(|row| &row.session == session);
        let plain = parked_here || waiting.iter().all(|row| talked <= row.created_at);
        Ok(Some(if plain { Word::Answer(decision) } else { Word::Which }))
    }

    /// What waits and was shown in this chat.
    async fn waiting(&self, session: &SessionKey, now: i64) -> Result<Vec<Approval>, StoreError> {
        let mut rows = self.approvals.rows.approvals(false, 200, now).await?;
        rows.retain(|row| row.shown_in.as_ref() == Some(session));
        Ok(rows)
    }

    /// Does what an owner says in a direct chat about what waits.
    async fn approve(
        &self,
        what: &Word,
        session: &SessionKey,
        event: &Inbound,
        lang: Lang,
    ) -> Result<String, StoreError> {
        let now = self.clock.now_ms();
        let list = |rows: &[Approval]| -> String {
            let one = |row: &Approval| {
                let what: String = row.what().replace('\n', " ").chars().take(120).collect();
                format!("{} · {} · {what}", row.id, row.tool)
            };
            rows.iter().map(one).collect::<Vec<_>>().join("\n")
        };
        let (id, decision) = match what {
            Word::Unclear => return Ok(lang::approval_usage(lang)),
            Word::List => {
                let rows = self.approvals.rows.approvals(false, 20, now).await?;
                return Ok(if rows.is_empty() { lang::approval_nothing(lang) } else { list(&rows) });
            }
            Word::Grants => {
                let rows = self.approvals.rows.always(20).await?;
                let one = |row: &Always| {
                    let what: String = row.what().chars().take(120).collect();
                    format!("{} · {} · {} · {what}", row.id, row.tool, visible(&row.asker))
                };
                let rows: Vec<String> = rows.iter().map(one).collect();
                return Ok(match rows.is_empty() {
                    true => lang::approval_no_grants(lang),
                    false => lang::approval_grants(lang, rows.join("\n")),
                });
            }
            Word::Revoke(id) => {
                let by = By { who: ledger::sender_key(event), how: How::Command };
                return match self.approvals.rows.revoke_always(id, &by, now).await {
                    Ok(row) => Ok(lang::approval_revoked(lang, &row.id, &row.tool)),
                    Err(StoreError::NotFound) => Ok(lang::approval_no_grant(lang, shown_id(id))),
                    Err(error) => Err(error),
                };
            }
            Word::Decide { id, decision } => (id.clone(), *decision),
            Word::Which => match &self.waiting(session, now).await?[..] {
                [] => return Ok(lang::approval_nothing(lang)),
                waiting => return Ok(lang::approval_which(lang, list(waiting))),
            },
            Word::Answer(decision) => match &self.waiting(session, now).await?[..] {
                [] => return Ok(lang::approval_nothing(lang)),
                [row] => (row.id.clone(), *decision),
                several => return Ok(lang::approval_which(lang, list(several))),
            },
        };
        let how = match (event.kind, Command::of(event)) {
            (InboundKind::Button, _) => How::Button,
            (_, Some(_)) => How::Command,
            (_, None) => How::Answer,
        };
        let by = By { who: ledger::sender_key(event), how };
        let decided = self.approvals.rows.decide_approval(&id, decision, &by, now).await;
        self.work.wake();
        Ok(match decided {
            Ok(Decided::Done(row)) if decision == Decision::Always && !row.may_always => {
                lang::approval_not_always(lang, &id)
            }
            Ok(Decided::Done(row) | Decided::Over(row)) => row.outcome(lang),
            Err(StoreError::NotFound) => lang::approval_none(lang, shown_id(&id)),
            Err(error) => return Err(error),
        })
    }

    async fn pair(&self, what: &Pair, lang: Lang) -> Result<String, AccessError> {
        let name = |sender: &str, name: Option<&str>| match name {
            Some(name) => format!("{} ({})", shown_id(name), shown_id(sender)),
            None => shown_id(sender),
        };
        let waiting = async || -> Result<String, AccessError> {
            let now = self.clock.now_ms();
            let rows = self.access.pairings().await?.pairings;
            let lines: Vec<String> = rows
                .iter()
                .map(|row| {
                    let left = (row.expires_at - now).max(0) / 60_000 + 1;
                    lang::pairing_one(lang, &row.code, name(&row.sender, row.name.as_deref()), &row.channel, left)
                })
                .collect();
            Ok(if lines.is_empty() { lang::pairing_none(lang) } else { lang::pairing_waiting(lang, lines.join("\n")) })
        };
        let done = match what {
            Pair::Unclear => return Ok(lang::pairing_usage(lang)),
            Pair::List => return waiting().await,
            Pair::Approve { code, role } => self.access.approve(None, code, *role).await.map(|done| {
                let who = name(&done.row.sender, done.row.name.as_deref());
                let (channel, role) = (&done.row.channel, done.row.role.as_str());
                match (done.again, done.first_owner) {
                    (true, _) => lang::pairing_approved_before(lang, who, channel, role),
                    (false, true) => lang::pairing_approved_first_owner(lang, who, channel),
                    (false, false) => lang::pairing_approved(lang, who, channel, role),
                }
            }),
            Pair::Reject { code } => self
                .access
                .reject(None, code)
                .await
                .map(|row| lang::pairing_rejected(lang, name(&row.sender, row.name.as_deref()), &row.channel)),
        };
        match (done, what) {
            (Err(AccessError::NoSuchCode), Pair::Approve { code, .. } | Pair::Reject { code }) => {
                Ok(format!("{}\n{}", lang::pairing_no_such_code(lang, shown_id(code)), waiting().await?))
            }
            (done, _) => done,
        }
    }

    async fn block(
        &self,
        named: Option<&str>,
        entry: &Entry,
        event: &Inbound,
        lang: Lang,
    ) -> Result<String, AccessError> {
        let who = match self.meant(named, entry, event, lang) {
            Ok(who) => who,
            Err(usage) => return Ok(usage),
        };
        let here = event.channel.as_str() == who.scope || event.channel.kind() == who.scope;
        if here && who.sender == event.sender.id {
            return Ok(lang::block_yourself(lang));
        }
        if self.access.is_owner_by_config(&who) {
            return Ok(lang::block_owner_in_chat(lang, shown_id(&who.sender)));
        }
        self.access.block(&who).await?;
        Ok(lang::blocked_now(lang, shown_id(&who.sender), &who.scope))
    }

    async fn unblock(
        &self,
        named: Option<&str>,
        entry: &Entry,
        event: &Inbound,
        lang: Lang,
    ) -> Result<String, AccessError> {
        let mut who = match self.meant(named, entry, event, lang) {
            Ok(who) => who,
            Err(usage) => return Ok(usage),
        };
        // What was blocked for the whole kind is what is meant here, too.
        let kind = Who { scope: event.channel.kind().to_owned(), sender: who.sender.clone() };
        match self.access.unblock(&who).await {
            Err(AccessError::NoSuchSender) if who.scope == event.channel.as_str() => {
                if let Err(AccessError::NoSuchSender) = self.access.unblock(&kind).await {
                    return Ok(lang::not_blocked(lang, shown_id(&who.sender)));
                }
                who = kind;
            }
            Err(AccessError::NoSuchSender) => return Ok(lang::not_blocked(lang, shown_id(&who.sender))),
            other => other?,
        }
        Ok(lang::unblocked_now(lang, shown_id(&who.sender), &who.scope))
    }

    /// Whom `/block` means: the id that was written, here unless it names a platform, or the sender of the message that is
    /// answered. `Err` says how to write it.
    fn meant(&self, named: Option<&str>, entry: &Entry, event: &Inbound, lang: Lang) -> Result<Who, String> {
        let answered = event.reply_to.as_ref().and_then(|to| to.sender_id.as_deref());
        let text = named.or(answered).ok_or_else(|| lang::block_usage(lang))?;
        if let Some(Ok(who)) = named.map(|named| self.access.who(named)) {
            return Ok(who);
        }
        if entry.gate.is_owners_own() {
            return Err(lang::block_usage_elsewhere(lang));
        }
        if !pairing::is_id(text) {
            return Err(lang::block_usage(lang));
        }
        Ok(Who { scope: event.channel.to_string(), sender: text.to_owned() })
    }

    /// Ends what was accepted of a sender who may no longer write.
    async fn look_again(&self, sender: &Sender) {
        let now = self.access.rights(&sender.channel, &sender.id);
        if now.blocked || (sender.by_pairing && now.paired.is_none()) {
            self.access.end(&sender.channel, &sender.id, !now.blocked).await;
        }
    }

    /// What the adapter hears of a stranger's request, or of a change of an earlier message.
    fn asked(&self, stored: Stored) -> Accepted {
        match stored {
            Stored::Amended(amended) => {
                match amended {
                    Amended::Replaced(entry) => debug!(%entry, "a waiting message was changed by its sender"),
                    Amended::Removed(row) => {
                        debug!(entry = %row.task, "a waiting message was deleted");
                        let rows = vec![row];
                        self.marks.committed(&rows);
                        self.journal.committed(rows);
                    }
                    Amended::Nothing => {}
                }
                Accepted::Ignored(IgnoredReason::NothingToAnswer)
            }
            Stored::Asked(Asked::New { lanes }) => {
                self.lanes.wake(lanes);
                Accepted::Paired
            }
            Stored::Asked(Asked::Again) => Accepted::Paired,
            _ => Accepted::Ignored(IgnoredReason::SenderNotAllowed),
        }
    }

    /// Wakes whoever goes on after the commit, and answers the adapter.
    fn answer(&self, stored: Stored, kept: Kept) -> Accepted {
        match stored {
            Stored::New { stops, steers, lanes, collapsed, events, children, .. } => {
                children.iter().for_each(|session| self.running.stop(session));
                self.marks.committed(&events);
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
                    None => {
                        if self.running.has(&kept.session) {
                            self.marks.tell(kept.marked, Mark::Seen);
                        }
                        self.work.wake();
                    }
                }
                debug!(entry = %kept.id, session = %kept.session, collapsed, "accepted");
                Accepted::New(kept.id)
            }
            Stored::Duplicate(id) => {
                debug!(entry = %id, "delivered again, already stored");
                Accepted::Duplicate(id)
            }
            Stored::Conflict => Accepted::Conflict,
            Stored::Asked(_) | Stored::Amended(_) => self.asked(stored),
            Stored::Full => {
                info!(session = %kept.session, "the session's queue is full, the message was refused");
                Accepted::Full(Duration::from_secs(10))
            }
        }
    }
}

/// A command with what it is judged by.
struct Asking<'a> {
    entry: &'a Entry,
    event: &'a Inbound,
    role: Role,
    rights: SenderRights,
    lang: Lang,
}

impl Asking<'_> {
    /// How the sender came to the role.
    fn why(&self) -> String {
        let listed = self.entry.gate.listed(&self.event.sender.id);
        if self.entry.gate.is_owners_own() {
            lang::role_by_token(self.lang)
        } else if self.event.trust == Trust::Relayed {
            lang::role_by_relay(self.lang)
        } else if listed == Some(self.role) {
            lang::role_by_config(self.lang)
        } else if self.rights.paired == Some(self.role) && self.event.conversation.kind == ConversationKind::Direct {
            lang::role_by_pairing(self.lang)
        } else if self.event.conversation.kind == ConversationKind::Group
            && self.entry.gate.lists_in(&self.event.conversation.id, &self.event.sender.id)
        {
            lang::role_by_group(self.lang)
        } else {
            lang::role_by_open_door(self.lang)
        }
    }
}

/// Whose message it is.
struct Sender {
    channel: ChannelId,
    id: String,
    /// Nothing but a pairing admitted it.
    by_pairing: bool,
}

/// What is needed after the commit.
struct Kept {
    id: InboxId,
    session: SessionKey,
    answered: Option<Settled>,
    /// Of what waits for a turn.
    sender: Option<Sender>,
    marked: Option<Marked>,
}

impl Intake {
    fn kept(&self, entry: &NewEntry) -> Kept {
        let inbound = &entry.inbound;
        let gate = self.channels.get(&inbound.channel).map(|entry| &entry.gate);
        let sender = matches!(entry.action, Action::Turn).then(|| Sender {
            channel: inbound.channel.clone(),
            id: inbound.sender.id.clone(),
            by_pairing: inbound.conversation.kind == ConversationKind::Direct
                && entry.role > Role::Stranger
                && gate.is_some_and(|gate| !gate.is_owners_own() && gate.listed(&inbound.sender.id).is_none()),
        });
        let answered = match &entry.action {
            Action::Turn => None,
            Action::Command { parts, .. } => Some(Settled { parts: settled_parts(parts), ..Settled::default() }),
        };
        let marked = sender.as_ref().and_then(|_| self.marks.of(&entry.id, inbound, entry.received_at));
        Kept { id: entry.id.clone(), session: entry.session.clone(), answered, sender, marked }
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
    if reply.text.is_empty() {
        return Vec::new();
    }
    let answers = Answers::message(id, &event.platform_id);
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

#[cfg(test)]
mod tests;
