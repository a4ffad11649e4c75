//! Locks on a majority of independent servers: servers that die, stop, are slow, refuse or forget,
//! and messages that are lost, late or doubled. Tests cite the public reports.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod cancellation;
mod contention;
mod credentials;
mod forgetting;
mod loss;
mod members;
mod messages;
mod metrics;
mod numbers;
mod operator;
mod refusals;
mod stores;
mod tls;

use std::time::{Duration, Instant};

use lock_core::store::QuorumStore;
use lock_core::{LockClient, LockOptions, MutexGuard};
use lock_testkit::{Quorum, eventually, ms};

/// The shortest that is allowed.
const RESTART_DELAY: Duration = ms(3_000);
const TTL: Duration = ms(2_000);
/// Of a lease that outlives the redial of all connections at once, on a loaded machine.
const LONG_TTL: Duration = ms(9_000);
/// Longer than any expected event takes.
const BOUND: Duration = ms(10_000);
/// How long a patient client gives a member to answer. What waits for one that does not answer
/// takes so long, and what does not wait takes less than half of it, also on a loaded machine.
const TIMEOUT: Duration = ms(2_000);

/// A client of all members.
async fn client(quorum: &Quorum) -> LockClient {
    let store = QuorumStore::builder(quorum.urls()).with_restart_delay(RESTART_DELAY);
    on(store.connect().await.unwrap())
}

/// The same, which gives a live member on a loaded machine the time to answer. Dead ones refuse at
/// once.
async fn patient_client(quorum: &Quorum) -> LockClient {
    let store = QuorumStore::builder(quorum.urls()).with_restart_delay(RESTART_DELAY);
    on(store.with_request_timeout(TIMEOUT).connect().await.unwrap())
}

/// A client with short leases, and waits that end within the bounds of tests.
fn on(store: QuorumStore) -> LockClient {
    LockClient::builder(store).with_defaults(defaults()).build().unwrap()
}

fn defaults() -> LockOptions {
    LockOptions::new().with_ttl(TTL).with_wait(BOUND)
}

/// Takes another lock: what is sent to a member whose connection is gone has it dialled.
async fn other_lock(client: &LockClient) {
    client.mutex("other").lock().await.unwrap().release().await.unwrap();
}

/// Waits until a lease is renewed, from now on.
async fn renewed(guard: &MutexGuard) {
    let ends = || Instant::now() + guard.remaining();
    let before = ends();
    eventually("a renewal", BOUND, || ends() > before + ms(500)).await;
}
