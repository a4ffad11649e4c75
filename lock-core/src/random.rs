//! The one place that draws random bytes.
//!
//! They come from the operating system: a user-space generator may be cloned with its state (fork,
//! snapshot of a virtual machine).
//!
//! With the feature `test-util`, a thread may draw from a seed instead, so that a simulation can be
//! repeated.

/// Fills `bytes`.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    #[cfg(feature = "test-util")]
    if seeded::fill(bytes) {
        return Ok(());
    }
    getrandom::fill(bytes)
}

/// A byte for jitter. If the operating system gives no random bytes the jitter is 0: clients then
/// retry at the same time, which is correct but puts more load on the store.
pub(crate) fn byte() -> u8 {
    let mut byte = [0];
    let _ = fill(&mut byte);
    byte[0]
}

#[cfg(feature = "test-util")]
pub(crate) mod seeded {
    use std::cell::Cell;

    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    pub(crate) fn replace(state: Option<u64>) -> Option<u64> {
        STATE.replace(state)
    }

    /// Draws from the seed, if this thread has one.
    pub(super) fn fill(bytes: &mut [u8]) -> bool {
        let Some(mut state) = STATE.get() else { return false };
        for chunk in bytes.chunks_mut(8) {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
        STATE.set(Some(state));
        true
    }
}
