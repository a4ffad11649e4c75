//! What a configuration file says about locks: the URL of a store, or several, and options.

mod duration;
mod field;
mod options;

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use crate::client::{LockClient, LockClientBuilder};
use crate::error::{ConfigError, Error};
use crate::options::LockOptions;
use crate::store::MemoryStore;

/// The part of a service's configuration that describes its locks (feature `serde`).
///
/// It is read by anything that speaks serde: files and environment variables through `config` or
/// `figment`, or a format of its own.
///
/// | field | default | |
/// |---|---|---|
/// | `url` | required | as for [`connect`](crate::store::connect): of one server, of sentinels or of a cluster; several, of the members of a quorum, as a list or as text with spaces in between; or `memory:` for a [`MemoryStore`] of this client alone |
/// | `namespace` | `lock` | [`with_namespace`](LockClientBuilder::with_namespace) |
/// | `without_namespace` | `false` | [`without_namespace`](LockClientBuilder::without_namespace); not beside `namespace` |
/// | `name` | of the program | [`with_name`](LockClientBuilder::with_name) |
/// | `options` | none | a table of [`LockOptions`]: `ttl`, `wait`, `renewal`, `max_hold`, `min_hold`, `fencing`, `turns_for_others` |
/// | `wait_warning` | none | [`with_wait_warning`](LockClientBuilder::with_wait_warning); 1 ms – 24 h |
/// | `hold_warning` | none | [`with_hold_warning`](LockClientBuilder::with_hold_warning); 1 ms – 24 h |
/// | `request_timeout` | 500 ms | of a command to Redis; 10 ms – 30 s |
/// | `connect_timeout` | 1 s | of a connection to Redis; 10 ms – 30 s |
/// | `replica_acks` | none | how many replicas have to confirm a grant, [`with_replica_acks`](crate::store::RedisStoreBuilder::with_replica_acks); not for a quorum |
/// | `restart_delay` | 30 s | only for a quorum: `with_restart_delay` of its builder; 3 s – 24 h |
/// | `durable_members` | `false` | only for a quorum: `with_durable_members` of its builder |
///
/// A duration is text with its unit, such as `"10s"`, `"250ms"` or `"1m 30s"`. `wait` may also be
/// `"none"` or `"forever"`, and `max_hold` and `min_hold` may be `"none"`. A field that does not
/// exist is an error, and so is a duration without a unit or out of its [bounds](LockOptions), or a
/// name that cannot be one: the reader reports each with the place where it stands. A URL in which
/// a password may stand, such as one with a login, a port or a query, is checked by
/// [`connect`](Self::connect) instead, since a reader may print the line that it refuses. So is
/// whether a setting fits the URL.
///
/// It does not implement `Serialize`, and `Debug` leaves the URL out, which may hold a password.
///
/// # Examples
///
/// ```
/// use lock_core::{LockConfig, Wait};
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct Settings {
///     lock: LockConfig,
///     import: lock_core::LockOptions, // of one kind of work
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let settings: Settings = toml::from_str(r#"
///     [lock]
///     url = "memory:"           # in production "redis://user:password@redis.internal/"
///     namespace = "shop"
///     options = { ttl = "15s", wait = "2s" }
///
///     [import]
///     wait = "none"
///     max_hold = "1h"
/// "#)?;
/// assert_eq!(settings.import.wait(), Some(Wait::None));
/// # #[cfg(feature = "redis-quorum")] {
/// let quorum: LockConfig = toml::from_str(r#"
///     url = ["redis://10.0.1.5/", "redis://10.0.2.5/", "redis://10.0.3.5/"]
///     restart_delay = "1m"
/// "#)?;
/// assert!(quorum.connect_lazy()?.build()?.capabilities().fencing); // no I/O yet
/// # }
///
/// let client = settings.lock.connect().await?.build()?;
/// let guard = client.mutex("import").with_options(settings.import).lock().await?;
/// # drop(guard);
///
/// // What is misspelt or out of bounds is refused at its place.
/// for (wrong, message) in [
///     ("url = 'memory:'\nnamspace = 'shop'", "unknown field `namspace`"),
///     ("url = 'memory:'\noptions.ttl = '1ms'", "`ttl` is 1ms: choose 100ms to 24h"),
///     ("url = 'memory:'\noptions.ttl = 10", "expected a duration with its unit"),
/// ] {
///     let error = toml::from_str::<LockConfig>(wrong).unwrap_err();
///     assert!(error.to_string().contains(message), "{error}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "the configuration of a lock client: a table with `url` and, if need be, `options`"
)]
pub struct LockConfig {
    /// Several have spaces in between.
    #[serde(deserialize_with = "field::url")]
    url: String,
    #[serde(default, deserialize_with = "field::namespace")]
    namespace: Option<String>,
    #[serde(default)]
    without_namespace: bool,
    #[serde(default, deserialize_with = "field::name")]
    name: Option<String>,
    #[serde(default)]
    options: LockOptions,
    #[serde(default, deserialize_with = "field::wait_warning")]
    wait_warning: Option<Duration>,
    #[serde(default, deserialize_with = "field::hold_warning")]
    hold_warning: Option<Duration>,
    #[serde(default, deserialize_with = "field::request_timeout")]
    request_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "field::connect_timeout")]
    connect_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "field::replica_acks")]
    replica_acks: Option<u32>,
    #[serde(default, deserialize_with = "field::restart_delay")]
    restart_delay: Option<Duration>,
    #[serde(default)]
    durable_members: bool,
}

/// The URL that needs no server.
const MEMORY: &str = "memory:";

impl LockConfig {
    /// Connects to the store of the URL and checks that it can keep locks. What a file cannot say,
    /// such as a runtime, is added to the builder.
    ///
    /// # Cancel safety
    ///
    /// As [`RedisStoreBuilder::connect`](crate::store::RedisStoreBuilder::connect).
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) for a bad URL, or a setting that does
    /// not fit it or another one, [`Unavailable`](crate::ErrorKind::Unavailable) if the servers
    /// cannot be reached or cannot keep locks. [`build`](LockClientBuilder::build) checks the rest.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::LockConfig;
    ///
    /// let config: LockConfig = toml::from_str("url = 'memory:'\nnamespace = 'shop'")?;
    /// let client = config.connect().await?.with_name("orders-api").build()?;
    /// assert_eq!(client.namespace(), "shop");
    /// # Ok(()) }
    /// ```
    pub async fn connect(self) -> Result<LockClientBuilder, Error> {
        self.check()?;
        if self.is_in_memory() {
            return Ok(self.with_store_in_memory());
        }
        let store = self.settings().connect(&self.url).await?;
        Ok(self.with(LockClient::builder(store)))
    }

    /// The same without connecting: the first lock does. For services that must start while the
    /// store is down.
    ///
    /// # Errors
    ///
    /// For a bad URL, or a setting that does not fit it or another one.
    pub fn connect_lazy(self) -> Result<LockClientBuilder, ConfigError> {
        self.check()?;
        if self.is_in_memory() {
            return Ok(self.with_store_in_memory());
        }
        let store = self.settings().connect_lazy(&self.url)?;
        Ok(self.with(LockClient::builder(store)))
    }

    /// Refuses settings that exclude each other.
    fn check(&self) -> Result<(), ConfigError> {
        if self.without_namespace && self.namespace.is_some() {
            let problem = "is set, and `namespace` as well: leave one of them out";
            return Err(ConfigError::new("without_namespace", problem));
        }
        Ok(())
    }

    /// The only URL that needs no Redis.
    fn is_in_memory(&self) -> bool {
        self.url.split_whitespace().eq([MEMORY])
    }

    fn with_store_in_memory(self) -> LockClientBuilder {
        self.with(LockClient::builder(MemoryStore::new()))
    }

    fn with(self, builder: LockClientBuilder) -> LockClientBuilder {
        let mut builder = builder.with_defaults(self.options);
        if let Some(namespace) = self.namespace {
            builder = builder.with_namespace(namespace);
        }
        if self.without_namespace {
            builder = builder.without_namespace();
        }
        if let Some(name) = self.name {
            builder = builder.with_name(name);
        }
        if let Some(limit) = self.wait_warning {
            builder = builder.with_wait_warning(limit);
        }
        if let Some(limit) = self.hold_warning {
            builder = builder.with_hold_warning(limit);
        }
        builder
    }
}

#[cfg(feature = "redis")]
mod redis {
    use super::LockConfig;
    use crate::store::StoreSettings;

    impl LockConfig {
        pub(super) fn settings(&self) -> StoreSettings {
            StoreSettings {
                request_timeout: self.request_timeout,
                connect_timeout: self.connect_timeout,
                replica_acks: self.replica_acks,
                restart_delay: self.restart_delay,
                durable_members: self.durable_members,
            }
        }
    }
}

#[cfg(not(feature = "redis"))]
mod redis {
    use super::LockConfig;
    use crate::error::{ConfigError, Error};
    use crate::store::MemoryStore;

    /// The settings of stores that this build does not have.
    pub(super) struct Missing;

    impl LockConfig {
        pub(super) fn settings(&self) -> Missing {
            let _ = (self.request_timeout, self.connect_timeout);
            let _ = (self.replica_acks, self.restart_delay, self.durable_members);
            Missing
        }
    }

    #[allow(clippy::unused_self)]
    impl Missing {
        #[allow(clippy::unused_async)]
        pub(super) async fn connect(&self, _: &str) -> Result<MemoryStore, Error> {
            Err(super::without_redis().into())
        }

        pub(super) fn connect_lazy(&self, _: &str) -> Result<MemoryStore, ConfigError> {
            Err(super::without_redis())
        }
    }
}

#[cfg(not(feature = "redis"))]
fn without_redis() -> ConfigError {
    ConfigError::new("url", "is not `memory:`: for Redis enable the feature `redis` of `lock-core`")
}

/// Without the URL, which may hold a password.
impl fmt::Debug for LockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockConfig")
            .field("namespace", &self.namespace)
            .field("without_namespace", &self.without_namespace)
            .field("name", &self.name)
            .field("options", &self.options)
            .field("wait_warning", &self.wait_warning)
            .field("hold_warning", &self.hold_warning)
            .field("request_timeout", &self.request_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("replica_acks", &self.replica_acks)
            .field("restart_delay", &self.restart_delay)
            .field("durable_members", &self.durable_members)
            .finish_non_exhaustive()
    }
}
