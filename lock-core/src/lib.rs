//! Distributed locks for async Rust.
//!
//! Several processes share one store, usually a Redis server, and take turns:
//!
//! ```
//! use lock_core::{Error, LockClient, distributed_lock, store::MemoryStore};
//!
//! #[distributed_lock(key = "order:<user_id>", wait = "2s")]
//! async fn create_order(user_id: u64) -> Result<u64, Error> {
//!     Ok(user_id) // one at a time per user, across all processes
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a service: `RedisStore::connect("redis://127.0.0.1/").await?`
//! LockClient::builder(MemoryStore::new()).build()?.install()?;
//!
//! create_order(7).await?;
//! # Ok(()) }
//! ```
//!
//! # Which way in?
//!
//! - [`#[distributed_lock]`](distributed_lock) on a service function: the usual one.
//! - [`Mutex::run`] around a block, when the key or the options are known only at run time.
//! - [`Mutex::lock`] and its [guard](MutexGuard), when the lock must outlive a block. A guard does
//!   not stop its holder when the lease is lost; the other two do.
//! - `LockLayer` of the crate `lock-tower`, around an HTTP route or any tower service.
//!
//! If all contenders live in one process, use `tokio::sync::Mutex`: it is a thousand times faster
//! and cannot fail.
//!
//! # Words
//!
//! A [`Key`] says what is locked. A *lease* is the right to act until a *deadline*; the store keeps
//! it for its *ttl*, a little longer, and the client renews it. The *token* names one acquisition
//! and is the value that the store keeps. The [`FencingToken`] is a number that grows with each
//! grant.
//!
//! # What holds
//!
//! Under two assumptions, that the clocks of client and server run at the same rate within 1 % and
//! the server's makes no step larger than the margin (1 % of the ttl and 2 ms), and that the store
//! does not forget an unexpired lock:
//!
//! - **Exclusion.** Two leases on one key never overlap.
//! - **Bounded body.** With [`Mutex::run`], the macro and the layer, no poll of the body *starts*
//!   at or after the lease's local deadline (unless `on_lost = finish`).
//!
//! Always:
//!
//! - **Fencing.** Every grant carries a [`FencingToken`] greater than that of every grant that
//!   completed before it began, as long as the store's counter or its clock does not go backwards;
//!   unless it was asked for
//!   [without](LockOptions::without_fencing).
//! - **Only the holder releases.** Release and renewal compare the token atomically.
//! - **No orphans.** A lock whose acquisition was cancelled, timed out or failed is released as
//!   soon as the store can be reached, not left to its ttl. (A failover may bring a released lock
//!   back for the rest of its ttl.)
//! - **Progress.** A free lock is taken by a live waiter, even if every notification is lost.
//! - **Honest outcomes.** [Busy](ErrorKind::Busy), [unavailable](ErrorKind::Unavailable) and
//!   [unknown](ErrorKind::Unknown) are different answers. A body never runs without its lock, and
//!   its result is never replaced by a failed release.
//!
//! # What does not
//!
//! A lease is not mutual exclusion when a process stalls or the store fails over. A process that
//! was paused for longer than its lease may still finish the poll it was in; a blocking call is not
//! stopped at all. Check the fencing token at the resource, or let a database constraint say what
//! must not happen.
//!
//! Guards that are alive when the runtime ends, and releases that had not been confirmed, are left
//! to their ttl: call [`LockClient::drain`] before.
//!
//! # Errors
//!
//! There is one [`Error`]. Its [kind](ErrorKind) says what happened; [`is_busy`](Error::is_busy),
//! [`is_store_failure`](Error::is_store_failure), [`is_lost`](Error::is_lost) and
//! [`is_retryable`](Error::is_retryable) ask for the usual ones. A body whose lock was `Busy`,
//! `Unavailable` or `Unknown` has not begun; after `Lost` it may have, so look before you try
//! again. Bad settings are [`ConfigError`]s where clients and stores are built.
//!
//! # Runtime
//!
//! Everything runs on tokio, on a runtime with timers and, for Redis, I/O (`enable_all`). Outside
//! of one, futures of this crate give [`NoRuntime`](ErrorKind::NoRuntime) instead of a panic.
//! Renewals and the releases of dropped guards are done by two tasks on the runtime where the
//! client is first used. A body that blocks its thread can hold them up, and does on a
//! `current_thread` runtime: use `spawn_blocking` with [`Mutex::blocking_lock`], or give those
//! tasks a runtime of their own with [`LockClientBuilder::with_runtime`].
//!
//! # How it works
//!
//! Taking a free lock is one round trip: a script sets the key if it is absent, with the token and
//! the ttl, and numbers the grant by `max(last + 1, server's clock)`. Releasing is another: compare
//! and delete. The lease counts from a clock reading *before* the command was queued, less the
//! margin, so that it ends here before it ends there. Each claim carries the server's time after
//! which it is void, so that one that arrives late does nothing. One task per client renews all
//! leases at a third of what remains, and one, the janitor, releases whatever nobody awaits, until
//! the store has confirmed it.
//!
//! # Who is next
//!
//! Within a process the tasks that want one key stand in line. A guard that ends hands its lease to
//! the next of them in memory, with a fencing token and a deadline of its own, up to 63 times or
//! for 5 ms; then the lock goes back, so that other processes get their turn. The line as a whole
//! has one claim in the store.
//!
//! On Redis the claims of processes stand in a queue, first come first served. The release gives
//! the lock straight to the first of them for a short time (3 s, or the ttl if that is less) and
//! tells it by pub/sub; whoever holds it for more than 50 ms makes it the full ttl. So a hand-over
//! costs two commands however many wait. Claims are repeated, the first about once a second, which
//! finds a grant whose message was lost. A place in the queue is lost by one who cannot be told at
//! that moment, who does not enter in time, or who was paused for longer than its ticket lasts.
//! Clients that only `SET .. NX PX` never queue; a lock that one of them holds is asked for every
//! 100 ms at first, and at its expiry. `try_lock` neither queues nor overtakes those who do.
//!
//! The algorithm for one server is the one of the Redis documentation ("Distributed locks with
//! Redis", the single-instance case); the deadline, the fence and the void time are this crate's
//! additions.
//!
//! [The design](_design) has the rules in full, and the reasons.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `macros` | yes | [`#[distributed_lock]`](distributed_lock), [`key!`], `#[derive(KeyPart)]`; without it, see [`Key`] |
//! | `redis` | yes | [`store::RedisStore`]; without it, [`store::MemoryStore`] and stores of your own |
//! | `redis-tls` | no | `rediss://` URLs, by rustls with the platform's root certificates |
//! | `uuid` | no | [`KeyPart`] for `uuid::Uuid` |
//! | `test-util` | no | `testing`: for tests of stores and of code that locks; leases follow a paused tokio clock |
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(doc)]
pub mod _design;
mod backoff;
mod client;
mod driver;
mod error;
pub mod fencing;
mod held;
mod key;
mod lease;
mod lock;
mod options;
#[doc(hidden)]
pub mod private;
mod random;
mod registry;
mod runtime;
mod state;
pub mod store;
mod sync;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod time;
mod tracker;

pub use self::client::{Drained, LockClient, LockClientBuilder};
pub use self::error::{ConfigError, Error, ErrorKind, LostReason};
pub use self::fencing::FencingToken;
pub use self::held::{Lease, assert_locked, current};
pub use self::key::{IntoKey, Key, KeyPart, KeyWriter};
pub use self::lease::Released;
pub use self::lock::{Mutex, MutexGuard, RunUntilLost};
pub use self::options::{LockOptions, Wait};
#[cfg(feature = "macros")]
pub use lock_macros::{KeyPart, distributed_lock, key};
