//! The behaviour of locked functions: generated code runs against the memory store.

// Tests are callers, which may spawn freely. Helpers may unwrap as tests do.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod arguments;
mod drop_order;
mod ending;
mod instrument;
mod keys;
mod nesting;
mod outcomes;
mod support;
mod transactions;
