//! What the locks protect: a record for each key, that takes no write of a holder older than the last.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lock_core::FencingToken;
use lock_testkit::history::Turn;

/// The records. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Resource(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    records: BTreeMap<usize, Record>,
    refused: usize,
}

struct Record {
    newest: FencingToken,
    /// The turn, of those that wrote, that was asked for last.
    last_asked: Turn,
}

impl Resource {
    /// Writes for a turn, unless the token says that it is stale. That it was, though its token passed, is told.
    pub(crate) fn write(&self, key: usize, turn: Turn) -> Result<(), String> {
        let token = FencingToken::from_raw(turn.fence);
        let mut inner = self.0.lock().unwrap();
        let Some(record) = inner.records.get_mut(&key) else {
            inner.records.insert(key, Record { newest: token, last_asked: turn });
            return Ok(());
        };
        if token < record.newest {
            inner.refused += 1;
            return Ok(());
        }
        let before = record.last_asked;
        // Its grant was over and done with when that of the other was asked for.
        if turn.enter < before.asked {
            return Err(format!("{turn:?} wrote over {before:?}"));
        }
        record.newest = token;
        if before.asked < turn.asked {
            record.last_asked = turn;
        }
        Ok(())
    }

    /// How many writes it refused.
    pub(crate) fn refused(&self) -> usize {
        self.0.lock().unwrap().refused
    }
}
