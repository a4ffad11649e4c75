//! The library's own text, which is not public.
#![allow(dead_code, unreachable_pub)] // tried in part

#[path = "../../lock-core/src/lease/state.rs"]
pub(crate) mod state;
#[path = "../../lock-core/src/lease/validity.rs"]
pub(crate) mod validity;
