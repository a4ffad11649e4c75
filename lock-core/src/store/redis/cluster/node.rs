//! One node of a cluster.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;

use super::hearing::Hearing;
use super::listener::Listener;
use super::map::Address;
use crate::store::redis::transport::{Connection, Endpoint, Observer, ReplicaAcks, Timeouts};

/// A node, and the connections to it.
pub(crate) struct Node {
    pub(super) address: Address,
    pub(crate) connection: Arc<Connection>,
    /// Hears its sharded channels.
    listener: Mutex<Option<Arc<Listener>>>,
    /// One task opens a listener, the others wait for it.
    pub(super) opening: tokio::sync::Mutex<()>,
    pub(super) hearing: Hearing,
}

/// Commands are sent on connections that receive no messages.
struct NoMessages;

impl Observer for NoMessages {
    fn message(&self, _connection: &Arc<Connection>, _generation: u64, _payload: &Value) {}

    fn missed(&self) {}
}

impl Node {
    /// A node to which no connection is open yet.
    pub(super) fn new(
        address: Address,
        endpoint: Endpoint,
        timeouts: Timeouts,
        acks: Option<ReplicaAcks>,
    ) -> Self {
        let label = endpoint.address();
        Self {
            address,
            connection: Connection::of_node(endpoint, label, timeouts, acks, NoMessages),
            listener: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            hearing: Hearing::default(),
        }
    }

    /// The listener, if there is one that is alive.
    pub(super) fn listener(&self) -> Option<Arc<Listener>> {
        self.slot().as_ref().filter(|listener| listener.is_alive()).cloned()
    }

    pub(super) fn set_listener(&self, listener: Arc<Listener>) {
        let before = self.slot().replace(listener);
        drop(before);
    }

    pub(super) fn close_listener(&self) {
        let before = self.slot().take();
        drop(before);
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Listener>>> {
        // Nothing that holds this lock panics.
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
