//! One process of the service, from its options to its last request.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::routing::get;
use lock_core::{LockClient, LockOptions, store};
use lock_tower::Console;
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder};
use tokio::net::TcpListener;
use tracing::warn;

use crate::db::Database;
use crate::payment::PaymentCheck;
use crate::routes::{self, PAGE_VOUCHERS};
use crate::service::OrderService;

/// Long enough for a request that is being handled, and short enough for a deployment.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// What stands before the keys of the locks.
pub const NAMESPACE: &str = "seckill";

/// How many there are of each voucher on the page.
const PAGE_STOCK: u32 = 100;
/// How often samples of metrics are summed up.
const UPKEEP: Duration = Duration::from_secs(5);

/// What a process needs to know.
#[derive(Clone, Debug, clap::Args)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3001")]
    pub listen: SocketAddr,
    /// The Redis that holds the locks, the same for every instance: `redis://…`,
    /// `redis+sentinel://…`, `redis+cluster://…`, or the URLs of a quorum with spaces in between.
    #[arg(
        long,
        value_name = "URL",
        env = "REDIS_URL",
        default_value = "redis://127.0.0.1/",
        hide_env_values = true
    )]
    pub redis: String,
    /// The database, the same for every instance: `sqlite:FILE?mode=rwc` or `postgres://…`.
    #[arg(
        long,
        value_name = "URL",
        env = "DATABASE_URL",
        default_value = "sqlite:seckill.db?mode=rwc",
        hide_env_values = true
    )]
    pub database: String,
    /// The name that this instance signs with.
    #[arg(long, default_value = "instance-1")]
    pub name: HeaderValue,
    /// Other instances that the page may press buttons of; needless behind a load balancer.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub peers: Vec<HeaderValue>,
    /// How long the payment provider takes to answer, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub payment_ms: u64,
}

/// A process that listens and has yet to serve.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    locks: LockClient,
    router: axum::Router,
}

/// Why a process does not start, or stops.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The lock client could not be built.
    #[error("the locks cannot be set up")]
    Locks(#[from] lock_core::ConfigError),
    /// Redis is away, or refuses.
    #[error("redis cannot be used")]
    Redis(#[from] lock_core::Error),
    /// The database is away, or refuses.
    #[error("the database cannot be used")]
    Database(#[from] sqlx::Error),
    /// Another server of this process has the metrics.
    #[error("metrics cannot be recorded")]
    Metrics(#[from] BuildError),
    /// The name of the instance is not text.
    #[error("the name of the instance has to be plain text")]
    Name(#[from] axum::http::header::ToStrError),
    /// The address is taken, or the like.
    #[error("the address cannot be served")]
    Listen(#[from] io::Error),
}

impl Server {
    /// Connects to Redis and the database and takes the address. Once in a process: the metrics
    /// behind `/metrics` are those of all its locks.
    ///
    /// # Errors
    ///
    /// When one of the three cannot be had, or the process has a server already.
    pub async fn bind(config: Config) -> Result<Self, ServerError> {
        // Before the first lock: what is counted earlier is lost.
        let metrics = PrometheusBuilder::new().install_recorder()?;
        let upkeep = metrics.clone();
        // Else an instance whose metrics are never read keeps each sample.
        let _ends_with_the_process = tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        });
        let locks = LockClient::builder(store::connect(&config.redis).await?)
            .with_namespace(NAMESPACE)
            .with_defaults(LockOptions::new().with_ttl(Duration::from_secs(10)))
            .build()?;
        let db = Database::connect(&config.database).await?;
        // Every instance starts like this, so they take turns.
        locks.mutex("schema").run(|_| prepare(db.clone())).await??;

        let payment = PaymentCheck::new(Duration::from_millis(config.payment_ms));
        let service = OrderService::new(db.clone(), locks.clone(), payment, config.name.to_str()?);
        let console = console(config.listen, &locks);
        let router = routes::router(service, db, locks.clone(), config.name, config.peers, console)
            .route("/metrics", get(async move || metrics.render()));
        let listener = TcpListener::bind(config.listen).await?;
        Ok(Self { listener, locks, router })
    }

    /// The address, with the port that it got.
    ///
    /// # Errors
    ///
    /// When the operating system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is ready, then finishes what has begun and gives back every lock, within
    /// five seconds.
    ///
    /// # Errors
    ///
    /// When the socket fails.
    pub async fn serve(
        self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServerError> {
        let shutdown = self.locks.shutdown_on(stop, DRAIN_LIMIT)?;
        let server = axum::serve(self.listener, self.router);
        let server = server.with_graceful_shutdown(shutdown.started());
        let (served, drained) = shutdown.finish(server).await;
        if served.is_none() || !drained.is_clean() {
            warn!(?drained, "the shutdown took too long: requests were cut off");
        }
        Ok(served.transpose().map(|_| ())?)
    }
}

/// The demo knows no operators, so it shows its locks, and lets them be taken, only where no other
/// machine can ask; `router` refuses names by which other sites could. Its keys are numbers that it
/// made up.
fn console(listen: SocketAddr, locks: &LockClient) -> Option<Console> {
    let console = || lock_tower::console(locks.clone()).show_keys().allow_force_release();
    listen.ip().is_loopback().then(console)
}

async fn prepare(db: Database) -> Result<(), sqlx::Error> {
    db.create_schema().await?;
    for voucher in PAGE_VOUCHERS {
        db.offer(voucher, PAGE_STOCK).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lock_core::store::MemoryStore;

    use super::*;

    #[test]
    fn console_is_served_only_where_no_other_machine_can_ask() {
        let locks = LockClient::builder(MemoryStore::new()).build().unwrap();
        for (listen, is_served) in [
            ("127.0.0.1:3001", true),
            ("127.8.9.10:0", true),
            ("[::1]:3001", true),
            ("0.0.0.0:3001", false),
            ("[::]:3001", false),
            ("192.0.2.1:3001", false),
            ("[2001:db8::1]:3001", false),
        ] {
            let console = console(listen.parse().unwrap(), &locks);
            assert_eq!(console.is_some(), is_served, "{listen}");
        }
    }
}
