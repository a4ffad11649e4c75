//! Dialling: from a URL to a connection whose server can have the locks.
//!
//! One dial takes these steps. All share one time limit, and each leaves time for the next:
//!
//! 1. It fails as the last one did while the [pause](Outage) after that lasts.
//! 2. The [sentinels](Sentinels), if there are any, name the server.
//! 3. Its name is looked up, and the application gives [`Credentials`].
//! 4. [Up to three addresses](MOST_TRIED) are tried, first those that did not fail before. Each
//!    gets a connection by RESP3, or by RESP2 if [that is not supported](Resp3Support).
//! 5. The server tells its time, since claims carry it, and what it is: a replica, a sentinel or a
//!    node of a cluster cannot have the locks.
//!
//! A server that refuses a connection may tell why without being asked, and what was sent to it
//! destroys its message. So if the connection was closed, another one is opened that sends nothing.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use redis::aio::{ConnectionLike as _, PubSub};
use redis::{AsyncConnectionConfig, PushInfo, RedisError, RedisResult, Value};
use tokio::runtime::Handle;

use super::addresses::Addresses;
use super::clock::ServerClock;
use super::connector::{Endpoint, Wire};
use super::naming::ConnectionName;
use super::outage::Outage;
use super::resp::{Protocol, Resp3Support};
use super::sentinel::{Master, Sentinels};
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::probe;
use crate::store::redis::credentials::Credentials;
use crate::store::redis::error::{Fault, UnusableServer, discreet, is_about_password};
use crate::store::redis::info::{Info, ServerKind};
use crate::time::{Instant, Late, timeout_at};

/// Opens connections to one server, or to the one that the sentinels name.
pub(super) struct Dialer {
    /// The server of the URL. With sentinels only its user, database and certificates count.
    endpoint: Arc<Endpoint>,
    sentinels: Option<Arc<Sentinels>>,
    /// Whether the server is to be a node of a cluster.
    is_node: bool,
    label: Arc<str>,
    timeout: Duration,
    resp3: Resp3Support,
    /// A connection broke when it sent `INFO`, as some proxies do.
    info_breaks: AtomicBool,
    name: ConnectionName,
    addresses: Mutex<Addresses>,
    outage: Outage,
    /// Whether a dial has succeeded before.
    was_open: AtomicBool,
}

/// A connection that was opened.
pub(super) struct Dialled {
    pub(super) wire: Wire,
    /// Whether it can carry pushed messages.
    pub(super) resp3: bool,
    /// What the server says of itself.
    pub(super) info: Info,
    pub(super) endpoint: Arc<Endpoint>,
    /// How the sentinels name the server.
    pub(super) master: Option<Master>,
}

impl Dialled {
    /// How many failovers there had been when the sentinels named the server, if they did.
    pub(super) fn epoch(&self) -> Option<u64> {
        self.master.as_ref().map(Master::epoch)
    }
}

/// Where, with which credentials, and until when to try a connection.
#[derive(Clone, Copy)]
struct Target<'a> {
    address: Option<SocketAddr>,
    credentials: Option<&'a Credentials>,
    limit: Instant,
}

/// Takes what the server pushes on a connection.
pub(super) type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// More addresses than these are left to the next dial: each needs time for a handshake.
const MOST_TRIED: usize = 3;

/// Commands that may be queued for the socket.
const PIPELINE_BUFFER: usize = 1024;

impl Dialer {
    pub(super) fn new(
        endpoint: Endpoint,
        sentinels: Option<Sentinels>,
        label: Arc<str>,
        timeout: Duration,
    ) -> Self {
        let resp3 = Resp3Support::new(endpoint.may_speak_resp3());
        let endpoint = Arc::new(endpoint);
        let addresses = Addresses::of(Arc::clone(&endpoint));
        Self {
            endpoint,
            sentinels: sentinels.map(Arc::new),
            is_node: false,
            label,
            timeout,
            resp3,
            info_breaks: AtomicBool::new(false),
            name: ConnectionName::default(),
            addresses: Mutex::new(addresses),
            outage: Outage::default(),
            was_open: AtomicBool::new(false),
        }
    }

    /// The same for a node of a cluster, which may be a replica: it says where to turn to.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn of_node(mut self) -> Self {
        self.is_node = true;
        self
    }

    /// Whether the server is to be a node of a cluster.
    pub(super) fn is_of_node(&self) -> bool {
        self.is_node
    }

    /// How the server is to call the connections.
    pub(super) fn name(&self) -> &ConnectionName {
        &self.name
    }

    /// Dials once, takes a first sample of the server's clock for connection `generation`, and
    /// checks that the server can have the locks. Between a failure and the end of the pause after
    /// it, fails as that did. At once if the runtime has no I/O, which says nothing of the server.
    pub(super) async fn dial(
        &self,
        clock: &ServerClock,
        generation: u64,
        on_push: OnPush,
    ) -> Result<Dialled, Error> {
        if self.endpoint.needs_io() {
            probe::io(&Handle::current())?;
        }
        self.outage.begin();
        if let Some(error) = self.outage.pause() {
            return Err(error);
        }
        let dialled = self.dial_now(clock, generation, on_push).await;
        match &dialled {
            Ok(_) => {
                metrics::connected(&self.label);
                let was_open = self.was_open.swap(true, Ordering::AcqRel);
                let (had_failed, took) = self.outage.end();
                if had_failed || was_open {
                    took.into_iter().for_each(|took| metrics::outage_ended(&self.label, took));
                    tracing::info!(target: "lock_core", server = %self.label, "connected again");
                }
            }
            Err(error) => {
                metrics::unreachable(&self.label);
                // Once per outage, not once per dial.
                if self.outage.fail(error.clone()) {
                    tracing::warn!(
                        target: "lock_core", server = %self.label, error = error.with_causes(),
                        "the lock store cannot be reached; dialling until it can"
                    );
                }
            }
        }
        dialled
    }

    /// The last connection led to the wrong server: the next dial begins with another address, if
    /// the name has one.
    pub(super) fn leave_address(&self) {
        self.addresses().leave();
    }

    /// Pauses before the next dial, since the last connection led to the wrong server again: as
    /// after a failure that follows on so many `others`.
    pub(super) fn hold_off(&self, others: u32) {
        let what = format!("{} is not the server that has the locks", self.label);
        self.outage.fail_after(others, Error::plain(ErrorKind::Unavailable, what));
    }

    /// Another node has taken the place of this one, which could not be reached.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn replaced(&self) {
        if let Some(took) = self.outage.end_by_another() {
            metrics::outage_ended(&self.label, took);
        }
    }

    /// Why the last attempt failed, unless there was a success since.
    pub(super) fn last_failure(&self) -> Option<Error> {
        self.outage.last()
    }

    /// Opens a connection that only listens, at the address of the other connection: another server
    /// publishes no grants of this one. With TLS and several addresses that is not certain.
    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        let (endpoint, current) = self.addresses().present();
        let credentials = endpoint.credentials().await.map_err(io::Error::other)?;
        endpoint.pubsub(current, credentials.as_ref()).await
    }

    /// The same by RESP3: what the server pushes there goes to `on_push`.
    #[cfg(feature = "redis-cluster")]
    pub(super) async fn listen(&self, on_push: OnPush) -> RedisResult<Wire> {
        let (endpoint, current) = self.addresses().present();
        let credentials = endpoint.credentials().await.map_err(io::Error::other)?;
        let config = self.config().set_push_sender(move |push| {
            on_push(push);
            Ok::<_, Infallible>(())
        });
        endpoint.connect(true, current, credentials.as_ref(), config).await
    }

    /// The sentinels that name the server.
    pub(super) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        self.sentinels.as_ref()
    }

    /// Dials the addresses of the server one after another, until one of them is good. Each has its
    /// share of the time that is left: one that accepts and never speaks must not use up all of it.
    async fn dial_now(
        &self,
        clock: &ServerClock,
        generation: u64,
        on_push: OnPush,
    ) -> Result<Dialled, Error> {
        let limit = Instant::now().saturating_add(self.timeout);
        let master = self.resolve(limit).await?;
        let mut found = self.look_up(limit).await?.into_iter().map(Some).take(MOST_TRIED);
        let credentials = self.credentials(limit).await?;
        let (mut address, mut told) = (found.next().flatten(), None::<Error>);
        loop {
            let others = u32::try_from(found.len()).unwrap_or(u32::MAX);
            let share = limit.remaining() / others.saturating_add(1);
            let target = Target {
                address,
                credentials: credentials.as_ref(),
                limit: Instant::now().saturating_add(share),
            };
            let dialled = self.dial_at(target, clock, generation, Arc::clone(&on_push)).await;
            let error = match dialled {
                Ok(dialled) => {
                    self.addresses().succeed(address);
                    if let (Some(sentinels), Some(master)) = (&self.sentinels, &master) {
                        sentinels.connected(master.clone());
                    }
                    return Ok(Dialled { master, ..dialled });
                }
                Err(error) => error,
            };
            if let Some(address) = address {
                self.addresses().fail(address);
            }
            let error = self.what_closed(error, address, target.limit).await;
            // What a server said is worth more than that there is none at another address.
            if !told.as_ref().is_some_and(is_by_a_server) {
                told = Some(error);
            }
            match (found.next(), told) {
                (Some(next), before) => (address, told) = (next, before),
                (None, Some(error)) => return Err(error),
                (None, None) => return Err(self.no_connection(timed_out())),
            }
        }
    }

    /// Asks the sentinels which server to dial, if there are any.
    async fn resolve(&self, limit: Instant) -> Result<Option<Master>, Error> {
        let Some(sentinels) = &self.sentinels else { return Ok(None) };
        // The server needs the rest.
        let limit = Instant::now().saturating_add(limit.remaining() / 2);
        let master = sentinels.resolve(limit).await?;
        self.addresses().lead_to(self.endpoint.at(&master.host, master.port));
        Ok(Some(master))
    }

    /// The error for a connection that was closed. A server with too many clients says so without
    /// being asked, and closes the connection: what was sent meanwhile makes the kernel discard the
    /// message. So it is read from a connection that sends nothing.
    async fn what_closed(
        &self,
        error: Error,
        address: Option<SocketAddr>,
        limit: Instant,
    ) -> Error {
        let cause = error.cause().and_then(|cause| cause.downcast_ref::<RedisError>());
        if !cause.is_some_and(is_closed) {
            return error;
        }
        match timeout_at(limit, self.present().unasked_error(address)).await {
            Ok(Some(unasked)) => self.no_connection(unasked),
            Ok(None) | Err(Late) => error,
        }
    }

    /// What the application gives for this dial.
    async fn credentials(&self, limit: Instant) -> Result<Option<Credentials>, Error> {
        let limit = Instant::now().saturating_add(limit.remaining() / 4 * 3);
        timeout_at(limit, self.endpoint.credentials()).await.unwrap_or_else(|Late| {
            let what = "the application gave no credentials in time";
            Err(Error::unavailable(what, timed_out()))
        })
    }

    /// The addresses of the server in the order in which to try them; none if it has no name.
    async fn look_up(&self, limit: Instant) -> Result<Vec<SocketAddr>, Error> {
        let endpoint = self.present();
        let Some(host) = endpoint.host() else { return Ok(Vec::new()) };
        let server = self.server();
        let what = |how: &str| format!("cannot connect to {server}: the look-up of `{host}` {how}");
        // A connection needs the rest, and the caller waits no longer than `limit` for the error.
        let limit = Instant::now().saturating_add(limit.remaining() / 4 * 3);
        let found = timeout_at(limit, endpoint.look_up()).await;
        let mut found = found
            .map_err(|Late| Error::unavailable(what("got no answer in time"), timed_out()))?
            .map_err(|error| Error::unavailable(what("failed"), error))?;
        if found.is_empty() {
            return Err(Error::plain(ErrorKind::Unavailable, what("found no address")));
        }
        self.addresses().order(&mut found);
        Ok(found)
    }

    async fn dial_at(
        &self,
        target: Target<'_>,
        clock: &ServerClock,
        generation: u64,
        on_push: OnPush,
    ) -> Result<Dialled, Error> {
        let limit = target.limit;
        let (wire, protocol) = self.handshake(target, on_push).await?;
        // Claims carry the server's time, so it must be known before the first of them.
        let sent = Instant::now();
        let ask = async |command| {
            let mut wire = wire.clone();
            let reply = wire.req_packed_command(&redis::cmd(command)).await;
            reply.and_then(Value::extract_error)
        };
        let asks_info = !self.info_breaks.load(Ordering::Acquire);
        // Both at once: the second waits for no reply.
        let asked = async {
            let info = async { if asks_info { Some(ask("INFO").await) } else { None } };
            join(ask("TIME"), info).await
        };
        let asked = timeout_at(limit, asked).await;
        let (time, reply) = asked.map_err(|Late| self.no_connection(timed_out()))?;
        let mut info = Info::unknown();
        match reply {
            Some(Ok(reply)) => {
                info = Info::read(reply);
                self.check(&info)?;
            }
            Some(Err(error)) => match Fault::of(error) {
                // Not permitted, or not known: the replies to the scripts will tell.
                Fault::Refused(error) => tracing::debug!(
                    target: "lock_core", server = %self.label, error = %discreet(error),
                    "the server does not tell what it is"
                ),
                broken => {
                    // Not if the connection broke before.
                    self.info_breaks.store(time.is_ok(), Ordering::Release);
                    return Err(Error::from(broken.before_the_call()));
                }
            },
            // The next dial asks again: the server may just have died when it was asked.
            None => self.info_breaks.store(false, Ordering::Release),
        }
        // Behind the check: a sentinel does not know `TIME`.
        let us = self.time(time)?;
        clock.record(us, sent, generation);
        // Only now: a connection that was accepted and no more says nothing of the protocol.
        if self.resp3.remember(protocol) {
            tracing::debug!(
                target: "lock_core", server = %self.label,
                "redis refuses RESP3: a second connection receives lock hand-offs"
            );
        }
        let (resp3, endpoint) = (protocol == Protocol::Resp3, self.present());
        Ok(Dialled { wire, resp3, info, endpoint, master: None })
    }

    /// Reads the reply to `TIME`, in microseconds.
    fn time(&self, reply: RedisResult<Value>) -> Result<u64, Error> {
        match reply {
            Ok(time) => time_us(&time).ok_or_else(|| {
                Error::plain(
                    ErrorKind::Unavailable,
                    "cannot read the reply of redis to the TIME command",
                )
            }),
            // The server's own words say more than that there is no connection, but nothing about a
            // key.
            Err(error) => Err(match Fault::of(error.clone()) {
                fault @ Fault::Refused(_) if !fault.is_wrong_type() => Error::refused(error, true),
                _ => self.no_connection(error),
            }),
        }
    }

    /// Whether the server can have the locks, by what it says of itself.
    fn check(&self, info: &Info) -> Result<(), Error> {
        let server = self.server();
        if let Some((kind, advice)) = self.objection(info) {
            let what = format!("{server} is {kind}: {advice}");
            return Err(Error::unavailable(what, UnusableServer(kind)).permanent());
        }
        let what = if info.is_replica() && !self.is_node {
            // A promotion takes a moment.
            let advice = match self.sentinels {
                Some(_) => "the sentinels may be about to name another",
                None => "connect to the primary",
            };
            format!("{server} is a replica: {advice}")
        } else if info.is_loading() {
            format!("{server} is loading its data")
        } else {
            return Ok(());
        };
        Err(Error::plain(ErrorKind::Unavailable, what))
    }

    /// What kind of server it is, if it is one that can never keep the locks of this store, and
    /// what to do about it.
    fn objection(&self, info: &Info) -> Option<(&'static str, String)> {
        match info.kind()? {
            ServerKind::Sentinel => {
                Some(("a sentinel", "write `redis+sentinel://host:port/master-name`".to_owned()))
            }
            ServerKind::Node if self.is_node && info.is_before_sharded_channels() => {
                let advice = "on a cluster, locks need Redis 7.0 or later".to_owned();
                Some(("too old", advice))
            }
            ServerKind::Single if self.is_node => {
                let advice = format!("write `{}`", self.endpoint.address());
                Some(("no node of a cluster", advice))
            }
            ServerKind::Node if !self.is_node => {
                let url = self.present().address().replacen("://", "+cluster://", 1);
                Some(("a node of a cluster", format!("write `{url}`")))
            }
            ServerKind::Node | ServerKind::Single => None,
        }
    }

    /// Connects by RESP3, or by RESP2 where that is refused.
    async fn handshake(
        &self,
        target: Target<'_>,
        on_push: OnPush,
    ) -> Result<(Wire, Protocol), Error> {
        let mut protocol = Protocol::Resp2;
        if self.resp3.is_likely() {
            let config = self.config().set_push_sender(move |push| {
                on_push(push);
                Ok::<_, Infallible>(())
            });
            match self.connect(true, target, config).await? {
                Ok(wire) => return Ok((wire, Protocol::Resp3)),
                // Some servers close a connection on which RESP3 is requested.
                Err(error) if error.is_io_error() && is_closed(&error) => {
                    let wire = self.connect(false, target, self.config()).await?;
                    return wire.map(|wire| (wire, Protocol::Resp3Closed)).map_err(|second| {
                        // The server's own words say more than that it closed the connection.
                        let says_why = !second.is_io_error();
                        self.no_connection(if says_why { second } else { error })
                    });
                }
                // An outage, or a wrong password, is the same by RESP2.
                Err(error) if error.is_io_error() || is_about_password(&error) => {
                    return Err(self.no_connection(error));
                }
                Err(_) => protocol = Protocol::Resp3Refused,
            }
        }
        let wire = self.connect(false, target, self.config()).await?;
        let wire = wire.map_err(|error| self.no_connection(error))?;
        Ok((wire, protocol))
    }

    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // Each command has its own time limit: what is left of its caller's wait.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
    }

    async fn connect(
        &self,
        resp3: bool,
        Target { address, credentials, limit }: Target<'_>,
        config: AsyncConnectionConfig,
    ) -> Result<RedisResult<Wire>, Error> {
        timeout_at(limit, self.present().connect(resp3, address, credentials, config))
            .await
            .map_err(|Late| self.no_connection(timed_out()))
    }

    fn no_connection(&self, error: impl Into<RedisError>) -> Error {
        let error = discreet(error.into());
        if is_about_password(&error) {
            return Error::unavailable("redis refused the user name or password", error);
        }
        Error::unavailable(format!("cannot connect to {}", self.server()), error)
    }

    fn present(&self) -> Arc<Endpoint> {
        self.addresses().present().0
    }

    /// The server that is dialled, for messages.
    fn server(&self) -> String {
        match &self.sentinels {
            Some(sentinels) => {
                format!("{}, the master `{}`", self.present().address(), sentinels.name())
            }
            None => self.label.as_ref().to_owned(),
        }
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        // Nothing that holds this lock panics.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a server said this, rather than that there is none.
fn is_by_a_server(error: &Error) -> bool {
    error.cause().is_some_and(|cause| {
        cause.is::<UnusableServer>()
            || cause.downcast_ref().is_some_and(|error: &RedisError| !error.is_io_error())
    })
}

/// Whether the connection was open before it failed.
fn is_closed(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Reads the reply to `TIME`.
fn time_us(value: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(value).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}
