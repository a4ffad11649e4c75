//! What the locks protect: a record for each key. It refuses writes of holders that are older than
//! the last writer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lock_core::FencingToken;
use lock_testkit::history::Turn;

/// The records. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Resource(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    records: BTreeMap<String, Record>,
    refused: usize,
}

struct Record {
    newest: FencingToken,
    /// The turn with the latest claim among the turns that wrote.
    last_requested: Turn,
}

impl Resource {
    /// Writes for a turn, unless its token is stale. An error says that the write was stale
    /// although its token passed.
    pub(crate) fn write(&self, key: &impl ToString, turn: Turn) -> Result<(), String> {
        let token = FencingToken::from_raw(turn.fence);
        let mut inner = self.0.lock().unwrap();
        let key = key.to_string();
        let Some(record) = inner.records.get_mut(&key) else {
            inner.records.insert(key, Record { newest: token, last_requested: turn });
            return Ok(());
        };
        if token < record.newest {
            inner.refused += 1;
            return Ok(());
        }
        let before = record.last_requested;
        // This turn began before the other one made its claim.
        if turn.enter < before.requested {
            return Err(format!("{turn:?} wrote over {before:?}"));
        }
        record.newest = token;
        if before.requested < turn.requested {
            record.last_requested = turn;
        }
        Ok(())
    }

    /// How many writes it refused.
    pub(crate) fn refused(&self) -> usize {
        self.0.lock().unwrap().refused
    }
}
