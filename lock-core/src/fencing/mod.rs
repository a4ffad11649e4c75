//! The fencing token: the number by which a resource tells a late holder from the present one, and
//! ways to check it there.
//!
//! A token protects only a resource that refuses smaller ones. Two kinds are prepared here:
//!
//! - **A SQL database.** Keep one row per lock key ([`CREATE_TABLE`]) and advance it with
//!   [`ADVANCE`] as the first statement of the transaction that writes: it affects no row if a
//!   newer holder was there, and [`advanced`] turns that into [`StaleFence`]. What you then read in
//!   the same transaction is behind the fence: look *again* for what must not exist twice, since an
//!   older holder may have committed between your first look and the fence.
//! - **Redis.** [`set_if_newer`] (feature `redis`) writes a value only if no newer holder has.
//!
//! ```
//! use lock_core::fencing::{ADVANCE, StaleFence, advanced};
//!
//! // With sqlx, in the transaction `tx` and under the lease `lease`:
//! //   let done = sqlx::query(ADVANCE).bind(lease.key().as_str()).bind(lease.fencing_token().as_i64()).execute(&mut *tx).await?;
//! //   advanced(done.rows_affected())?;
//! assert!(ADVANCE.starts_with("INSERT INTO fences"));
//! assert_eq!(advanced(1), Ok(()));
//! assert_eq!(advanced(0), Err(StaleFence));
//! ```

#[cfg(feature = "redis")]
mod redis;

use std::fmt;

#[cfg(feature = "redis")]
pub use self::redis::set_if_newer;

/// Holders within a process that one grant has numbers for: `2^TURN_BITS`, the first one included.
const TURN_BITS: u32 = 6;

/// A number that grows with every grant of a key.
///
/// A lease ends by the clock, so a holder that was paused may act after it lost the lock. Send the
/// token along with each write, and let the resource refuse a token smaller than the largest that
/// it has seen: then a late write cannot undo a newer one, whatever the timing.
///
/// Shape: the number that the store minted, shifted left by six bits that count the hand-offs of
/// that grant within the process. A lease that was taken [without
/// fencing](crate::LockOptions::without_fencing) has the token 0, smaller than every other, and no
/// check accepts it. A token fits a signed 64-bit column ([`as_i64`](Self::as_i64)) but exceeds
/// `2^53`: serialise it as a string for JavaScript.
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
    /// The token of a lease without one.
    pub(crate) const NONE: Self = Self(0);

    /// The token of the holder to whom a grant with this `number` came by its `turn`th hand-off; 0
    /// is the grant itself.
    pub(crate) const fn of_turn(number: u64, turn: u8) -> Self {
        Self(number << TURN_BITS | turn as u64)
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

/// The table that [`ADVANCE`] needs: the largest token that has written under each lock key. For
/// `PostgreSQL` and `SQLite`. It takes no token of a lease [without
/// fencing](crate::LockOptions::without_fencing): advancing to it is an error.
pub const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS fences \
    (resource TEXT PRIMARY KEY, token BIGINT NOT NULL CHECK (token > 0))";

/// Advances the fence of lock key `$1` to token `$2`; affects no row if it stands there or beyond.
/// For `PostgreSQL` and `SQLite`.
///
/// One lease can pass it once: what it writes belongs into the one transaction that begins with it.
pub const ADVANCE: &str = "INSERT INTO fences (resource, token) VALUES ($1, $2) \
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE fences.token < excluded.token";

/// A newer holder of the lock has written: this one must not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StaleFence;

/// What the number of rows that [`ADVANCE`] affected means.
///
/// # Errors
///
/// [`StaleFence`] if it affected none: roll back.
pub const fn advanced(rows_affected: u64) -> Result<(), StaleFence> {
    if rows_affected == 0 { Err(StaleFence) } else { Ok(()) }
}

impl fmt::Display for StaleFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a newer holder of the lock has written: this write was refused")
    }
}

impl std::error::Error for StaleFence {}
