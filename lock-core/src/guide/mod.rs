//! Answers to what comes up when a service that locks is run. One page per question:
//!
//! 1. [`on_call`]: who has a lock, and how do I free it?
//! 2. [`shutdown`]: how do I stop without leaving locks behind, on Kubernetes too?
//! 3. [`observability`]: how do I see what my locks do?
//! 4. [`testing_your_code`]: how do I test code that locks, and what does `testing` promise?
//! 5. [`recipes`]: a key in a JSON body, a leader, two keys at once, an idempotency key
//! 6. [`choosing_a_store`]: which store, and do I need one?
//! 7. [`migrating`]: what is it called here, and can old and new clients share a lock?
//!
//! The programs on these pages are compiled, and run unless they need a server. Those under
//! `examples/` in the repository are run on a real Redis.

#[doc = include_str!("on_call.md")]
pub mod on_call {}

#[doc = include_str!("shutdown.md")]
pub mod shutdown {}

#[doc = include_str!("observability.md")]
pub mod observability {}

#[doc = include_str!("testing_your_code.md")]
pub mod testing_your_code {}

#[doc = include_str!("recipes.md")]
pub mod recipes {}

#[doc = include_str!("choosing_a_store.md")]
pub mod choosing_a_store {}

#[doc = include_str!("migrating.md")]
pub mod migrating {}
