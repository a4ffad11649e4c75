//! What this process does with its locks.

use std::cmp::Reverse;

use super::LockClient;
use crate::activity::Activity;

impl LockClient {
    /// What this client holds, waits for and has lost lately. No I/O: the store is not asked, so it
    /// works while the store is down. Of what other processes hold, [`list`](Self::list) tells.
    ///
    /// For pages and logs of operators. It walks through all leases and waiting tasks of the
    /// client, so call it when a person looks and not for each request.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::{LockClient, key, store::MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let user = 7;
    /// let guard = client.mutex(key!("order:<user>")).lock().await?;
    ///
    /// let activity = client.activity();
    /// assert_eq!(activity.held[0].key.label(), "order:<user>");
    /// assert_eq!(activity.held[0].fencing_token, guard.fencing_token());
    /// assert!(activity.waiting.is_empty() && activity.losses.is_empty());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn activity(&self) -> Activity {
        let state = &self.0;
        let leases = state.renewer.leases();
        let mut held: Vec<_> = leases.iter().filter_map(|lease| lease.describe()).collect();
        held.sort_by_key(|lock| Reverse(lock.held_for));
        Activity {
            held,
            waiting: state.registry.waiting(),
            losses: state.losses.all(),
            pending_releases: state.releaser.pending_count(),
            is_draining: state.registry.is_draining(),
        }
    }
}
