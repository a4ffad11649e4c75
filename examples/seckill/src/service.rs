//! One order per user per voucher: three ways to take an order.
//!
//! The first has no lock. The second is the same behind `#[distributed_lock]`. The third expects
//! that its caller holds the lock, as [`LockLayer`](lock_tower::LockLayer) does.

use std::sync::Arc;

use lock_core::{Lease, LockClient, distributed_lock};
use serde::Serialize;

use crate::db::{Database, NewOrder, Order};
pub use crate::error::OrderError;
use crate::payment::PaymentCheck;

/// Takes orders.
#[derive(Clone, Debug)]
pub struct OrderService {
    db: Database,
    locks: LockClient,
    payment: PaymentCheck,
    instance: Arc<str>,
}

/// What became of a press of the button.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "order", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// A new order.
    Ordered(Order),
    /// The user has had it before. Pressing twice is not an error.
    AlreadyOrdered(Order),
}

impl OrderService {
    /// A service that signs its orders with the name of its instance.
    #[must_use]
    pub fn new(db: Database, locks: LockClient, payment: PaymentCheck, instance: &str) -> Self {
        Self { db, locks, payment, instance: instance.into() }
    }

    /// Takes an order without any lock: read, check, insert.
    ///
    /// Right for one request at a time. Of two for the same user, both read "no order" before
    /// either has inserted, and both insert.
    ///
    /// # Errors
    ///
    /// When the voucher is sold out or the database fails.
    pub async fn order_unlocked(&self, voucher: &str, user: u32) -> Result<Outcome, OrderError> {
        if let Some(order) = self.db.find_order(voucher, user).await? {
            return Ok(Outcome::AlreadyOrdered(order));
        }
        if self.db.voucher(voucher).await?.is_none_or(|v| v.stock <= 0) {
            return Err(OrderError::SoldOut);
        }
        self.payment.check(user).await;
        Ok(Outcome::Ordered(self.db.insert_trusting(self.new_order(voucher, user)).await?))
    }

    /// Takes an order; at most one request per user and voucher is in here, in all processes.
    ///
    /// A second press waits for the first, and then finds its order.
    ///
    /// # Errors
    ///
    /// As [`order_under`](Self::order_under), and when the lock is not to be had within `wait`.
    #[distributed_lock(
        key = "order:<voucher>:<user>",
        wait = "5s",
        client = self.locks,
        lease = lease
    )]
    pub async fn order(&self, voucher: &str, user: u32) -> Result<Outcome, OrderError> {
        self.order_under(&lease, voucher, user).await
    }

    /// Takes an order under a lock that the caller holds.
    ///
    /// It is committed inside the lock, and the transaction refuses a holder that was overtaken:
    /// a lease ends by the clock, and a process that stalls does not notice.
    ///
    /// # Errors
    ///
    /// When the voucher is sold out, the lock turns out not to have held, or the database fails.
    pub async fn order_under(
        &self,
        lease: &Lease,
        voucher: &str,
        user: u32,
    ) -> Result<Outcome, OrderError> {
        if let Some(order) = self.db.find_order(voucher, user).await? {
            return Ok(Outcome::AlreadyOrdered(order));
        }
        self.payment.check(user).await;

        let mut tx = self.db.begin_fenced(lease).await?;
        tx.expect_no_order(voucher, user).await?;
        tx.take_one(voucher).await?;
        let order = tx.insert(self.new_order(voucher, user)).await?;
        tx.commit().await?;
        Ok(Outcome::Ordered(order))
    }

    fn new_order<'a>(&'a self, voucher: &'a str, user: u32) -> NewOrder<'a> {
        NewOrder { voucher, user, instance: &self.instance }
    }
}
