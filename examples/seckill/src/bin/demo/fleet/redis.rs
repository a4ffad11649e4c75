//! A Redis of the demo's own: in memory, on a free port.

use std::path::Path;

use super::child::{self, Child};
use super::{free_ports, program};
use crate::BoxError;

/// What Redis and Valkey say once they accept connections.
const READY: &str = "Ready to accept connections";

/// Another process may take the port between our look and Redis's.
const ATTEMPTS: usize = 3;

pub(super) async fn start(directory: &Path) -> Result<(Child, String), BoxError> {
    let program =
        program::find("redis-server", "redis-server", "name a running one with --redis URL")?;
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let port = free_ports(1)?[0].to_string();
        let mut command = child::tended(&program)?;
        command
            .args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(directory);
        let mut redis = Child::spawn(command)?;
        match redis.says_on_stdout(READY).await {
            Ok(()) => return Ok((redis, format!("redis://127.0.0.1:{port}/"))),
            Err(not_ready) => said = not_ready.said,
        }
        redis.stop().await;
    }
    Err(format!("redis-server did not start; it said:\n{said}").into())
}
