//! Everything that runs beside the demo: Redis, the instances, nginx, and the database file.
//!
//! One rule for all of them: a process ends when its standard input closes. The demo holds the
//! other end of each pipe, so nothing outlives it, not even when it is killed.

pub(crate) mod child;
mod nginx;
mod program;
mod redis;

use std::path::Path;
use std::{env, io};

use futures_util::future::{join_all, try_join_all};
use lock_testkit::{ChildProcess, free_port};
use seckill::db::Database;
use seckill::process::READY;
use tempfile::TempDir;

use self::redis::Redis;
use crate::cli::Options;
use crate::error::BoxError;
use crate::mode::Mode;

/// The variable that says what a process logs.
const LOG_FILTER: &str = "RUST_LOG";

/// The running processes, and what is needed to talk to them.
#[derive(Debug)]
pub(crate) struct Fleet {
    redis: Option<Redis>,
    instances: Vec<ChildProcess>,
    nginx: Option<ChildProcess>,
    database: Option<Database>,
    addresses: Vec<String>,
    redis_url: String,
    directory: TempDir,
}

impl Fleet {
    /// Nothing yet, but a directory.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            redis: None,
            instances: Vec::new(),
            nginx: None,
            database: None,
            addresses: Vec::new(),
            redis_url: String::new(),
            directory: tempfile::Builder::new().prefix("seckill-").tempdir()?,
        })
    }

    /// Starts what the options request. Call [`stop`](Self::stop) afterwards, also after an error.
    pub(crate) async fn start(&mut self, options: &Options) -> Result<(), BoxError> {
        let directory = self.directory.path();
        if let Some(url) = &options.redis {
            self.redis_url.clone_from(url);
        } else {
            let (redis, url) = redis::start(options.redis_mode).await?;
            self.redis = Some(redis);
            self.redis_url = url;
        }
        let database = match &options.database {
            Some(url) => url.clone(),
            None => sqlite_url(directory),
        };

        let ports: Vec<_> = (0..options.instances).map(|_| free_port()).collect();
        self.addresses = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let shared = Shared {
            redis: &self.redis_url,
            database: &database,
            peers: self.addresses.join(","),
            payment_ms: options.payment_ms,
            // Hundreds of warnings are no news while the servers are away.
            quiet: options.chaos && env::var_os(LOG_FILTER).is_none(),
        };
        // The first one alone: if something is amiss with Redis or the database, it is said once.
        let (first, others) = ports.split_first().expect("BUG: there is at least one instance");
        self.instances.push(instance(1, *first, &shared).await?);
        let others = (2..).zip(others).map(|(number, port)| instance(number, *port, &shared));
        self.instances.extend(try_join_all(others).await?);

        if options.nginx {
            let (nginx, address) = nginx::start(directory, &ports).await?;
            self.nginx = Some(nginx);
            self.addresses = vec![address];
        }
        self.database = Some(Database::connect(&database).await?);
        Ok(())
    }

    /// Where requests go, in turn.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The URL of Redis.
    pub(crate) fn redis(&self) -> &str {
        &self.redis_url
    }

    /// Does damage to the servers of the demo, and tells what when they have recovered from it.
    pub(crate) async fn damage(&self) -> Result<String, BoxError> {
        self.redis.as_ref().ok_or("the demo has no servers of its own")?.damage().await
    }

    /// The database of the instances.
    pub(crate) fn database(&self) -> &Database {
        self.database.as_ref().expect("BUG: used before it was started")
    }

    /// The voucher of this run for a mode. The directory's name is unique to this run.
    pub(crate) fn voucher(&self, mode: Mode) -> String {
        let run = self.directory.path().file_name().unwrap_or_default().to_string_lossy();
        format!("{run}-{mode}")
    }

    /// Ends every process that was started, and removes what was written.
    pub(crate) async fn stop(mut self) {
        // In the order in which they need each other.
        if let Some(nginx) = self.nginx.take() {
            child::stop(nginx).await;
        }
        join_all(self.instances.drain(..).map(child::stop)).await;
        if let Some(redis) = self.redis.take() {
            redis.stop().await;
        }
        // What cannot be removed now is left: this is the end, and the result is known.
        if let Some(database) = &self.database {
            for mode in Mode::ALL {
                database.withdraw(&self.voucher(mode)).await.ok();
            }
            database.close().await;
        }
        self.directory.close().ok();
    }
}

/// What all instances have in common.
struct Shared<'a> {
    redis: &'a str,
    database: &'a str,
    peers: String,
    payment_ms: u64,
    quiet: bool,
}

async fn instance(number: u16, port: u16, shared: &Shared<'_>) -> Result<ChildProcess, BoxError> {
    let mut command = child::this_program("instance")?;
    command
        .args(["--listen", &format!("127.0.0.1:{port}"), "--name", &format!("instance-{number}")])
        .args(["--peers", &shared.peers, "--payment-ms", &shared.payment_ms.to_string()])
        // By the environment: these may hold passwords, and any user can read a command line.
        .env("REDIS_URL", shared.redis)
        .env("DATABASE_URL", shared.database);
    if shared.quiet {
        command.env(LOG_FILTER, "off");
    }
    let started = child::start(&mut command, READY).await;
    let (process, _) = started.map_err(|_| format!("instance-{number} did not start"))?;
    Ok(process)
}

/// A file that is not there yet. SQLite's URLs escape what a path may hold.
fn sqlite_url(directory: &Path) -> String {
    let path =
        directory.join("seckill.db").to_string_lossy().replace('%', "%25").replace('?', "%3F");
    format!("sqlite:{path}?mode=rwc")
}
