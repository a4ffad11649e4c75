//! Distributed locks for async Rust.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod bound;
mod client;
mod driver;
mod error;
mod fencing;
mod guard;
mod held;
mod key;
mod lease;
mod mutex;
mod options;
#[doc(hidden)]
pub mod private;
mod registry;
mod scope;
pub mod store;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod time;
mod token;

pub use self::bound::LeaseBound;
pub use self::client::{Drained, LockClient, LockClientBuilder};
pub use self::error::{ConfigError, Error, ErrorKind, LostReason};
pub use self::fencing::FencingToken;
pub use self::guard::{MutexGuard, Released};
pub use self::held::Lease;
pub use self::key::{IntoKey, Key, KeyPart, KeyWriter};
pub use self::mutex::Mutex;
pub use self::options::{LockOptions, Wait};
pub use self::scope::{assert_locked, current};
pub use self::token::Token;
#[cfg(feature = "macros")]
pub use lock_macros::{KeyPart, distributed_lock, key};
