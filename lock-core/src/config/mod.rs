//! What a configuration file says about locks: a URL and options.

mod duration;
mod options;

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use self::duration::span;
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
/// | `url` | required | `redis://` and `rediss://` as for [`RedisStore`](crate::store::RedisStore), or `memory:` for a [`MemoryStore`] of this client alone |
/// | `namespace` | `lock` | [`with_namespace`](LockClientBuilder::with_namespace) |
/// | `name` | of the program | [`with_name`](LockClientBuilder::with_name) |
/// | `options` | none | a table of [`LockOptions`]: `ttl`, `wait`, `renewal`, `max_hold`, `min_hold`, `fencing` |
/// | `request_timeout` | 500 ms | of a command to Redis; 10 ms – 30 s |
/// | `connect_timeout` | 1 s | of a connection to Redis; 10 ms – 30 s |
///
/// A duration is text with its unit, such as `"10s"`, `"250ms"` or `"1m 30s"`. `wait` may also be
/// `"none"` or `"forever"`, and `max_hold` and `min_hold` may be `"none"`. A field that does not
/// exist is an error, and so is a duration without a unit or out of its
/// [bounds](LockOptions): the reader reports each with the place where it stands.
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
    url: String,
    namespace: Option<String>,
    name: Option<String>,
    #[serde(default)]
    options: LockOptions,
    #[serde(default, deserialize_with = "span")]
    request_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "span")]
    connect_timeout: Option<Duration>,
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
    /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) for a bad URL or timeout,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the server cannot be reached or cannot
    /// keep locks. [`build`](LockClientBuilder::build) checks the rest.
    pub async fn connect(self) -> Result<LockClientBuilder, Error> {
        if self.url == MEMORY {
            return Ok(self.with_store_in_memory());
        }
        let store = self.redis()?.connect().await?;
        Ok(self.with(LockClient::builder(store)))
    }

    /// The same without connecting: the first lock does. For services that must start while the
    /// store is down.
    ///
    /// # Errors
    ///
    /// For a bad URL or timeout.
    pub fn connect_lazy(self) -> Result<LockClientBuilder, ConfigError> {
        if self.url == MEMORY {
            return Ok(self.with_store_in_memory());
        }
        let store = self.redis()?.connect_lazy()?;
        Ok(self.with(LockClient::builder(store)))
    }

    fn with_store_in_memory(self) -> LockClientBuilder {
        self.with(LockClient::builder(MemoryStore::new()))
    }

    fn with(self, builder: LockClientBuilder) -> LockClientBuilder {
        let mut builder = builder.with_defaults(self.options);
        if let Some(namespace) = self.namespace {
            builder = builder.with_namespace(namespace);
        }
        if let Some(name) = self.name {
            builder = builder.with_name(name);
        }
        builder
    }
}

#[cfg(feature = "redis")]
mod redis {
    use super::LockConfig;
    use crate::error::ConfigError;
    use crate::store::{RedisStore, RedisStoreBuilder};

    impl LockConfig {
        // The twin of this function always fails.
        #[allow(clippy::unnecessary_wraps)]
        pub(super) fn redis(&self) -> Result<RedisStoreBuilder, ConfigError> {
            let mut builder = RedisStore::builder(self.url.as_str());
            if let Some(timeout) = self.request_timeout {
                builder = builder.with_request_timeout(timeout);
            }
            if let Some(timeout) = self.connect_timeout {
                builder = builder.with_connect_timeout(timeout);
            }
            Ok(builder)
        }
    }
}

#[cfg(not(feature = "redis"))]
mod redis {
    use super::LockConfig;
    use crate::error::ConfigError;
    use crate::store::MemoryStore;

    /// The builder of a store that this build does not have.
    pub(super) enum Missing {}

    impl Missing {
        #[allow(clippy::unused_async)]
        pub(super) async fn connect(self) -> Result<MemoryStore, ConfigError> {
            match self {}
        }

        pub(super) fn connect_lazy(self) -> Result<MemoryStore, ConfigError> {
            match self {}
        }
    }

    impl LockConfig {
        pub(super) fn redis(&self) -> Result<Missing, ConfigError> {
            let _ = (self.request_timeout, self.connect_timeout);
            Err(ConfigError::new(
                "url",
                "is not `memory:`: for Redis enable the feature `redis` of `lock-core`",
            ))
        }
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for LockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockConfig")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("options", &self.options)
            .field("request_timeout", &self.request_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}
