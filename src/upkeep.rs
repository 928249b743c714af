//! Keeps the store in shape while the gateway runs: old rows, old files, the write-ahead log, and a look at whether
//! commits work.

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

use crate::{
    audit,
    media::MediaFolder,
    store::{Retention, Store, StoreError},
};

/// The pause between two looks at the log and old rows.
const EVERY: Duration = Duration::from_secs(60);
/// The pause between two looks at old files.
const FILES_EVERY: Duration = Duration::from_secs(60 * 60);
/// How often the log file names the end of the audit log.
const HEAD_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// The pause between two looks at the clock, and between two probes while commits fail. guarantees.md G9.
const LOOK: Duration = Duration::from_secs(5);
/// A wall clock that moved this much against the monotonic one was set; less is its ordinary drift.
const CLOCK_STEP_MS: i64 = 2_000;

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

    /// Whether the last commit that was tried worked.
    pub fn store_works(&self) -> bool {
        !self.0.store_down.load(Ordering::Acquire)
    }

    /// Started, and commits work.
    pub fn is_ready(&self) -> bool {
        self.0.started.load(Ordering::Acquire) && !self.0.store_down.load(Ordering::Acquire)
    }
}

/// Runs until `stopping` is cancelled. A damaged database cancels `stopping` and sets `damaged`.
pub async fn run(
    store: Arc<dyn Store>,
    media: Arc<MediaFolder>,
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
    let mut rest = EVERY;
    let mut files_due = Duration::ZERO;
    // The start has named it.
    let mut head_due = clock.monotonic() + HEAD_EVERY;
    let mut before = clock.now_ms() - clock.monotonic().as_millis() as i64;
    loop {
        tokio::select! {
            () = clock.sleep(LOOK) => rest = rest.saturating_sub(LOOK),
            () = stopping.cancelled() => return,
        }
        let offset = clock.now_ms() - clock.monotonic().as_millis() as i64;
        if (offset - before).abs() >= CLOCK_STEP_MS {
            warn!(by_ms = offset - before, "the machine's clock was set; what waits for a time is moved with it");
            match store.clock_was_set(offset - before).await {
                Ok(()) => before = offset,
                Err(error) => warn!(%error, "what waits could not be moved with the clock yet"),
            }
        }
        if ready.store_works() && !rest.is_zero() {
            continue;
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
            continue;
        }
        rest = EVERY;
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
        if clock.monotonic() >= head_due {
            match store.audit_head().await {
                Ok(head) => {
                    audit::log_head(&head);
                    head_due = clock.monotonic() + HEAD_EVERY;
                }
                Err(error) => warn!(%error, "the end of the audit log could not be read"),
            }
        }
        if clock.monotonic() >= files_due || media.is_crowded().await {
            match store.files_in_use().await {
                Ok(in_use) => {
                    if !media.sweep(in_use).await.more {
                        files_due = clock.monotonic() + FILES_EVERY;
                    }
                }
                Err(error) => warn!(%error, "no old files are deleted: what is still needed could not be read"),
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
