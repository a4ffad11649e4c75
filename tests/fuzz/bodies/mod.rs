//! What is tried on arbitrary bytes: by `cargo fuzz` for as long as one likes, and by the suite `fuzz` in a short dose.
//!
//! Each panics if a promise is broken, and tells whether the input was understood rather than refused.

pub mod key;
pub mod reply;
pub mod template;
