//! Distributed locks for async Rust.
