//! A process that uses locks. Its arguments and the lines of its standard input say what to do.
//!
//! Reports a line per event, each with a reading of the boot-time clock in nanoseconds, which all
//! processes of a machine share.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod bodies;
mod contend;
mod hold;
mod leave;
mod polls;
mod resource;
mod serve;

use std::io::Write;
use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions};
use lock_testkit::history::now;
use lock_testkit::is_due;

/// The command line.
struct Args(Vec<String>);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args = Args(std::env::args().skip(1).collect());
    if args.0[0] == "total" {
        return contend::total(&args);
    }
    let store = connect(args.text("url")).await;
    let defaults = LockOptions::new().with_ttl(args.millis("ttl"));
    let client = LockClient::builder(store).with_defaults(defaults).build().unwrap();
    match args.0[0].as_str() {
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

impl Args {
    fn text(&self, name: &str) -> &str {
        let prefix = format!("{name}=");
        let found = self.0.iter().find_map(|arg| arg.strip_prefix(&prefix));
        found.unwrap_or_else(|| panic!("no argument {name}"))
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap()
    }

    fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name))
    }
}

/// Reports an event to the process that started this one.
fn say(event: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} {event}", now()).unwrap();
    out.flush().unwrap();
}
