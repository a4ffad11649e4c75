//! How do I see what my locks do?
//!
//! `GET /metrics` gives the metrics to Prometheus. The folder `observability` has alerts and a
//! dashboard for them.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Router, serve};
use lock_core::{LockClient, key, store};
use lock_tower::LockRejection;
use metrics_exporter_prometheus::PrometheusBuilder;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Before the first lock: what is counted earlier is lost.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let upkeep = metrics.clone();
    // Else a service whose metrics are never read keeps each sample.
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = LockClient::builder(store::connect(&url).await?).build()?;
    let app = Router::new()
        .route("/orders/{id}", post(pay))
        .with_state(client)
        .route("/metrics", get(async move || metrics.render()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(serve(listener, app).await?)
}

async fn pay(
    State(client): State<LockClient>,
    Path(id): Path<u64>,
) -> Result<&'static str, LockRejection> {
    // The label of the metrics is `order:<id>`, whatever the order.
    let mutex = client.mutex(key!("order:<id>")).with_ttl(Duration::from_millis(600));
    mutex.run(async |_| tokio::time::sleep(Duration::from_millis(500)).await).await?;
    Ok("paid")
}
