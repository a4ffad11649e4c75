//! Redis servers of the demo's own: in memory, on free ports.

use std::time::Duration;

use lock_testkit::{ChildProcess, DAMAGE, DAMAGED, REDIS_SERVER};
use tokio::sync::Mutex;

use super::{child, program};
use crate::cli::RedisMode;
use crate::error::BoxError;

/// The process that has the servers.
#[derive(Debug)]
pub(super) struct Redis(Mutex<ChildProcess>);

/// Longer than any server takes to be replaced.
const DAMAGE_LIMIT: Duration = Duration::from_secs(40);

/// Starts the servers, and gives the URL of the locks on them.
pub(super) async fn start(mode: RedisMode) -> Result<(Redis, String), BoxError> {
    let program =
        program::find("redis-server", "redis-server", "name a running one with --redis URL")?;
    let mut command = child::this_program("redis")?;
    command.arg(mode.name()).env(REDIS_SERVER, program);
    // The child process prints the reason on standard error if it fails.
    let (redis, url) =
        child::start(&mut command, "redis").await.map_err(|_| "redis-server did not start")?;
    Ok((Redis(Mutex::new(redis)), url.to_string()))
}

impl Redis {
    /// Does damage to the servers, and tells what when they have recovered from it.
    pub(super) async fn damage(&self) -> Result<String, BoxError> {
        let mut process = self.0.lock().await;
        process.tell(DAMAGE);
        let line = process.line_with(DAMAGED, DAMAGE_LIMIT).await;
        let line = line.map_err(|_| "the servers did not recover from the damage")?;
        Ok(line.trim_start_matches(DAMAGED).to_owned())
    }

    pub(super) async fn stop(self) {
        child::stop(self.0.into_inner()).await;
    }
}
