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

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{self, RedisStore, Store};
use lock_core::{LockClient, LockOptions};

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
        "contend" if args.number("confirmed") > 0 => {
            // A replica may be away at the start.
            let store = RedisStore::builder(args.text("url")).with_replica_acks(1);
            let store = store.connect_lazy().unwrap();
            let confirmed = LockClient::builder(store).with_defaults(defaults).build().unwrap();
            contend::run(&client, Some(&confirmed), &args).await;
        }
        "contend" => contend::run(&client, None, &args).await,
        "leave" => leave::run(&client, &args).await,
        "bodies" => bodies::run(&client, &args).await,
        "serve" => serve::run(&client, &args).await,
        other => panic!("no such task: {other}"),
    }
}

/// More than a server that an experiment stops, or a busy machine, answers too late.
const ATTEMPTS: usize = 10;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);

/// Connects, in another attempt if the server answered too late.
async fn connect(urls: &str) -> Arc<dyn Store> {
    for _ in 1..ATTEMPTS {
        match store::connect(urls).await {
            Err(error) if error.is_unknown() || error.is_unavailable() => {
                tokio::time::sleep(BETWEEN_ATTEMPTS).await;
            }
            store => return store.unwrap(),
        }
    }
    store::connect(urls).await.unwrap()
}
