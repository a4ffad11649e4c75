//! Random inputs that resemble those of a corpus.

use std::hash::{BuildHasher as _, RandomState};

use lock_testkit::Rng;

/// Mutates inputs of a corpus at random.
pub(crate) struct Mutator<'c> {
    corpus: &'c [Vec<u8>],
    rng: Rng,
}

/// Byte strings that are likely to reach special cases.
const WORDS: [&[u8]; 24] = [
    b"\r\n",
    b"*",
    b"$",
    b":",
    b"-1",
    b"9223372036854775807",
    b"*2\r\n:5\r\n",
    b"%1\r\n",
    b"<",
    b">",
    b"{",
    b"}",
    b"<<",
    b"}}",
    b"r#\"",
    b"/*",
    b"'",
    b"\"",
    b"\x1e",
    b"\x1f",
    b"%",
    b"~",
    b"\0",
    "\u{fc}".as_bytes(),
];
/// Longer inputs find nothing new.
const LONGEST: usize = 4_096;

impl<'c> Mutator<'c> {
    pub(crate) fn new(corpus: &'c [Vec<u8>]) -> Self {
        assert!(!corpus.is_empty());
        // The seed need not be known, because a failure prints its input.
        Self { corpus, rng: Rng::new(RandomState::new().hash_one(0)) }
    }

    pub(crate) fn mutate(&mut self) -> Vec<u8> {
        let mut input = self.pick().to_vec();
        for _ in 0..=self.below(6) {
            let at = self.below(input.len() + 1);
            match self.below(6) {
                0 if at < input.len() => input[at] = self.rng.number() as u8,
                1 if at < input.len() => drop(input.remove(at)),
                2 => input.insert(at, self.rng.number() as u8),
                3 => {
                    let word = WORDS[self.below(WORDS.len())];
                    drop(input.splice(at..at, word.iter().copied()));
                }
                4 => input.truncate(at),
                _ => {
                    let other = self.pick();
                    let from = self.below(other.len() + 1);
                    let part = other[from..].to_vec();
                    drop(input.splice(at..at, part));
                }
            }
        }
        input.truncate(LONGEST);
        input
    }

    fn pick(&mut self) -> &'c [u8] {
        &self.corpus[self.below(self.corpus.len())]
    }

    fn below(&mut self, end: usize) -> usize {
        self.rng.below(end as u64) as usize
    }
}
