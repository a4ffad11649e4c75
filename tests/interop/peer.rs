//! Holds or tries a lock for a test in another language.
//!
//! ```text
//! lock-peer hold URL KEY   takes the lock at once and prints `held` or `busy`; when standard input
//!                          ends, releases it and prints `released` with what the release found
//! lock-peer wait URL KEY   the same, but waits up to ten seconds
//! ```
//!
//! Prints `error: ..` and ends with status 1 for every other outcome.

// Its standard output is what the tests read.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::LockClient;
use lock_core::store::RedisStore;
use tokio::io::AsyncReadExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Vec<String>) -> Result<(), Box<dyn Error>> {
    let [how, url, key] = <[String; 3]>::try_from(args).map_err(|_| "usage: hold|wait URL KEY")?;
    let client = LockClient::builder(RedisStore::connect(url).await?).build()?;
    let mutex = match how.as_str() {
        "hold" => client.mutex(key).without_wait(),
        "wait" => client.mutex(key).with_wait(Duration::from_secs(10)),
        other => return Err(format!("unknown way `{other}`").into()),
    };
    let guard = match mutex.lock().await {
        Ok(guard) => guard,
        Err(error) if error.is_busy() => {
            println!("busy");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    println!("held");
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    let released = guard.release().await?;
    println!("released {released:?}");
    Ok(())
}
