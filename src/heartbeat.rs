//! The heartbeat: at regular times the agent looks around by itself and speaks only when something needs attention; and
//! wakes, words of programs that it looks at the same way.
//!
//! A tick is an errand in the queue, kept with its slot in one transaction, so that neither a crash nor a second process
//! runs it twice, and a machine that slept has one tick and not forty. A tick and a wake are never one turn: what a
//! program says is read with a program's rights, not with the owner's.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use channel_api::{Clock, Sender, Trust};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::{
    rows::{Given, HookRow, InitiativeStore, Tick},
    tick::{HeartbeatConfig, Moment, Skip, Target, TickSession, decide, slot, slot_end},
};
use crate::{
    chats::{Barred, ChatRow, Chats, Place, web_chat},
    errand::{Errand, ErrandKind, Order, PROGRAM, TickTerms},
    inbox::WakeUp,
    lang::Lang,
    policy::Role,
    reply::effectively_empty_heartbeat,
    schedule::when::Span,
    session::SessionKey,
    store::{SessionStore, StoreError},
    workspace::{self, Content},
};

pub mod rows;
pub mod tick;

/// The file that says what a tick looks at.
const FILE: &str = "HEARTBEAT.md";
/// The most of it that is looked at.
/// How often everything is looked at when nothing is due: the fallback for a wake-up or a clock that was set.
const LOOK_AROUND: Duration = Duration::from_secs(30);
/// The pause before a busy session is looked at again. openclaw-parity.md §1.6.
const BUSY: Duration = Duration::from_secs(1);
/// Wakes that come within this time are one turn. openclaw-parity.md §1.6.
const GATHER_MS: i64 = 250;
/// The most turns for wakes within [`FLOOD`], and the most wakes of one. openclaw-parity.md §1.7.
const WAKES: usize = 5;
const FLOOD: Duration = Duration::from_secs(60);
const WAKES_OF_TURN: u32 = 20;

/// An agent that is looked after.
#[derive(Clone, Debug)]
pub struct Beat {
    /// Its id.
    pub agent: String,
    /// Its settings.
    pub config: HeartbeatConfig,
    /// Its workspace.
    pub workspace: PathBuf,
    /// Its rules' language.
    pub lang: Lang,
}

/// The agents of this configuration: those that tick, and the others for wakes alone.
pub fn beats(config: &HeartbeatConfig, agents: &BTreeMap<String, PathBuf>, lang: Lang) -> Vec<Beat> {
    let ticking: BTreeMap<String, HeartbeatConfig> = config.ticking().into_iter().collect();
    agents
        .iter()
        .map(|(agent, workspace)| {
            let silent = || HeartbeatConfig { every: Span::default(), ..config.clone() };
            let config = ticking.get(agent).cloned().unwrap_or_else(silent);
            Beat { agent: agent.clone(), config, workspace: workspace.clone(), lang }
        })
        .collect()
}

/// Ticks and wakes.
pub struct Heartbeat {
    /// The brake: nothing is begun while it is on.
    pub halt: crate::halt::Halt,
    /// Whose.
    pub beats: Vec<Beat>,
    /// What a program's word may do.
    pub hook_role: Role,
    /// The rows.
    pub rows: Arc<dyn InitiativeStore>,
    /// Who is busy.
    pub sessions: Arc<dyn SessionStore>,
    /// Finds chats, asks the gate.
    pub chats: Chats,
    /// Wakes it.
    pub woken: WakeUp,
    /// Wakes the workers.
    pub work: WakeUp,
    /// The most waiting entries of a session.
    pub cap: u32,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// What is known of an agent's ticks while the gateway runs.
#[derive(Debug, Default)]
struct Pulse {
    /// The last slot that was decided.
    decided: Option<i64>,
    /// A slot that could not begin because the session was busy.
    waited: Option<i64>,
    /// When turns for wakes began.
    wakes: VecDeque<Duration>,
}

/// Where a tick goes.
struct Goal {
    /// What may be done there: the owner's rights only where the owner is told.
    role: Role,
    place: Place,
    session: SessionKey,
}

impl Heartbeat {
    /// Runs until `stopping`.
    pub async fn run(self: Arc<Self>, stopping: CancellationToken) {
        let mut pulses: Vec<Pulse> = self.beats.iter().map(|_| Pulse::default()).collect();
        while !stopping.is_cancelled() {
            let mut wait = LOOK_AROUND;
            let resting = self.halt.is_on();
            for (beat, pulse) in self.beats.iter().zip(&mut pulses).filter(|_| !resting) {
                match self.look(beat, pulse).await {
                    Ok(next) => wait = wait.min(next),
                    Err(error) => warn!(%error, agent = beat.agent, "the heartbeat could not be looked after"),
                }
            }
            tokio::select! {
                () = self.woken.woken() => {}
                () = self.clock.sleep(wait) => {}
                () = stopping.cancelled() => {}
            }
        }
    }

    /// Does what is due for one agent; how long until the next look.
    async fn look(&self, beat: &Beat, pulse: &mut Pulse) -> Result<Duration, StoreError> {
        let wakes = self.wakes(beat, pulse).await?;
        Ok(wakes.min(self.tick(beat, pulse).await?))
    }

    async fn tick(&self, beat: &Beat, pulse: &mut Pulse) -> Result<Duration, StoreError> {
        let (every, now) = (beat.config.every, self.clock.now_ms());
        if every == Span::default() {
            return Ok(LOOK_AROUND);
        }
        let slot = slot(every, now);
        let until_next = Duration::from_millis(slot_end(every, slot).saturating_sub(now).max(1).unsigned_abs());
        if pulse.decided.is_none() {
            match self.rows.last_tick(&beat.agent).await? {
                Some(last) if last.slot <= slot => pulse.decided = Some(last.slot),
                // A first start, or a clock that was set back: counted from here on.
                _ => {
                    self.skip(beat, slot, "not-due", now).await?;
                    pulse.decided = Some(slot);
                }
            }
        }
        if pulse.decided.is_some_and(|decided| decided > slot) {
            pulse.decided = None;
            return Ok(BUSY);
        }
        if pulse.decided == Some(slot) {
            return Ok(until_next);
        }
        if let Some(waited) = pulse.waited.filter(|waited| *waited < slot) {
            self.skip(beat, waited, Skip::RequestsInFlight.as_str(), now).await?;
            pulse.waited = None;
        }
        let goal = self.goal(beat).await?;
        let session = match &goal {
            Some(goal) => self.sessions.session(&goal.session).await?,
            None => None,
        };
        let workspace = beat.workspace.clone();
        let work = tokio::task::spawn_blocking(move || has_work(&workspace)).await.unwrap_or_default();
        let moment = Moment {
            now,
            busy: session.is_some_and(|session| session.running || session.pending > 0),
            work,
            target: goal.is_some(),
            unheard: goal.is_none() && self.is_unheard(beat).await?,
        };
        match (decide(&beat.config, &moment), goal) {
            (Err(Skip::RequestsInFlight), _) => {
                if pulse.waited != Some(slot) {
                    debug!(agent = beat.agent, reason = Skip::RequestsInFlight.as_str(), "the heartbeat waits");
                }
                pulse.waited = Some(slot);
                return Ok(BUSY.min(until_next));
            }
            (Err(skip), _) => self.skip(beat, slot, skip.as_str(), now).await?,
            (Ok(()), None) => self.skip(beat, slot, Skip::NoTarget.as_str(), now).await?,
            (Ok(()), Some(goal)) => {
                let order = Order {
                    errand: self.errand(beat, ErrandKind::Heartbeat, format!("{}:{slot}", beat.agent)),
                    platform_id: format!("heartbeat:{}:{slot}", beat.agent),
                    session: goal.session,
                    agent: beat.agent.clone(),
                    role: goal.role,
                    sender: Sender { name: Some("heartbeat".to_owned()), ..goal.place.sender },
                    conversation: goal.place.conversation,
                    address: goal.place.address,
                    text: beat.config.prompt.clone().unwrap_or_else(|| tick_words(beat.lang)),
                    attachments: Vec::new(),
                    trust: Trust::Own,
                    not_before: 0,
                };
                let entry = Some(order.entry(now, self.cap));
                let tick = Tick { agent: beat.agent.clone(), slot, result: "ran".to_owned(), entry, now };
                match self.rows.tick(tick).await? {
                    Given::Queued(entry) => {
                        info!(agent = beat.agent, %entry, "a heartbeat was queued");
                        self.work.wake();
                    }
                    Given::Nothing => {}
                    Given::Full => {
                        pulse.waited = Some(slot);
                        return Ok(BUSY.min(until_next));
                    }
                }
            }
        }
        pulse.waited = None;
        pulse.decided = Some(slot);
        Ok(until_next)
    }

    /// Keeps why a slot has no tick.
    async fn skip(&self, beat: &Beat, slot: i64, why: &str, now: i64) -> Result<(), StoreError> {
        debug!(agent = beat.agent, reason = why, "no heartbeat");
        let tick = Tick { agent: beat.agent.clone(), slot, result: why.to_owned(), entry: None, now };
        self.rows.tick(tick).await.map(drop)
    }

    async fn wakes(&self, beat: &Beat, pulse: &mut Pulse) -> Result<Duration, StoreError> {
        let now = self.clock.now_ms();
        let wakes = self.rows.waiting_wakes(&beat.agent, now, WAKES_OF_TURN).await?;
        let Some(newest) = wakes.last() else { return Ok(LOOK_AROUND) };
        let gathered = newest.created_at.saturating_add(GATHER_MS).saturating_sub(now);
        if (1..=GATHER_MS).contains(&gathered) && wakes.len() < WAKES_OF_TURN as usize {
            return Ok(Duration::from_millis(gathered.unsigned_abs()));
        }
        let at = self.clock.monotonic();
        pulse.wakes.retain(|began| at.saturating_sub(*began) < FLOOD);
        if pulse.wakes.len() >= WAKES {
            let oldest = pulse.wakes.front().copied().unwrap_or(at);
            return Ok((oldest + FLOOD).saturating_sub(at).max(BUSY));
        }
        // A program that calls is heard even while nobody has written yet: the web chat is always there.
        let goal = match self.goal(beat).await? {
            Some(goal) => goal,
            None => {
                let place = web_chat();
                let session = self.session_of(beat, &place);
                Goal { role: Role::Owner, place, session }
            }
        };
        let session = self.sessions.session(&goal.session).await?;
        if session.is_some_and(|session| session.running || session.pending > 0) {
            return Ok(BUSY);
        }
        let ids: Vec<String> = wakes.iter().map(|wake| wake.id.clone()).collect();
        let order = Order {
            errand: self.errand(beat, ErrandKind::Wake, newest.id.clone()),
            platform_id: format!("wake:{}", newest.id),
            session: goal.session,
            agent: beat.agent.clone(),
            role: self.hook_role,
            sender: Sender { id: PROGRAM.to_owned(), name: Some("hook".to_owned()), is_bot: true },
            conversation: goal.place.conversation,
            address: goal.place.address,
            text: wake_words(&wakes),
            attachments: Vec::new(),
            trust: Trust::Relayed,
            not_before: 0,
        };
        match self.rows.wake(&ids, order.entry(now, self.cap)).await? {
            Given::Queued(entry) => {
                info!(agent = beat.agent, %entry, wakes = ids.len(), "a wake was queued");
                pulse.wakes.push_back(at);
                self.work.wake();
                Ok(BUSY)
            }
            Given::Nothing | Given::Full => Ok(BUSY),
        }
    }

    fn errand(&self, beat: &Beat, kind: ErrandKind, id: String) -> Errand {
        let HeartbeatConfig { ack_max_chars, show_ok, show_alerts, light_context, .. } = beat.config;
        Errand {
            kind,
            id,
            model: beat.config.model.clone(),
            parent: None,
            depth: 1,
            tick: Some(TickTerms {
                light: light_context || kind == ErrandKind::Wake,
                ack_max_chars,
                show_ok,
                show_alerts,
            }),
        }
    }

    /// Whether the chat that is meant is one where nobody gets what is said first.
    async fn is_unheard(&self, beat: &Beat) -> Result<bool, StoreError> {
        match &beat.config.target {
            Target::None => Ok(false),
            Target::Owner => self.chats.owner_is_unheard(&beat.agent).await,
            Target::Channel(channel) => {
                Ok(matches!(self.chats.hears(&channel.clone().into()), Err(Barred::Unheard(_))))
            }
        }
    }

    /// Who is told: never a group.
    async fn goal(&self, beat: &Beat) -> Result<Option<Goal>, StoreError> {
        let chat = match &beat.config.target {
            Target::None => None,
            Target::Owner => self.chats.owner(&beat.agent).await?,
            Target::Channel(channel) => match &beat.config.to {
                Some(to) => {
                    let chat = self.chats.named(&channel.clone().into(), to).await?;
                    chat.filter(|chat| self.chats.hears(&chat.channel).is_ok())
                }
                None => None,
            },
        };
        let chat = chat.filter(|chat| chat.place.conversation.kind == channel_api::ConversationKind::Direct);
        let goal = |chat: ChatRow| {
            let role = self.chats.role(&chat.place).ok()?;
            Some(Goal { role, session: self.session_of(beat, &chat.place), place: chat.place })
        };
        Ok(chat.and_then(goal))
    }

    fn session_of(&self, beat: &Beat, place: &Place) -> SessionKey {
        let chat = (beat.config.session == TickSession::Chat).then(|| self.chats.session(place)).flatten();
        match chat {
            Some((session, agent)) if agent == beat.agent => session,
            _ => SessionKey::from(format!("agent:{}:heartbeat", beat.agent)),
        }
    }
}

/// Whether HEARTBEAT.md of a workspace asks for anything. One that is not there or cannot be read asks for nothing.
fn has_work(workspace: &Path) -> bool {
    match workspace::read_one(workspace, FILE) {
        Content::Text(text) => !effectively_empty_heartbeat(&text),
        _ => false,
    }
}

/// What a tick asks.
fn tick_words(lang: Lang) -> String {
    match lang {
        Lang::En => {
            "[heartbeat] Nobody wrote; this is the regular look around. Do what HEARTBEAT.md in your workspace says, and \
             nothing else. If nothing needs attention, answer HEARTBEAT_OK."
        }
        Lang::Zh => "［心跳］没有人说话，这是定时查看。按工作区的 HEARTBEAT.md 办，不做别的。没有需要关注的事就回答 HEARTBEAT_OK。",
    }
    .to_owned()
}

/// What several programs said.
fn wake_words(wakes: &[HookRow]) -> String {
    wakes.iter().map(|wake| wake.text.as_str()).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_or_says_nothing_is_no_work() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join(FILE);
        assert!(!has_work(dir.path()));
        for (text, work) in [("# Heartbeat\n\n- [ ]\n", false), ("- check the disk\n", true), ("\u{feff}\r\n", false)] {
            std::fs::write(&file, text).expect("it can be written");
            assert_eq!(has_work(dir.path()), work, "{text:?}");
        }
        #[cfg(unix)]
        {
            std::fs::remove_file(&file).expect("it is there");
            let made = std::process::Command::new("mkfifo").arg(&file).status().expect("mkfifo is there");
            assert!(made.success() && !has_work(dir.path()), "a pipe is not waited for");
        }
    }

    #[test]
    fn only_named_agents_tick_once_one_is_named() {
        let agents: BTreeMap<String, PathBuf> =
            ["main", "ops"].map(|id| (id.to_owned(), PathBuf::from(id))).into_iter().collect();
        let ticks = |config: &HeartbeatConfig| -> Vec<bool> {
            beats(config, &agents, Lang::En).iter().map(|beat| beat.config.every > Span::default()).collect()
        };
        let mut config = HeartbeatConfig::default();
        assert_eq!(ticks(&config), [true, false]);
        config.agents.insert("ops".to_owned(), HeartbeatConfig::default());
        assert_eq!(ticks(&config), [false, true]);
    }
}
