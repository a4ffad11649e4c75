//! What a console shows and allows.

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Keys are shown beside their labels.
    pub(super) keys: bool,
    /// Locks may be taken from their owners.
    pub(super) force: bool,
    /// How many locks a table shows, and the store is asked about at a time.
    pub(super) max_locks: usize,
}

/// How many locks are shown unless the program says otherwise: what a person reads.
const MAX_LOCKS: usize = 200;

impl Default for Settings {
    fn default() -> Self {
        Self { keys: false, force: false, max_locks: MAX_LOCKS }
    }
}
