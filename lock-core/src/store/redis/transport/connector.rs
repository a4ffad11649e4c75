//! Where byte streams come from: redis-rs dials, unless a test supplies the streams.

use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;
use std::{future, io, iter};

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::AsyncDNSResolver;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, RedisFuture, RedisResult, Value,
};
use tokio::net::TcpStream;

use crate::error::Error;
use crate::store::redis::credentials::{Credentials, CredentialsProvider};

#[cfg(feature = "test-util")]
pub use self::supplied::{Connector, Socket};

/// One server, as its URL names it.
pub(crate) struct Endpoint {
    info: ConnectionInfo,
    /// Whether the URL leaves the protocol open.
    may_speak_resp3: bool,
    credentials: Option<Arc<CredentialsProvider>>,
    #[cfg(feature = "test-util")]
    supplier: Option<Arc<dyn Connector>>,
    #[cfg(feature = "test-util")]
    look_up: Option<LookUp>,
}

/// Looks up the addresses of a server in place of the system.
#[cfg(feature = "test-util")]
pub(crate) type LookUp =
    Box<dyn Fn() -> crate::store::BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// After this long without traffic the kernel probes the peer. A connection that only listens would
/// not notice otherwise that it is dead.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The longest error that a server sends by itself, in bytes: that of the protected mode has 1,065.
const MAX_ERROR_LEN: usize = 4096;

/// An open connection. It is closed when its last clone is dropped, even with commands in flight.
#[derive(Clone)]
pub(crate) struct Wire {
    connection: MultiplexedConnection,
    /// redis-rs drives and ends the connections that it dials itself.
    #[cfg(feature = "test-util")]
    _driver: Option<Arc<supplied::Driver>>,
}

impl Endpoint {
    /// The server at `info`, by RESP3 if it `may_speak_resp3`.
    pub(crate) fn new(info: &ConnectionInfo, may_speak_resp3: bool) -> Self {
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        // Send small calls at once instead of waiting for the acknowledgement of the one before.
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        Self {
            info: info.clone().set_tcp_settings(tcp),
            may_speak_resp3,
            credentials: None,
            #[cfg(feature = "test-util")]
            supplier: None,
            #[cfg(feature = "test-util")]
            look_up: None,
        }
    }

    /// Asks `provider` for a user and a password before each connection.
    pub(crate) fn with_credentials(mut self, provider: Option<CredentialsProvider>) -> Self {
        self.credentials = provider.map(Arc::new);
        self
    }

    /// The server at another address, with the same user, database and certificates.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                let (insecure, tls_params) = (*insecure, tls_params.clone());
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self {
            info: self.info.clone().set_addr(addr),
            may_speak_resp3: self.may_speak_resp3,
            credentials: self.credentials.clone(),
            #[cfg(feature = "test-util")]
            supplier: self.supplier.clone(),
            #[cfg(feature = "test-util")]
            look_up: None,
        }
    }

    /// A sentinel at another address, with the same certificates. `settings` has the user and the
    /// password for it.
    pub(crate) fn sentinel(&self, host: &str, port: u16, settings: &RedisConnectionInfo) -> Self {
        let mut sentinel = self.at(host, port);
        sentinel.info = sentinel.info.set_redis_settings(settings.clone());
        sentinel.credentials = None;
        sentinel
    }

    /// Where the server is, without secrets.
    pub(crate) fn address(&self) -> String {
        match self.info.addr() {
            ConnectionAddr::TcpTls { host, port, .. } => format!("rediss://{host}:{port}"),
            other => format!("redis://{other}"),
        }
    }

    pub(super) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// Whether to try RESP3.
    pub(super) fn may_speak_resp3(&self) -> bool {
        self.may_speak_resp3
    }

    /// Whether the runtime has to drive sockets.
    #[cfg_attr(not(feature = "test-util"), allow(clippy::unused_self))]
    pub(crate) fn needs_io(&self) -> bool {
        #[cfg(feature = "test-util")]
        if self.supplier.is_some() {
            return false;
        }
        true
    }

    /// A stream to the server.
    #[cfg(feature = "test-util")]
    async fn supplied(&self, supplier: &dyn Connector) -> io::Result<Box<dyn Socket>> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                supplier.connect(host, *port).await
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The same server, and others at its side, over the streams of `connector`.
    #[cfg(feature = "test-util")]
    pub(crate) fn over(mut self, connector: Option<Arc<dyn Connector>>) -> Self {
        self.supplier = connector;
        self
    }

    /// The same server at the addresses that `look_up` finds.
    #[cfg(feature = "test-util")]
    pub(crate) fn found_by(mut self, look_up: Option<LookUp>) -> Self {
        self.look_up = look_up;
        self
    }

    /// The name in the URL, if it is one that has to be looked up.
    pub(super) fn host(&self) -> Option<&str> {
        let (ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) = self.info.addr()
        else {
            return None;
        };
        let is_address = host.parse::<IpAddr>().is_ok();
        (self.needs_io() && !is_address).then_some(host)
    }

    /// The addresses of the server, in the order in which the system would try them.
    pub(super) async fn look_up(&self) -> io::Result<Vec<SocketAddr>> {
        #[cfg(feature = "test-util")]
        if let Some(look_up) = &self.look_up {
            return look_up().await;
        }
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok(tokio::net::lookup_host((host.as_str(), *port)).await?.collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// What the application gives for the next connection; `None`: what the URL says is used.
    pub(super) async fn credentials(&self) -> Result<Option<Credentials>, Error> {
        match &self.credentials {
            Some(provider) => provider.ask().await.map(Some),
            None => Ok(None),
        }
    }

    /// Opens a connection for commands, at `address` if the name was looked up.
    pub(super) async fn connect(
        &self,
        resp3: bool,
        address: Option<SocketAddr>,
        credentials: Option<&Credentials>,
        config: AsyncConnectionConfig,
    ) -> RedisResult<Wire> {
        let protocol = if resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
        let client = self.client(protocol, None, credentials)?;
        #[cfg(feature = "test-util")]
        if let Some(supplier) = &self.supplier {
            let stream = self.supplied(&**supplier).await?;
            let (connection, driver) = supplied::connect(stream, &client, config).await?;
            return Ok(Wire { connection, _driver: Some(driver) });
        }
        let config = match address {
            // With TLS, the certificate is for the name.
            Some(address) => config.set_dns_resolver(Known(address)),
            None => config,
        };
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Wire {
            connection,
            #[cfg(feature = "test-util")]
            _driver: None,
        })
    }

    /// Opens a connection that only listens, at `address` if the name was looked up. With TLS,
    /// redis-rs looks the name up by itself.
    pub(super) async fn pubsub(
        &self,
        address: Option<SocketAddr>,
        credentials: Option<&Credentials>,
    ) -> RedisResult<PubSub> {
        let client = self.client(ProtocolVersion::RESP2, address, credentials)?;
        #[cfg(feature = "test-util")]
        if let Some(supplier) = &self.supplier {
            let settings = client.get_connection_info().redis_settings();
            return PubSub::new(settings, self.supplied(&**supplier).await?).await;
        }
        client.get_async_pubsub().await
    }

    /// The error that the server sends by itself to a new connection, if it does. Not by TLS.
    pub(super) async fn unasked_error(&self, address: Option<SocketAddr>) -> Option<RedisError> {
        let ConnectionAddr::Tcp(host, port) = self.info.addr() else { return None };
        if !self.needs_io() {
            return None;
        }
        let stream = match address {
            Some(address) => TcpStream::connect(address).await.ok()?,
            None => TcpStream::connect((host.as_str(), *port)).await.ok()?,
        };
        let (mut message, mut len) = (vec![0; MAX_ERROR_LEN], 0);
        // The error is one line, which may come in parts.
        while len < message.len() && !message[..len].ends_with(b"\r\n") {
            stream.readable().await.ok()?;
            match stream.try_read(&mut message[len..]) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
        match redis::parse_redis_value(&message[..len]).ok()? {
            value @ Value::ServerError(_) => value.extract_error().err(),
            _ => None,
        }
    }

    /// A client at `address`, if there is no certificate that is for the name.
    fn client(
        &self,
        protocol: ProtocolVersion,
        address: Option<SocketAddr>,
        credentials: Option<&Credentials>,
    ) -> RedisResult<Client> {
        // Without `CLIENT SETINFO`: a user without that permission would fill the `ACL LOG`.
        let mut settings =
            self.info.redis_settings().clone().set_protocol(protocol).set_skip_set_lib_name();
        if let Some(credentials) = credentials {
            settings = credentials.apply(settings);
        }
        let mut info = self.info.clone().set_redis_settings(settings);
        if let (Some(address), ConnectionAddr::Tcp(..)) = (address, self.info.addr()) {
            info = info.set_addr(ConnectionAddr::Tcp(address.ip().to_string(), address.port()));
        }
        Client::open(info)
    }
}

/// Resolves a name to the address that was chosen of those that were looked up.
struct Known(SocketAddr);

impl AsyncDNSResolver for Known {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _host: &'b str,
        _port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        let known: Box<dyn Iterator<Item = SocketAddr> + Send> = Box::new(iter::once(self.0));
        Box::pin(future::ready(Ok(known)))
    }
}

impl Deref for Wire {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.connection
    }
}

impl DerefMut for Wire {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }
}

#[cfg(feature = "test-util")]
mod supplied {
    use std::io;
    use std::sync::Arc;

    use redis::aio::MultiplexedConnection;
    use redis::{AsyncConnectionConfig, Client, RedisResult};
    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio::runtime::Handle;
    use tokio::task::AbortHandle;

    use crate::store::BoxFuture;

    /// Supplies the byte streams to Redis servers, such as those of a simulated network.
    pub trait Connector: Send + Sync + 'static {
        /// Opens a stream to the server at that address: to the server of the URL, to one of the
        /// sentinels or nodes that the URL names, or to one that these name.
        ///
        /// # Errors
        ///
        /// As a socket fails to connect.
        fn connect(&self, host: &str, port: u16) -> BoxFuture<'_, io::Result<Box<dyn Socket>>>;
    }

    /// A byte stream.
    pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

    impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

    /// The task that moves the bytes of a connection.
    pub(crate) struct Driver(AbortHandle);

    impl Drop for Driver {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    pub(super) async fn connect(
        stream: Box<dyn Socket>,
        client: &Client,
        config: AsyncConnectionConfig,
    ) -> RedisResult<(MultiplexedConnection, Arc<Driver>)> {
        let settings = client.get_connection_info().redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config).await?;
        let task = Handle::current().spawn(driver);
        Ok((connection, Arc::new(Driver(task.abort_handle()))))
    }
}
