//! Answers to what comes up when a service that locks is run. One page per question:
//!
//! 1. [`on_call`]: who has a lock, and how do I free it?
//! 2. [`shutdown`]: how do I stop without leaving locks behind, on Kubernetes too?
//! 3. [`migrating`]: what is it called here, and can old and new clients share a lock?
//!
//! The repository has a program for each question under `examples/`.

#[doc = include_str!("on_call.md")]
pub mod on_call {}

#[doc = include_str!("shutdown.md")]
pub mod shutdown {}

#[doc = include_str!("migrating.md")]
pub mod migrating {}
