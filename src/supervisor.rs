//! Keeps each adapter running: starts it, restarts it with growing pauses when it fails, and remembers how it is.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use channel_api::{Channel, ChannelContext, ChannelError, ChannelId};
use futures_util::FutureExt;
use serde::Serialize;
use tokio::task::JoinSet;
use tracing::{Instrument, error, info, info_span, warn};

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

/// How every channel is.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<ChannelId, ChannelHealth>>>);

/// How one channel is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChannelHealth {
    /// `running`, `restarting`, `stopped`.
    pub state: String,
    /// Why it is not running.
    pub reason: Option<String>,
    /// Restarts since the start.
    pub restarts: u32,
}

impl Health {
    /// All channels, by id.
    pub fn all(&self) -> BTreeMap<ChannelId, ChannelHealth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, id: &ChannelId, state: &str, reason: Option<String>, restarted: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let health = all.entry(id.clone()).or_default();
        health.state = state.to_owned();
        health.reason = reason;
        health.restarts += u32::from(restarted);
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
    let mut failures = 0;
    while !context.shutdown.is_cancelled() {
        health.set(&id, "running", None, false);
        let began = context.clock.monotonic();
        let ended = AssertUnwindSafe(channel.run(context.clone())).catch_unwind().await;
        let (why, wanted) = match ended {
            Ok(Ok(())) => {
                info!("the channel ended");
                health.set(&id, "stopped", None, false);
                // Its input is over (a terminal at its end); the others go on, and this task waits with them.
                context.shutdown.cancelled().await;
                return;
            }
            Ok(Err(ChannelError::Stop(why))) => {
                error!(%why, "the channel stopped and is not started again before its configuration changes");
                health.set(&id, "stopped", Some(why), false);
                context.shutdown.cancelled().await;
                return;
            }
            Ok(Err(ChannelError::Restart(why))) => (why, Duration::ZERO),
            Ok(Err(ChannelError::RestartAfter(pause, why))) => (why, pause),
            Err(_) => ("the adapter panicked; see the log".to_owned(), Duration::ZERO),
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
