//! Starts a Redis server for a script, prints its URL, and stops it when standard input closes or a
//! signal comes.

use std::error::Error;

use lock_testkit::{RedisServer, run_standalone};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    run_standalone(RedisServer::builder()).await
}
