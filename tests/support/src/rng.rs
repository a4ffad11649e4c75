//! Random choices that a seed repeats.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Random numbers that are the same for the same seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(seed ^ 0x5851_f42d_4c95_7f2d);
        rng.number();
        rng
    }

    /// Another generator, seeded by this one.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(self.number())
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// A number in `range`.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// Milliseconds in `range`.
    pub fn ms(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.within(1..=100) <= percent
    }

    /// One of `all`.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.within(0..=all.len() as u64 - 1) as usize]
    }
}
