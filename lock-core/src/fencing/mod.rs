//! The fencing token, a number that lets a resource reject a late holder, and ways to check it
//! there.
//!
//! A token protects only a resource that refuses smaller tokens. Two kinds of resources are
//! supported here:
//!
//! - **A SQL database.** Keep one row per lock key ([`CREATE_TABLE`]) and advance it with
//!   [`ADVANCE`] as the first statement of the transaction that writes: it affects no row if a
//!   newer holder has written, and [`check_advanced`] turns that into [`StaleFence`]. In the same
//!   transaction, check *again* for what must not exist twice: an older holder may have committed
//!   between your first check and the fence.
//! - **Redis.** The script [`SET_IF_NEWER`] writes a value only if no newer holder has.
//!
//! ```
//! use lock_core::fencing::{ADVANCE, StaleFence, check_advanced};
//!
//! // With sqlx, in the transaction `tx` and under the lease `lease`:
//! //   let done = sqlx::query(ADVANCE)
//! //       .bind(lease.key().as_str())
//! //       .bind(lease.fencing_token().as_i64())
//! //       .execute(&mut *tx)
//! //       .await?;
//! //   check_advanced(done.rows_affected())?;
//! assert!(ADVANCE.starts_with("INSERT INTO fences"));
//! assert_eq!(check_advanced(1), Ok(()));
//! assert_eq!(check_advanced(0), Err(StaleFence));
//! ```

use std::fmt;

/// One grant has numbers for `2^HAND_OFF_BITS` holders within a process, the first one included.
const HAND_OFF_BITS: u32 = 6;

/// A number that grows with every grant of a key.
///
/// A lease ends by the clock, so a holder that was paused may act after it lost the lock. Send the
/// token with each write, and let the resource refuse a token smaller than the largest that it has
/// seen: then a late write cannot undo a newer one, whatever the timing.
///
/// The token is the grant number, which the store minted, shifted left by six bits that count the
/// hand-offs of that grant within the process. A lease that was taken [without
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

    /// The token of the holder that got the grant with this `number` after so many `hand_offs`.
    pub(crate) const fn of_grant(number: u64, hand_offs: u8) -> Self {
        Self(number << HAND_OFF_BITS | hand_offs as u64)
    }

    /// No holder of the grant with this `number`, or of an earlier one, has a larger token.
    pub(crate) const fn last_of(number: u64) -> Self {
        Self(number << HAND_OFF_BITS | ((1 << HAND_OFF_BITS) - 1))
    }

    /// A token from the number that [`get`](Self::get) returned.
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
/// `PostgreSQL` and `SQLite`. Advancing to the token of a lease [without
/// fencing](crate::LockOptions::without_fencing) is an error.
pub const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS fences \
    (resource TEXT PRIMARY KEY, token BIGINT NOT NULL CHECK (token > 0))";

/// Advances the fence of lock key `$1` to token `$2`; affects no row if the fence has this token or
/// a larger one. For `PostgreSQL` and `SQLite`.
///
/// A lease can advance the fence once: put all its writes into the transaction that begins with it.
pub const ADVANCE: &str = "INSERT INTO fences (resource, token) VALUES ($1, $2) \
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE fences.token < excluded.token";

/// A Lua script for Redis: sets a value unless a holder with a larger token has set it.
///
/// | argument | |
/// |---|---|
/// | `KEYS[1]` | the key of the value |
/// | `KEYS[2]` | the key of its fence, which keeps the largest token; another key, on a cluster in the same slot |
/// | `ARGV[1]` | the value |
/// | `ARGV[2]` | the token in decimal, as [`get`](FencingToken::get) returns it |
///
/// Replies 1 if the value was set, and 0 if a newer holder has set it, which [`check_advanced`]
/// turns into [`StaleFence`]. The reply is an error, and nothing is set, if both keys are the same
/// or if the lease was taken [without fencing](crate::LockOptions::without_fencing).
///
/// A holder may set the value more than once. Repeating the script after a lost reply is harmless.
/// It runs on any Redis server, the lock's or another.
///
/// With the crate `redis` (redis-rs) and its feature `script`:
///
/// ```no_run
/// # #[cfg(feature = "redis")]
/// # async fn set(
/// #     lease: &lock_core::Lease,
/// #     connection: &mut redis::aio::MultiplexedConnection,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use lock_core::fencing::{SET_IF_NEWER, check_advanced};
///
/// let script = redis::Script::new(SET_IF_NEWER); // keep it: this computes a hash
/// let written: u64 = script
///     .key("balance")
///     .key("balance:fence")
///     .arg(120)
///     .arg(lease.fencing_token().get())
///     .invoke_async(connection)
///     .await?;
/// check_advanced(written)?;
/// # Ok(()) }
/// ```
pub const SET_IF_NEWER: &str = include_str!("set_if_newer.lua");

/// A newer holder of the lock has written, so this holder must not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StaleFence;

/// Checks the number of rows that [`ADVANCE`] affected, or the reply of [`SET_IF_NEWER`].
///
/// # Errors
///
/// [`StaleFence`] if it is 0: a newer holder has written. Roll the transaction back.
pub const fn check_advanced(rows_affected: u64) -> Result<(), StaleFence> {
    if rows_affected == 0 { Err(StaleFence) } else { Ok(()) }
}

impl fmt::Display for StaleFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a newer holder of the lock has written: this write was refused")
    }
}

impl std::error::Error for StaleFence {}
