//! Acknowledgement by replicas: whether they have what a call wrote, asked in the same write.
//!
//! `WAIT` tells how many replicas have the last write of *this connection*, and so all that is
//! older. What a reply says may rest on another write: that of a renewal, or of a claim, that was
//! sent on another connection. So a script that finds the token writes in any case: the counter if
//! it claims, the expiry if it renews. A write of its own beside the call would not do: on a
//! cluster it would be about another key, which may be on another node than the lock while their
//! slot moves.

use std::time::Duration;

use redis::{Cmd, Pipeline, Value};

use super::clock::millis_up;
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::store::redis::error::Fault;
use crate::time::Instant;

/// How many replicas have to confirm a grant or a renewal, and how long they have for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaAcks {
    count: u32,
    timeout: Duration,
}

/// The server executes nothing else of this connection meanwhile.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// Replicas have this part of the time that a call has.
const SHARE: u32 = 5;

impl ReplicaAcks {
    /// Acknowledgement by `count` replicas of calls with this timeout.
    pub(crate) fn new(count: u32, request_timeout: Duration) -> Self {
        metrics::acks_wanted();
        Self { count, timeout: (request_timeout / SHARE).min(MAX_WAIT) }
    }

    /// The call, and what tells whether it is confirmed. The caller waits for the replies until
    /// `until`. With `asking`, a node of a cluster that is about to take the slot is asked to serve
    /// the call.
    pub(super) fn pipeline(self, call: Cmd, until: Option<Instant>, asking: bool) -> Pipeline {
        // Or it would not learn that the replicas are late.
        let patience = until.map_or(Duration::MAX, |until| until.remaining() / 2);
        let timeout_ms = millis_up(self.timeout.min(patience)).max(1);
        let mut pipeline = Pipeline::with_capacity(3);
        if asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(call);
        pipeline.cmd("WAIT").arg(self.count).arg(timeout_ms);
        pipeline
    }

    /// Reads the replies to the [pipeline](Self::pipeline): the one to the call, and why it is not
    /// confirmed, if it is not.
    pub(super) fn read(self, replies: Vec<Value>) -> Result<(Value, Option<Error>), Fault> {
        let Ok([reply, count]) = <[Value; 2]>::try_from(replies) else {
            return Err(Fault::Garbled);
        };
        let reply = reply.extract_error().map_err(Fault::refused)?;
        let unconfirmed = match count {
            // The call was executed all the same.
            Value::ServerError(error) => Some(Error::refused(error.into(), true)),
            Value::Int(count) if count >= i64::from(self.count) => None,
            Value::Int(count) => Some(Error::plain(
                ErrorKind::Unavailable,
                format!(
                    "{count} of {} replicas confirmed the lock in time: see whether the replicas \
                     are connected",
                    self.count
                ),
            )),
            _ => return Err(Fault::Garbled),
        };
        if unconfirmed.is_some() {
            metrics::acks_missed();
        }
        Ok((reply, unconfirmed))
    }
}
