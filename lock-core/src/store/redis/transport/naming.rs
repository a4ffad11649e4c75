//! How the server calls the connections of a store, so that `CLIENT LIST` tells whose they are.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::Value;
use redis::aio::ConnectionLike as _;

use super::connector::Wire;
use crate::time::{Instant, Late, timeout_at};

/// The name, once there is one, and whether the server takes it.
#[derive(Default)]
pub(super) struct ConnectionName {
    name: OnceLock<String>,
    /// Connections in a row that did not take it.
    unnamed: AtomicU32,
}

/// So many connections in a row do not take a name because of what is between: a proxy may close
/// the connection on it, or not reply. Once may be a coincidence.
const MOST_UNNAMED: u32 = 2;

impl ConnectionName {
    /// Sets the name. Returns false if there is one already.
    pub(super) fn set(&self, name: String) -> bool {
        self.name.set(name).is_ok()
    }

    /// Whether there is a name that the server may take.
    pub(super) fn is_usable(&self) -> bool {
        self.name.get().is_some() && self.unnamed.load(Ordering::Acquire) < MOST_UNNAMED
    }

    /// Tells the server the name of a connection. No command waits for this, and nothing but the
    /// next name depends on the reply.
    pub(super) async fn tell(&self, mut wire: Wire, timeout: Duration) {
        let Some(name) = self.name.get() else { return };
        let mut command = redis::cmd("CLIENT");
        command.arg("SETNAME").arg(name);
        let limit = Instant::now().saturating_add(timeout);
        let reply = timeout_at(limit, wire.req_packed_command(&command)).await;
        match reply.map(|reply| reply.and_then(Value::extract_error)) {
            Ok(Ok(_)) => self.unnamed.store(0, Ordering::Release),
            // A refusal is for good. The next one would be one more line in the `ACL LOG`.
            Ok(Err(error)) if !error.is_io_error() => {
                self.unnamed.store(MOST_UNNAMED, Ordering::Release);
            }
            Ok(Err(_)) | Err(Late) => {
                self.unnamed.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}
