//! The fuzz targets, for `cargo fuzz` and for the suite `fuzz`.
//!
//! Each function takes arbitrary bytes, panics if a promise is broken, and returns whether the
//! input was accepted.

pub mod key;
pub mod reply;
pub mod template;
