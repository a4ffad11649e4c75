//! Orders: found, inserted, and the transaction that a locked order is written in.

use lock_core::fencing::{ADVANCE, StaleFence, check_advanced};
use lock_core::{FencingToken, Lease};
use serde::{Serialize, Serializer};
use sqlx::{Any, Executor, Transaction};

use super::Database;
use crate::error::OrderError;

/// One order, as stored in the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Order {
    /// The number on the receipt.
    pub id: i64,
    /// Who ordered.
    pub user: u32,
    /// The process that took the order.
    pub instance: String,
    /// The token it was written under, if it was written under a lock.
    ///
    /// As text in JSON: it does not fit the numbers of JavaScript.
    #[serde(serialize_with = "as_text")]
    pub fence: Option<i64>,
}

/// What an order is made from.
#[derive(Clone, Copy, Debug)]
pub struct NewOrder<'a> {
    /// The voucher's code.
    pub voucher: &'a str,
    /// Who orders.
    pub user: u32,
    /// The process that takes the order.
    pub instance: &'a str,
}

/// The columns of an [`Order`].
type Row = (i64, i64, String, Option<i64>);

impl Database {
    /// The order of this user for this voucher, the first if there are several.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn find_order(&self, voucher: &str, user: u32) -> Result<Option<Order>, sqlx::Error> {
        let row: Option<Row> = sqlx::query_as(
            "SELECT id, user_id, instance, fence FROM orders \
             WHERE voucher = $1 AND user_id = $2 ORDER BY id LIMIT 1",
        )
        .bind(voucher)
        .bind(i64::from(user))
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.map(Order::from))
    }

    /// How many orders this user has for this voucher.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn orders_of(&self, voucher: &str, user: u32) -> Result<i64, sqlx::Error> {
        count(&self.pool, voucher, user).await
    }

    /// The latest orders for this voucher, newest first.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn latest_orders(
        &self,
        voucher: &str,
        limit: u32,
    ) -> Result<Vec<Order>, sqlx::Error> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT id, user_id, instance, fence FROM orders \
             WHERE voucher = $1 ORDER BY id DESC LIMIT $2",
        )
        .bind(voucher)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(Order::from).collect())
    }

    /// Takes one from the stock and inserts the order, trusting what the caller has read before.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn insert_trusting(&self, new: NewOrder<'_>) -> Result<Order, sqlx::Error> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("UPDATE vouchers SET stock = stock - 1 WHERE code = $1")
            .bind(new.voucher)
            .execute(&mut *tx)
            .await?;
        let order = insert(&mut tx, new, None).await?;
        tx.commit().await?;
        Ok(order)
    }

    /// Begins the transaction of a locked order, with the fence as its first statement.
    ///
    /// # Errors
    ///
    /// [`OrderError::Overtaken`] when a later holder of the same key has already written.
    pub async fn begin_fenced(&self, lease: &Lease) -> Result<OrderTx, OrderError> {
        let mut tx = self.pool.begin().await?;
        let fence = lease.fencing_token();
        let done = sqlx::query(ADVANCE)
            .bind(lease.key().as_str())
            .bind(fence.as_i64())
            .execute(&mut *tx)
            .await?;
        check_advanced(done.rows_affected()).map_err(|StaleFence| OrderError::Overtaken)?;
        Ok(OrderTx { tx, fence })
    }
}

/// A transaction whose fence has been checked. Dropping it rolls back.
#[derive(Debug)]
pub struct OrderTx {
    tx: Transaction<'static, Any>,
    fence: FencingToken,
}

impl OrderTx {
    /// Refuses if the user has an order after all.
    ///
    /// A holder that lost its lock may commit late, *after* the next holder looked and *before* it
    /// wrote. Its token is the smaller one, so the fence lets both pass; only a look behind the
    /// fence sees it.
    ///
    /// # Errors
    ///
    /// [`OrderError::Overtaken`] when there is an order.
    pub async fn expect_no_order(&mut self, voucher: &str, user: u32) -> Result<(), OrderError> {
        match count(&mut *self.tx, voucher, user).await? {
            0 => Ok(()),
            _ => Err(OrderError::Overtaken),
        }
    }

    /// Takes one from the stock, if there is one: other users hold other locks.
    ///
    /// # Errors
    ///
    /// [`OrderError::SoldOut`] when there is none.
    pub async fn take_one(&mut self, voucher: &str) -> Result<(), OrderError> {
        let taken =
            sqlx::query("UPDATE vouchers SET stock = stock - 1 WHERE code = $1 AND stock > 0")
                .bind(voucher)
                .execute(&mut *self.tx)
                .await?;
        if taken.rows_affected() == 1 { Ok(()) } else { Err(OrderError::SoldOut) }
    }

    /// Inserts the order.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn insert(&mut self, new: NewOrder<'_>) -> Result<Order, sqlx::Error> {
        let fence = self.fence.as_i64();
        insert(&mut self.tx, new, Some(fence)).await
    }

    /// Commits.
    ///
    /// # Errors
    ///
    /// When the database fails; whether it has committed is then unknown.
    pub async fn commit(self) -> Result<(), sqlx::Error> {
        self.tx.commit().await
    }
}

async fn count(
    executor: impl Executor<'_, Database = Any>,
    voucher: &str,
    user: u32,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT COUNT(*) FROM orders WHERE voucher = $1 AND user_id = $2")
        .bind(voucher)
        .bind(i64::from(user))
        .fetch_one(executor)
        .await
}

async fn insert(
    tx: &mut Transaction<'static, Any>,
    new: NewOrder<'_>,
    fence: Option<i64>,
) -> Result<Order, sqlx::Error> {
    let row: Row = sqlx::query_as(
        "INSERT INTO orders (voucher, user_id, instance, fence) VALUES ($1, $2, $3, $4) \
         RETURNING id, user_id, instance, fence",
    )
    .bind(new.voucher)
    .bind(i64::from(new.user))
    .bind(new.instance)
    .bind(fence)
    .fetch_one(&mut **tx)
    .await?;
    Ok(row.into())
}

impl From<Row> for Order {
    fn from((id, user, instance, fence): Row) -> Self {
        let user = u32::try_from(user).expect("BUG: only users that fit are written");
        Self { id, user, instance, fence }
    }
}

#[allow(clippy::ref_option, reason = "serde's signature")]
fn as_text<S: Serializer>(fence: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    match fence {
        Some(fence) => serializer.collect_str(fence),
        None => serializer.serialize_none(),
    }
}
