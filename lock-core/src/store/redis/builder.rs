//! Connecting to Redis.

use std::fmt;
use std::time::Duration;

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo};
#[cfg(feature = "redis-tls")]
use redis::{ClientTlsConfig, TlsCertificates};
use tokio::runtime::Handle;

use super::RedisStore;
use super::check::check;
#[cfg(feature = "redis-cluster")]
use super::cluster::{AddressMap, ClusterSettings};
use super::credentials::{Credentials, CredentialsProvider};
#[cfg(feature = "test-util")]
use super::transport::{Connector, LookUp};
use super::transport::{Endpoint, ReplicaAcks, Sentinels, Timeouts};
use super::url::{ClusterUrl, SentinelUrl};
use crate::error::{ConfigError, Error};
use crate::probe;
use crate::store::Store as _;

/// Builds a [`RedisStore`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{LockClient, store::RedisStore};
///
/// # fn main() -> Result<(), lock_core::ConfigError> {
/// let store = RedisStore::builder("redis://redis.internal/")
///     .with_request_timeout(Duration::from_millis(300))
///     .connect_lazy()?; // the first lock connects
/// let client = LockClient::builder(store).build()?;
///
/// let refused = RedisStore::builder("http://redis.internal/").connect_lazy();
/// assert_eq!(refused.unwrap_err().field(), "url");
/// # drop(client); Ok(()) }
/// ```
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisStoreBuilder {
    url: String,
    request_timeout: Duration,
    connect_timeout: Duration,
    replica_acks: Option<u32>,
    runtime: Option<Handle>,
    credentials: Option<CredentialsProvider>,
    #[cfg(feature = "redis-tls")]
    certificates: TlsCertificates,
    #[cfg(feature = "redis-cluster")]
    address_map: Option<AddressMap>,
    #[cfg(feature = "test-util")]
    connector: Option<std::sync::Arc<dyn Connector>>,
    #[cfg(feature = "test-util")]
    look_up: Option<LookUp>,
}

/// Ten times what a healthy server in the same region takes. A third of it would fail in bursts.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
/// A handshake takes a few round trips, and some more with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// With less, a short stall of the server would count as an outage.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);
/// With fewer, the loss of one leaves no majority.
const LEAST_SENTINELS: usize = 3;
/// Locks on a slower store would be of no use.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

impl RedisStore {
    /// Connects to the server at `url` and checks that it can keep locks. The URL is
    /// `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS (with the feature
    /// `redis-tls`). `?protocol=resp2` at its end keeps to the older protocol; without it, RESP3 is
    /// tried first.
    ///
    /// For the master that [sentinels](RedisStore#sentinel) name, it is
    /// `redis+sentinel://[user:password@]host[:port][,host[:port]…]/master-name[/database]`, with
    /// the addresses of the sentinels (port 26379 if there is none), or `rediss+sentinel://` for
    /// TLS to sentinels and servers. User and password are for the servers;
    /// `?sentinel_username=…&sentinel_password=…` are for the sentinels. An IPv6 address is written
    /// in brackets. `redis-sentinel://host,host/database?sentinelMasterId=master-name`, as other
    /// clients write it, is the same.
    ///
    /// ```
    /// use lock_core::store::RedisStore;
    ///
    /// # fn main() -> Result<(), lock_core::ConfigError> {
    /// let url = "redis+sentinel://locks:password@10.0.0.1,10.0.0.2,10.0.0.3/shop";
    /// let store = RedisStore::builder(url).connect_lazy()?; // no I/O yet
    /// assert!(store.to_string().ends_with("10.0.0.3:26379/shop"));
    ///
    /// let nameless = RedisStore::builder("redis+sentinel://10.0.0.1").connect_lazy();
    /// assert!(nameless.unwrap_err().to_string().contains("names no master"));
    /// # Ok(()) }
    /// ```
    ///
    /// For a [cluster](RedisStore#cluster), with the feature `redis-cluster`, it is
    /// `redis+cluster://[user:password@]host[:port][,host[:port]…]`, with the addresses of some of
    /// its nodes (port 6379 if there is none), or `rediss+cluster://`.
    ///
    /// A URL of one kind that leads to a server of another is refused, with the right URL in the
    /// error.
    ///
    /// For TLS, an application with a cryptography provider of its own for rustls installs it first
    /// thing in `main`. If none is installed by now, `ring` is.
    ///
    /// # Cancel safety
    ///
    /// As [`RedisStoreBuilder::connect`].
    ///
    /// # Errors
    ///
    /// As [`RedisStoreBuilder::connect`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_core::{LockClient, store::RedisStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::connect("redis://locks:password@redis.internal/").await?;
    /// let client = LockClient::builder(store).build()?;
    /// # drop(client); Ok(()) }
    /// ```
    pub async fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Starts to build a store for the server at `url`.
    pub fn builder(url: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder {
            url: url.into(),
            request_timeout: REQUEST_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            replica_acks: None,
            runtime: None,
            credentials: None,
            #[cfg(feature = "redis-tls")]
            certificates: TlsCertificates { client_tls: None, root_cert: None },
            #[cfg(feature = "redis-cluster")]
            address_map: None,
            #[cfg(feature = "test-util")]
            connector: None,
            #[cfg(feature = "test-util")]
            look_up: None,
        }
    }
}

impl RedisStoreBuilder {
    /// How long to wait for the reply to a command; then its outcome is unknown. Default: 500 ms.
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long a connection may take, with look-up, TLS and authentication. If the name has
    /// several addresses, each of them that is tried has its share. Sentinels have half of it to
    /// name the master. Default: 1 s.
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Runs the connection there, from the first dial on.
    ///
    /// Default: on the runtime of the caller that finds no connection and dials, or on the
    /// `multi_thread` runtime of the connection before. A client that is
    /// [given a runtime](crate::LockClientBuilder::with_runtime) moves the connection there.
    pub fn with_runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Grants and renewals count only if `count` replicas have confirmed them. By default none has
    /// to.
    ///
    /// Replication is asynchronous, so a failover may lose the newest grants. With this, a lock
    /// survives the failover to a replica that confirmed it: to any if `count` is the number of
    /// all. An old master that lost its replicas grants no more locks.
    ///
    /// Each claim and each renewal asks by `WAIT` in the same write, for a fifth of the request
    /// timeout and 100 ms at most. Meanwhile the server executes nothing else of this connection. A
    /// claim that too few confirm ends as [unavailable](crate::ErrorKind::Unavailable), and its
    /// lock is released; one that may wait keeps the lock on the server and asks again, until
    /// replicas confirm it or the wait is over. A renewal that too few confirm does not lengthen
    /// the lease, and is repeated. A lock that is handed on costs the waiter one round trip more.
    /// While fewer than `count` replicas answer, no lock is granted.
    ///
    /// The user needs `+wait` as well.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_core::store::{RedisStore, Store, Survives};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::Error> {
    /// let store = RedisStore::builder("redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/shop")
    ///     .with_replica_acks(1)
    ///     .connect()
    ///     .await?; // unavailable if the master has no replica that answers
    /// assert_eq!(store.capabilities().survives, Survives::FailoverAcknowledged);
    /// # Ok(()) }
    /// ```
    pub fn with_replica_acks(mut self, count: u32) -> Self {
        self.replica_acks = Some(count);
        self
    }

    /// Asks `provider` for the credentials before each connection, in place of those of the URL.
    /// For passwords that are rotated and for tokens that expire: a connection that the server ends
    /// is dialled anew with what is valid then. The connect timeout includes the time that this
    /// takes.
    ///
    /// ```no_run
    /// use lock_core::store::{Credentials, RedisStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::Error> {
    /// let store = RedisStore::builder("redis://redis.internal/")
    ///     .with_credentials_provider(async || {
    ///         let password = tokio::fs::read_to_string("/run/secrets/redis").await?;
    ///         Ok::<_, std::io::Error>(Credentials::new("locks", password.trim()))
    ///     })
    ///     .connect()
    ///     .await?;
    /// # drop(store); Ok(()) }
    /// ```
    pub fn with_credentials_provider<F, E>(
        mut self,
        provider: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.credentials = Some(CredentialsProvider::new(provider));
        self
    }

    /// Trusts the certificates in `pem`, and no others, for a `rediss://` URL. Default: those that
    /// the platform trusts.
    #[cfg(feature = "redis-tls")]
    pub fn with_root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root_cert = Some(pem.into());
        self
    }

    /// Shows the server a certificate, with its private key, both as PEM; for a `rediss://` URL.
    #[cfg(feature = "redis-tls")]
    pub fn with_client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let (client_cert, client_key) = (certificate.into(), key.into());
        self.certificates.client_tls = Some(ClientTlsConfig { client_cert, client_key });
        self
    }

    /// Dials the nodes of a cluster at the address that `map` gives for the host and the port by
    /// which a node calls itself: where clients reach it by another address than the other nodes
    /// do, as through containers or a translation of addresses.
    ///
    /// ```no_run
    /// use lock_core::store::RedisStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::Error> {
    /// let store = RedisStore::builder("redis+cluster://redis.internal")
    ///     .with_address_map(|_host, port| ("redis.internal".to_owned(), port))
    ///     .connect()
    ///     .await?;
    /// # drop(store); Ok(()) }
    /// ```
    #[cfg(feature = "redis-cluster")]
    pub fn with_address_map(
        mut self,
        map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> Self {
        self.address_map = Some(Box::new(map));
        self
    }

    /// Finds the addresses of the server by `look_up` instead of by the system.
    #[cfg(feature = "test-util")]
    pub fn with_look_up<F>(mut self, look_up: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = std::io::Result<Vec<std::net::SocketAddr>>> + Send + 'static,
    {
        self.look_up = Some(Box::new(move || Box::pin(look_up())));
        self
    }

    /// Uses the byte streams of `connector` instead of dialling, also to sentinels and nodes, and
    /// to the servers that these name.
    #[cfg(feature = "test-util")]
    pub fn with_connector(mut self, connector: impl Connector) -> Self {
        self.connector = Some(std::sync::Arc::new(connector));
        self
    }

    /// Connects, and checks that the server can keep locks. Of a cluster, one node with slots is
    /// checked, whichever can be reached and serves them: users and settings are meant to be the
    /// same on all. What is wrong with another node is an error of the calls for its locks.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the check ends in the background and removes the records that it
    /// made. If its connection breaks, they expire, except for a counter that no lock uses. The
    /// next start-up check of that server removes it.
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) for a bad URL or timeout, or a given
    /// runtime without timers or I/O; [`Unavailable`](crate::ErrorKind::Unavailable) if the server
    /// cannot be reached, refuses the password or a command, or is a replica;
    /// [`NoRuntime`](crate::ErrorKind::NoRuntime) outside a tokio runtime that was built with
    /// `enable_all`, or if the given one has shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_core::store::RedisStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let store = RedisStore::builder("redis://127.0.0.1:1/") // where no server listens
    ///     .with_connect_timeout(Duration::from_millis(200));
    /// let error = store.connect().await.unwrap_err();
    /// assert!(error.is_unavailable() && error.is_retryable());
    /// # }
    /// ```
    pub async fn connect(self) -> Result<RedisStore, Error> {
        let store = self.connect_lazy()?;
        check(store.server.servers()).await?;
        Ok(store)
    }

    /// Makes the store without connecting: the first lock does. For services that must start while
    /// Redis is down.
    ///
    /// # Errors
    ///
    /// For a bad URL, timeout or certificate, or a given runtime without timers or I/O.
    pub fn connect_lazy(self) -> Result<RedisStore, ConfigError> {
        let Self {
            url,
            request_timeout,
            connect_timeout,
            replica_acks,
            runtime,
            credentials,
            #[cfg(feature = "redis-tls")]
            certificates,
            #[cfg(feature = "redis-cluster")]
            address_map,
            #[cfg(feature = "test-util")]
            connector,
            #[cfg(feature = "test-util")]
            look_up,
        } = self;
        check_timeout("request_timeout", request_timeout)?;
        check_timeout("connect_timeout", connect_timeout)?;
        replica_acks.map_or(Ok(()), check_replica_acks)?;
        let ReadUrl { server: url, info, sentinels, cluster } = read_url(url)?;
        if url.starts_with("rediss:") {
            tls::prepare();
        }
        let names_resp2 = names_resp2(&url);
        let client = Client::open(info).map_err(not_a_url)?;
        #[cfg(feature = "redis-tls")]
        let client = tls::with_certificates(client, certificates)?;
        let info = client.get_connection_info();
        let endpoint = Endpoint::new(info, !names_resp2).with_credentials(credentials);
        #[cfg(feature = "test-util")]
        if (sentinels.is_some() || cluster.is_some()) && look_up.is_some() {
            let what = "names other servers, which the look-up does not know";
            return Err(ConfigError::new("url", what));
        }
        // Before the sentinels, which are at its side.
        #[cfg(feature = "test-util")]
        let endpoint = endpoint.over(connector).found_by(look_up);
        let (sentinels, label) = match sentinels {
            Some(url) => {
                let label = url.label.clone();
                (Some(watched_by(url, &endpoint)), label)
            }
            None => (None, endpoint.address()),
        };
        let timeouts = Timeouts { request: request_timeout, connect: connect_timeout };
        let needs_io = endpoint.needs_io();
        let acks = replica_acks.map(|count| ReplicaAcks::new(count, request_timeout));
        let store = match cluster {
            #[cfg(feature = "redis-cluster")]
            Some(ClusterUrl { seeds, label, server: _ }) => {
                let settings =
                    ClusterSettings { endpoint, seeds, address_map, label, timeouts, acks };
                RedisStore::on_cluster(settings)
            }
            // Without the feature, the URL of a cluster was refused.
            _ => RedisStore::new(endpoint, sentinels, label, timeouts, acks),
        };
        if let Some(runtime) = runtime {
            probe::given(&runtime)?;
            if needs_io {
                probe::io(&runtime)?;
            }
            store.run_on(&runtime);
        }
        Ok(store)
    }
}

/// Checks a timeout of `field`.
pub(crate) fn check_timeout(field: &'static str, timeout: Duration) -> Result<(), ConfigError> {
    if timeout < MIN_TIMEOUT || timeout > MAX_TIMEOUT {
        return Err(ConfigError::new(field, format!("is {timeout:?}: choose 10ms to 30s")));
    }
    Ok(())
}

/// Checks the number of replicas that have to confirm a grant.
pub(crate) fn check_replica_acks(count: u32) -> Result<(), ConfigError> {
    match count {
        0 => Err(ConfigError::new("replica_acks", "is 0: leave it out")),
        _ => Ok(()),
    }
}

/// Checks what can be checked of a URL without connecting.
#[cfg(feature = "serde")]
pub(crate) fn check_url(url: &str) -> Result<(), ConfigError> {
    read_url(url.to_owned()).map(drop)
}

/// What a URL says.
struct ReadUrl {
    /// The URL of a server: its host is a sentinel, or a node, if the URL names such.
    server: String,
    info: ConnectionInfo,
    sentinels: Option<SentinelUrl>,
    cluster: Option<ClusterUrl>,
}

fn read_url(url: String) -> Result<ReadUrl, ConfigError> {
    let (sentinels, cluster) = (SentinelUrl::read(&url)?, ClusterUrl::read(&url)?);
    #[cfg(not(feature = "redis-cluster"))]
    if cluster.is_some() {
        let what = "names a cluster: enable the feature `redis-cluster` of `lock-core`";
        return Err(ConfigError::new("url", what));
    }
    let server = match (&sentinels, &cluster) {
        (Some(SentinelUrl { server, .. }), _) | (_, Some(ClusterUrl { server, .. })) => {
            server.clone()
        }
        (None, None) => url,
    };
    if server.starts_with("rediss:") {
        tls::check()?;
    }
    let info = server.as_str().into_connection_info().map_err(not_a_url)?;
    if matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        return Err(ConfigError::new(
            "url",
            "turns off the check of the certificate: remove `#insecure`",
        ));
    }
    Ok(ReadUrl { server, info, sentinels, cluster })
}

/// Whether the URL names the older protocol: redis-rs does not tell it from its default.
fn names_resp2(url: &str) -> bool {
    let query = url.split('#').next().and_then(|url| url.split_once('?')).map(|(_, query)| query);
    let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.any(|(name, value)| name == "protocol" && matches!(value, "2" | "resp2"))
}

// `map_err` passes it by value.
#[allow(clippy::needless_pass_by_value)]
fn not_a_url(error: redis::RedisError) -> ConfigError {
    // The detail may be a part of the URL, and so a secret.
    let (text, detail) = (error.to_string(), error.detail().unwrap_or_default());
    let what = text.strip_suffix(detail).unwrap_or("it does not parse").trim_end_matches(": ");
    ConfigError::new(
        "url",
        format!(
            "is not a redis URL ({what}): write \
             `redis://[user:password@]host[:port][/database]`, `rediss://` for TLS, \
             `redis+sentinel://host,host,host/master-name` or `redis+cluster://host,host,host`"
        ),
    )
}

#[cfg(feature = "redis-tls")]
mod tls {
    use redis::{Client, TlsCertificates};
    use rustls::crypto::{CryptoProvider, ring};

    use crate::error::ConfigError;

    /// The client with the certificates that the application gave, if it gave any.
    pub(super) fn with_certificates(
        client: Client,
        certificates: TlsCertificates,
    ) -> Result<Client, ConfigError> {
        if certificates.root_cert.is_none() && certificates.client_tls.is_none() {
            return Ok(client);
        }
        let shown = certificates.client_tls.as_ref().map(|tls| &tls.client_cert);
        // A file without certificates would be read as an empty list.
        if !certificates.root_cert.iter().chain(shown).all(|pem| holds_a_certificate(pem)) {
            return Err(ConfigError::new("certificates", "hold no certificate in the form of PEM"));
        }
        let info = client.get_connection_info().clone();
        Client::build_with_tls(info, certificates)
            .map_err(|error| ConfigError::new("certificates", format!("cannot be used: {error}")))
    }

    fn holds_a_certificate(pem: &[u8]) -> bool {
        const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
        pem.windows(BEGIN.len()).any(|window| window == BEGIN)
    }

    // The twin of this function fails.
    #[allow(clippy::unnecessary_wraps)]
    pub(super) fn check() -> Result<(), ConfigError> {
        Ok(())
    }

    /// Makes sure that the process has a cryptography provider for rustls: redis-rs uses that one.
    pub(super) fn prepare() {
        // rustls does the same if exactly one provider is compiled in; otherwise it panics. A
        // choice that the application made before stays.
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which does no harm.
            drop(ring::default_provider().install_default());
        }
    }
}

#[cfg(not(feature = "redis-tls"))]
mod tls {
    use crate::error::ConfigError;

    pub(super) fn check() -> Result<(), ConfigError> {
        Err(ConfigError::new("url", "requires TLS: enable the feature `redis-tls` of `lock-core`"))
    }

    pub(super) fn prepare() {}
}

/// The sentinels of `url`, by TLS with the same certificates if the server is.
fn watched_by(url: SentinelUrl, server: &Endpoint) -> Sentinels {
    let SentinelUrl { sentinels, name, user, password, label, server: _ } = url;
    if sentinels.len() < LEAST_SENTINELS {
        tracing::warn!(
            target: "lock_core", server = label,
            "the URL names fewer than three sentinels: all of them have to answer for a failover"
        );
    }
    let mut settings = RedisConnectionInfo::default();
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    let endpoints = sentinels.iter().map(|(host, port)| server.sentinel(host, *port, &settings));
    Sentinels::new(endpoints.collect(), name)
}

/// The URL may hold a password.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("request_timeout", &self.request_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}
