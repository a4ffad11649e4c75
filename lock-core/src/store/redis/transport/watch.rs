//! Watching the sentinels for as long as a connection is open.
//!
//! After a failover the old master may live on, and grant locks, for ten seconds and more. A client
//! must not wait for it to refuse a call. So each sentinel is subscribed for its events, and all
//! are asked at intervals, since events can be lost. An event is only a reason to ask: it does not
//! tell its epoch.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use redis::Msg;
use tokio::sync::Notify;

use super::connector::Endpoint;
use super::link::Health;
use super::sentinel::{Master, Sentinels, listen};
use crate::backoff::{Backoff, jittered};
use crate::time::{Instant, sleep_until, timeout_at};

/// How often the sentinels are asked although none has told of a new master.
const POLL: Duration = Duration::from_secs(5);
/// Clients that connected together do not ask together. Sooner rather than later, so that a client
/// which receives no event leaves within 6 s.
const JITTER: Duration = Duration::from_millis(250);
/// A subscription that ends sooner counts as a failure.
const SHORT: Duration = Duration::from_secs(1);

/// Why a connection to a master ended.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Cause {
    /// It broke, or nothing was answered.
    #[default]
    Disconnect,
    /// The server says that it is no master.
    ReadOnly,
    /// A sentinel told of another master.
    Event,
    /// Sentinels that were asked named another one.
    Poll,
}

impl Cause {
    /// What made a connection end by itself.
    pub(super) fn of(health: Health) -> Self {
        if health == Health::WrongServer { Self::ReadOnly } else { Self::Disconnect }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Disconnect => "disconnect",
            Self::ReadOnly => "readonly",
            Self::Event => "event",
            Self::Poll => "poll",
        }
    }
}

/// Ready when another server has taken the place of `master`, with how that was learnt. An attempt
/// to ask takes `timeout` at most.
pub(super) async fn replaced(
    sentinels: &Sentinels,
    master: &Master,
    label: &str,
    timeout: Duration,
) -> (Master, Cause) {
    let hint = Notify::new();
    let listening = sentinels.each().map(|it| subscribe(it, sentinels.name(), &hint, timeout));
    let asking = async {
        let mut is_known = true;
        loop {
            let next = Instant::now().saturating_add(POLL.saturating_sub(jittered(JITTER)));
            let cause = tokio::select! {
                biased;
                () = hint.notified() => Cause::Event,
                () = sleep_until(next) => Cause::Poll,
            };
            match sentinels.confirm(Instant::now().saturating_add(timeout)).await {
                Ok(named) if named.replaces(master) => return (named, cause),
                Ok(_) => is_known = true,
                Err(error) if is_known => {
                    is_known = false;
                    tracing::warn!(
                        target: "lock_core", server = label, error = error.with_causes(),
                        "the sentinels cannot tell whether the master is still the same"
                    );
                }
                Err(_) => {}
            }
        }
    };
    // In this order each time, so that a simulation repeats itself.
    tokio::select! {
        biased;
        named = asking => named,
        // Never ends.
        _ = join_all(listening) => std::future::pending().await,
    }
}

/// Notifies `hint` when this sentinel tells of a new master, and when it may have done so unheard.
async fn subscribe(sentinel: &Endpoint, name: &str, hint: &Notify, timeout: Duration) {
    let mut backoff = Backoff::default();
    loop {
        let limit = Instant::now().saturating_add(timeout);
        if let Ok(Ok(mut pubsub)) = timeout_at(limit, listen(sentinel)).await {
            hint.notify_one();
            let long = Instant::now().saturating_add(SHORT);
            let mut events = pubsub.on_message();
            while let Some(event) = events.next().await {
                if names(&event, name) {
                    hint.notify_one();
                }
            }
            if long.remaining().is_zero() {
                backoff = Backoff::default();
            }
        }
        sleep_until(Instant::now().saturating_add(backoff.next_pause())).await;
    }
}

/// Whether the event is about the master `name`: `name old-host old-port new-host new-port`.
fn names(event: &Msg, name: &str) -> bool {
    let payload = event.get_payload_bytes();
    payload.split(|byte| *byte == b' ').next() == Some(name.as_bytes())
}
