//! Holds or tries a lock for a test in another language.
//!
//! ```text
//! lock-peer hold URL KEY   takes the lock at once and prints `held` or `busy`; when standard input
//!                          ends, releases it and prints `released` with what the release found
//! lock-peer wait URL KEY   the same, but waits up to ten seconds
//! lock-peer take-turns URL KEY TASKS FILE [for-others]
//!                          its tasks take the lock again and again until standard input ends; then
//!                          prints `turns` and `overlaps` with their numbers. The holder makes FILE
//!                          and removes it; it is an overlap if the file is there already.
//!                          With `for-others` it leaves turns to other clients
//! ```
//!
//! Prints `error: ..` and ends with status 1 for every other outcome.

// The tests read its standard output, and say how many tasks it has.
#![allow(clippy::print_stdout, clippy::disallowed_methods)]

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::{LockClient, Mutex};
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
    let [how, url, key, rest @ ..] = args.as_slice() else {
        return Err("usage: hold|wait|take-turns URL KEY ..".into());
    };
    let client = LockClient::builder(RedisStore::connect(url).await?).build()?;
    let key = key.clone();
    let mutex = match how.as_str() {
        "take-turns" => return take_turns(client.mutex(key).wait_forever(), rest).await,
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

/// How long a turn takes: longer than a message to another process.
const TURN: Duration = Duration::from_millis(1);

async fn take_turns(mutex: Mutex, args: &[String]) -> Result<(), Box<dyn Error>> {
    let (tasks, file, mutex) = match args {
        [tasks, file] => (tasks, file, mutex),
        [tasks, file, how] if how == "for-others" => (tasks, file, mutex.with_turns_for_others()),
        _ => return Err("usage: take-turns URL KEY TASKS FILE [for-others]".into()),
    };
    let ended = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..tasks.parse()?)
        .map(|_| {
            let (mutex, ended, file) = (mutex.clone(), Arc::clone(&ended), PathBuf::from(file));
            tokio::spawn(async move {
                let (mut turns, mut overlaps) = (0, 0);
                while !ended.load(Relaxed) {
                    let guard = mutex.lock().await?;
                    turns += 1;
                    let is_alone = File::create_new(&file).is_ok();
                    overlaps += u64::from(!is_alone);
                    tokio::time::sleep(TURN).await;
                    if is_alone {
                        std::fs::remove_file(&file)?;
                    }
                    guard.release().await?;
                }
                Ok::<_, Box<dyn Error + Send + Sync>>((turns, overlaps))
            })
        })
        .collect();
    println!("ready");
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    ended.store(true, Relaxed);
    let (mut turns, mut overlaps) = (0, 0);
    for task in tasks {
        let (more_turns, more_overlaps) = task.await?.map_err(|error| error.to_string())?;
        turns += more_turns;
        overlaps += more_overlaps;
    }
    println!("turns {turns} overlaps {overlaps}");
    Ok(())
}
