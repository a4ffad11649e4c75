//! Several processes on one Redis server.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod drain;
mod exclusion;
mod handoff;
mod holder;
mod support;
mod tls;
