//! A shop in this process, a Redis of the test's own, instances as processes, and a client.

use std::process::Command;
use std::time::Duration;

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lock_core::LockClient;
use lock_core::store::MemoryStore;
use lock_testkit::ChildProcess;
use seckill::db::{Audit, Database};
use seckill::payment::PaymentCheck;
use seckill::routes::USER_HEADER;
use seckill::service::OrderService;
use serde_json::Value;
use tempfile::TempDir;

/// Nothing here takes long; what does is stuck.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const VOUCHER: &str = "spring";

/// One instance without a network, on a database file of its own.
pub(crate) struct Shop {
    pub(crate) db: Database,
    pub(crate) locks: LockClient,
    pub(crate) service: OrderService,
    pub(crate) url: String,
    _directory: TempDir,
}

impl Shop {
    pub(crate) async fn with_stock(stock: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = sqlite_url(&directory);
        let db = Database::connect(&url).await.unwrap();
        db.create_schema().await.unwrap();
        db.offer(VOUCHER, stock).await.unwrap();
        let locks = LockClient::builder(MemoryStore::new()).build().unwrap();
        let payment = PaymentCheck::new(Duration::from_millis(10));
        let service = OrderService::new(db.clone(), locks.clone(), payment, "test");
        Self { db, locks, service, url, _directory: directory }
    }

    pub(crate) async fn audit(&self) -> Audit {
        audit(&self.db, VOUCHER).await
    }
}

pub(crate) async fn audit(db: &Database, voucher: &str) -> Audit {
    let voucher = db.voucher(voucher).await.unwrap().unwrap();
    db.audit(&voucher).await.unwrap()
}

pub(crate) fn sqlite_url(directory: &TempDir) -> String {
    format!("sqlite:{}?mode=rwc", directory.path().join("shop.db").display())
}

/// An instance in a process of its own, and its address.
pub(crate) async fn instance(
    name: &str,
    redis: &str,
    database: &str,
    arguments: &[&str],
) -> (ChildProcess, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command
        .args(["--listen", "127.0.0.1:0", "--name", name, "--redis", redis])
        .args(["--database", database])
        .args(arguments);
    let process = ChildProcess::spawn(&mut command).unwrap();
    let line = process.line_with("listening on", LIMIT).await.unwrap();
    (process, line.rsplit(' ').next().unwrap().to_owned())
}

/// A user who presses the button.
#[derive(Clone)]
pub(crate) struct Browser(Client<HttpConnector, Empty<Bytes>>);

impl Browser {
    pub(crate) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    /// What an instance tells Prometheus.
    pub(crate) async fn metrics(&self, address: &str) -> String {
        let request = Request::get(format!("{address}/metrics")).body(Empty::new()).unwrap();
        let response = tokio::time::timeout(LIMIT, self.0.request(request)).await.unwrap().unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    pub(crate) async fn order(
        &self,
        address: &str,
        mode: &str,
        voucher: &str,
        user: u32,
    ) -> (StatusCode, Value) {
        let request = Request::post(format!("{address}/{mode}/vouchers/{voucher}/orders"))
            .header(USER_HEADER, user)
            .body(Empty::new())
            .unwrap();
        let response = tokio::time::timeout(LIMIT, self.0.request(request)).await.unwrap().unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }
}
