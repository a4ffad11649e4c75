//! The lease code of lock-core, included by path because it is not public.
#![allow(dead_code, unreachable_pub)] // the tests use a part of it

#[path = "../../lock-core/src/lease/state.rs"]
pub(crate) mod state;
#[path = "../../lock-core/src/lease/validity.rs"]
pub(crate) mod validity;
