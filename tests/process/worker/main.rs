//! A process that uses locks. Its arguments and the lines of its standard input say what to do.
//!
//! Reports a line per event, each with a reading of the boot-time clock in nanoseconds, which all
//! processes of a machine share.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod args;
mod bodies;
mod contend;
mod hold;
mod leave;
mod polls;
mod report;
mod resource;
mod serve;

use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions};
use lock_testkit::is_due;

use self::args::Args;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args = Args::of_process();
    if args.task() == "total" {
        return contend::total(&args);
    }
    let store = connect(args.text("url")).await;
    let defaults = LockOptions::new().with_ttl(args.millis("ttl"));
    let client = LockClient::builder(store).with_defaults(defaults).build().unwrap();
    match args.task() {
        "hold" => hold::run(&client, &args).await,
        "contend" => contend::run(&client, &args).await,
        "leave" => leave::run(&client, &args).await,
        "bodies" => bodies::run(&client, &args).await,
        "serve" => serve::run(&client, &args).await,
        other => panic!("no such task: {other}"),
    }
}

/// Connects, in another attempt if a busy machine answered too late.
async fn connect(url: &str) -> RedisStore {
    let mut attempts = 0;
    loop {
        match RedisStore::connect(url).await {
            Err(error) if error.is_unknown() && is_due(attempts, 1, false) => attempts += 1,
            store => return store.unwrap(),
        }
    }
}
