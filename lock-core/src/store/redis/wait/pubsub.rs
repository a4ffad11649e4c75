//! Pub/sub: how the grants of each namespace reach this store.
//!
//! A store has one channel for each namespace, its inbox. It subscribes the inbox when a task first
//! has to wait, and once more on each new connection:
//!
//! - With RESP3, on the command connection itself, so the subscription lives and dies with it.
//! - Where the server refuses RESP3, on a second connection that only listens.
//! - Where pub/sub is forbidden or not confirmed, not at all: waiters poll.
//!
//! A waiter must not claim a place before its inbox is subscribed, because the server drops places
//! whose inbox has no subscriber.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redis::aio::PubSubSink;
use redis::{RedisError, RedisResult};

use crate::error::Error;
use crate::store::Token;
use crate::store::redis::error::{Fault, discreet};
use crate::store::redis::keys::{self, Tag};
use crate::store::redis::transport::{Connection, Health, Listener, Live};
use crate::time::{Instant, Late, timeout_at};

/// The inboxes of a store.
pub(super) struct Subscription {
    tag: Tag,
    /// Tells this store's channels from those of others; drawn when it is first needed.
    id: OnceLock<Token>,
    routes: Mutex<Routes>,
    /// One task subscribes, the others wait for it.
    subscribing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Routes {
    by_namespace: HashMap<Arc<str>, Route>,
    /// The second connection, where RESP3 is refused.
    listener: Option<Listener>,
    /// Subscriptions in a row that broke their connection.
    broken: u32,
    warned: bool,
}

/// How the grants of a namespace arrive, as far as is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Route {
    /// On the command connection of this generation.
    Pushed(u64),
    /// On the second connection.
    Subscribed,
    /// The server refused to subscribe on the connection of this generation.
    Refused(u64),
    /// The server did not confirm the subscription; not tried again before this time.
    Unconfirmed(Instant),
}

/// When to try the second connection again.
const NO_LISTENER_PAUSE: Duration = Duration::from_secs(5);
/// After a subscription without a confirmation, which costs the connection.
const UNCONFIRMED_PAUSE: Duration = Duration::from_secs(60);
/// This many subscriptions in a row that break their connection are no outage. Some proxies close
/// the connection at a command that they do not know.
const MAX_BROKEN: u32 = 2;

impl Route {
    fn is_before(self, now: u64) -> bool {
        matches!(self, Self::Pushed(generation) | Self::Refused(generation) if generation < now)
    }
}

impl Routes {
    /// The second connection, if it listens for the command connection `generation`.
    fn listener_for(&self, generation: u64) -> Option<&Listener> {
        self.listener.as_ref().filter(|listener| listener.serves(generation))
    }
}

impl Subscription {
    pub(super) fn new(tag: Tag) -> Self {
        let (id, routes) = (OnceLock::new(), Mutex::default());
        Self { tag, id, routes, subscribing: tokio::sync::Mutex::default() }
    }

    /// The inbox for `namespace`, subscribed if need be; `None` if the server sends no grants
    /// there.
    ///
    /// The attempt outlives a caller with little patience, or none would ever succeed.
    pub(super) async fn join(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        live: &Arc<Live>,
        namespace: &str,
        until: Instant,
    ) -> Result<Option<String>, Fault> {
        let receives = match self.known(live, namespace) {
            Some(receives) => receives,
            None => {
                let (this, namespace) = (Arc::clone(self), Arc::from(namespace));
                let (on, live) = (Arc::clone(connection), Arc::clone(live));
                let subscribed = connection
                    .spawn(async move { this.subscribe(&on, &live, namespace).await })
                    .map_err(Fault::NotSent)?;
                match timeout_at(until, subscribed).await {
                    Ok(Ok(receives)) => receives?,
                    // The runtime that was to subscribe is gone, and the connection with it.
                    Ok(Err(_)) => return Err(Fault::gone()),
                    Err(Late) => return Err(Fault::silent(connection.label())),
                }
            }
        };
        if receives { self.channel(namespace).map(Some) } else { Ok(None) }
    }

    fn channel(&self, namespace: &str) -> Result<String, Fault> {
        let id = match self.id.get() {
            Some(id) => *id,
            None => {
                let fresh = Token::fresh().map_err(Fault::NotSent)?;
                *self.id.get_or_init(|| fresh)
            }
        };
        let mut text = [0; Token::TEXT_LEN];
        Ok(keys::inbox(namespace, self.tag, id.encode(&mut text)))
    }

    /// Whether grants for `namespace` arrive; `None` if that was not tried on this connection.
    fn known(&self, live: &Live, namespace: &str) -> Option<bool> {
        let routes = self.lock();
        match *routes.by_namespace.get(namespace)? {
            Route::Pushed(generation) if generation == live.generation => Some(true),
            Route::Refused(generation) if generation == live.generation => Some(false),
            Route::Subscribed if routes.listener_for(live.generation).is_some() => Some(true),
            Route::Unconfirmed(until) if Instant::now() < until => Some(false),
            Route::Pushed(_) | Route::Refused(_) | Route::Subscribed | Route::Unconfirmed(_) => {
                None
            }
        }
    }

    /// Subscribes the inbox for `namespace`. Returns whether grants arrive there.
    async fn subscribe(
        &self,
        connection: &Connection,
        live: &Live,
        namespace: Arc<str>,
    ) -> Result<bool, Fault> {
        let _subscribing = self.subscribing.lock().await;
        if let Some(receives) = self.known(live, &namespace) {
            return Ok(receives);
        }
        let channel = self.channel(&namespace)?;
        let route = self.subscribe_channel(connection, live, &channel).await?;
        let mut routes = self.lock();
        // What was known of connections that are gone is of no use.
        routes.by_namespace.retain(|_, route| !route.is_before(live.generation));
        routes.by_namespace.insert(Arc::clone(&namespace), route);
        drop(routes);
        if let Route::Pushed(_) = route {
            live.batcher.set_inbox(namespace, channel.into());
        }
        Ok(matches!(route, Route::Pushed(_) | Route::Subscribed))
    }

    async fn subscribe_channel(
        &self,
        connection: &Connection,
        live: &Live,
        channel: &str,
    ) -> Result<Route, Fault> {
        let timeouts = connection.timeouts();
        let until = if live.resp3 { timeouts.request_until(None) } else { timeouts.call_until() };
        let subscribed = async {
            if live.resp3 {
                live.subscribe(channel).await
            } else {
                self.listener(connection, live.generation).await?.subscribe(channel).await
            }
        };
        match timeout_at(until, subscribed).await {
            Ok(Ok(())) => {
                self.lock().broken = 0;
                self.check_publish(connection, live, channel).await
            }
            Ok(Err(error)) => self.failed(connection, live, error),
            Err(Late) => {
                if live.resp3 {
                    // The confirmation may still come, in the place of a reply to another command.
                    connection.report(live.generation, Health::Broken);
                }
                self.warn(connection.label(), "the subscription was not confirmed");
                Ok(unconfirmed(UNCONFIRMED_PAUSE))
            }
        }
    }

    /// The subscription failed with `error`.
    fn failed(
        &self,
        connection: &Connection,
        live: &Live,
        error: RedisError,
    ) -> Result<Route, Fault> {
        match Fault::of(error) {
            Fault::Refused(error) => {
                self.warn(connection.label(), &discreet(error).to_string());
                Ok(Route::Refused(live.generation))
            }
            fault if live.resp3 => {
                connection.report(live.generation, Health::Broken);
                if !self.breaks_again() {
                    return Err(fault);
                }
                self.warn(connection.label(), "the connection breaks when it subscribes");
                Ok(unconfirmed(UNCONFIRMED_PAUSE))
            }
            fault => {
                // There is no second connection, but the one for commands still works.
                self.warn(connection.label(), &Error::from(fault).to_string());
                Ok(unconfirmed(NO_LISTENER_PAUSE))
            }
        }
    }

    /// Counts a subscription that broke its connection. Returns whether that is no outage.
    fn breaks_again(&self) -> bool {
        let mut routes = self.lock();
        routes.broken = (routes.broken + 1) % MAX_BROKEN;
        routes.broken == 0
    }

    /// Publishes to a channel with no subscribers to test the permission: if this user may not
    /// publish, its peers cannot notify this store either.
    async fn check_publish(
        &self,
        connection: &Connection,
        live: &Live,
        channel: &str,
    ) -> Result<Route, Fault> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(format!("{channel}:check")).arg("");
        match live.send(&publish).await {
            Ok(_) if live.resp3 => Ok(Route::Pushed(live.generation)),
            Ok(_) => Ok(Route::Subscribed),
            Err(Fault::Refused(error)) => {
                self.warn(connection.label(), &discreet(error).to_string());
                Ok(Route::Refused(live.generation))
            }
            Err(fault) => Err(fault),
        }
    }

    /// The second connection, opened if there is none.
    async fn listener(&self, connection: &Connection, generation: u64) -> RedisResult<PubSubSink> {
        if let Some(sink) = self.lock().listener_for(generation).map(Listener::sink) {
            return Ok(sink);
        }
        let listener = Listener::open(connection, generation).await?;
        let sink = listener.sink();
        let mut routes = self.lock();
        routes.by_namespace.retain(|_, route| *route != Route::Subscribed);
        routes.listener = Some(listener);
        Ok(sink)
    }

    fn warn(&self, server: &str, why: &str) {
        if !std::mem::replace(&mut self.lock().warned, true) {
            tracing::warn!(
                target: "lock_core", server, why,
                "no pub/sub notifications from redis: waiters poll instead, which is slower. See the \
                 ACL line in the documentation of `RedisStore`"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Routes> {
        // Nothing that holds this lock panics.
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unconfirmed(pause: Duration) -> Route {
    Route::Unconfirmed(Instant::now().saturating_add(pause))
}
