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
//! // In a service: `store::connect("redis://127.0.0.1/").await?`
//! LockClient::builder(MemoryStore::new()).build()?.install()?;
//!
//! create_order(7).await?;
//! # Ok(()) }
//! ```
//!
//! # Which API to use
//!
//! - [`#[distributed_lock]`](distributed_lock) on a service function: the usual choice.
//! - [`Mutex::run`] around a block, when the key or the options are known only at run time.
//! - [`Mutex::lock`] and its [guard](MutexGuard), when the lock must outlive a block. A guard does
//!   not stop its holder when the lease is lost; the other two do.
//! - `LockLayer` of the crate `lock-tower` around an HTTP route or any tower service.
//!
//! If all contenders live in one process, use `tokio::sync::Mutex`: it is a thousand times faster
//! and cannot fail.
//!
//! # Terms
//!
//! A [`Key`] names what is locked. A *lease* is the right to act until a *deadline*. The store
//! keeps the lock for its *ttl*, which ends a little later, and the client renews it. The *token*
//! identifies one acquisition and is the value that the store keeps. The [`FencingToken`] is a
//! number that grows with each grant.
//!
//! # Guarantees
//!
//! Two guarantees depend on two assumptions. First, the clocks of client and server run at the same
//! rate within 1 %, and the server's clock makes no step larger than the margin (1 % of the ttl and
//! 2 ms). Second, the store does not forget an unexpired lock.
//!
//! - **Exclusion.** Two leases on one key never overlap.
//! - **Bounded body.** With [`Mutex::run`], the macro and the layer, no poll of the body *starts*
//!   at or after the lease's local deadline (unless `on_lost = finish`).
//!
//! The others always hold:
//!
//! - **Fencing.** Every grant carries a [`FencingToken`] greater than that of every grant that
//!   completed before it began, as long as the store's counter or its clock does not go backwards.
//!   Grants [without fencing](LockOptions::without_fencing) carry none.
//! - **Only the holder releases.** Release and renewal compare the token atomically. (An operator
//!   may take a lock by [`LockClient::force_release`].)
//! - **No orphans.** A lock whose acquisition was cancelled, timed out or failed is released as
//!   soon as the store can be reached, not left to its ttl, unless the store refuses the release
//!   for good or the runtime ends first. (A failover may bring a released lock back for the rest of
//!   its ttl.)
//! - **Progress.** A free lock is taken by a live waiter, even if every notification is lost.
//! - **Honest outcomes.** [Busy](ErrorKind::Busy), [unavailable](ErrorKind::Unavailable) and
//!   [unknown](ErrorKind::Unknown) are different errors. A body never runs without its lock, and a
//!   failed release never replaces its result.
//!
//! # Limits
//!
//! A lease is not mutual exclusion when a process stalls or the store fails over. A process that
//! was paused for longer than its lease may still finish the poll it was in; a blocking call is not
//! stopped at all. Check the fencing token at the resource, or let a database constraint reject
//! what must not happen twice.
//!
//! When the runtime ends, the locks of live guards and of unconfirmed releases stay taken until
//! their ttl has passed: let the client drain at SIGTERM, by [`LockClient::shutdown_on`].
//!
//! # Errors
//!
//! There is one [`Error`]. Its [kind](ErrorKind) says what happened; [`is_busy`](Error::is_busy),
//! [`is_store_failure`](Error::is_store_failure), [`is_lost`](Error::is_lost) and
//! [`is_retryable`](Error::is_retryable) test for the usual ones. After `Busy`, `Unavailable` or
//! `Unknown` the body has not begun. After `Lost` it may have, so check what it did before you try
//! again. Invalid settings are [`ConfigError`]s when clients and stores are built.
//!
//! # Runtime
//!
//! This crate needs a tokio runtime with timers and, for Redis, I/O (`enable_all`). Elsewhere its
//! futures return [`NoRuntime`](ErrorKind::NoRuntime) instead of a panic. To find out, it makes a
//! timer or a socket and catches tokio's panic, which the program's panic hook reports, once for
//! each thread and runtime.
//! Renewals and the releases of dropped guards are done by two tasks on the runtime where the
//! client is first used; the connection of a store runs where it was dialled. A body that blocks
//! its thread can delay them, and always does on a `current_thread` runtime, for the other runtimes
//! that share the client as well: use `spawn_blocking` with [`Mutex::blocking_lock`], or give all
//! of it a runtime of its own with [`LockClientBuilder::with_runtime`].
//!
//! # Metrics
//!
//! With the feature `metrics`, a client reports to the recorder that the program installed *before*
//! the store connects, such as that of `metrics-exporter-prometheus`. `key` is the label of the
//! lock's key, a template and never a value.
//!
//! | name | kind, labels | what it is |
//! |---|---|---|
//! | `lock_acquisitions_total` | counter: `key`, `outcome` | attempts to take a lock: `acquired`, `busy`, `unavailable`, `unknown`, `draining`, `would_deadlock`, `refused`; `cancelled` if the future was dropped |
//! | `lock_wait_seconds` | histogram: `key` | how long they took, whatever their outcome |
//! | `lock_waiting` | gauge: `key` | acquisitions under way |
//! | `lock_held` | gauge: `key` | guards that are alive |
//! | `lock_hold_seconds` | histogram: `key` | how long guards lived |
//! | `lock_hand_offs_total` | counter: `key`, `by` | leases that went to a waiter: of this process (`memory`), or from another process to this one (`store`) |
//! | `lock_losses_total` | counter: `key`, `reason` | leases that ended before their guards |
//! | `lock_renewals_total` | counter: `key`, `outcome` | replies to renewals: `confirmed`, `failed` |
//! | `lock_renewal_lateness_seconds` | histogram | how much later than due renewals were sent; it grows before leases are lost |
//! | `lock_releases_pending` | gauge | releases that the store has not confirmed |
//! | `lock_release_retries_total` | counter | releases that were sent again |
//! | `lock_store_up` | gauge: `server` | 1 if the last dial of the server succeeded, else 0; an idle client does not dial |
//! | `lock_store_connections_total` | counter | connections to Redis that were opened |
//! | `lock_store_request_seconds` | histogram | how long Redis took to reply to a call |
//! | `lock_store_request_commands` | histogram | how many commands shared a call |
//! | `lock_store_outage_seconds` | histogram: `server` | how long a server that was needed could not be reached, told when it is over: with sentinels and in a cluster, the time without a master |
//! | `lock_store_replica_acks_missed_total` | counter | calls with claims or renewals that too few replicas confirmed |
//! | `lock_store_redirections_total` | counter: `kind` | of a cluster: commands that a node sent elsewhere (`moved`, `ask`) or refused (`try_again`, `not_served`) |
//! | `lock_store_slot_maps_total` | counter: `outcome` | of a cluster: questions for the map of its slots: `done`, `failed` |
//! | `lock_quorum_rounds_total` | counter: `outcome` | of a quorum: rounds of votes for claims: `granted`, `again` for a round that is followed by a second one, `taken`, `failed` |
//! | `lock_quorum_votes` | histogram | how many members voted for a claim in a round |
//! | `lock_quorum_turns_total` | counter: `outcome` | turns that conductors gave to waiters: the members `granted` the lock, or `refused` it |
//! | `lock_quorum_repairs_total` | counter: `server` | held locks that a member took again, after it had lost them |
//! | `lock_quorum_member_up` | gauge: `server` | 1 if the member votes, else 0 |
//! | `lock_quorum_member_clock_seconds` | gauge: `server` | how far the clock of the member is ahead of the median of all; beyond a second it refuses claims |
//!
//! # How it works
//!
//! Taking a free lock is one round trip: a script sets the key if it is absent, with the token and
//! the ttl, and numbers the grant by `max(last + 1, server's clock)`. Releasing is another: the
//! script compares the token and deletes the key. The lease counts from a clock reading *before*
//! the command was queued, less the margin, so that it ends in the client before it ends in the
//! store. Each claim carries the server time after which it is void, so that a late claim does
//! nothing. One task per client, the renewer, renews each lease after a third of what remains.
//! Another task, the releaser, sends each release that no caller awaits until the store has
//! confirmed it or refused it for good, or nothing can be left to release.
//!
//! # Order of service
//!
//! Within a process, the tasks that want one key queue in memory and have one claim in the store. A
//! guard that ends hands its lease to the next task in memory, with its own fencing token and
//! deadline, up to 63 times or for 5 ms. Then the lock goes back to the store, so that other
//! processes get it.
//!
//! On Redis, the claims of processes wait in a queue, first come, first served. The release gives
//! the lock to the first of them for a short time (3 s, or the ttl if that is less) and notifies it
//! by pub/sub; a holder that needs more than 50 ms extends it to the full ttl. So a hand-off costs
//! two commands, however many processes wait. Waiting claims are repeated about once a second,
//! which finds a missed grant. A claim loses its place in the queue if its client cannot be
//! notified at that moment, does not enter in time, or was paused for longer than its ticket lasts.
//! Clients that only use `SET .. NX PX` never queue; a lock that such a client holds is claimed
//! every 100 ms at first, and at its expiry. `try_lock` neither queues nor overtakes claims that
//! wait.
//!
//! For one server, the algorithm is the one in the Redis documentation ("Distributed locks with
//! Redis", the single-instance case). This crate adds the deadline, the fence and the void time.
//!
//! [The guide](guide) answers what comes up when a service is run; [the design](_design) gives the
//! full rules and the reasons.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `macros` | yes | [`#[distributed_lock]`](distributed_lock), [`key!`], `#[derive(KeyPart)]`; without it, see [`Key`] |
//! | `redis` | yes | [`store::RedisStore`]; without it, [`store::MemoryStore`] and your own stores |
//! | `redis-cluster` | no | `redis+cluster://` URLs: leases on a Redis Cluster |
//! | `redis-quorum` | no | `store::QuorumStore`: locks on a majority of independent Redis servers |
//! | `redis-tls` | no | `rediss://` URLs, by rustls with the platform's root certificates |
//! | `serde` | no | `LockConfig`: URLs and options from a configuration; `Serialize` and `Deserialize` for [`LockOptions`] and [`Wait`], with durations such as `"10s"` |
//! | `metrics` | no | counts and measures for the recorder of the crate `metrics`, see [Metrics](#metrics) |
//! | `uuid` | no | [`KeyPart`] for `uuid::Uuid` |
//! | `test-util` | no | `testing`: for tests of stores and of code that locks; leases follow a paused tokio clock, which is refused without it |
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(doc)]
pub mod _design;
mod activity;
mod backoff;
mod client;
#[cfg(feature = "serde")]
mod config;
mod driver;
mod error;
pub mod fencing;
#[cfg(any(doc, doctest))]
pub mod guide;
mod held;
mod key;
mod lease;
mod lock;
mod metrics;
mod options;
#[doc(hidden)]
pub mod private;
mod probe;
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

pub use self::activity::{Activity, HeldLock, Loss, WaitingTasks};
pub use self::client::{
    Drained, LockClient, LockClientBuilder, LockEntry, LockInfo, LockList, OwnerInfo, Shutdown,
};
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
pub use self::config::LockConfig;
pub use self::error::{ConfigError, Error, ErrorKind, LostReason};
pub use self::fencing::FencingToken;
pub use self::held::{Lease, assert_locked, current};
pub use self::key::{IntoKey, Key, KeyPart, KeyWriter};
pub use self::lease::Released;
pub use self::lock::{Mutex, MutexGuard, RunUntilLost};
pub use self::options::{LockOptions, Wait};
#[cfg(feature = "macros")]
pub use lock_macros::{KeyPart, distributed_lock, key};
