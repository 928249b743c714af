//! Signs of life of a running adapter, for its supervisor and for people who ask how a channel is.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::Clock;

/// Shared between an adapter and its supervisor. Cheap to clone.
#[derive(Clone)]
pub struct Pulse {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    beat: Duration,
    link: Link,
}

/// How the connection to the platform is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// Nothing is known yet, or there is no connection to speak of.
    #[default]
    Unknown,
    /// Connected: events can come.
    Up,
    /// Not connected, and why or for what it waits, in a few plain words.
    Down(String),
}

impl Pulse {
    /// A pulse that beats now.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State { beat: clock.monotonic(), ..State::default() };
        Self { clock, state: Arc::new(Mutex::new(state)) }
    }

    /// A sign of life: a frame came, a poll was answered.
    pub fn beat(&self) {
        self.lock().beat = self.clock.monotonic();
    }

    /// The connection changed; a sign of life too.
    pub fn link(&self, link: Link) {
        let mut state = self.lock();
        state.link = link;
        state.beat = self.clock.monotonic();
    }

    /// How the connection is, and how long ago the last sign of life was.
    pub fn look(&self) -> (Link, Duration) {
        let state = self.lock().clone();
        (state.link, self.clock.monotonic().saturating_sub(state.beat))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
