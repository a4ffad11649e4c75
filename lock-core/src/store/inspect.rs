//! What a store tells operators about its locks, and about itself.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::token::Token;

/// What a store knows of a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockRecord {
    /// Who has it; `None`: it is free.
    pub owner: Option<Owner>,
    /// How many claims wait in its queue; `None` if the store may not tell.
    pub waiting: Option<u64>,
    /// The latest grant number: no grant so far has a larger one.
    pub latest_number: u64,
}

impl LockRecord {
    /// A lock that `owner` has.
    #[must_use]
    pub fn new(owner: Option<Owner>, waiting: Option<u64>, latest_number: u64) -> Self {
        Self { owner, waiting, latest_number }
    }
}

/// A client, which hears that a lock was taken from it by force. See
/// [`Inspect::report_forced_releases`](super::Inspect::report_forced_releases).
pub trait ForceReleaseListener: Send + Sync {
    /// The lock was taken from `token`, which may be one of another client.
    fn force_released(&self, token: Token);
}

/// The clients of a store that listen for forced releases.
#[derive(Default)]
pub(crate) struct ForceReleaseListeners(Mutex<Vec<Weak<dyn ForceReleaseListener>>>);

impl ForceReleaseListeners {
    pub(crate) fn add(&self, listener: Weak<dyn ForceReleaseListener>) {
        let mut listeners = self.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    pub(crate) fn tell(&self, token: Token) {
        // They are called without the lock.
        let listeners: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        for listener in listeners {
            listener.force_released(token);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn ForceReleaseListener>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who has a lock.
///
/// `Debug` shows neither the token nor a foreign value: who knows them can release the lock.
#[derive(Clone, Eq, PartialEq)]
#[non_exhaustive]
pub struct Owner {
    /// Its token; `None` if the value is not a token: another library or a person set it.
    pub token: Option<Token>,
    /// For how long, if it is not renewed; `None`: for ever.
    pub left: Option<Duration>,
    /// Released, and kept for the rest of its `min_hold`.
    pub is_released: bool,
    foreign: Arc<[u8]>,
}

impl Owner {
    /// The owner with this token, for as long as `left`.
    #[must_use]
    pub fn new(token: Token, left: Option<Duration>, is_released: bool) -> Self {
        Self { token: Some(token), left, is_released, foreign: Arc::default() }
    }

    /// An owner that another library or a person set by `value`.
    pub fn foreign(value: impl Into<Arc<[u8]>>, left: Option<Duration>) -> Self {
        Self { token: None, left, is_released: false, foreign: value.into() }
    }

    /// The value of a [foreign](Self::foreign) owner, else nothing.
    #[must_use]
    pub fn foreign_value(&self) -> &[u8] {
        &self.foreign
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("client", &self.token.map(|token| token.client()))
            .field("left", &self.left)
            .field("is_released", &self.is_released)
            .finish_non_exhaustive()
    }
}

/// How a store is.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct StoreHealth {
    /// What answered, such as `redis 7.0.15`.
    pub server: String,
    /// What puts locks at risk, each with what to do about it. None: nothing is wrong.
    pub problems: Vec<String>,
    /// What is good to know and puts nothing at risk by itself, such as what a crash forgets.
    pub notes: Vec<String>,
}

impl StoreHealth {
    /// The health of `server`.
    #[must_use]
    pub fn new(server: impl Into<String>, problems: Vec<String>) -> Self {
        Self { server: server.into(), problems, notes: Vec::new() }
    }

    /// The same with notes.
    #[must_use]
    pub fn with_notes(mut self, notes: Vec<String>) -> Self {
        self.notes = notes;
        self
    }
}

/// What a store's user may not do of what locks need.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct MissingPermissions {
    /// The rules that the user lacks, each as the store's administrators write it: on Redis for
    /// `ACL SETUSER`.
    pub rules: Vec<String>,
    /// Commands that the server does not know, which no rule can change. They may have been
    /// renamed, or it is too old.
    pub unknown_commands: Vec<String>,
}

impl MissingPermissions {
    /// Whether nothing is missing, or nothing is known to be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.unknown_commands.is_empty()
    }
}
