//! The answer while it is written, shown where the platform can edit: one preview a turn, paced, and gone or replaced at
//! the turn's end. Best effort: whatever a platform does with it, the turn neither fails nor says a thing twice.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use channel_api::{Address, Channel, Clock, LiveEdit, LiveEvent, LivePace, Preview, SendError};
use futures_util::FutureExt;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, error, warn};

use crate::{
    channels::Channels,
    store::{Lease, Shown, StoreError, TurnStore},
};

/// How long one call may take. The end of a turn waits for the call that is under way, so that no update overtakes the
/// answer; one that takes longer is given up.
const CALL: Duration = Duration::from_secs(5);
/// The most bytes of a preview's id.
const MAX_ID: usize = 512;
/// The pause between two looks at what was left behind.
const LOOK: Duration = Duration::from_secs(60);
/// The most of it taken away at one look.
const MOST: u32 = 100;

/// One turn's preview.
pub struct Showing {
    /// Where it is shown.
    pub channel: Arc<dyn Channel>,
    /// To whom.
    pub to: Address,
    /// The line that says the work goes on, where there is no more to show.
    pub line: String,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where what is shown is kept.
    pub turns: Arc<dyn TurnStore>,
    /// The right to keep it.
    pub lease: Lease,
    /// What an earlier try of the turn shows already.
    pub shown: Option<Shown>,
    /// How long the person has waited: earlier tries of the turn count.
    pub waited: Duration,
}

/// A preview that is being shown.
pub struct Progress {
    task: JoinSet<Option<Shown>>,
    ended: CancellationToken,
}

impl Progress {
    /// Ends it; what is shown. After this nothing is called any more.
    pub async fn end(mut self) -> Option<Shown> {
        self.ended.cancel();
        self.task.join_next().await.and_then(Result::ok).flatten()
    }
}

impl Showing {
    /// Begins to show what `events` tell.
    pub fn start(self, pace: LivePace, events: Option<mpsc::Receiver<LiveEvent>>) -> Progress {
        let (mut task, ended) = (JoinSet::new(), CancellationToken::new());
        task.spawn(self.run(pace, events, ended.clone()).in_current_span());
        Progress { task, ended }
    }

    /// How much this conversation is shown; `None`: nothing.
    pub fn pace(channel: &dyn Channel, to: &Address) -> Option<LivePace> {
        let pace = catch_unwind(AssertUnwindSafe(|| channel.live().map(|live| live.pace(to)))).ok().flatten();
        pace.filter(|pace| *pace != LivePace::Off)
    }

    /// Shows what `events` tell until `ended`: the plan, the text below it, and what runs; what is shown then. A call that is under way is waited for, [`CALL`] at
    /// most.
    ///
    /// Between the first call and its row lies a moment: a crash there leaves a preview that nobody knows of any more. It
    /// stays beside the answer, as a message that ends in the middle.
    async fn run(
        mut self,
        pace: LivePace,
        mut events: Option<mpsc::Receiver<LiveEvent>>,
        ended: CancellationToken,
    ) -> Option<Shown> {
        let channel = Arc::clone(&self.channel);
        let Some(live) = channel.live() else { return self.shown };
        let clock = Arc::clone(&self.clock);
        let mut pacing = Pacing::new(pace, clock.monotonic().saturating_sub(self.waited), self.shown.is_some());
        let mut now = Now::default();
        let mut text = Newer::default();
        loop {
            let until = match pacing.next(&text, clock.monotonic()) {
                Next::Call => None,
                Next::Wait(until) => Some(until),
            };
            if let Some(until) = until {
                let rest = async {
                    match until {
                        Some(until) => clock.sleep(until.saturating_sub(clock.monotonic())).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = ended.cancelled() => return self.shown,
                    newer = newer(&mut events) => text = now.with(newer),
                    () = rest => {}
                }
                continue;
            }
            if ended.is_cancelled() {
                return self.shown;
            }
            let says = match pace {
                // The one message there is: the plan says more than that the work goes on.
                LivePace::OneLine { .. } if now.plan.is_empty() => self.line.clone(),
                LivePace::OneLine { .. } => now.plan.clone(),
                _ => text.says.clone(),
            };
            let done = {
                let call = AssertUnwindSafe(self.call(live, &says)).catch_unwind();
                let limit = clock.sleep(CALL);
                tokio::pin!(call, limit);
                loop {
                    tokio::select! {
                        done = &mut call => break done.unwrap_or_else(|_| Err(panicked(&self.to))),
                        newer = newer(&mut events) => text = now.with(newer),
                        () = &mut limit => break Err(SendError::Unknown("no answer within the time limit".to_owned())),
                    }
                }
            };
            match done {
                Ok(Some(preview)) => {
                    channel_api::crash_point!("preview.begun");
                    if !self.keep(live, preview).await {
                        return None;
                    }
                    channel_api::crash_point!("preview.stored");
                    pacing.done(says, clock.monotonic());
                }
                Ok(None) => pacing.done(says, clock.monotonic()),
                Err(SendError::RetryAfter(wait)) if self.shown.is_some() => {
                    pacing.rest(clock.monotonic().saturating_add(wait))
                }
                Err(why) => {
                    debug!(channel = %self.to.channel, %why, "the preview of an answer is given up");
                    pacing.give_up();
                }
            }
        }
    }

    /// Shows the first of it, or what it says now.
    async fn call(&self, live: &dyn LiveEdit, says: &str) -> Result<Option<Preview>, SendError> {
        match &self.shown {
            None => live.begin(&self.to, says).await.map(Some),
            Some(shown) => live.update(&shown.to, &shown.preview, says).await.map(|()| None),
        }
    }

    /// Keeps what was begun; false when the turn is somebody else's by now, who shows it in their own way.
    async fn keep(&mut self, live: &dyn LiveEdit, preview: Preview) -> bool {
        let shown = Shown { to: self.to.clone(), preview };
        if shown.preview.id.len() > MAX_ID {
            error!(channel = %self.to.channel, "the adapter's preview has an id that is too long to keep");
            taken_away(live, &shown.to, &shown.preview, self.clock.as_ref()).await;
            return false;
        }
        match self.turns.keep_preview(&self.lease, &shown).await {
            Ok(()) => {}
            Err(StoreError::Fenced) => {
                taken_away(live, &shown.to, &shown.preview, self.clock.as_ref()).await;
                return false;
            }
            Err(error) => warn!(%error, "a preview is not kept: a crash now would leave it behind"),
        }
        self.shown = Some(shown);
        true
    }
}

fn panicked(to: &Address) -> SendError {
    error!(channel = %to.channel, "the adapter panicked while it showed an answer");
    SendError::Unknown("the adapter panicked".to_owned())
}

/// What there is to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Newer {
    says: String,
    /// It is no piece of an answer but a plan, or the line that there is none yet: shown however short it is.
    waiting: bool,
}

impl Newer {
    fn text(says: String) -> Self {
        Self { says, waiting: false }
    }

    /// An answer in the making says more than that it is waited for.
    fn take(&mut self, newer: Self) {
        if !newer.waiting || self.waiting || self.says.is_empty() {
            *self = newer;
        }
    }
}

/// The next thing to show; never when there are no more.
async fn newer(events: &mut Option<mpsc::Receiver<LiveEvent>>) -> LiveEvent {
    loop {
        match events {
            None => std::future::pending().await,
            Some(receiver) => match receiver.recv().await {
                Some(
                    shown @ (LiveEvent::Text(_) | LiveEvent::Waiting(_) | LiveEvent::Plan(_) | LiveEvent::Step(_)),
                ) => return shown,
                Some(_) => {}
                None => *events = None,
            },
        }
    }
}

/// What there is to show of a turn. The plan stands above the text, so that nobody takes one for the other.
#[derive(Debug, Default)]
struct Now {
    plan: String,
    text: Newer,
    step: String,
}

impl Now {
    /// All of it after this event.
    fn with(&mut self, event: LiveEvent) -> Newer {
        match event {
            LiveEvent::Plan(plan) => self.plan = plan,
            LiveEvent::Text(text) => {
                self.text.take(Newer::text(text));
                self.step.clear();
            }
            LiveEvent::Waiting(says) => self.text.take(Newer { says, waiting: true }),
            LiveEvent::Step(step) => self.step = step,
            LiveEvent::Started | LiveEvent::Settled(_) => {}
        }
        let step = if self.step.is_empty() { String::new() } else { format!("🔧 {} …", self.step) };
        let all = [self.plan.as_str(), self.text.says.as_str(), step.as_str()];
        let says = all.into_iter().filter(|piece| !piece.is_empty()).collect::<Vec<_>>().join("\n\n");
        Newer { says, waiting: self.text.waiting || !self.plan.is_empty() }
    }
}

/// Takes away what has no answer in its place.
pub async fn take_away(channel: &dyn Channel, to: &Address, preview: &Preview, clock: &dyn Clock) {
    if let Some(live) = channel.live() {
        taken_away(live, to, preview, clock).await;
    }
}

async fn taken_away(live: &dyn LiveEdit, to: &Address, preview: &Preview, clock: &dyn Clock) {
    let call = AssertUnwindSafe(live.drop_preview(to, preview)).catch_unwind();
    tokio::select! {
        done = call => {
            if done.is_err() {
                error!(channel = %to.channel, "the adapter panicked while it took a preview away");
            }
        }
        () = clock.sleep(CALL) => {}
    }
}

/// Takes away what turns left behind that ended without a word in its place (a crash, a stop, a block), at the start and
/// once a minute, until it is `ended`.
pub async fn sweep(turns: Arc<dyn TurnStore>, channels: Channels, clock: Arc<dyn Clock>, ended: CancellationToken) {
    loop {
        match turns.left_previews(MOST).await {
            Ok(left) => {
                for (turn, shown) in left {
                    if let Some(entry) = channels.get(&shown.to.channel) {
                        take_away(entry.channel.as_ref(), &shown.to, &shown.preview, clock.as_ref()).await;
                    }
                    if let Err(error) = turns.forget_preview(&turn).await {
                        warn!(%error, "a preview that is gone could not be forgotten");
                        break;
                    }
                }
            }
            Err(error) => warn!(%error, "previews left behind could not be read"),
        }
        tokio::select! {
            () = clock.sleep(LOOK) => {}
            () = ended.cancelled() => return,
        }
    }
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Show it: the first of it, or an update.
    Call,
    /// Nothing before this time, on the monotonic clock, or before there is another text.
    Wait(Option<Duration>),
}

/// When something is shown. Pure.
#[derive(Debug)]
struct Pacing {
    pace: LivePace,
    since: Duration,
    /// There is something to update.
    open: bool,
    over: bool,
    updates: u32,
    not_before: Duration,
    says: String,
}

impl Pacing {
    /// `open`: an earlier try has begun it. How often it was updated then is not known: where the platform counts, it is
    /// left as it is.
    fn new(pace: LivePace, since: Duration, open: bool) -> Self {
        let counted = matches!(pace, LivePace::Edits { most: Some(_), .. });
        Self { pace, since, open, over: open && counted, updates: 0, not_before: Duration::ZERO, says: String::new() }
    }

    fn next(&self, text: &Newer, now: Duration) -> Next {
        let (text, waiting) = (text.says.as_str(), text.waiting);
        if self.over {
            return Next::Wait(None);
        }
        match self.pace {
            LivePace::Off => Next::Wait(None),
            LivePace::OneLine { .. } if self.open => Next::Wait(None),
            LivePace::OneLine { after } => {
                let due = self.since.saturating_add(after);
                if now < due { Next::Wait(Some(due)) } else { Next::Call }
            }
            LivePace::Edits { first, most, .. } => {
                let enough = self.open || waiting || text.chars().nth(first.saturating_sub(1)).is_some();
                let spent = self.open && most.is_some_and(|most| self.updates >= most);
                if !enough || spent || text.trim().is_empty() || text == self.says {
                    Next::Wait(None)
                } else if self.open && now < self.not_before {
                    Next::Wait(Some(self.not_before))
                } else {
                    Next::Call
                }
            }
        }
    }

    /// It says this now.
    fn done(&mut self, says: String, now: Duration) {
        self.updates += u32::from(self.open);
        self.open = true;
        self.says = says;
        if let LivePace::Edits { every, .. } = self.pace {
            self.not_before = now.saturating_add(every);
        }
    }

    /// The platform asked to wait.
    fn rest(&mut self, until: Duration) {
        self.not_before = self.not_before.max(until);
    }

    fn give_up(&mut self) {
        self.over = true;
    }
}

#[cfg(test)]
mod tests;
