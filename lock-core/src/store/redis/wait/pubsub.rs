//! Pub/sub: how the grants of each namespace reach the store of one server, and the tokens whose
//! locks were taken by force.
//!
//! A store has one channel for each namespace, its inbox, for grants. It subscribes the inbox when
//! a task first has to wait. With the first renewal of a lease it subscribes the channel of forced
//! releases, which all stores share. It subscribes once more on each new connection:
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
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::store::Token;
use crate::store::redis::error::{Fault, discreet};
use crate::store::redis::keys::{self, Tag};
use crate::store::redis::transport::{Connection, Health, Listener, Live};
use crate::time::{Instant, Late, timeout_at};

/// The inboxes of a store.
#[derive(Default)]
pub(super) struct Subscription {
    /// Tells this store's channels from those of others; drawn when it is first needed.
    id: OnceLock<Token>,
    deliveries: Mutex<Deliveries>,
    /// One task subscribes, the others wait for it.
    subscribing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Deliveries {
    known: HashMap<Topic, HashMap<Arc<str>, Delivery>>,
    /// The second connection, where RESP3 is refused.
    listener: Option<Listener>,
    /// Of each topic, what its subscriptions cost since the last one that was confirmed.
    costs: HashMap<Topic, Cost>,
    warned: bool,
}

/// What subscriptions in a row cost.
#[derive(Default)]
struct Cost {
    /// How many broke their connection.
    broken: u32,
    /// How often they were not tried again for a while.
    pauses: u32,
}

/// What a store listens for in a namespace.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Topic {
    Grants,
    ForcedReleases,
}

/// How the messages of a namespace arrive, as far as is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Delivery {
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
/// After the first subscription without a confirmation, which costs the connection: it may have
/// been late only this time. The pause doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause for grants: waiters poll meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The same for forced releases, which are so rare that they are not worth many connections.
const LONGEST_RARE_PAUSE: Duration = Duration::from_secs(3_600);
/// This many subscriptions in a row that break their connection are no outage. Some proxies close
/// the connection at a command that they do not know.
const MAX_BROKEN: u32 = 2;

impl Topic {
    /// How long not to try again, at most, after subscriptions that cost the connection.
    fn longest_pause(self) -> Duration {
        match self {
            Self::Grants => LONGEST_PAUSE,
            Self::ForcedReleases => LONGEST_RARE_PAUSE,
        }
    }
}

impl Cost {
    /// How long not to try again after one more subscription of `topic` that cost the connection.
    fn next_pause(&mut self, topic: Topic) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.pauses.min(9));
        self.pauses = self.pauses.saturating_add(1);
        pause.min(topic.longest_pause())
    }

    /// One more subscription of `topic` broke its connection. Returns how long not to try again, if
    /// that is no outage.
    fn broke(&mut self, topic: Topic) -> Option<Duration> {
        self.broken = self.broken.saturating_add(1);
        (self.broken >= MAX_BROKEN).then(|| self.next_pause(topic))
    }
}

impl Delivery {
    fn is_before(self, now: u64) -> bool {
        matches!(self, Self::Pushed(generation) | Self::Refused(generation) if generation < now)
    }
}

impl Deliveries {
    fn forget(&mut self, is_outdated: impl Fn(Delivery) -> bool) {
        for known in self.known.values_mut() {
            known.retain(|_, delivery| !is_outdated(*delivery));
        }
    }

    /// The second connection, if it listens for the command connection `generation`.
    fn listener_for(&self, generation: u64) -> Option<&Listener> {
        self.listener.as_ref().filter(|listener| listener.serves(generation))
    }
}

impl Subscription {
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
        let receives = match self.known(live, Topic::Grants, namespace) {
            Some(receives) => receives,
            None => {
                let subscribed = self
                    .spawn_subscribe(connection, live, Topic::Grants, namespace)
                    .map_err(Fault::NotSent)?;
                match timeout_at(until, subscribed).await {
                    Ok(Ok(receives)) => receives?,
                    // The runtime that was to subscribe is gone, and the connection with it.
                    Ok(Err(_)) => return Err(Fault::gone()),
                    Err(Late) => return Err(Fault::silent(connection.label())),
                }
            }
        };
        if receives { self.inbox(namespace).map(Some) } else { Ok(None) }
    }

    /// Subscribes the channel of forced releases in the background, unless that was tried on this
    /// connection, or another subscription is under way: then the next renewal sees to it.
    pub(super) fn listen_for_forced_releases(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        live: &Arc<Live>,
        namespace: &str,
    ) {
        let topic = Topic::ForcedReleases;
        // With RESP2 it would be a connection more for each client.
        if !live.resp3 || self.known(live, Topic::Grants, namespace) == Some(false) {
            return;
        }
        if self.known(live, topic, namespace).is_none() && self.subscribing.try_lock().is_ok() {
            // Without a runtime there is no subscription, and renewals tell the same later.
            drop(self.spawn_subscribe(connection, live, topic, namespace));
        }
    }

    fn spawn_subscribe(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        live: &Arc<Live>,
        topic: Topic,
        namespace: &str,
    ) -> Result<JoinHandle<Result<bool, Fault>>, Error> {
        let (this, namespace) = (Arc::clone(self), Arc::from(namespace));
        let (on, live) = (Arc::clone(connection), Arc::clone(live));
        connection.spawn(async move { this.subscribe(&on, &live, topic, namespace).await })
    }

    fn channel(&self, topic: Topic, namespace: &str) -> Result<String, Fault> {
        match topic {
            Topic::Grants => self.inbox(namespace),
            Topic::ForcedReleases => Ok(keys::forced_releases(namespace, Tag::SINGLE)),
        }
    }

    fn inbox(&self, namespace: &str) -> Result<String, Fault> {
        let id = match self.id.get() {
            Some(id) => *id,
            None => {
                let fresh = Token::fresh().map_err(Fault::NotSent)?;
                *self.id.get_or_init(|| fresh)
            }
        };
        let mut text = [0; Token::TEXT_LEN];
        Ok(keys::inbox(namespace, Tag::SINGLE, id.encode(&mut text)))
    }

    /// Whether messages for `namespace` arrive; `None` if that was not tried on this connection.
    fn known(&self, live: &Live, topic: Topic, namespace: &str) -> Option<bool> {
        let deliveries = self.lock();
        match *deliveries.known.get(&topic)?.get(namespace)? {
            Delivery::Pushed(generation) if generation == live.generation => Some(true),
            Delivery::Refused(generation) if generation == live.generation => Some(false),
            Delivery::Subscribed if deliveries.listener_for(live.generation).is_some() => {
                Some(true)
            }
            Delivery::Unconfirmed(until) if Instant::now() < until => Some(false),
            Delivery::Pushed(_)
            | Delivery::Refused(_)
            | Delivery::Subscribed
            | Delivery::Unconfirmed(_) => None,
        }
    }

    /// Subscribes a channel of `namespace`. Returns whether messages arrive there.
    async fn subscribe(
        &self,
        connection: &Connection,
        live: &Live,
        topic: Topic,
        namespace: Arc<str>,
    ) -> Result<bool, Fault> {
        let _subscribing = self.subscribing.lock().await;
        if let Some(receives) = self.known(live, topic, &namespace) {
            return Ok(receives);
        }
        let channel = self.channel(topic, &namespace)?;
        let delivery = self.subscribe_channel(connection, live, topic, &channel).await?;
        let mut deliveries = self.lock();
        // What was known of connections that are gone is of no use.
        deliveries.forget(|delivery| delivery.is_before(live.generation));
        deliveries.known.entry(topic).or_default().insert(Arc::clone(&namespace), delivery);
        drop(deliveries);
        if let (Topic::Grants, Delivery::Pushed(_)) = (topic, delivery) {
            live.batcher.set_inbox(namespace, channel.into());
        }
        Ok(matches!(delivery, Delivery::Pushed(_) | Delivery::Subscribed))
    }

    async fn subscribe_channel(
        &self,
        connection: &Connection,
        live: &Live,
        topic: Topic,
        channel: &str,
    ) -> Result<Delivery, Fault> {
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
                self.lock().costs.remove(&topic);
                self.check_publish(connection, live, topic, channel).await
            }
            Ok(Err(error)) => self.failed(connection, live, topic, error),
            Err(Late) => {
                if live.resp3 {
                    // The confirmation may still come, in the place of a reply to another command.
                    connection.report(live.generation, Health::Broken);
                }
                self.warn(connection.label(), topic, "the subscription was not confirmed");
                let pause = self.lock().costs.entry(topic).or_default().next_pause(topic);
                Ok(unconfirmed(pause))
            }
        }
    }

    /// The subscription failed with `error`.
    fn failed(
        &self,
        connection: &Connection,
        live: &Live,
        topic: Topic,
        error: RedisError,
    ) -> Result<Delivery, Fault> {
        match Fault::of(error) {
            Fault::Refused(error) => {
                self.warn(connection.label(), topic, &discreet(error).to_string());
                Ok(Delivery::Refused(live.generation))
            }
            fault if live.resp3 => {
                connection.report(live.generation, Health::Broken);
                let pause = self.lock().costs.entry(topic).or_default().broke(topic);
                let Some(pause) = pause else { return Err(fault) };
                self.warn(connection.label(), topic, "the connection breaks when it subscribes");
                Ok(unconfirmed(pause))
            }
            fault => {
                // There is no second connection, but the one for commands still works.
                self.warn(connection.label(), topic, &Error::from(fault).to_string());
                Ok(unconfirmed(NO_LISTENER_PAUSE))
            }
        }
    }

    /// Publishes to a channel with no subscribers to test the permission: if this user may not
    /// publish, its peers cannot notify this store either.
    async fn check_publish(
        &self,
        connection: &Connection,
        live: &Live,
        topic: Topic,
        channel: &str,
    ) -> Result<Delivery, Fault> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(format!("{channel}:check")).arg("");
        match live.send(&publish).await {
            Ok(_) if live.resp3 => Ok(Delivery::Pushed(live.generation)),
            Ok(_) => Ok(Delivery::Subscribed),
            Err(Fault::Refused(error)) => {
                self.warn(connection.label(), topic, &discreet(error).to_string());
                Ok(Delivery::Refused(live.generation))
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
        let mut deliveries = self.lock();
        deliveries.forget(|delivery| delivery == Delivery::Subscribed);
        deliveries.listener = Some(listener);
        Ok(sink)
    }

    /// Logs, once, why waiters poll. Of forced releases nothing is said: renewals tell of them.
    fn warn(&self, server: &str, topic: Topic, why: &str) {
        if topic == Topic::Grants && !std::mem::replace(&mut self.lock().warned, true) {
            tracing::warn!(
                target: "lock_core", server, why,
                "no pub/sub notifications from redis: waiters poll instead, which is slower. See the \
                 ACL line in the documentation of `RedisStore`"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Deliveries> {
        // Nothing that holds this lock panics.
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unconfirmed(pause: Duration) -> Delivery {
    Delivery::Unconfirmed(Instant::now().saturating_add(pause))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that breaks its connection may be an outage; the next one in a row is none.
    #[test]
    fn pauses_grow_to_the_longest_of_the_topic_and_each_topic_has_its_own() {
        let mut deliveries = Deliveries::default();
        let mut costs = |topic| {
            let cost = deliveries.costs.entry(topic).or_default();
            (0..11).map(|_| cost.broke(topic).map(|pause| pause.as_secs())).collect::<Vec<_>>()
        };
        let grants = [10, 20, 40, 60, 60, 60, 60, 60, 60, 60].map(Some);
        assert_eq!(costs(Topic::Grants), [&[None], &grants[..]].concat());
        let forced = [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600].map(Some);
        assert_eq!(costs(Topic::ForcedReleases), [&[None], &forced[..]].concat());

        // One without a confirmation costs the connection whatever came before.
        let cost = &mut Cost::default();
        assert_eq!(cost.next_pause(Topic::ForcedReleases), FIRST_PAUSE);
        assert_eq!(cost.next_pause(Topic::ForcedReleases), FIRST_PAUSE * 2);
    }
}
