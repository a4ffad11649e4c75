//! How do I stop a service without leaving locks to their ttl?
//!
//! At SIGTERM or Ctrl-C, requests that wait for a lock are answered at once. Those that hold one
//! get time to finish. The process ends within the limit with every release confirmed.

use std::pin::pin;
use std::time::Duration;

use axum::extract::State;
use axum::{Router, routing::post};
use lock_core::{LockClient, store};
use lock_tower::LockRejection;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = LockClient::builder(store::connect(&url).await?).build()?;
    let app = Router::new().route("/import", post(import)).with_state(client.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);

    let mut sigterm = signal(SignalKind::terminate())?;
    let asked = async move {
        tokio::select! {
            _ = sigterm.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    let shutdown = client.shutdown_on(asked, Duration::from_secs(5))?;
    let server = axum::serve(listener, app).with_graceful_shutdown(shutdown.started());
    let (served, drained) = shutdown.finish(server).await;
    served.transpose()?; // `None`: the limit cut requests off
    println!("clean: {}", drained.is_clean());
    Ok(())
}

/// One import at a time. It stops early when the process is to end.
async fn import(State(client): State<LockClient>) -> Result<String, LockRejection> {
    let import = async |lease: lock_core::Lease| {
        let mut draining = pin!(lease.draining());
        for file in 0..600 {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(100)) => {} // here: import the file
                () = &mut draining => return format!("stopped before file {file}"),
            }
        }
        "imported".to_owned()
    };
    Ok(client.mutex("import").with_wait(Duration::from_secs(30)).run(import).await?)
}
