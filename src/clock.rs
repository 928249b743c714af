//! The real clock, and one for tests that stands still until it is told to go on.

use std::{
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
pub use channel_api::Clock;
use tokio::sync::watch;

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Starts counting now.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the machine's clock")]
    pub fn new() -> Self {
        Self { started: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the machine's clock")]
    fn now_ms(&self) -> i64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A clock that moves only by [`ManualClock::advance`], for tests of schedules, back-off and expiry.
#[derive(Debug)]
pub struct ManualClock {
    wall: Mutex<i64>,
    elapsed: watch::Sender<Duration>,
}

impl ManualClock {
    /// A clock that shows `wall_ms` (epoch milliseconds).
    pub fn at(wall_ms: i64) -> Self {
        Self { wall: Mutex::new(wall_ms), elapsed: watch::Sender::new(Duration::ZERO) }
    }

    /// Moves both readings on and wakes the sleepers whose time has come.
    pub fn advance(&self, by: Duration) {
        *self.wall.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += by.as_millis() as i64;
        self.elapsed.send_modify(|elapsed| *elapsed += by);
    }

    /// Sets the wall clock alone, as a person or NTP would.
    pub fn jump_to(&self, wall_ms: i64) {
        *self.wall.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = wall_ms;
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        *self.wall.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn monotonic(&self) -> Duration {
        *self.elapsed.borrow()
    }

    async fn sleep(&self, duration: Duration) {
        let due = self.monotonic() + duration;
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.elapsed.subscribe().wait_for(|elapsed| *elapsed >= due).await;
    }
}
