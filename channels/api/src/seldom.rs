//! Keeps a line that anybody can cause from filling the log: the first is said, then at most one in a minute.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// How long nothing is said after a line.
const PAUSE: Duration = Duration::from_secs(60);

/// Says when a line is due, and how many were left out before it.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Duration>,
    left_out: u64,
}

impl Seldom {
    /// It happened, at `now` of [`crate::Clock::monotonic`]. `Some(left_out)`: say it, with how many times it happened
    /// unsaid since the last line.
    pub fn due(&self, now: Duration) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| now.saturating_sub(last) < PAUSE) {
            state.left_out = state.left_out.saturating_add(1);
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_at_once_and_then_one_in_a_minute() {
        let seldom = Seldom::default();
        let due = |seconds| seldom.due(Duration::from_secs(seconds));
        assert_eq!(
            [due(5), due(6), due(64), due(65), due(66), due(125)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }
}
