//! Keeps the store in shape while the gateway runs: old rows, the write-ahead log, and a look at whether commits work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use channel_api::Clock;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::store::{Retention, StoreError, Upkeep};

/// The pause between two looks at the log and old rows.
const EVERY: Duration = Duration::from_secs(60);
/// The pause between two probes while commits fail. guarantees.md G9.
const PROBE: Duration = Duration::from_secs(5);

/// Whether the gateway can do its work: for `/readyz`.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<ReadyFlags>);

#[derive(Debug, Default)]
struct ReadyFlags {
    started: AtomicBool,
    store_down: AtomicBool,
}

impl Ready {
    /// Everything is started.
    pub fn started(&self) {
        self.0.started.store(true, Ordering::Release);
    }

    /// Whether commits work.
    pub fn store(&self, works: bool) {
        self.0.store_down.store(!works, Ordering::Release);
    }

    /// Started, and commits work.
    pub fn is_ready(&self) -> bool {
        self.0.started.load(Ordering::Acquire) && !self.0.store_down.load(Ordering::Acquire)
    }
}

/// Runs until `stopping` is cancelled. A damaged database cancels `stopping` and sets `damaged`.
pub async fn run(
    store: Arc<dyn Upkeep>,
    clock: Arc<dyn Clock>,
    ready: Ready,
    stopping: CancellationToken,
    damaged: Arc<AtomicBool>,
) {
    // In the background after ready: a large database takes its time.
    let checked = tokio::select! {
        checked = store.check() => checked,
        () = stopping.cancelled() => return,
    };
    if is_damage(&checked) {
        damaged.store(true, Ordering::Release);
        stopping.cancel();
        return;
    }
    let mut pause = PROBE;
    loop {
        tokio::select! {
            () = clock.sleep(pause) => {}
            () = stopping.cancelled() => return,
        }
        let probed = store.probe(clock.now_ms()).await;
        if is_damage(&probed) {
            damaged.store(true, Ordering::Release);
            stopping.cancel();
            return;
        }
        ready.store(probed.is_ok());
        if let Err(error) = probed {
            warn!(%error, "the store cannot commit; nothing is acknowledged until it can");
            pause = PROBE;
            continue;
        }
        pause = EVERY;
        loop {
            match store.prune(clock.now_ms(), &Retention::default()).await {
                Ok(true) if !stopping.is_cancelled() => tokio::task::yield_now().await,
                Ok(_) => break,
                Err(error) => {
                    warn!(%error, "old rows could not be deleted");
                    break;
                }
            }
        }
        if let Err(error) = store.checkpoint().await {
            debug!(%error, "the log could not be moved into the database now");
        }
    }
}

fn is_damage(result: &Result<(), StoreError>) -> bool {
    if let Err(StoreError::Corrupt(why)) = result {
        error!(%why, "the database is damaged; stopping without changing anything");
        return true;
    }
    false
}
