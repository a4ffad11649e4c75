//! Several processes on one Redis server.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]
