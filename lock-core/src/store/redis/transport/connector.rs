//! Where byte streams come from: redis-rs dials, unless a test supplies the streams.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, ProtocolVersion, RedisResult};

#[cfg(feature = "test-util")]
pub use self::supplied::{Connector, Socket};

/// One server, by RESP3 and by RESP2.
pub(crate) struct Endpoint {
    with_resp3: Client,
    with_resp2: Client,
    /// Whether the URL leaves the protocol open.
    may_speak_resp3: bool,
    #[cfg(feature = "test-util")]
    supplier: Option<std::sync::Arc<dyn Connector>>,
}

/// After this long without traffic the kernel probes the peer. A connection that only listens would
/// not notice otherwise that it is dead.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// An open connection. It is closed when its last clone is dropped, even with commands in flight.
#[derive(Clone)]
pub(crate) struct Wire {
    connection: MultiplexedConnection,
    /// redis-rs drives and ends the connections that it dials itself.
    #[cfg(feature = "test-util")]
    _driver: Option<std::sync::Arc<supplied::Driver>>,
}

impl Endpoint {
    /// The server at `info`, by RESP3 if it `may_speak_resp3`.
    pub(crate) fn new(info: &ConnectionInfo, may_speak_resp3: bool) -> RedisResult<Self> {
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        // Send small calls at once instead of waiting for the acknowledgement of the one before.
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        let info = info.clone().set_tcp_settings(tcp);
        let with = |protocol| {
            // Without `CLIENT SETINFO`: a user without that permission would fill the `ACL LOG`.
            let settings = info.redis_settings().clone().set_protocol(protocol);
            let settings = settings.set_skip_set_lib_name();
            Client::open(info.clone().set_redis_settings(settings))
        };
        Ok(Self {
            with_resp3: with(ProtocolVersion::RESP3)?,
            with_resp2: with(ProtocolVersion::RESP2)?,
            may_speak_resp3,
            #[cfg(feature = "test-util")]
            supplier: None,
        })
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

    /// The same server over the streams of `connector`.
    #[cfg(feature = "test-util")]
    pub(crate) fn over(mut self, connector: Option<std::sync::Arc<dyn Connector>>) -> Self {
        self.supplier = connector;
        self
    }

    /// Opens a connection for commands.
    pub(super) async fn connect(
        &self,
        resp3: bool,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<Wire> {
        let client = if resp3 { &self.with_resp3 } else { &self.with_resp2 };
        #[cfg(feature = "test-util")]
        if let Some(supplier) = &self.supplier {
            let (connection, driver) = supplied::connect(&**supplier, client, config).await?;
            return Ok(Wire { connection, _driver: Some(driver) });
        }
        let connection = client.get_multiplexed_async_connection_with_config(config).await?;
        Ok(Wire {
            connection,
            #[cfg(feature = "test-util")]
            _driver: None,
        })
    }

    /// Opens a connection that only listens.
    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        #[cfg(feature = "test-util")]
        if let Some(supplier) = &self.supplier {
            return supplied::pubsub(&**supplier, &self.with_resp2).await;
        }
        self.with_resp2.get_async_pubsub().await
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

    use redis::aio::{MultiplexedConnection, PubSub};
    use redis::{AsyncConnectionConfig, Client, RedisResult};
    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio::runtime::Handle;
    use tokio::task::AbortHandle;

    use crate::store::BoxFuture;

    /// Supplies the byte streams to a Redis server, such as those of a simulated network.
    pub trait Connector: Send + Sync + 'static {
        /// Opens a stream.
        ///
        /// # Errors
        ///
        /// As a socket fails to connect.
        fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn Socket>>>;
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
        supplier: &dyn Connector,
        client: &Client,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<(MultiplexedConnection, Arc<Driver>)> {
        let stream = supplier.connect().await?;
        let settings = client.get_connection_info().redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config.clone()).await?;
        let task = Handle::current().spawn(driver);
        Ok((connection, Arc::new(Driver(task.abort_handle()))))
    }

    pub(super) async fn pubsub(supplier: &dyn Connector, client: &Client) -> RedisResult<PubSub> {
        let stream = supplier.connect().await?;
        PubSub::new(client.get_connection_info().redis_settings(), stream).await
    }
}
