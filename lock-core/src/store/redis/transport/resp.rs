//! Which version of RESP a server speaks, by what dials have met so far.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// By which protocol a connection was opened, and why.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Protocol {
    Resp3,
    /// RESP2, without a request for RESP3.
    Resp2,
    /// RESP2, since the server refused RESP3.
    Resp3Refused,
    /// RESP2, since the connection was closed at the request for RESP3.
    Resp3Closed,
}

/// Whether the server, and a proxy in front of it, support RESP3.
pub(super) struct Resp3Support {
    is_refused: AtomicBool,
    /// Dials in a row whose connection was closed at the request for RESP3, and served by RESP2.
    closed: AtomicU32,
}

/// A server that closes the connection at so many dials in a row does so because of RESP3. Once may
/// be a coincidence.
const MOST_CLOSED: u32 = 2;

impl Resp3Support {
    pub(super) fn new(is_possible: bool) -> Self {
        Self { is_refused: AtomicBool::new(!is_possible), closed: AtomicU32::new(0) }
    }

    /// Whether the next dial is to request RESP3.
    pub(super) fn is_likely(&self) -> bool {
        !self.is_refused.load(Ordering::Acquire)
    }

    /// A connection by `protocol` serves. Returns whether that shows, for the first time, that
    /// RESP3 is not supported.
    pub(super) fn remember(&self, protocol: Protocol) -> bool {
        let is_refused = match protocol {
            Protocol::Resp3 => {
                self.closed.store(0, Ordering::Release);
                false
            }
            Protocol::Resp2 => false,
            Protocol::Resp3Refused => true,
            Protocol::Resp3Closed => self.closed.fetch_add(1, Ordering::AcqRel) + 1 >= MOST_CLOSED,
        };
        is_refused && !self.is_refused.swap(true, Ordering::AcqRel)
    }
}
