//! A second connection that only listens, for servers that refuse RESP3.

use std::sync::Weak;

use futures_util::StreamExt as _;
use redis::aio::{PubSubSink, PubSubStream};
use redis::{RedisResult, Value};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::connection::Connection;
use crate::runtime::{AliveFlag, AliveGuard};

/// A connection that receives messages, and nothing else.
pub(crate) struct Listener {
    sink: PubSubSink,
    /// The command connection for which it listens.
    generation: u64,
    alive: AliveFlag,
    task: AbortHandle,
}

impl Listener {
    /// Opens one for the command connection `generation`. Its messages go to the observer of
    /// `connection`.
    pub(crate) async fn open(connection: &Connection, generation: u64) -> RedisResult<Self> {
        let (sink, stream) = connection.pubsub().await?.split();
        let alive = AliveFlag::default();
        let end = End { connection: connection.weak(), alive: Some(alive.raise()) };
        let task = Handle::current().spawn(listen(stream, generation, end)).abort_handle();
        Ok(Self { sink, generation, alive, task })
    }

    /// Whether it listens for the command connection `generation`. The next one may lead to another
    /// server.
    pub(crate) fn serves(&self, generation: u64) -> bool {
        self.generation == generation && self.alive.is_alive()
    }

    /// Subscribes channels on this connection.
    pub(crate) fn sink(&self) -> PubSubSink {
        self.sink.clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Dropped with the task: when the connection breaks, and when the runtime ends.
struct End {
    connection: Weak<Connection>,
    alive: Option<AliveGuard>,
}

impl Drop for End {
    fn drop(&mut self) {
        // Before the waiters look: they open a new listener if this one is dead.
        drop(self.alive.take());
        if let Some(connection) = self.connection.upgrade() {
            connection.observer().missed();
        }
    }
}

async fn listen(mut stream: PubSubStream, generation: u64, end: End) {
    while let Some(message) = stream.next().await {
        let Some(connection) = end.connection.upgrade() else { return };
        if let Ok(payload) = message.get_payload::<Value>() {
            connection.message(generation, &payload);
        }
    }
}
