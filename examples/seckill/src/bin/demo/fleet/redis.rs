//! A Redis of the demo's own: in memory, on a free port.

use super::child::{self, Child};
use super::program;
use crate::BoxError;

pub(super) async fn start() -> Result<(Child, String), BoxError> {
    let program =
        program::find("redis-server", "redis-server", "name a running one with --redis URL")?;
    let mut command = child::this_program("redis")?;
    command.arg(program);
    let mut redis = Child::spawn(command)?;
    // The child process has printed the reason on standard error.
    let url = redis.says_on_stdout("redis://").await.map_err(|_| "redis-server did not start")?;
    Ok((redis, url))
}
