//! Every task's owner: names, ends, the drain, and the exit code when one dies unexpectedly.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use channel_api::Clock;
use futures_util::FutureExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, info, info_span};

/// The tasks of a running gateway.
pub struct Lifecycle {
    /// Cancelled by the first stop signal: accept nothing more, claim nothing more, finish what runs.
    pub stopping: CancellationToken,
    /// Cancelled when the drain is over: stop at the next step boundary.
    pub drained: CancellationToken,
    /// Cancelled when delivery's last moments are over: end now.
    pub abort: CancellationToken,
    stations: JoinSet<&'static str>,
    fronts: JoinSet<&'static str>,
    edges: JoinSet<&'static str>,
}

/// How long the fronts have to say goodbye after `abort`.
const GOODBYE: Duration = Duration::from_millis(1500);

/// The pauses before a task that panicked is begun anew, in seconds; the last one repeats.
const PAUSES: [u64; 4] = [1, 5, 15, 60];
/// A task that ran this long has got over its last panic.
const HEALTHY: Duration = Duration::from_secs(300);

/// How a gateway ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As asked.
    Cleanly,
    /// A task that should live as long as the gateway died.
    TaskDied(&'static str),
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self::new()
    }
}

impl Lifecycle {
    /// No tasks yet.
    pub fn new() -> Self {
        Self {
            stopping: CancellationToken::new(),
            drained: CancellationToken::new(),
            abort: CancellationToken::new(),
            stations: JoinSet::new(),
            fronts: JoinSet::new(),
            edges: JoinSet::new(),
        }
    }

    /// Runs a task that ends by itself once `stopping` is cancelled (workers, delivery, upkeep). Its end before that
    /// takes the gateway down.
    pub fn station(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let task = async move {
            task.await;
            name
        };
        self.stations.spawn(task.instrument(info_span!("task", name)));
    }

    /// Runs a station that can be begun anew: `begin` makes it from nothing but what is shared. When it panics (a machine
    /// that has no thread to give for a moment is enough), it is begun again after a pause, and the gateway goes on.
    pub fn renewed<T>(
        &mut self,
        name: &'static str,
        clock: &Arc<dyn Clock>,
        begin: impl Fn() -> T + Send + Sync + 'static,
    ) where
        T: Future<Output = ()> + Send + 'static,
    {
        self.station(name, renewing(name, Arc::clone(clock), self.stopping.clone(), begin));
    }

    /// Runs a task that ends by itself once `abort` is cancelled, after a word to whoever is connected (the HTTP side).
    pub fn front(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let task = async move {
            task.await;
            name
        };
        self.fronts.spawn(task.instrument(info_span!("task", name)));
    }

    /// Runs a task that lives to the very end and is then simply ended (signal listeners).
    pub fn edge(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let task = async move {
            task.await;
            name
        };
        self.edges.spawn(task.instrument(info_span!("task", name)));
    }

    /// Waits for a stop, drains, and ends every task: turns may run on for `drain`, delivery for two seconds more.
    pub async fn run(mut self, clock: &dyn Clock, drain: Duration, flush: Duration) -> Ended {
        let died = tokio::select! {
            () = self.stopping.cancelled() => None,
            ended = self.stations.join_next(), if !self.stations.is_empty() => Some(name_of(ended)),
            ended = self.fronts.join_next(), if !self.fronts.is_empty() => Some(name_of(ended)),
            ended = self.edges.join_next(), if !self.edges.is_empty() => Some(name_of(ended)),
        };
        // A task that ends because of the stop may be seen before the stop itself.
        let died = died.filter(|_| !self.stopping.is_cancelled());
        if let Some(name) = died {
            error!(task = name, "a task that the gateway needs ended unexpectedly; stopping");
        } else {
            info!("stopping: nothing more is accepted, what runs may finish");
        }
        self.stopping.cancel();
        tokio::select! {
            () = all_ended(&mut self.stations) => {}
            () = async {
                clock.sleep(drain).await;
                self.drained.cancel();
                clock.sleep(flush).await;
                self.abort.cancel();
                clock.sleep(Duration::from_secs(1)).await;
            } => {}
        }
        self.drained.cancel();
        self.abort.cancel();
        self.stations.shutdown().await;
        tokio::select! {
            () = all_ended(&mut self.fronts) => {}
            () = clock.sleep(GOODBYE) => {}
        }
        self.fronts.shutdown().await;
        self.edges.shutdown().await;
        died.map_or(Ended::Cleanly, Ended::TaskDied)
    }
}

/// Runs what `begin` makes until it ends by itself, and begins it anew, after a pause, each time it panics before `stopping`.
pub async fn renewing<T: Future<Output = ()>>(
    name: &'static str,
    clock: Arc<dyn Clock>,
    stopping: CancellationToken,
    begin: impl Fn() -> T,
) {
    let mut failures = 0;
    loop {
        let began = clock.monotonic();
        if AssertUnwindSafe(async { begin().await }).catch_unwind().await.is_ok() {
            return;
        }
        if clock.monotonic().saturating_sub(began) >= HEALTHY {
            failures = 0;
        }
        let seconds = PAUSES[failures.min(PAUSES.len() - 1)];
        failures += 1;
        error!(task = name, seconds, "a task panicked and is begun anew");
        tokio::select! {
            () = clock.sleep(Duration::from_secs(seconds)) => {}
            () = stopping.cancelled() => return,
        }
    }
}

async fn all_ended(tasks: &mut JoinSet<&'static str>) {
    while tasks.join_next().await.is_some() {}
}

fn name_of(ended: Option<Result<&'static str, tokio::task::JoinError>>) -> &'static str {
    match ended {
        Some(Ok(name)) => name,
        Some(Err(_)) => "(panicked)",
        None => "(none)",
    }
}

/// Cancels `stopping` at the first SIGINT or SIGTERM and ends the process with 130 at the second.
pub async fn signals(stopping: CancellationToken) {
    if crate::os::stop_signal().await.is_err() {
        error!("stop signals cannot be heard");
        std::future::pending::<()>().await;
    }
    stopping.cancel();
    let _ = crate::os::stop_signal().await;
    error!("second stop signal: ending at once");
    std::process::exit(130);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{ManualClock, SystemClock};

    #[tokio::test]
    async fn a_stop_waits_for_the_stations() {
        let mut life = Lifecycle::new();
        let (stopping, done) = (life.stopping.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let seen = Arc::clone(&done);
        let token = stopping.clone();
        life.station("worker", async move {
            token.cancelled().await;
            tokio::task::yield_now().await;
            seen.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        life.edge("listener", std::future::pending());
        stopping.cancel();
        let ended = life.run(&SystemClock::new(), Duration::from_secs(60), Duration::from_secs(60)).await;
        assert_eq!(ended, Ended::Cleanly);
        assert!(done.load(std::sync::atomic::Ordering::SeqCst));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_task_that_obeys_the_stop_at_once_did_not_die() {
        for _ in 0..500 {
            let mut life = Lifecycle::new();
            let (token, stopping) = (life.stopping.clone(), life.stopping.clone());
            life.station("worker", async move { token.cancelled().await });
            life.edge("signals", async move {
                tokio::task::yield_now().await;
                stopping.cancel();
                std::future::pending().await
            });
            let ended = life.run(&SystemClock::new(), Duration::ZERO, Duration::ZERO).await;
            assert_eq!(ended, Ended::Cleanly);
        }
    }

    #[tokio::test]
    async fn a_task_that_dies_takes_the_gateway_down() {
        let mut life = Lifecycle::new();
        life.station("delivery", async {});
        let ended = life.run(&SystemClock::new(), Duration::ZERO, Duration::ZERO).await;
        assert_eq!(ended, Ended::TaskDied("delivery"));
    }

    #[tokio::test]
    async fn a_task_that_panics_is_begun_anew_after_a_pause() {
        let mut life = Lifecycle::new();
        let clock = Arc::new(channel_api::contract::FakeClock::at(0));
        let (begun, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let (shared, stopping) = (Arc::clone(&clock) as Arc<dyn Clock>, life.stopping.clone());
        let token = stopping.clone();
        let began = std::sync::atomic::AtomicU64::new(0);
        life.renewed("skills", &shared, move || {
            let (begun, token) = (begun.clone(), token.clone());
            let nth = began.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
            async move {
                begun.send(nth).unwrap();
                assert!(nth > 2, "no thread");
                token.cancelled().await;
            }
        });
        assert_eq!(seen.recv().await, Some(1));
        for (pause, next) in [(PAUSES[0], 2), (PAUSES[1], 3)] {
            clock.until_sleeping(1).await;
            assert!(seen.try_recv().is_err(), "not before its pause is over");
            clock.advance(Duration::from_secs(pause));
            assert_eq!(seen.recv().await, Some(next));
        }
        stopping.cancel();
        let ended = life.run(&SystemClock::new(), Duration::from_secs(60), Duration::ZERO).await;
        assert_eq!(ended, Ended::Cleanly);
    }

    #[tokio::test]
    async fn the_drain_has_an_end() {
        let mut life = Lifecycle::new();
        let drained = life.drained.clone();
        life.station("stuck", async move { std::future::pending().await });
        life.stopping.cancel();
        let clock = Arc::new(ManualClock::at(0));
        let ticking = Arc::clone(&clock);
        let mut hands = JoinSet::new();
        hands.spawn(async move {
            loop {
                ticking.advance(Duration::from_secs(1));
                tokio::task::yield_now().await;
            }
        });
        let ended = life.run(clock.as_ref(), Duration::from_secs(6), Duration::from_secs(2)).await;
        assert_eq!(ended, Ended::Cleanly);
        assert!(drained.is_cancelled());
    }
}
