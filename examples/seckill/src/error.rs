//! Why an order was not taken.

/// Why there is no order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// Nothing left.
    #[error("the voucher is sold out")]
    SoldOut,
    /// Another holder acted for the same user while this one believed that it held the lock.
    #[error("another holder of the lock has acted meanwhile; nothing was ordered")]
    Overtaken,
    /// The lock was not to be had, or was lost.
    #[error(transparent)]
    Lock(#[from] lock_core::Error),
    /// The database failed.
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
}
