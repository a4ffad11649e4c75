//! A Redis of the demo's own: in memory, on a free port.

use lock_testkit::ChildProcess;

use super::{child, program};
use crate::error::BoxError;

pub(super) async fn start() -> Result<(ChildProcess, String), BoxError> {
    let program =
        program::find("redis-server", "redis-server", "name a running one with --redis URL")?;
    let mut command = child::this_program("redis")?;
    // The child process prints the reason on standard error if it fails.
    let (redis, url) = child::start(command.arg(program), "redis://")
        .await
        .map_err(|_| "redis-server did not start")?;
    Ok((redis, url.to_string()))
}
