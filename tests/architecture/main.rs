//! The structure of the repository: which file may use which, which words comments may use,
//! and what is published.
//!
//! These tests read sources and start no server. `make lint` runs them on their own. Each check
//! has a test that plants a violation and expects it to be found.
//!
//! # What counts as an import
//!
//! An arrow goes from file A to file B when code of A names an item that B *defines*: in a `use`
//! declaration, in a qualified path (`super::clock::now()`), or in the tokens of a macro call.
//! Methods and fields are not followed.
//!
//! - A path through re-exports ends at the file that defines the item: `use super::Claim` through
//!   `pub use self::request::Claim` in `store/mod.rs` is an arrow to `store/request.rs`.
//! - `mod child;` is no arrow, and neither is a path that ends at a module (`use crate::time`):
//!   what is then used through it (`time::now()`) is.
//! - `pub use` of a name that the code of the same file does not mention is a signpost, not an
//!   import: a facade does not depend on what it lists.
//! - `#[cfg(test)]` code is left out, and so are paths in documentation.
//!
//! So `store/mod.rs` may define a trait and list the stores that implement it. But if `Client` has
//! a method that returns `Builder`, and `Builder` makes a `Client`, then one of the two files has
//! to hold both ends: write `impl Client { pub fn builder() }` in `builder.rs`.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

mod cycles;
mod documents;
mod graph;
mod layers;
mod msrv;
mod packages;
mod public_api;
mod sources;
mod syntax;
mod text;
mod width;
mod words;
