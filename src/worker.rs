//! Station 6, the worker pool: claims sessions, runs one turn each, and commits how it ended.
//!
//! Claims are short transactions, the turn runs outside them, its end is commit 2. A turn that ran when the process died
//! is suspect: it runs with nothing beside it until a step of it has finished, so that only what really kills the
//! process is buried.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use channel_api::{Clock, ConversationKind, Level, Mark, Reply, ReplyKind, Said, Settled, TurnId};
use futures_util::FutureExt;
use tokio::{
    sync::watch,
    task::{Id, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, error, info, info_span, warn};

use crate::{
    agent::{Agents, Control, Ended, RunError, TurnRun, compaction, files::Sent},
    approvals::State,
    channels::Channels,
    chats::{Chats, Place},
    errand::{self, ErrandKind, TickTerms},
    halt::Halt,
    heartbeat::rows::InitiativeStore,
    inbox::{Running, WakeUp},
    intake::{command::Command, settled_parts},
    journal::Journal,
    lang::{self, Lang},
    ledger,
    live::{self, Progress, Showing},
    marks::Marks,
    outbox::{self, Answers, LaneWakeUp},
    policy::{Asker, Role},
    reply::{Outcome, Policy, ReplyTo, SilentReason},
    session::SessionKey,
    store::{
        BootId, Claim, ClaimAsk, ClaimKind, Finish, Finished, InboxEntry, InboxStore, NewPart, NextSuspect, Release,
        Released, Shown, StoreError, TurnOutcome, TurnStore,
    },
    subagents::{self, How},
    typing,
};

/// How often the queue is looked at when nothing wakes the pool.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How long a suspect runs alone when it neither ends nor finishes a step.
const ALONE: Duration = Duration::from_secs(10);
/// How long the process must have lived before a suspect with a crash against it is tried again: what kills from outside
/// every moment must not bury the innocent.
const PROOF: Duration = Duration::from_secs(5);
/// How long nothing new is begun so that what runs may end before such a try, and the pause when it did not.
const PATIENCE: Duration = Duration::from_secs(10);
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// The most sessions of one claim.
const MOST_AT_ONCE: usize = 64;
/// How long a message waits for a provider that asks to wait before its tries count.
const PATIENT_MS: i64 = 60 * 60 * 1000;
/// The same alert is sent once in this time. openclaw-parity.md §1.6.
const SAME_ALERT_MS: i64 = 24 * 60 * 60 * 1000;
/// What a tick says that found nothing, where that is shown.
const HEARTBEAT_OK: &str = "HEARTBEAT_OK";
/// The pauses after the first, second, … retryable failure of one turn.
const FAILURE_PAUSES_MS: [i64; 4] = [1_000, 5_000, 20_000, 60_000];

/// The pool.
pub struct Worker {
    /// The queue.
    pub inbox: Arc<dyn InboxStore>,
    /// What ticks have said.
    pub alerts: Arc<dyn InitiativeStore>,
    /// Where previews are kept.
    pub previews: Arc<dyn TurnStore>,
    /// Who does the thinking.
    pub agents: Agents,
    /// Whose renderers are used.
    pub channels: Channels,
    /// What whoever an errand is done for may do now.
    pub chats: Chats,
    /// Wakes the pool.
    pub work: WakeUp,
    /// Wakes delivery.
    pub lanes: LaneWakeUp,
    /// Reaches running turns.
    pub running: Running,
    /// Tells watchers.
    pub journal: Journal,
    /// Marks messages.
    pub marks: Marks,
    /// The brake.
    pub halt: Halt,
    /// This process.
    pub boot: BootId,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The most turns at once.
    pub turns: usize,
    /// The most entries of one turn.
    pub cap: u32,
    /// Gathers what arrives while a turn runs, in milliseconds.
    pub debounce_ms: i64,
    /// Silence is honoured in direct chats too.
    pub silent_everywhere: bool,
}

/// What the dispatcher knows of a suspect that runs alone.
struct Alone {
    task: Id,
    cleared: watch::Receiver<bool>,
    since: Duration,
}

/// Whose turns are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Suspects that nothing speaks against yet, one after another, each when the one before it has shown itself harmless.
    Suspects,
    /// In the same way those that a crash was counted against.
    Feared,
    /// All others, side by side.
    Ordinary,
}

impl Worker {
    /// Claims and runs turns until `stopping` is cancelled, then waits for those that run. `drained` stops them at their
    /// next step boundary.
    pub async fn run(self: Arc<Self>, stopping: CancellationToken, drained: CancellationToken) {
        let mut tasks: JoinSet<()> = JoinSet::new();
        let mut alone: Option<Alone> = None;
        // Whether sessions may be due that were not looked for yet, and when to look if nothing wakes the pool.
        let (mut look, mut look_at) = (true, Duration::ZERO);
        let mut phase = Phase::Suspects;
        let mut suspects_left = true;
        let proved = self.clock.monotonic() + PROOF;
        let mut next_try = proved;
        // When suspects are asked for again that waited behind a turn of their session.
        let mut ask_again: Option<Duration> = None;
        while !stopping.is_cancelled() {
            let now = self.clock.monotonic();
            if alone.as_ref().is_some_and(|alone| *alone.cleared.borrow() || now >= alone.since + ALONE) {
                alone = None;
            }
            if ask_again.is_some_and(|at| now >= at) {
                (suspects_left, next_try) = self.next_suspect(now, proved).await;
                ask_again = (!suspects_left).then_some(next_try);
            }
            if phase == Phase::Ordinary && suspects_left && now >= next_try {
                if tasks.is_empty() {
                    phase = Phase::Suspects;
                } else if now >= next_try + PATIENCE {
                    next_try = now + TRY_AGAIN;
                }
            }
            let kind = match phase {
                _ if alone.is_some() => None,
                _ if self.halt.is_on() => None,
                Phase::Suspects => Some((ClaimKind::Suspect, 1)),
                Phase::Feared => Some((ClaimKind::Feared, 1)),
                Phase::Ordinary if suspects_left && now >= next_try => None,
                Phase::Ordinary if !look => None,
                Phase::Ordinary => Some((ClaimKind::Ordinary, self.turns.saturating_sub(tasks.len()))),
            };
            let claims = match kind {
                Some((kind, max)) if max > 0 => self.claim(kind, max as u32).await,
                _ => Vec::new(),
            };
            if kind.is_some_and(|(kind, _)| kind != ClaimKind::Ordinary) && claims.is_empty() {
                if phase == Phase::Suspects && now >= proved {
                    phase = Phase::Feared;
                    continue;
                }
                (suspects_left, next_try) = self.next_suspect(now, proved).await;
                ask_again = (!suspects_left).then_some(next_try);
                phase = Phase::Ordinary;
                look = true;
                continue;
            }
            // A claim that gave all it was asked for may have left some; without a free worker the look is owed.
            let max = kind.map_or(0, |(_, max)| max);
            if max > 0 {
                look = claims.len() >= max.min(MOST_AT_ONCE);
                look_at = now + if claims.is_empty() { self.next_due().await } else { LOOK_AROUND };
            }
            let full = claims.len() >= MOST_AT_ONCE;
            for claim in claims {
                let (clear, cleared) = watch::channel(!claim.suspect);
                let suspect = claim.suspect;
                let task = tasks.spawn(Arc::clone(&self).turn(claim, clear, drained.clone()));
                if suspect {
                    alone = Some(Alone { task: task.id(), cleared, since: now });
                }
            }
            if full {
                continue;
            }
            let wait = match &alone {
                Some(alone) => (alone.since + ALONE).saturating_sub(now),
                None if phase == Phase::Ordinary && suspects_left => LOOK_AROUND.min(look_at.saturating_sub(now)),
                None => look_at.saturating_sub(now),
            };
            // What is due then was due before: nobody looks until work goes on.
            let wait = if self.halt.is_on() { LOOK_AROUND } else { wait };
            tokio::select! {
                // A wake-up that came during the query is kept for this wait.
                () = self.work.woken() => look = true,
                Some(ended) = tasks.join_next_with_id() => {
                    // What waits in the session of a turn that ended has a wake-up of its own.
                    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    if alone.as_ref().is_some_and(|alone| alone.task == id) {
                        (alone, look) = (None, true);
                    }
                }
                () = cleared(alone.as_mut()) => look = true,
                () = self.clock.sleep(wait) => look = true,
                () = stopping.cancelled() => {}
            }
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                error!(%error, "a turn ended unexpectedly while the gateway was stopping");
            }
        }
    }

    async fn claim(&self, kind: ClaimKind, max: u32) -> Vec<Claim> {
        let ask = ClaimAsk {
            boot: self.boot.clone(),
            now: self.clock.now_ms(),
            max: max.min(MOST_AT_ONCE as u32),
            max_entries: self.cap,
            kind,
        };
        channel_api::crash_point!("claim.asked");
        match self.inbox.claim(&ask).await {
            Ok(claims) => {
                if !claims.is_empty() {
                    channel_api::crash_point!("claim.done");
                }
                claims
            }
            Err(error) => {
                warn!(%error, "the queue could not be claimed from");
                Vec::new()
            }
        }
    }

    /// Whether a suspect can be tried, and when; or else when to ask again.
    async fn next_suspect(&self, now: Duration, proved: Duration) -> (bool, Duration) {
        match self.inbox.next_suspect().await {
            Ok(NextSuspect::Due(due)) => {
                let wait = Duration::from_millis((due - self.clock.now_ms()).max(100) as u64);
                (true, proved.max(now + wait))
            }
            Ok(NextSuspect::Behind) => (false, now + LOOK_AROUND),
            Ok(NextSuspect::None) => (false, Duration::MAX),
            Err(error) => {
                warn!(%error, "the queue could not be read");
                (false, now + LOOK_AROUND)
            }
        }
    }

    async fn next_due(&self) -> Duration {
        let now = self.clock.now_ms();
        match self.inbox.next_due(now).await {
            Ok(Some(due)) => Duration::from_millis((due - now).max(1) as u64).min(LOOK_AROUND),
            Ok(None) => LOOK_AROUND,
            Err(error) => {
                warn!(%error, "the queue could not be read");
                LOOK_AROUND
            }
        }
    }

    /// One claimed turn, from claim to commit 2.
    async fn turn(self: Arc<Self>, mut claim: Claim, clear: watch::Sender<bool>, drained: CancellationToken) {
        let span = info_span!("turn", turn = %claim.lease.turn, session = %claim.lease.session);
        async {
            let handle = self.running.begin(&claim.lease.session);
            let may = self.with_rights_of_now(&mut claim);
            self.marks.committed(&claim.events);
            self.journal.committed(claim.events.clone());
            self.mark(claim.entries.last(), Mark::Working);
            for entry in &claim.entries {
                self.journal.tell(&entry.id, channel_api::LiveEvent::Started);
            }
            channel_api::crash_point!("turn.begun");
            // Ends with this turn: its parts are committed then.
            let mut typing = JoinSet::new();
            if let Some(shows) = self.typing(&claim, clear.subscribe()) {
                typing.spawn(shows);
            }
            let live = self.live(&claim);
            let (session, steer) = (claim.lease.session.clone(), Arc::clone(&handle.steer));
            let control = Control { stop: handle.stop, steer: handle.steer, drained, clear, halt: self.halt.clone() };
            let run = match may {
                true => AssertUnwindSafe(self.agents.run(&claim, &control)).catch_unwind().await,
                false => Ok(Ok(TurnRun::stopped(&claim))),
            };
            // Before commit 2: no update may overtake the answer.
            let shown = match live {
                Some(live) => live.end().await,
                None => claim.shown.clone(),
            };
            match run {
                Ok(Ok(run)) => self.finish(claim, run, shown).await,
                Ok(Err(RunError::Fenced)) => {
                    debug!("the claim was taken over; nothing is written");
                    self.running.end_fenced(&session, &steer);
                }
                Ok(Err(RunError::Parked { approval, until })) => self.park(claim, &approval, until).await,
                Ok(Err(RunError::Drained)) => self.release(claim, None, Duration::ZERO, shown).await,
                Ok(Err(RunError::Retry(why, wait))) => self.release(claim, Some(why), wait, shown).await,
                Err(_) => {
                    error!("the turn panicked");
                    let why = "the turn panicked; see the log".to_owned();
                    self.release(claim, Some(why), Duration::ZERO, shown).await;
                }
            }
        }
        .instrument(span)
        .await;
    }

    /// Gives errands no more than whoever they are done for may do now: rights may have ended since they were queued, and a
    /// turn that ended just then may have queued one. False when they may do nothing any more.
    fn with_rights_of_now(&self, claim: &mut Claim) -> bool {
        for entry in &mut claim.entries {
            if entry.errand.is_none() || errand::is_programs(&entry.inbound.sender) {
                continue;
            }
            let place = Place {
                conversation: entry.inbound.conversation.clone(),
                address: entry.inbound.address.clone(),
                sender: entry.inbound.sender.clone(),
            };
            match self.chats.role(&place) {
                Ok(role) => entry.role = entry.role.min(role),
                Err(why) => {
                    info!(entry = %entry.id, ?why, "an errand is not done: who it is for may not write any more");
                    return false;
                }
            }
        }
        true
    }

    /// Shows that an answer is being written, where the platform can and somebody waits for one.
    fn typing(&self, claim: &Claim, steps: watch::Receiver<bool>) -> Option<impl Future<Output = ()> + use<>> {
        let newest = claim.entries.last().filter(|entry| !subagents::reports(entry.errand.as_ref()))?;
        let addressed = claim.entries.iter().any(|entry| entry.inbound.addressed());
        let entry = self.channels.get(&newest.inbound.channel)?;
        let quiet = Command::of(&newest.inbound).is_some() || is_quiet(newest);
        if !addressed || !entry.channel.capabilities().typing || quiet {
            return None;
        }
        let to = newest.inbound.address.clone();
        Some(typing::show(Arc::clone(&entry.channel), to, Arc::clone(&self.clock), steps))
    }

    /// Shows the answer while it is written, where the platform can and somebody waits for it.
    fn live(&self, claim: &Claim) -> Option<Progress> {
        let newest = claim.entries.last().filter(|entry| !subagents::reports(entry.errand.as_ref()))?;
        let inbound = &newest.inbound;
        let addressed = claim.entries.iter().any(|entry| entry.inbound.addressed());
        // Whoever waits in place has the answer there.
        if !addressed || inbound.hold || Command::of(inbound).is_some() || is_quiet(newest) {
            return None;
        }
        let to = claim.shown.as_ref().map_or(&inbound.address, |shown| &shown.to);
        let channel = &self.channels.get(&to.channel)?.channel;
        let pace = Showing::pace(channel.as_ref(), to)?;
        // What waited in the queue is answered soon now; what was tried before has kept its sender waiting.
        let tried = claim.entries.iter().filter(|entry| entry.attempts > 0);
        let asked_at = tried.map(|entry| entry.received_at).min().unwrap_or(i64::MAX);
        let events = Some(self.journal.wait_for(&newest.id));
        let showing = Showing {
            channel: Arc::clone(channel),
            to: to.clone(),
            line: lang::still_working(Lang::of_text(&inbound.text).unwrap_or_else(Lang::current)),
            clock: Arc::clone(&self.clock),
            turns: Arc::clone(&self.previews),
            lease: claim.lease.clone(),
            shown: claim.shown.clone(),
            waited: Duration::from_millis(u64::try_from(self.clock.now_ms().saturating_sub(asked_at)).unwrap_or(0)),
        };
        Some(showing.start(pace, events))
    }

    fn mark<'a>(&self, entries: impl IntoIterator<Item = &'a InboxEntry>, mark: Mark) {
        for entry in entries {
            if Command::of(&entry.inbound).is_none() && entry.errand.is_none() {
                self.marks.tell(self.marks.of(&entry.id, &entry.inbound, entry.received_at), mark);
            }
        }
    }

    /// Takes a turn's preview away and forgets it.
    async fn take_away(&self, turn: &TurnId, shown: &Shown) {
        if let Some(entry) = self.channels.get(&shown.to.channel) {
            live::take_away(entry.channel.as_ref(), &shown.to, &shown.preview, self.clock.as_ref()).await;
        }
        if let Err(error) = self.previews.forget_preview(turn).await {
            warn!(%error, "a preview that is gone could not be forgotten");
        }
    }

    /// Commit 2, and everything it wakes.
    async fn finish(&self, claim: Claim, run: TurnRun, shown: Option<Shown>) {
        let Claim { lease, agent, choice, .. } = claim;
        let Some(answered) = run.entries.last() else { return };
        let files = self.files(&agent, &lease.session, &run).await;
        let mut notes = run.notes.clone();
        notes.extend(files.notes.iter().cloned());
        let tick = answered.errand.as_ref().and_then(|errand| errand.tick);
        let (outcome, mut reply) = match &tick {
            Some(terms) => self.tick_outcome(&run, answered, terms, &lease.session, files).await,
            None => self.outcome(&run, answered, files),
        };
        // A tick that says nothing has not been.
        let said_ok = matches!(&reply, Some(reply) if reply.text == HEARTBEAT_OK);
        let traceless = tick.is_some() && (said_ok || !matches!(outcome, TurnOutcome::Replied));
        let lang = Lang::of_text(&answered.inbound.text).unwrap_or_else(Lang::current);
        // The same alert has the same words.
        if tick.is_none()
            && let (Some(reply), Ended::Answer(_), TurnOutcome::Replied) = (&mut reply, &run.ended, &outcome)
            && let Some(below) = ledger::below(choice.footer, lang, &run.usage, &run.costs)
        {
            reply.text = format!("{}\n\n{below}", reply.text);
        }
        let how = match (&outcome, &run.ended) {
            (TurnOutcome::Stopped, _) => How::Stopped,
            (_, Ended::Failed(why)) => How::Failed(lang.of(why)),
            (TurnOutcome::Failed(line), _) => How::Failed(line),
            (_, Ended::Answer(text) | Ended::Notice(text)) => How::Said(text),
            (_, Ended::Silent(_)) => How::Said(""),
            (_, Ended::Stopped) => How::Stopped,
        };
        let handback = subagents::handback(answered, &lease.session, how, self.clock.now_ms());
        // Whoever gave the work hears of it, and nobody else.
        let reply = if handback.is_some() { None } else { reply };
        let gives = handback.is_some();
        let mut parts = match (&reply, self.channels.get(&answered.inbound.channel)) {
            (Some(reply), Some(entry)) => {
                // No platform knows an errand.
                let platform_id = answered.errand.is_none().then_some(answered.inbound.platform_id.as_str());
                let answers = Answers { entry: &answered.id, platform_id };
                let to = &answered.inbound.address;
                outbox::rows(entry.channel.as_ref(), reply, Level::Rich, to, Some(answers), self.clock.now_ms())
            }
            _ => Vec::new(),
        };
        if answered.errand.is_some() {
            // No message of the platform's has that id.
            parts.iter_mut().for_each(|part| part.in_reply_to = None);
        }
        let left = shown.filter(|shown| !replaced(&mut parts, shown));
        let mark = match &outcome {
            // Nothing else says that it was heard.
            TurnOutcome::Silent(_) => Mark::Done,
            TurnOutcome::Failed(_) => Mark::Failed,
            // The answer says it.
            TurnOutcome::Replied | TurnOutcome::Stopped => Mark::None,
        };
        let settled = Settled {
            parts: settled_parts(&parts),
            silent: match &outcome {
                TurnOutcome::Silent(why) => Some(why.clone()),
                TurnOutcome::Stopped => Some("stopped".to_owned()),
                _ => None,
            },
            failed: match (&outcome, &run.ended) {
                (TurnOutcome::Failed(_), Ended::Failed(why)) => Some(lang.of(why).to_owned()),
                (TurnOutcome::Failed(why), _) => Some(why.clone()),
                _ => None,
            },
            merged_into: None,
        };
        let finish = Finish {
            lease,
            entries: run.entries.iter().map(|entry| entry.id.clone()).collect(),
            outcome,
            transcript: if traceless { Vec::new() } else { run.transcript },
            steps: run.steps,
            parts,
            new_generation: run.new_generation,
            summary: run.summary,
            then: run.then.map(|order| compaction::row(order, self.clock.now_ms(), self.cap)),
            usage: run.usage,
            costs: run.costs,
            model: run.model,
            notes,
            now: self.clock.now_ms(),
            debounce_ms: self.debounce_ms,
            claim_parts: true,
            handback,
            preview_left: left.is_some(),
            traceless,
        };
        channel_api::crash_point!("answer.rendered");
        let (session, turn) = (finish.lease.session.clone(), finish.lease.turn.clone());
        let finished = self.commit("finish", || self.inbox.finish(finish.clone())).await;
        channel_api::crash_point!("finish.done");
        self.running.end(&session);
        let Some(Finished { lanes, sending, events, more, children, .. }) = finished else { return };
        children.iter().for_each(|session| self.running.stop(session));
        self.lanes.send(sending);
        if !lanes.is_empty() {
            self.lanes.wake(lanes);
        }
        self.journal.committed(events);
        for entry in run.entries.iter().rev().skip(1) {
            let merged = Settled { merged_into: Some(answered.id.clone()), ..Settled::default() };
            self.journal.settled(&entry.id, &merged);
        }
        self.journal.settled(&answered.id, &settled);
        self.mark(run.entries.iter().rev().skip(1), Mark::None);
        self.mark([answered], mark);
        channel_api::crash_point!("finish.told");
        if more || gives {
            self.work.wake();
        }
        info!(entry = %answered.id, entries = run.entries.len(), outcome = ?finish_name(&settled), "turn done");
        if let Some(shown) = &left {
            self.take_away(&turn, shown).await;
        }
    }

    /// The files of the answer, kept before it is committed.
    async fn files(&self, agent: &str, session: &SessionKey, run: &TurnRun) -> Sent {
        let (Ended::Answer(raw), Some(agent)) = (&run.ended, self.agents.get(agent)) else { return Sent::default() };
        let Outcome::Reply(answer) = Outcome::from_text(raw, &Policy::default()) else { return Sent::default() };
        if run.entries.iter().any(|entry| subagents::reports(entry.errand.as_ref())) {
            return Sent::default();
        }
        let role = run.entries.iter().map(|entry| entry.role).min().unwrap_or(Role::Stranger);
        let group = |entry: &InboxEntry| entry.inbound.conversation.kind == ConversationKind::Group;
        let asker = Asker { role, direct: !run.entries.iter().any(group) };
        agent.sent(session, asker, &answer).await
    }

    /// What is said of a heartbeat or a wake: an alert, once a day.
    async fn tick_outcome(
        &self,
        run: &TurnRun,
        answered: &InboxEntry,
        terms: &TickTerms,
        session: &SessionKey,
        files: Sent,
    ) -> (TurnOutcome, Option<Reply>) {
        let silent = |why: &str| (TurnOutcome::Silent(why.to_owned()), None);
        let Ended::Answer(raw) = &run.ended else { return self.outcome(run, answered, files) };
        let policy = Policy { heartbeat: true, ack_max_chars: terms.ack_max_chars, may_be_silent: true };
        match Outcome::from_parts(raw, !files.attachments.is_empty(), &policy) {
            Outcome::Silent(SilentReason::HeartbeatOk) if terms.show_ok => {
                (TurnOutcome::Replied, Some(Reply::message(HEARTBEAT_OK)))
            }
            Outcome::Silent(why) => silent(why.as_str()),
            Outcome::Reply(_) if !terms.show_alerts => silent("alerts-disabled"),
            Outcome::Reply(text) => {
                let after = self.clock.now_ms() - SAME_ALERT_MS;
                let last = self.alerts.last_alert(session, after).await.unwrap_or_else(|error| {
                    warn!(%error, "the last alert could not be read");
                    None
                });
                if files.attachments.is_empty() && last.is_some_and(|last| last == text.text) {
                    return silent("duplicate");
                }
                (TurnOutcome::Replied, Some(Reply { attachments: files.attachments, ..Reply::message(text.text) }))
            }
        }
    }

    /// What the person gets.
    fn outcome(&self, run: &TurnRun, answered: &InboxEntry, files: Sent) -> (TurnOutcome, Option<Reply>) {
        let inbound = &answered.inbound;
        // A group that did not speak to the bot sees nothing of its troubles.
        let addressed = run.entries.iter().any(|entry| entry.inbound.addressed());
        match &run.ended {
            Ended::Stopped => (TurnOutcome::Stopped, None),
            Ended::Silent(why) => (TurnOutcome::Silent((*why).to_owned()), None),
            Ended::Failed(why) if !addressed || is_unasked(answered) => (failed(why), None),
            Ended::Failed(why) => {
                let lang = Lang::of_text(&inbound.text).unwrap_or_else(Lang::current);
                let said = reported(lang::turn_failed(lang, lang.of(why)), run);
                (failed(why), Some(Reply::error(said)))
            }
            Ended::Notice(text) => {
                let reply = Reply { kind: ReplyKind::Notice, ..Reply::message(text) };
                (TurnOutcome::Replied, Some(reply))
            }
            Ended::Answer(raw) => {
                let group = inbound.conversation.kind == channel_api::ConversationKind::Group;
                let policy = Policy {
                    may_be_silent: group || self.silent_everywhere || !run.said_here.is_empty(),
                    ..Policy::default()
                };
                let outcome = Outcome::from_text(raw, &policy);
                if addressed && outcome.wants_answer(&policy) {
                    let lang = Lang::of_text(&inbound.text).unwrap_or_else(Lang::current);
                    let why = lang::both(lang::turn_empty);
                    return (failed(&why), Some(Reply::error(lang::turn_failed(lang, lang.of(&why)))));
                }
                match outcome {
                    Outcome::Silent(why) => (TurnOutcome::Silent(why.as_str().to_owned()), None),
                    Outcome::Reply(text)
                        if text.media.is_empty() && run.said_here.iter().any(|said| same_words(said, &text.text)) =>
                    {
                        (TurnOutcome::Silent("already_sent".to_owned()), None)
                    }
                    Outcome::Reply(text) => {
                        let quote = match text.reply_to {
                            ReplyTo::Auto => None,
                            ReplyTo::Current => Some(inbound.platform_id.clone()),
                            ReplyTo::Id(id) => Some(id),
                        };
                        let attachments = files.attachments;
                        let mut words = text.text;
                        // Nothing is left of the answer: who waits for it is told.
                        if words.is_empty() && attachments.is_empty() && addressed {
                            words =
                                lang::turn_file_not_sent(Lang::of_text(&inbound.text).unwrap_or_else(Lang::current));
                        }
                        let words = reported(words, run);
                        (TurnOutcome::Replied, Some(Reply { quote, attachments, ..Reply::message(words) }))
                    }
                }
            }
        }
    }

    /// Holds the session of a turn until an owner has answered, and frees the worker. What it shows stays.
    async fn park(&self, claim: Claim, approval: &str, until: i64) {
        let Claim { lease, agent, .. } = claim;
        self.commit("park", || self.inbox.park(&lease, until)).await;
        self.running.end(&lease.session);
        // An answer that came before the parking found nothing to end.
        let row = match self.agents.get(&agent) {
            Some(agent) => agent.approvals.rows.approval(approval).await.ok().flatten(),
            None => None,
        };
        if row.is_none_or(|row| row.state != State::Pending) {
            self.commit("unpark", || self.inbox.unpark(&lease.session)).await;
        }
        self.work.wake();
    }

    /// Gives a turn back: a drain, or a failure that may pass.
    async fn release(&self, claim: Claim, failure: Option<String>, asked_wait: Duration, shown: Option<Shown>) {
        let Claim { lease, entries, .. } = claim;
        let now = self.clock.now_ms();
        let attempts = entries.iter().map(|entry| entry.attempts).max().unwrap_or(0);
        let pause = FAILURE_PAUSES_MS.get(attempts as usize).or(FAILURE_PAUSES_MS.last()).copied().unwrap_or(0);
        let pause = channel_api::pause_point!("turn.pause", pause);
        let mut apology = if failure.is_some() { self.apology(&entries, now) } else { Vec::new() };
        let left = shown.filter(|shown| !replaced(&mut apology, shown));
        if let Some(why) = &failure {
            warn!(%why, attempts, "the turn failed and waits for another try");
        }
        // A provider that asks to wait is no fault of the message, for an hour.
        let oldest = entries.first().map_or(now, |entry| entry.received_at);
        let counted = failure.clone().filter(|_| asked_wait.is_zero() || now - oldest > PATIENT_MS);
        let release = Release {
            lease,
            entries: entries.iter().map(|entry| entry.id.clone()).collect(),
            not_before: if failure.is_some() { now + pause.max(asked_wait.as_millis() as i64) } else { 0 },
            apology: apology.clone(),
            failure: counted,
            now,
        };
        let (session, turn) = (release.lease.session.clone(), release.lease.turn.clone());
        let released = self.commit("release", || self.inbox.release(release.clone())).await;
        self.running.end(&session);
        if let Some(Released::Dead { lanes, events }) = released {
            self.mark(&entries, Mark::Failed);
            error!(why = failure.as_deref(), "a message became a dead letter: see `crawfish dlq list`");
            self.lanes.wake(lanes);
            self.journal.committed(events);
            let settled = Settled { parts: settled_parts(&apology), failed: failure, ..Settled::default() };
            for entry in &entries {
                self.journal.settled(&entry.id, &settled);
            }
            self.work.wake();
            if let Some(shown) = &left {
                self.take_away(&turn, shown).await;
            }
            return;
        }
        self.work.wake();
    }

    fn apology(&self, entries: &[InboxEntry], now: i64) -> Vec<NewPart> {
        // Of a tick or a hook nobody waits for a word: its status says what became of it. Of what reports, its giver hears.
        let told = entries.iter().rev().find(|entry| entry.inbound.addressed() && !is_unasked(entry));
        let told = told.filter(|entry| !subagents::reports(entry.errand.as_ref()));
        told.map_or_else(Vec::new, |entry| self.channels.apology(&entry.id, &entry.inbound, now))
    }

    /// Commits the end of a turn; tries until the store takes it, for the work is done and paid for.
    async fn commit<T, F>(&self, what: &'static str, write: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut wait = Duration::from_millis(100);
        loop {
            match write().await {
                Ok(done) => return Some(done),
                Err(StoreError::Unavailable(why)) => {
                    warn!(%why, what, "the end of a turn could not be stored yet");
                    self.clock.sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(5));
                }
                Err(error) => {
                    warn!(%error, what, "the end of a turn was not stored");
                    return None;
                }
            }
        }
    }
}

/// Whether nobody is to see that the turn runs: it answers no one who waits.
fn is_quiet(entry: &InboxEntry) -> bool {
    entry.errand.is_some()
}

/// A failed turn as it is kept: the owner reads it in the gateway's lists, so in the gateway's language.
fn failed(why: &Said) -> TurnOutcome {
    TurnOutcome::Failed(Lang::current().of(why).to_owned())
}

/// Nobody asked for it in a chat.
fn is_unasked(entry: &InboxEntry) -> bool {
    let kind = entry.errand.as_ref().map(|errand| errand.kind);
    matches!(kind, Some(ErrandKind::Heartbeat | ErrandKind::Wake | ErrandKind::Hook))
}

/// Whether these parts say what the preview was for: the first of them takes its place, where it does not vanish by
/// itself.
fn replaced(parts: &mut [NewPart], shown: &Shown) -> bool {
    let Some(first) = parts.first_mut() else { return false };
    let there = first.to.channel == shown.to.channel && first.to.lane == shown.to.lane;
    if there && shown.preview.replaced {
        first.replaces = Some(shown.preview.id.clone());
    }
    there
}

/// Whether both say the same, however they are broken into lines.
fn same_words(a: &str, b: &str) -> bool {
    a.split_whitespace().eq(b.split_whitespace())
}

/// The last word of a turn with what its journal says below it.
fn reported(words: String, run: &TurnRun) -> String {
    match &run.report {
        Some(report) if words.trim().is_empty() => report.clone(),
        Some(report) => format!("{}\n\n{report}", words.trim_end()),
        None => words,
    }
}

async fn cleared(alone: Option<&mut Alone>) {
    match alone {
        Some(alone) => {
            let _ = alone.cleared.wait_for(|cleared| *cleared).await;
        }
        None => std::future::pending().await,
    }
}

fn finish_name(settled: &Settled) -> &'static str {
    match settled {
        Settled { failed: Some(_), .. } => "failed",
        Settled { silent: Some(_), .. } => "silent",
        _ => "replied",
    }
}
