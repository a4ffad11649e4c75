//! Connecting to Redis.

use std::fmt;
use std::time::Duration;

use redis::{Client, ConnectionAddr};
#[cfg(feature = "redis-tls")]
use redis::{ClientTlsConfig, TlsCertificates};
use tokio::runtime::Handle;

use super::RedisStore;
use super::check::check;
use super::credentials::{Credentials, CredentialsProvider};
#[cfg(feature = "test-util")]
use super::transport::{Connector, LookUp};
use super::transport::{Endpoint, Timeouts};
use crate::error::{ConfigError, Error};
use crate::probe;
use crate::store::Store as _;

/// Builds a [`RedisStore`].
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisStoreBuilder {
    url: String,
    request_timeout: Duration,
    connect_timeout: Duration,
    runtime: Option<Handle>,
    credentials: Option<CredentialsProvider>,
    #[cfg(feature = "redis-tls")]
    certificates: TlsCertificates,
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
/// Locks on a slower store would be of no use.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

impl RedisStore {
    /// Connects to the server at `url` and checks that it can keep locks. The URL is
    /// `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS (with the feature
    /// `redis-tls`). `?protocol=resp2` at its end keeps to the older protocol; without it, RESP3 is
    /// tried first.
    ///
    /// For TLS, an application with a cryptography provider of its own for rustls installs it first
    /// thing in `main`. If none is installed by now, `ring` is.
    ///
    /// # Errors
    ///
    /// As [`RedisStoreBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Starts to build a store for the server at `url`.
    pub fn builder(url: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder {
            url: url.into(),
            request_timeout: REQUEST_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            runtime: None,
            credentials: None,
            #[cfg(feature = "redis-tls")]
            certificates: TlsCertificates { client_tls: None, root_cert: None },
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
    /// several addresses, each of them that is tried has its share. Default: 1 s.
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

    /// Finds the addresses of the server by `look_up` instead of by the system.
    #[cfg(feature = "test-util")]
    pub fn with_look_up<F>(mut self, look_up: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = std::io::Result<Vec<std::net::SocketAddr>>> + Send + 'static,
    {
        self.look_up = Some(Box::new(move || Box::pin(look_up())));
        self
    }

    /// Uses the byte streams of `connector` instead of dialling the address of the URL.
    #[cfg(feature = "test-util")]
    pub fn with_connector(mut self, connector: impl Connector) -> Self {
        self.connector = Some(std::sync::Arc::new(connector));
        self
    }

    /// Connects, and checks that the server can keep locks.
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) for a bad URL or timeout, or a given
    /// runtime without timers or I/O; [`Unavailable`](crate::ErrorKind::Unavailable) if the server
    /// cannot be reached, refuses the password or a command, or is a replica;
    /// [`NoRuntime`](crate::ErrorKind::NoRuntime) outside a tokio runtime that was built with
    /// `enable_all`, or if the given one has shut down.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the check ends in the background and removes the records that it
    /// made. If its connection breaks, they expire, except for a counter that no lock uses. The
    /// next start-up check removes that.
    pub async fn connect(self) -> Result<RedisStore, Error> {
        let store = self.connect_lazy()?;
        check(&store.server).await?;
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
            runtime,
            credentials,
            #[cfg(feature = "redis-tls")]
            certificates,
            #[cfg(feature = "test-util")]
            connector,
            #[cfg(feature = "test-util")]
            look_up,
        } = self;
        for (field, timeout) in
            [("request_timeout", request_timeout), ("connect_timeout", connect_timeout)]
        {
            if timeout < MIN_TIMEOUT || timeout > MAX_TIMEOUT {
                return Err(ConfigError::new(field, format!("is {timeout:?}: choose 10ms to 30s")));
            }
        }
        if url.starts_with("rediss:") {
            tls::prepare()?;
        }
        let names_resp2 = names_resp2(&url);
        let client = Client::open(url).map_err(not_a_url)?;
        if matches!(
            client.get_connection_info().addr(),
            ConnectionAddr::TcpTls { insecure: true, .. }
        ) {
            return Err(ConfigError::new(
                "url",
                "turns off the check of the certificate: remove `#insecure`",
            ));
        }
        #[cfg(feature = "redis-tls")]
        let client = tls::with_certificates(client, certificates)?;
        let info = client.get_connection_info();
        let endpoint = Endpoint::new(info, !names_resp2).with_credentials(credentials);
        #[cfg(feature = "test-util")]
        let endpoint = endpoint.over(connector).found_by(look_up);
        let timeouts = Timeouts { request: request_timeout, connect: connect_timeout };
        let needs_io = endpoint.needs_io();
        let store = RedisStore::new(endpoint, describe(info.addr()), timeouts);
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
             `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS"
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

    /// Makes sure that the process has a cryptography provider for rustls: redis-rs uses that one.
    // The twin of this function can fail.
    #[allow(clippy::unnecessary_wraps)]
    pub(super) fn prepare() -> Result<(), ConfigError> {
        // rustls does the same if exactly one provider is compiled in; otherwise it panics. A
        // choice that the application made before stays.
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which does no harm.
            drop(ring::default_provider().install_default());
        }
        Ok(())
    }
}

#[cfg(not(feature = "redis-tls"))]
mod tls {
    use crate::error::ConfigError;

    pub(super) fn prepare() -> Result<(), ConfigError> {
        Err(ConfigError::new("url", "requires TLS: enable the feature `redis-tls` of `lock-core`"))
    }
}

fn describe(addr: &ConnectionAddr) -> String {
    match addr {
        ConnectionAddr::TcpTls { host, port, .. } => format!("rediss://{host}:{port}"),
        other => format!("redis://{other}"),
    }
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
