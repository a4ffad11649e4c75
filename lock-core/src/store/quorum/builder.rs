//! Connecting to the members of a quorum.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;

use super::QuorumStore;
use super::failure::Failure;
use super::rounds::Quorum;
use super::servers::one_each;
use crate::error::{ConfigError, Error};
use crate::runtime;
use crate::store::redis::{Credentials, RedisStore, RedisStoreBuilder};
use crate::store::{Member, Store as _, Terms};

/// Builds a [`QuorumStore`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{LockClient, store::QuorumStore};
///
/// # fn main() -> Result<(), lock_core::ConfigError> {
/// let members = ["redis://10.0.1.5/", "redis://10.0.2.5/", "redis://10.0.3.5/"];
/// let store = QuorumStore::builder(members)
///     .with_restart_delay(Duration::from_secs(60)) // on all clients
///     .connect_lazy()?; // the first lock connects
/// let client = LockClient::builder(store).build()?;
///
/// let refused = QuorumStore::builder(members.into_iter().take(2)).connect_lazy();
/// assert_eq!(refused.unwrap_err().field(), "members");
/// # drop(client); Ok(()) }
/// ```
#[must_use = "a builder does nothing until `connect`"]
pub struct QuorumStoreBuilder {
    urls: Vec<String>,
    restart_delay: Duration,
    durable: bool,
    request_timeout: Duration,
    connect_timeout: Duration,
    runtime: Option<Handle>,
    settings: Vec<Setting>,
    #[cfg(feature = "test-util")]
    connectors: Vec<Box<dyn FnOnce(RedisStoreBuilder) -> RedisStoreBuilder + Send + Sync>>,
}

/// A setting of the connections, which each member gets.
type Setting = Box<dyn Fn(RedisStoreBuilder) -> RedisStoreBuilder + Send + Sync>;

/// Three times the default ttl, and long enough for most that set another one.
const RESTART_DELAY: Duration = Duration::from_secs(30);
/// Servers accept numbers up to a second from their clock, before and after. After a restart a
/// server must accept only larger ones than before it, so the delay is longer than both together.
const MIN_RESTART_DELAY: Duration = Duration::from_secs(3);
/// As the longest ttl.
const MAX_RESTART_DELAY: Duration = Duration::from_secs(24 * 60 * 60);
/// As of a single server.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
/// As of a single server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl QuorumStore {
    /// Connects to the servers at `urls`, written as for
    /// [`RedisStore::connect`](crate::store::RedisStore::connect), and checks that they can keep
    /// locks. Passwords may differ.
    ///
    /// # Cancel safety
    ///
    /// As [`QuorumStoreBuilder::connect`].
    ///
    /// # Errors
    ///
    /// As [`QuorumStoreBuilder::connect`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_core::{LockClient, store::QuorumStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let members = ["redis://10.0.1.5/", "redis://10.0.2.5/", "redis://10.0.3.5/"];
    /// let client = LockClient::builder(QuorumStore::connect(members).await?).build()?;
    /// # drop(client); Ok(()) }
    /// ```
    pub async fn connect<U: Into<String>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, Error> {
        Self::builder(urls).connect().await
    }

    /// Starts to build a store on the servers at `urls`.
    pub fn builder<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> QuorumStoreBuilder {
        QuorumStoreBuilder {
            urls: urls.into_iter().map(Into::into).collect(),
            restart_delay: RESTART_DELAY,
            durable: false,
            request_timeout: REQUEST_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            runtime: None,
            settings: Vec::new(),
            #[cfg(feature = "test-util")]
            connectors: Vec::new(),
        }
    }
}

#[cfg(feature = "test-util")]
impl QuorumStore {
    /// On members that are no servers.
    pub(crate) fn of(
        members: Vec<Arc<dyn Member>>,
        terms: Terms,
        request_timeout: Duration,
    ) -> Self {
        Self::new(Quorum::new(members, terms, request_timeout, request_timeout))
    }
}

impl QuorumStoreBuilder {
    /// For how long a member that may have forgotten locks does not vote: at least the longest ttl,
    /// extension and `min_hold` of any client, none of which may be longer. Until then the others
    /// decide. The same for all clients. Default: 30 s.
    pub fn with_restart_delay(mut self, delay: Duration) -> Self {
        self.restart_delay = delay;
        self
    }

    /// The members keep each lock over a restart (`appendonly yes` with `appendfsync always`), so a
    /// restarted member votes at once if it still has its mark. All clients must say so.
    pub fn with_durable_members(mut self) -> Self {
        self.durable = true;
        self
    }

    /// How long to wait for the reply of a member. Default: 500 ms.
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long a connection to a member may take. Default: 1 s.
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Runs connections and background work there, from the first dial on. Default: as for
    /// [`RedisStoreBuilder::with_runtime`](crate::store::RedisStoreBuilder::with_runtime).
    pub fn with_runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Asks `provider` for the credentials before each connection to any member, in place of those
    /// of the URLs, as
    /// [`RedisStoreBuilder::with_credentials_provider`](crate::store::RedisStoreBuilder::with_credentials_provider)
    /// does. A lease outlives a rotation: a connection that a member ends is dialled anew with what
    /// is valid then.
    ///
    /// The provider is not told which member is dialled, so all members take the same credentials;
    /// passwords that differ belong in the URLs. If members change their passwords one after the
    /// other, add the new one to all of them before the first of them loses the old one: a user of
    /// an ACL may have several.
    ///
    /// ```no_run
    /// use lock_core::store::{Credentials, QuorumStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::Error> {
    /// let members = ["redis://10.0.1.5/", "redis://10.0.2.5/", "redis://10.0.3.5/"];
    /// let store = QuorumStore::builder(members)
    ///     .with_credentials_provider(async || {
    ///         let password = tokio::fs::read_to_string("/run/secrets/redis").await?;
    ///         Ok::<_, std::io::Error>(Credentials::new("locks", password.trim()))
    ///     })
    ///     .connect()
    ///     .await?;
    /// # drop(store); Ok(()) }
    /// ```
    pub fn with_credentials_provider<F, E>(
        self,
        provider: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let provider = Arc::new(provider);
        self.with_setting(move |member| {
            let provider = Arc::clone(&provider);
            member.with_credentials_provider(move || provider())
        })
    }

    /// Trusts the certificates in `pem`, and no others, for all members, whose URLs must be
    /// `rediss://`. Default: those that the platform trusts.
    #[cfg(feature = "redis-tls")]
    pub fn with_root_certificates(self, pem: impl Into<Vec<u8>>) -> Self {
        let pem = pem.into();
        self.with_setting(move |member| member.with_root_certificates(pem.clone()))
    }

    /// Shows each member a certificate, with its private key, both as PEM; for `rediss://` URLs.
    #[cfg(feature = "redis-tls")]
    pub fn with_client_certificate(
        self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let (certificate, key) = (certificate.into(), key.into());
        self.with_setting(move |member| {
            member.with_client_certificate(certificate.clone(), key.clone())
        })
    }

    /// Gives each member a setting. Of two that concern the same, the later counts.
    fn with_setting(
        mut self,
        setting: impl Fn(RedisStoreBuilder) -> RedisStoreBuilder + Send + Sync + 'static,
    ) -> Self {
        self.settings.push(Box::new(setting));
        self
    }

    /// Uses the byte streams of these connectors, one for each member, instead of dialling the
    /// addresses of the URLs.
    #[cfg(feature = "test-util")]
    pub fn with_connectors<C: crate::testing::Connector>(
        mut self,
        connectors: impl IntoIterator<Item = C>,
    ) -> Self {
        for connector in connectors {
            let with = move |builder: RedisStoreBuilder| builder.with_connector(connector);
            self.connectors.push(Box::new(with));
        }
        self
    }

    /// Connects, and checks that the members can keep locks. Members that cannot be reached do no
    /// harm as long as they are a minority.
    ///
    /// # Cancel safety
    ///
    /// As [`RedisStoreBuilder::connect`](crate::store::RedisStoreBuilder::connect).
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) for a bad list of members or a bad
    /// setting; [`Unavailable`](crate::ErrorKind::Unavailable) if fewer than a majority can be
    /// reached, if two members are the same server, or if one of them can never keep locks: a node
    /// of a cluster, or one without the permissions;
    /// [`NoRuntime`](crate::ErrorKind::NoRuntime) outside a tokio runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_core::store::QuorumStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// // Where no server listens.
    /// let members = ["redis://127.0.0.1:1/", "redis://127.0.0.1:2/", "redis://127.0.0.1:3/"];
    /// let store = QuorumStore::builder(members)
    ///     .with_connect_timeout(Duration::from_millis(200));
    /// let error = store.connect().await.unwrap_err();
    /// assert_eq!(error.to_string(), "no majority: 0 of 3 lock servers answered");
    /// # }
    /// ```
    pub async fn connect(self) -> Result<QuorumStore, Error> {
        let store = self.connect_lazy()?;
        runtime::current()?;
        let quorum = &store.quorum;
        let checks = join_all(quorum.members.iter().map(|member| member.check())).await;
        let failed = checks.into_iter().enumerate();
        let failed: Vec<(usize, Error)> =
            failed.filter_map(|(member, check)| Some((member, check.err()?))).collect();
        let good = quorum.members.len() - failed.len();
        // A member that can never keep locks is a mistake in the list; one that is away is not.
        if let Some((_, error)) = failed.iter().find(|(_, error)| error.is_permanent()) {
            return Err(error.clone());
        }
        if good < quorum.majority() {
            return Err(Failure::unconnected(&quorum.members, good, &failed).into_error());
        }
        one_each(&quorum.members).map_err(Failure::into_error)?;
        Ok(store)
    }

    /// Makes the store without connecting: the first lock does. For services that must start while
    /// servers are down.
    ///
    /// # Errors
    ///
    /// For a bad list of members, URL, setting or certificate.
    pub fn connect_lazy(self) -> Result<QuorumStore, ConfigError> {
        let Self {
            urls,
            restart_delay,
            durable,
            request_timeout,
            connect_timeout,
            runtime,
            settings,
            #[cfg(feature = "test-util")]
            connectors,
        } = self;
        check_members(&urls)?;
        check_restart_delay("restart_delay", restart_delay)?;
        if urls.len().is_multiple_of(2) {
            tracing::warn!(
                target: "lock_core", members = urls.len(),
                "an even number of lock servers survives the loss of no more of them than one less \
                 does"
            );
        }
        let mut members: Vec<Arc<dyn Member>> = Vec::with_capacity(urls.len());
        #[cfg(feature = "test-util")]
        let mut connectors = connectors.into_iter();
        for url in urls {
            let builder = RedisStore::builder(url)
                .with_request_timeout(request_timeout)
                .with_connect_timeout(connect_timeout);
            let builder = settings.iter().fold(builder, |builder, setting| setting(builder));
            #[cfg(feature = "test-util")]
            let builder = match connectors.next() {
                Some(connector) => connector(builder),
                None => builder,
            };
            members.push(Arc::new(builder.connect_lazy()?));
        }
        let terms = Terms { restart_delay, durable };
        let store = QuorumStore::new(Quorum::new(members, terms, request_timeout, connect_timeout));
        if let Some(runtime) = runtime {
            store.run_on(&runtime);
        }
        Ok(store)
    }
}

/// Checks the restart delay, as the setting `field`.
pub(crate) fn check_restart_delay(field: &'static str, delay: Duration) -> Result<(), ConfigError> {
    if (MIN_RESTART_DELAY..=MAX_RESTART_DELAY).contains(&delay) {
        return Ok(());
    }
    Err(ConfigError::new(field, format!("is {delay:?}: choose 3s to 24h")))
}

/// Refuses lists that make no quorum.
pub(crate) fn check_members<U: AsRef<str>>(urls: &[U]) -> Result<(), ConfigError> {
    let refuse = |problem: &str| Err(ConfigError::new("members", problem.to_owned()));
    match urls.len() {
        0 => return refuse("are missing: give the URLs of three servers or five"),
        1 => return refuse("are one server: use `RedisStore`"),
        2 => {
            return refuse(
                "are two servers: the loss of one would stop all locks; use three, or `RedisStore`",
            );
        }
        _ => {}
    }
    let mut seen = HashSet::new();
    for url in urls.iter().map(AsRef::as_ref) {
        let scheme = url.split(':').next().unwrap_or_default();
        if scheme.contains("sentinel") || scheme.contains("cluster") {
            return refuse(
                "must be single servers: sentinels and clusters replace a server by another one \
                 that may have forgotten locks, unnoticed",
            );
        }
        if !seen.insert(url) {
            return refuse("name a server twice: its vote would count double");
        }
    }
    Ok(())
}

/// The URLs may hold passwords, and settings do.
impl fmt::Debug for QuorumStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumStoreBuilder")
            .field("members", &self.urls.len())
            .field("restart_delay", &self.restart_delay)
            .finish_non_exhaustive()
    }
}
