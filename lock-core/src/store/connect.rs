//! The store that a URL names.

use std::sync::Arc;
use std::time::Duration;

use super::memory::MemoryStore;
use super::{RedisStore, RedisStoreBuilder, Store};
use crate::error::{ConfigError, Error};

/// Connects to the store that `urls` names, for programs that have it in one setting:
///
/// | `urls` | store |
/// |---|---|
/// | `redis://…`, `rediss://…`, `redis+sentinel://…` | [`RedisStore`] |
/// | `redis+cluster://…` | [`RedisStore`], with the feature `redis-cluster` |
/// | several of the first two, with spaces or line ends in between | `QuorumStore`, with the feature `redis-quorum` |
/// | `memory:` | [`MemoryStore`] of this store alone |
///
/// # Cancel safety
///
/// As [`RedisStoreBuilder::connect`](super::RedisStoreBuilder::connect).
///
/// # Errors
///
/// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) for a bad URL or list;
/// [`Unavailable`](crate::ErrorKind::Unavailable) if the store cannot be reached, or cannot keep
/// locks; [`NoRuntime`](crate::ErrorKind::NoRuntime) outside a tokio runtime.
///
/// # Examples
///
/// ```
/// use lock_core::{LockClient, store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // In production from the environment: "redis://10.0.1.5/ redis://10.0.2.5/ redis://10.0.3.5/"
/// let client = LockClient::builder(store::connect("memory:").await?).build()?;
/// client.mutex("k").lock().await?.release().await?;
///
/// let refused = store::connect("http://10.0.1.5/").await;
/// assert_eq!(refused.unwrap_err().config_error().map(|error| error.field()), Some("url"));
/// # Ok(()) }
/// ```
pub async fn connect(urls: &str) -> Result<Arc<dyn Store>, Error> {
    StoreSettings::default().connect(urls).await
}

/// The same without connecting: the first lock does. For services that must start while the store
/// is down.
///
/// # Errors
///
/// For a bad URL or list.
pub fn connect_lazy(urls: &str) -> Result<Arc<dyn Store>, ConfigError> {
    StoreSettings::default().connect_lazy(urls)
}

/// What a configuration says of a store besides its URLs. What is not set has its default; locks in
/// memory need nothing of it.
#[derive(Debug, Default)]
pub(crate) struct StoreSettings {
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
    /// Only for a server with replicas.
    pub(crate) replica_acks: Option<u32>,
    /// Only for a quorum.
    pub(crate) restart_delay: Option<Duration>,
    /// Only for a quorum.
    pub(crate) durable_members: bool,
}

impl StoreSettings {
    /// As [`connect`], with these settings.
    pub(crate) async fn connect(&self, urls: &str) -> Result<Arc<dyn Store>, Error> {
        match Named::read(urls) {
            Named::Memory => Ok(Arc::new(MemoryStore::new())),
            Named::One(url) => Ok(Arc::new(self.one(url)?.connect().await?)),
            Named::Several(urls) => Ok(Arc::new(self.several(urls)?.connect().await?)),
        }
    }

    /// As [`connect_lazy`], with these settings.
    pub(crate) fn connect_lazy(&self, urls: &str) -> Result<Arc<dyn Store>, ConfigError> {
        match Named::read(urls) {
            Named::Memory => Ok(Arc::new(MemoryStore::new())),
            Named::One(url) => Ok(Arc::new(self.one(url)?.connect_lazy()?)),
            Named::Several(urls) => Ok(Arc::new(self.several(urls)?.connect_lazy()?)),
        }
    }

    fn one(&self, url: &str) -> Result<RedisStoreBuilder, ConfigError> {
        let only_for_a_quorum = |field| {
            Err(ConfigError::new(field, "is for several URLs, and this is one: leave it out"))
        };
        if self.restart_delay.is_some() {
            return only_for_a_quorum("restart_delay");
        }
        if self.durable_members {
            return only_for_a_quorum("durable_members");
        }
        let mut builder = RedisStore::builder(url);
        if let Some(timeout) = self.request_timeout {
            builder = builder.with_request_timeout(timeout);
        }
        if let Some(timeout) = self.connect_timeout {
            builder = builder.with_connect_timeout(timeout);
        }
        if let Some(count) = self.replica_acks {
            builder = builder.with_replica_acks(count);
        }
        Ok(builder)
    }
}

/// Checks what can be checked of URLs without connecting.
#[cfg(feature = "serde")]
pub(crate) fn check_urls(urls: &str) -> Result<(), ConfigError> {
    match Named::read(urls) {
        Named::Memory => Ok(()),
        Named::One(url) => super::redis::check_url(url),
        Named::Several(urls) => {
            several::check(&urls)?;
            urls.into_iter().try_for_each(super::redis::check_url)
        }
    }
}

/// What kind of store is named.
enum Named<'a> {
    Memory,
    One(&'a str),
    Several(Vec<&'a str>),
}

impl<'a> Named<'a> {
    fn read(urls: &'a str) -> Self {
        let urls: Vec<&str> = urls.split_whitespace().collect();
        match *urls.as_slice() {
            [] => Self::One(""),
            ["memory:"] => Self::Memory,
            [url] => Self::One(url),
            _ => Self::Several(urls),
        }
    }
}

#[cfg(feature = "redis-quorum")]
mod several {
    use super::StoreSettings;
    use crate::error::ConfigError;
    #[cfg(feature = "serde")]
    use crate::store::quorum::check_members;
    use crate::store::{QuorumStore, QuorumStoreBuilder};

    #[cfg(feature = "serde")]
    pub(super) fn check(urls: &[&str]) -> Result<(), ConfigError> {
        check_members(urls)
    }

    impl StoreSettings {
        pub(super) fn several(&self, urls: Vec<&str>) -> Result<QuorumStoreBuilder, ConfigError> {
            if self.replica_acks.is_some() {
                let what = "is for one URL, of a server with replicas: members of a quorum have \
                            none, so leave it out";
                return Err(ConfigError::new("replica_acks", what));
            }
            let mut builder = QuorumStore::builder(urls);
            if let Some(timeout) = self.request_timeout {
                builder = builder.with_request_timeout(timeout);
            }
            if let Some(timeout) = self.connect_timeout {
                builder = builder.with_connect_timeout(timeout);
            }
            if let Some(delay) = self.restart_delay {
                builder = builder.with_restart_delay(delay);
            }
            if self.durable_members {
                builder = builder.with_durable_members();
            }
            Ok(builder)
        }
    }
}

#[cfg(not(feature = "redis-quorum"))]
mod several {
    use super::StoreSettings;
    use crate::error::ConfigError;
    use crate::store::RedisStoreBuilder;

    // Its twin looks at them.
    #[allow(clippy::needless_pass_by_value, clippy::unused_self)]
    impl StoreSettings {
        pub(super) fn several(&self, _: Vec<&str>) -> Result<RedisStoreBuilder, ConfigError> {
            Err(without_quorum())
        }
    }

    #[cfg(feature = "serde")]
    pub(super) fn check(_: &[&str]) -> Result<(), ConfigError> {
        Err(without_quorum())
    }

    fn without_quorum() -> ConfigError {
        let what = "names several servers: enable the feature `redis-quorum` of `lock-core`";
        ConfigError::new("url", what)
    }
}
