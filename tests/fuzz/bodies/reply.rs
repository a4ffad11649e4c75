//! The reader of replies and messages: it ends, and accepts only valid fencing tokens.

use lock_core::testing::{Reading, read_reply};

/// Reads `data` as a reply. The first byte gives the number of commands that it replies to.
pub fn read(data: &[u8]) -> bool {
    let (count, bytes) = data.split_first().map_or((1, data), |(first, rest)| (*first, rest));
    let count = usize::from(count % 64) + 1;
    let Reading { answers, numbers } = read_reply(bytes, count);
    assert!(answers.iter().all(|answers| *answers == count), "{answers:?} for {count}");
    assert!(numbers.len() <= count + 1);
    assert!(numbers.iter().all(|number| (1..=1 << 53).contains(number)), "{numbers:?}");
    !answers.is_empty() || !numbers.is_empty()
}
