//! Reproducible randomness.

use std::marker::PhantomData;

use crate::random;

/// While it lives, this thread draws tokens and jitter from a seed instead of the operating system.
///
/// Under a paused tokio clock, on a single thread, clients and stores then do the same each time.
#[derive(Debug)]
#[must_use = "the seed is gone once it is dropped"]
pub struct Seeded {
    before: Option<u64>,
    /// It belongs to this thread.
    _here: PhantomData<*const ()>,
}

impl Seeded {
    /// Starts to draw from `seed`.
    pub fn with(seed: u64) -> Self {
        Self { before: random::seeded::replace(Some(seed)), _here: PhantomData }
    }
}

impl Drop for Seeded {
    fn drop(&mut self) {
        random::seeded::replace(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Token;

    #[test]
    fn a_seed_repeats_itself_and_ends() {
        let draw = || [Token::fresh().unwrap(), Token::fresh().unwrap()];
        let seeded = |seed| {
            let _seeded = Seeded::with(seed);
            draw()
        };
        let [one, two] = seeded(1);
        assert_ne!(one, two);
        assert_eq!(seeded(1), [one, two]);
        assert_ne!(seeded(2), [one, two]);
        assert_ne!(draw(), draw());
    }
}
