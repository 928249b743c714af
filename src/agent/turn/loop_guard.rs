//! Notices a model that makes the same call over and over and gets the same result. Decides nothing: it counts.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

/// What was seen in this turn.
#[derive(Debug, Default)]
pub struct LoopGuard {
    seen: HashMap<u64, Seen>,
    changes: HashSet<u64>,
}

#[derive(Debug)]
struct Seen {
    result: u64,
    times: u32,
    round: u32,
}

impl LoopGuard {
    /// Counts one result: how many rounds in a row this call with these arguments gave it.
    ///
    /// Twins inside one round count once. A *new* call that changes something (`changes`) starts all counts again: running
    /// the same failing test after each edit is work, not a loop.
    pub fn observe(&mut self, round: u32, name: &str, arguments: &str, result: &str, changes: bool) -> u32 {
        let call = hash((name, arguments));
        let result = hash(result);
        if changes && self.changes.insert(call) {
            self.seen.clear();
        }
        let seen = self.seen.entry(call).or_insert(Seen { result, times: 0, round: 0 });
        if seen.result != result {
            *seen = Seen { result, times: 0, round: 0 };
        }
        if seen.round != round {
            seen.times += 1;
            seen.round = round;
        }
        seen.times
    }
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_same_call_with_the_same_result() {
        let mut guard = LoopGuard::default();
        assert_eq!(guard.observe(1, "read", "{a}", "x", false), 1);
        assert_eq!(guard.observe(1, "read", "{a}", "x", false), 1, "a twin in the same round");
        assert_eq!(guard.observe(2, "read", "{b}", "x", false), 1, "other arguments");
        assert_eq!(guard.observe(2, "read", "{a}", "x", false), 2, "alternating is a loop too");
        assert_eq!(guard.observe(3, "read", "{a}", "y", false), 1, "another result");
        assert_eq!(guard.observe(4, "read", "{a}", "y", false), 2);
        assert_eq!(guard.observe(4, "edit", "{1}", "ok", true), 1);
        assert_eq!(guard.observe(5, "read", "{a}", "y", false), 1, "something changed in between");
        assert_eq!(guard.observe(6, "edit", "{1}", "ok", true), 2, "the same change again is none");
        assert_eq!(guard.observe(6, "read", "{a}", "y", false), 2);
    }
}
