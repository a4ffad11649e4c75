//! What the test suites share with each other and with `fuzz/`; the servers, proxies and checks are
//! in `lock-testkit`.
// Not published, and fails by panicking.
#![allow(
    clippy::exhaustive_enums,
    clippy::must_use_candidate,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::missing_panics_doc,
    let_underscore_drop
)]

pub mod cancellation;
// The parser of templates would bring its own unit tests along.
#[cfg(not(test))]
#[path = "../fuzz/bodies/mod.rs"]
pub mod fuzz;
mod recorded;

pub use self::recorded::{Recorded, recorded};
