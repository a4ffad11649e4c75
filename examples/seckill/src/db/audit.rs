//! What the database says afterwards, whatever the service believes.

use serde::Serialize;

use super::{Database, Voucher};

/// The books of one voucher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Orders in all.
    pub orders: i64,
    /// Different users who have at least one order.
    pub users_with_orders: i64,
    /// Users who have more than one.
    pub users_with_duplicates: i64,
    /// What the stock says; below zero when more were sold than there were.
    pub stock_left: i64,
    /// Orders beyond the initial stock.
    pub oversold: i64,
}

impl Database {
    /// Counts the orders of a voucher.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn audit(&self, voucher: &Voucher) -> Result<Audit, sqlx::Error> {
        let (orders, users_with_orders, users_with_duplicates): (i64, i64, i64) = sqlx::query_as(
            "SELECT CAST(COALESCE(SUM(n), 0) AS BIGINT), COUNT(*), COUNT(CASE WHEN n > 1 THEN 1 END) \
             FROM (SELECT COUNT(*) AS n FROM orders WHERE voucher = $1 GROUP BY user_id) AS per_user",
        )
        .bind(&voucher.code)
        .fetch_one(&self.pool)
        .await?;
        Ok(Audit {
            orders,
            users_with_orders,
            users_with_duplicates,
            stock_left: voucher.stock,
            oversold: (orders - voucher.initial_stock).max(0),
        })
    }
}
