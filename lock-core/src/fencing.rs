//! The fencing token: the number by which a resource tells a late holder from the present one.

use std::fmt;

/// How many in-process hand-offs of one grant have a number of their own: `2^TURN_BITS`.
const TURN_BITS: u32 = 6;

/// A number that grows with every grant of a key.
///
/// A lease ends by the clock, so a holder that was paused may act after it lost the lock. Send the
/// token along with each write, and let the resource refuse a token smaller than the largest that it
/// has seen: then a late write cannot undo a newer one, whatever the timing.
///
/// Shape: the number that the store minted, shifted left by six bits for hand-offs within a process.
/// It fits a signed 64-bit column ([`as_i64`](Self::as_i64)) but exceeds `2^53`: serialise it as a
/// string for JavaScript.
///
/// ```
/// use lock_core::FencingToken;
///
/// let (old, new) = (FencingToken::from_raw(64), FencingToken::from_raw(128));
/// assert!(new > old);
/// assert_eq!(new.to_string(), "128");
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token of a grant to which the store gave `number`.
    pub(crate) const fn of_grant(number: u64) -> Self {
        Self(number << TURN_BITS)
    }

    /// A token that was stored before, as [`get`](Self::get) gave it.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The token as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The token for a signed 64-bit database column (`BIGINT`).
    ///
    /// Never negative: stores mint numbers below `2^53`.
    #[must_use]
    pub const fn as_i64(self) -> i64 {
        self.0.cast_signed()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
