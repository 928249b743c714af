//! Keeps each adapter running: starts it, starts it again with growing pauses when it fails, hangs or panics, and
//! remembers how it is. One channel's trouble is never another's.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use channel_api::{
    Accepted, Batch, Channel, ChannelContext, ChannelError, ChannelId, Clock, Inbound, Intake, IntakeError, Link, Pulse,
};
use futures_util::FutureExt;
use serde::Serialize;
use tokio::task::JoinSet;
use tracing::{Instrument, error, info, info_span, warn};

use crate::{
    lang::{self, Lang},
    model::failover::Rests,
};

/// The pauses before restarts; the last one repeats.
const PAUSES: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_secs(60),
];
/// An adapter that ran this long before it failed begins with the first pause again.
const HEALTHY: Duration = Duration::from_secs(300);
/// How long an adapter that is taken for dead may take to end by itself.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How every channel is, and which models rest.
#[derive(Clone, Default)]
pub struct Health {
    channels: Arc<Mutex<BTreeMap<ChannelId, Kept>>>,
    models: Rests,
}

#[derive(Default)]
struct Kept {
    state: &'static str,
    reason: Option<String>,
    restarts: u32,
    pulse: Option<Pulse>,
    came: Traffic,
    went: Traffic,
}

/// What went one way since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    total: u64,
    last: Option<i64>,
}

impl Traffic {
    fn add(&mut self, count: usize, now: i64) {
        self.total += count as u64;
        self.last = Some(now);
    }
}

/// How one channel is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChannelHealth {
    /// `running`, `restarting`, `stopped`.
    pub state: &'static str,
    /// Why it is not running.
    pub reason: Option<String>,
    /// Restarts since the start.
    pub restarts: u32,
    /// Connected to its platform; `None` when that is not known, or there is no connection to speak of.
    pub connected: Option<bool>,
    /// Why it is not connected, or for what it waits.
    pub waits: Option<String>,
    /// Messages that came since the start.
    pub in_total: u64,
    /// When the last one came, in epoch milliseconds.
    pub last_in: Option<i64>,
    /// Parts of answers that were sent since the start.
    pub out_total: u64,
    /// When the last one was sent, in epoch milliseconds.
    pub last_out: Option<i64>,
}

impl ChannelHealth {
    /// How it is, in words: its state and why.
    pub fn words(&self, lang: Lang) -> String {
        let state = match (self.state, self.connected) {
            ("running", Some(true)) => lang::channel_connected(lang),
            ("running", None) => lang::channel_runs(lang),
            ("running", Some(false)) => lang::channel_not_connected(lang),
            ("restarting", _) => lang::channel_restarts(lang),
            _ => lang::channel_stopped(lang),
        };
        match self.reason.as_ref().or(self.waits.as_ref()) {
            Some(why) => lang::channel_why(lang, state, why),
            None => state,
        }
    }

    /// It can receive and send, as far as can be told.
    pub fn is_up(&self) -> bool {
        self.state == "running" && self.connected != Some(false)
    }
}

impl Health {
    /// Which models rest.
    pub fn models(&self) -> &Rests {
        &self.models
    }

    /// All channels, by id.
    pub fn all(&self) -> BTreeMap<ChannelId, ChannelHealth> {
        self.with(|all| all.iter().map(|(id, kept)| (id.clone(), kept.shown())).collect())
    }

    /// Messages came in.
    pub fn came_in(&self, id: &ChannelId, count: usize, now: i64) {
        self.with(|all| all.entry(id.clone()).or_default().came.add(count, now));
    }

    /// Parts of answers went out.
    pub fn went_out(&self, id: &ChannelId, count: usize, now: i64) {
        self.with(|all| all.entry(id.clone()).or_default().went.add(count, now));
    }

    fn set(&self, id: &ChannelId, state: &'static str, reason: Option<String>, restarted: bool) {
        self.with(|all| {
            let kept = all.entry(id.clone()).or_default();
            kept.state = state;
            kept.reason = reason;
            kept.restarts += u32::from(restarted);
        });
    }

    fn watch(&self, id: &ChannelId, pulse: Pulse) {
        self.with(|all| all.entry(id.clone()).or_default().pulse = Some(pulse));
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<ChannelId, Kept>) -> T) -> T {
        work(&mut self.channels.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Kept {
    fn shown(&self) -> ChannelHealth {
        let link = self.pulse.as_ref().map(|pulse| pulse.look().0).unwrap_or_default();
        let (connected, waits) = match link {
            _ if self.state != "running" => (None, None),
            Link::Unknown => (None, None),
            Link::Up => (Some(true), None),
            Link::Down(why) => (Some(false), Some(why)),
        };
        ChannelHealth {
            state: self.state,
            reason: self.reason.clone(),
            restarts: self.restarts,
            connected,
            waits,
            in_total: self.came.total,
            last_in: self.came.last,
            out_total: self.went.total,
            last_out: self.went.last,
        }
    }
}

/// How long ago something was, in words; both in epoch milliseconds.
pub fn ago(lang: Lang, now: i64, then: Option<i64>) -> String {
    let Some(then) = then else { return lang::never(lang) };
    let seconds = now.saturating_sub(then).max(0) / 1000;
    match seconds {
        0..120 => lang::seconds_ago(lang, seconds),
        120..7200 => lang::minutes_ago(lang, seconds / 60),
        7200..172_800 => lang::hours_ago(lang, seconds / 3600),
        _ => lang::days_ago(lang, seconds / 86_400),
    }
}

/// An intake that tells [`Health`] what came. A message that was stored before is none that comes.
pub struct Watched {
    /// Takes messages in.
    pub intake: Arc<dyn Intake>,
    /// Is told.
    pub health: Health,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

#[async_trait]
impl Intake for Watched {
    fn wants_files(&self, event: &Inbound) -> bool {
        self.intake.wants_files(event)
    }

    async fn accept(&self, batch: Batch) -> Result<Vec<Accepted>, IntakeError> {
        let channels: Vec<ChannelId> = batch.events.iter().map(|event| event.channel.clone()).collect();
        let accepted = self.intake.accept(batch).await?;
        let mut came: BTreeMap<ChannelId, usize> = BTreeMap::new();
        for (channel, accepted) in channels.into_iter().zip(&accepted) {
            if !matches!(accepted, Accepted::Duplicate(_) | Accepted::Conflict | Accepted::Full(_)) {
                *came.entry(channel).or_default() += 1;
            }
        }
        let now = self.clock.now_ms();
        for (channel, count) in came {
            self.health.came_in(&channel, count, now);
        }
        Ok(accepted)
    }
}

/// Runs all channels until their contexts' `shutdown` is cancelled.
pub async fn run(channels: Vec<(Arc<dyn Channel>, ChannelContext)>, health: Health) {
    let mut tasks = JoinSet::new();
    for (channel, context) in channels {
        let span = info_span!("channel", channel = %channel.id());
        tasks.spawn(keep(channel, context, health.clone()).instrument(span));
    }
    while tasks.join_next().await.is_some() {}
}

async fn keep(channel: Arc<dyn Channel>, context: ChannelContext, health: Health) {
    let id = channel.id().clone();
    health.watch(&id, context.pulse.clone());
    let mut failures = 0;
    while !context.shutdown.is_cancelled() {
        context.pulse.link(Link::Unknown);
        health.set(&id, "running", None, false);
        let began = context.clock.monotonic();
        let (why, wanted) = match once(channel.as_ref(), &context).await {
            Ok(()) => {
                info!("the channel ended");
                health.set(&id, "stopped", None, false);
                // Its input is over (a terminal at its end); the others go on, and this task waits with them.
                context.shutdown.cancelled().await;
                return;
            }
            Err(ChannelError::Stop(why)) => {
                error!(%why, "the channel stopped and is not started again before its configuration changes");
                health.set(&id, "stopped", Some(why), false);
                context.shutdown.cancelled().await;
                return;
            }
            Err(ChannelError::Restart(why)) => (why, Duration::ZERO),
            Err(ChannelError::RestartAfter(pause, why)) => (why, pause),
        };
        if context.clock.monotonic().saturating_sub(began) >= HEALTHY {
            failures = 0;
        }
        let pause = PAUSES[failures.min(PAUSES.len() - 1)].max(wanted);
        failures += 1;
        warn!(%why, seconds = pause.as_secs(), "the channel failed and is started again");
        health.set(&id, "restarting", Some(why), true);
        tokio::select! {
            () = context.clock.sleep(pause) => {}
            () = context.shutdown.cancelled() => {}
        }
    }
}

/// One run, ended when it shows no sign of life.
async fn once(channel: &dyn Channel, context: &ChannelContext) -> Result<(), ChannelError> {
    let own = ChannelContext { shutdown: context.shutdown.child_token(), ..context.clone() };
    let shutdown = own.shutdown.clone();
    let run = AssertUnwindSafe(channel.run(own)).catch_unwind();
    tokio::pin!(run);
    let why = tokio::select! {
        ended = &mut run => {
            return ended.unwrap_or_else(|_| Err(ChannelError::Restart("the adapter panicked; see the log".to_owned())));
        }
        silent = silence(channel.capabilities().silence_limit, context) => {
            format!("no sign of life for {} s", silent.as_secs())
        }
    };
    shutdown.cancel();
    tokio::select! {
        _ = &mut run => {}
        () = context.clock.sleep(LAST_WORDS) => warn!("the adapter did not end by itself and is dropped"),
    }
    Err(ChannelError::Restart(why))
}

/// Returns once there was no sign of life for `limit`. An adapter that says it is not connected waits for its platform, and
/// is not taken for dead.
async fn silence(limit: Option<Duration>, context: &ChannelContext) -> Duration {
    let Some(limit) = limit else { return std::future::pending().await };
    loop {
        let (link, silent) = context.pulse.look();
        let waits = matches!(link, Link::Down(_));
        if silent >= limit && !waits {
            return silent;
        }
        let rest = if waits { limit } else { limit.saturating_sub(silent) };
        context.clock.sleep(rest.max(Duration::from_millis(1))).await;
    }
}

#[cfg(test)]
mod tests {
    use channel_api::{
        Address, Capabilities, Level, Part, Receipt, Reply, SendError, SendKey,
        contract::{FakeClock, FakeGateway},
    };
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// What a run does.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fate {
        /// Beats as long as it is told to.
        Good,
        Fails,
        Panics,
        /// Shows no sign of life and does not listen to its shutdown either.
        Hangs,
        /// Says that it is not connected, and waits.
        Waits,
        Stops,
    }

    struct Fake {
        id: ChannelId,
        capabilities: Capabilities,
        fate: Fate,
        began: mpsc::UnboundedSender<ChannelId>,
    }

    #[async_trait]
    impl Channel for Fake {
        fn id(&self) -> &ChannelId {
            &self.id
        }

        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }

        async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
            let _ = self.began.send(self.id.clone());
            match self.fate {
                Fate::Fails => return Err(ChannelError::Restart("it failed".to_owned())),
                Fate::Panics => panic!("as told"),
                Fate::Stops => return Err(ChannelError::Stop("a wrong token".to_owned())),
                Fate::Hangs => std::future::pending().await,
                Fate::Waits => ctx.pulse.link(Link::Down("waits for a client".to_owned())),
                Fate::Good => {
                    ctx.pulse.link(Link::Up);
                    while !ctx.shutdown.is_cancelled() {
                        ctx.pulse.beat();
                        tokio::select! {
                            () = ctx.clock.sleep(Duration::from_secs(10)) => {}
                            () = ctx.shutdown.cancelled() => {}
                        }
                    }
                }
            }
            ctx.shutdown.cancelled().await;
            Ok(())
        }

        fn render(&self, _: &Reply, _: Level) -> Vec<Part> {
            Vec::new()
        }

        async fn send(&self, _: &Address, _: &Part, _: &SendKey) -> Result<Receipt, SendError> {
            Ok(Receipt::default())
        }
    }

    struct Kit {
        clock: Arc<FakeClock>,
        health: Health,
        shutdown: CancellationToken,
        began: mpsc::UnboundedReceiver<ChannelId>,
        tasks: JoinSet<()>,
    }

    fn start(fates: &[(&str, Fate)]) -> Kit {
        let (gateway, health) = (FakeGateway::new(), Health::default());
        let (told, began) = mpsc::unbounded_channel();
        let [(web, ..)] = &crate::http::web::channels(&Default::default())[..] else { panic!("one web chat") };
        let channels = fates.iter().map(|(account, fate)| {
            let silence_limit = Some(Duration::from_secs(30));
            let channel: Arc<dyn Channel> = Arc::new(Fake {
                id: ChannelId::new("fake", account),
                capabilities: Capabilities { silence_limit, ..web.capabilities().clone() },
                fate: *fate,
                began: told.clone(),
            });
            (channel, gateway.context())
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(run(channels.collect(), health.clone()));
        Kit { clock: gateway.clock.clone(), health, shutdown: gateway.shutdown.clone(), began, tasks }
    }

    impl Kit {
        /// Lets `seconds` pass, one after the other, so that every task sees each of them.
        async fn pass(&self, seconds: u64) {
            for _ in 0..seconds {
                self.clock.advance(Duration::from_secs(1));
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            }
        }

        fn of(&self, account: &str) -> ChannelHealth {
            self.health.all()[&ChannelId::new("fake", account)].clone()
        }
    }

    #[tokio::test]
    async fn a_dead_account_never_hurts_another() {
        let mut kit = start(&[
            ("good", Fate::Good),
            ("fails", Fate::Fails),
            ("panics", Fate::Panics),
            ("hangs", Fate::Hangs),
            ("waits", Fate::Waits),
            ("stops", Fate::Stops),
        ]);
        kit.pass(600).await;
        let good = kit.of("good");
        assert_eq!((good.state, good.restarts, good.connected), ("running", 0, Some(true)));
        for account in ["fails", "panics", "hangs"] {
            assert!(kit.of(account).restarts >= 5, "{account}: {:?}", kit.of(account));
        }
        let waits = kit.of("waits");
        assert_eq!((waits.state, waits.restarts, waits.connected), ("running", 0, Some(false)));
        assert_eq!(waits.waits.as_deref(), Some("waits for a client"));
        let stops = kit.of("stops");
        assert_eq!((stops.state, stops.restarts, stops.reason.as_deref()), ("stopped", 0, Some("a wrong token")));
        let mut runs: BTreeMap<String, usize> = BTreeMap::new();
        while let Ok(id) = kit.began.try_recv() {
            *runs.entry(id.account().to_owned()).or_default() += 1;
        }
        assert_eq!((runs["good"], runs["waits"], runs["stops"]), (1, 1, 1), "{runs:?}");
        assert!(runs["fails"] <= 16, "the pauses grow: {runs:?}");
        kit.shutdown.cancel();
        kit.pass(1).await;
        kit.tasks.join_next().await.expect("it ends with the gateway").expect("no panic");
    }

    #[tokio::test]
    async fn silence_is_told_by_its_length_and_ends_the_run() {
        let kit = start(&[("hangs", Fate::Hangs)]);
        // It begins within the first of them.
        kit.pass(30).await;
        assert_eq!(kit.of("hangs").state, "running");
        // Its thirty seconds, and five to end by itself.
        kit.pass(6).await;
        let health = kit.of("hangs");
        assert_eq!((health.state, health.reason.as_deref()), ("restarting", Some("no sign of life for 30 s")));
    }

    #[test]
    fn traffic_is_counted_by_channel() {
        let (health, one) = (Health::default(), ChannelId::new("fake", "one"));
        health.came_in(&one, 2, 5_000);
        health.went_out(&one, 1, 7_000);
        health.came_in(&one, 1, 9_000);
        let shown = &health.all()[&one];
        assert_eq!((shown.in_total, shown.last_in, shown.out_total, shown.last_out), (3, Some(9_000), 1, Some(7_000)));
    }
}
