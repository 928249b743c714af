//! Chance that can be repeated: a seed, printed with a failing test's output, and numbers made of it.

use std::{ops::Range, time::Duration};

/// A small generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// From `CRAWFISH_SEED`, or a new seed; both are printed.
    pub fn seeded(test: &str) -> Self {
        let seed = std::env::var("CRAWFISH_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| getrandom::u64().expect("the system has random numbers"));
        println!("{test}: CRAWFISH_SEED={seed}");
        Self(seed)
    }

    /// Another generator, whose numbers do not depend on how many this one gives.
    pub fn branch(&mut self) -> Self {
        Self(self.next())
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of a range that is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// A duration in milliseconds.
    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// Puts a list in any order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for n in (1..list.len()).rev() {
            let other = self.within(0..n as u64 + 1) as usize;
            list.swap(n, other);
        }
    }
}

/// A number from the environment.
pub fn scale(name: &str, normal: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(normal)
}
