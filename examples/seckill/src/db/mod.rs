//! Vouchers and orders in SQL, on SQLite or PostgreSQL.
//!
//! Nothing here knows that there are locks. A [`Database`] reads outside of transactions; what a
//! locked order writes goes through one [`OrderTx`].

mod audit;
mod order;

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use sqlx::any::AnyPoolOptions;
use sqlx::{AnyConnection, AnyPool, Connection};

pub use self::audit::Audit;
pub use self::order::{NewOrder, Order, OrderTx};

/// SQLite has one writer at a time: the others wait this long for their turn.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// More connections would only wait for each other at SQLite's single writer.
const SQLITE_CONNECTIONS: u32 = 2;

/// A few processes of this size stay below PostgreSQL's default limit of 100.
const POSTGRES_CONNECTIONS: u32 = 16;

/// A request that waits longer for a connection has lost its client.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

/// A pool of connections to the service's database.
#[derive(Clone)]
pub struct Database {
    pool: AnyPool,
    backend: Backend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Sqlite,
    Postgres,
}

/// A voucher and what is left of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Voucher {
    /// What is printed on the poster, and what orders refer to.
    pub code: String,
    /// How many there were.
    pub initial_stock: i64,
    /// How many are left; below zero when more were sold than there were.
    pub stock: i64,
}

impl Database {
    /// Connects to `sqlite:file?mode=rwc` or `postgres://…`.
    ///
    /// # Errors
    ///
    /// When the URL names another database, or it cannot be reached.
    pub async fn connect(url: &str) -> Result<Self, sqlx::Error> {
        sqlx::any::install_default_drivers();
        let backend = if url.starts_with("sqlite:") { Backend::Sqlite } else { Backend::Postgres };
        // The pool would try again and again, and then say only that time was up.
        AnyConnection::connect(url).await?.close().await?;
        let pool = AnyPoolOptions::new()
            .max_connections(match backend {
                Backend::Sqlite => SQLITE_CONNECTIONS,
                Backend::Postgres => POSTGRES_CONNECTIONS,
            })
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .after_connect(move |connection, _| Box::pin(prepare(connection, backend)))
            .connect(url)
            .await?;
        Ok(Self { pool, backend })
    }

    /// Creates the tables that are missing.
    ///
    /// # Errors
    ///
    /// When the database refuses, or another process does the same at the same time.
    pub async fn create_schema(&self) -> Result<(), sqlx::Error> {
        let schema = match self.backend {
            Backend::Sqlite => include_str!("../../schema/sqlite.sql"),
            Backend::Postgres => include_str!("../../schema/postgres.sql"),
        };
        sqlx::raw_sql(schema).execute(&self.pool).await?;
        Ok(())
    }

    /// Puts a voucher on sale, unless it is already.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn offer(&self, code: &str, stock: u32) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO vouchers (code, initial_stock, stock) VALUES ($1, $2, $2) \
             ON CONFLICT (code) DO NOTHING",
        )
        .bind(code)
        .bind(i64::from(stock))
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// The voucher, if there is one of that code.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn voucher(&self, code: &str) -> Result<Option<Voucher>, sqlx::Error> {
        let row: Option<(i64, i64)> =
            sqlx::query_as("SELECT initial_stock, stock FROM vouchers WHERE code = $1")
                .bind(code)
                .fetch_optional(&self.pool)
                .await?;
        Ok(row.map(|(initial_stock, stock)| Voucher {
            code: code.to_owned(),
            initial_stock,
            stock,
        }))
    }

    /// Forgets every order of a voucher and fills its stock again. Fences stay: they only go up.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn start_over(&self, code: &str) -> Result<(), sqlx::Error> {
        let mut tx = self.pool.begin().await?;
        // A write first: SQLite gives the whole transaction its turn before it reads anything.
        sqlx::query("UPDATE vouchers SET stock = initial_stock WHERE code = $1")
            .bind(code)
            .execute(&mut *tx)
            .await?;
        sqlx::query("DELETE FROM orders WHERE voucher = $1").bind(code).execute(&mut *tx).await?;
        tx.commit().await
    }

    /// Takes a voucher off sale, its orders and fences with it.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn withdraw(&self, code: &str) -> Result<(), sqlx::Error> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("DELETE FROM orders WHERE voucher = $1").bind(code).execute(&mut *tx).await?;
        sqlx::query("DELETE FROM fences WHERE resource LIKE $1")
            .bind(format!("order:{code}:%"))
            .execute(&mut *tx)
            .await?;
        sqlx::query("DELETE FROM vouchers WHERE code = $1").bind(code).execute(&mut *tx).await?;
        tx.commit().await
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

async fn prepare(connection: &mut AnyConnection, backend: Backend) -> Result<(), sqlx::Error> {
    if backend == Backend::Sqlite {
        // The time-out first: even the switch to WAL may have to wait for another process.
        let timeout = BUSY_TIMEOUT.as_millis();
        let busy = format!("PRAGMA busy_timeout = {timeout}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(busy)).execute(&mut *connection).await?;
        sqlx::raw_sql("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

impl fmt::Debug for Database {
    // The pool's own would print the URL, and with it a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("backend", &self.backend).finish_non_exhaustive()
    }
}
