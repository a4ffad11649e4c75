//! What a store tells operators about its locks, and about itself.

use std::time::Duration;

use super::token::Token;

/// What a store knows of a lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LockRecord {
    /// Who has it; `None`: it is free.
    pub owner: Option<Owner>,
    /// How many claims wait in its queue; `None` if the store may not tell.
    pub waiting: Option<u64>,
    /// No grant so far has a larger number.
    pub latest_fence: u64,
}

impl LockRecord {
    /// A lock that `owner` has.
    #[must_use]
    pub fn new(owner: Option<Owner>, waiting: Option<u64>, latest_fence: u64) -> Self {
        Self { owner, waiting, latest_fence }
    }
}

/// Who has a lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Owner {
    /// Its token; `None` if the value is not a token: another library or a person set it.
    pub token: Option<Token>,
    /// For how long, if it is not renewed; `None`: for ever.
    pub left: Option<Duration>,
    /// Released, and kept for the rest of its `min_hold`.
    pub is_released: bool,
}

impl Owner {
    /// The owner with this token, for as long as `left`.
    #[must_use]
    pub fn new(token: Option<Token>, left: Option<Duration>, is_released: bool) -> Self {
        Self { token, left, is_released }
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
}

impl StoreHealth {
    /// The health of `server`.
    #[must_use]
    pub fn new(server: impl Into<String>, problems: Vec<String>) -> Self {
        Self { server: server.into(), problems }
    }
}
