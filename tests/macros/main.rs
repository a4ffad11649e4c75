//! What locked functions do: generated code run against the memory store.

// Tests stand for callers, who spawn as they like; helpers of tests are tests.
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
