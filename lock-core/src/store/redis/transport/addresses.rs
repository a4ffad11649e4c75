//! Which server is dialled, and in which order the addresses of its name are tried.

use std::net::SocketAddr;
use std::sync::Arc;

use super::connector::Endpoint;

/// What is known of a server's addresses.
pub(super) struct Addresses {
    /// The server that is dialled, or was dialled last.
    endpoint: Arc<Endpoint>,
    /// Of the last connection.
    current: Option<SocketAddr>,
    /// Where the last connection failed, or led to the wrong server; the oldest failure first.
    failed: Vec<SocketAddr>,
}

/// How many of them are remembered.
const MOST_REMEMBERED: usize = 64;

impl Addresses {
    pub(super) fn of(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, current: None, failed: Vec::new() }
    }

    /// Orders what was looked up: what failed comes last, and first what failed long ago.
    pub(super) fn order(&self, found: &mut [SocketAddr]) {
        found.sort_by_key(|address| self.failed.iter().position(|failed| failed == address));
    }

    /// The server, and its address of the last connection.
    pub(super) fn present(&self) -> (Arc<Endpoint>, Option<SocketAddr>) {
        (Arc::clone(&self.endpoint), self.current)
    }

    /// From now on `endpoint` is dialled.
    pub(super) fn lead_to(&mut self, endpoint: Endpoint) {
        (self.endpoint, self.current) = (Arc::new(endpoint), None);
    }

    /// No connection could be opened to `address`.
    pub(super) fn fail(&mut self, address: SocketAddr) {
        self.failed.retain(|failed| *failed != address);
        self.failed.push(address);
        if self.failed.len() > MOST_REMEMBERED {
            self.failed.remove(0);
        }
    }

    /// A connection is open.
    pub(super) fn succeed(&mut self, address: Option<SocketAddr>) {
        self.current = address;
        self.failed.retain(|failed| Some(*failed) != address);
    }

    /// The last connection led to the wrong server.
    pub(super) fn leave(&mut self) {
        if let Some(address) = self.current.take() {
            self.fail(address);
        }
    }
}
