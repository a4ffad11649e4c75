//! The tests that every store passes.
//!
//! Write [`conformance_tests!`](crate::conformance_tests) in an integration test; it makes one test
//! of each function here. A test of an optional behaviour passes if the store's capabilities do not
//! include it.

// A test fails by panicking.
#![allow(clippy::missing_panics_doc)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::store::{
    AcquireContext, Capabilities, Claim, Name, Owner, Release, Released, Renewal, Renewed, Store,
    Token, WaitEvent,
};
use crate::time::Instant;
use crate::{Key, LockClient};

/// Makes one test of each function of [`testing::conformance`](crate::testing::conformance).
///
/// The argument is an `async fn` that returns a store, and a value that is kept as long as the
/// store. Names are not reused, so tests may share a store. The attributes of the tests come first.
///
/// ```no_run
/// mod memory {
///     async fn store() -> (lock_core::store::MemoryStore, ()) {
///         (lock_core::store::MemoryStore::new(), ())
///     }
///     lock_core::conformance_tests!(#[tokio::test(start_paused = true)] store);
/// }
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($(#[$attr:meta])+ $store:path) => {
        $crate::conformance_tests!(@each [$(#[$attr])+] $store:
            dropped_wait_leaves_nothing
            repeated_claim_is_granted_and_never_shortens
            held_lock_is_granted_to_no_other_token
            name_stays_taken_until_its_hold_ends
            expired_lock_is_granted_to_another
            release_frees_the_lock_and_a_repeat_does_nothing
            renewal_never_creates_or_steals
            renewal_never_shortens
            wait_ends_in_busy_at_its_time
            waiter_gets_the_released_lock
            fencing_numbers_grow
            names_are_independent
            only_the_holder_releases
            owner_is_shown_and_can_be_replaced_by_force
            waiters_are_served_in_order_of_arrival
            one_holder_at_a_time_and_no_update_is_lost
        );
    };
    (@each $attrs:tt $store:path: $($name:ident)+) => {
        $( $crate::conformance_tests!(@one $attrs $store, $name); )+
    };
    (@one [$(#[$attr:meta])+] $store:path, $name:ident) => {
        $(#[$attr])+
        async fn $name() {
            let (store, _keep) = $store().await;
            let store: ::std::sync::Arc<dyn $crate::store::Store> = ::std::sync::Arc::new(store);
            $crate::testing::conformance::$name(store).await;
        }
    };
}

type AnyStore = Arc<dyn Store>;

const TTL: Duration = Duration::from_secs(5);
/// The shortest ttl that is safe on a loaded machine.
const SHORT_TTL: Duration = Duration::from_millis(300);
/// Longer than a store on a loaded machine takes to listen for the first waiter's turn.
const BETWEEN_ARRIVALS: Duration = Duration::from_millis(100);
/// Longer than any expected event takes.
const PATIENCE: Duration = Duration::from_secs(10);

fn name() -> Name {
    let mut text = [0; Token::TEXT_LEN];
    let unique = token().encode(&mut text).to_owned();
    Name::new(Some("conformance"), &Key::new(unique).expect("a valid key")).expect("a valid name")
}

fn token() -> Token {
    Token::fresh().expect("randomness")
}

fn claim(name: &Name, ttl: Duration) -> Claim {
    Claim::new(name.clone(), token(), ttl)
}

fn release(claim: &Claim) -> Release {
    Release::new(claim.name.clone(), claim.token, None)
}

fn renewal(claim: &Claim, ttl: Duration) -> Renewal {
    let until = Instant::now().saturating_add(PATIENCE);
    Renewal::new(claim.name.clone(), claim.token, ttl, until)
}

async fn granted(store: &AnyStore, claim: &Claim) -> u64 {
    let sent = Instant::now();
    let grant = store.try_acquire(claim).await.expect("the lock is free");
    assert!(grant.since >= sent, "the lease counts from before the claim");
    assert!(grant.since <= Instant::now(), "the lease counts from the future");
    assert!(grant.ttl <= claim.ttl, "the grant is longer than the claim");
    grant.number
}

async fn busy(store: &AnyStore, claim: &Claim) {
    let refusal = store.try_acquire(claim).await.expect_err("the lock is taken");
    assert!(refusal.error.is_busy(), "{:?}", refusal.error);
    if !refusal.definite {
        // Something of the claim may be on its way until the client releases the token.
        store.release(&release(claim)).await.expect("the store answers");
    }
}

async fn released(store: &AnyStore, release: &Release, expected: Released) {
    let reply = store.release(release).await.expect("the store answers");
    assert_eq!(reply.released, expected);
    assert!(reply.retry_at.is_none(), "all claims of the token got a reply");
}

async fn renewed(store: &AnyStore, renewal: &Renewal) -> Renewed {
    let answers = store.renew(std::slice::from_ref(renewal)).await;
    assert_eq!(answers.len(), 1);
    answers.into_iter().next().expect("one answer").expect("the store answers")
}

/// Waits until `claim` is granted; returns the grant number and the time.
async fn granted_at_last(store: &AnyStore, claim: &Claim) -> (u64, Instant) {
    let give_up = Instant::now().saturating_add(PATIENCE);
    loop {
        match store.try_acquire(claim).await {
            Ok(grant) => return (grant.number, Instant::now()),
            Err(refusal) => assert!(refusal.error.is_busy(), "{:?}", refusal.error),
        }
        assert!(Instant::now() < give_up, "never granted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails if a second claim is granted while the lock is held.
pub async fn held_lock_is_granted_to_no_other_token(store: AnyStore) {
    let name = name();
    let (one, two) = (claim(&name, TTL), claim(&name, TTL));
    granted(&store, &one).await;
    busy(&store, &two).await;
    released(&store, &release(&one), Released::InTime).await;
    granted(&store, &two).await;
    released(&store, &release(&two), Released::InTime).await;
}

/// Fails if a claim that is delivered twice waits for itself, or shortens the lease.
pub async fn repeated_claim_is_granted_and_never_shortens(store: AnyStore) {
    let name = name();
    let long = claim(&name, TTL);
    let short = Claim::new(name.clone(), long.token, SHORT_TTL);
    granted(&store, &short).await;
    granted(&store, &long).await;
    granted(&store, &short).await;
    tokio::time::sleep(SHORT_TTL * 2).await;
    busy(&store, &claim(&name, TTL)).await;
    released(&store, &release(&long), Released::InTime).await;
}

/// Fails if a release does not free the lock, or a repeated one frees the lock of the next holder.
pub async fn release_frees_the_lock_and_a_repeat_does_nothing(store: AnyStore) {
    let name = name();
    let (one, two) = (claim(&name, TTL), claim(&name, TTL));
    granted(&store, &one).await;
    released(&store, &release(&one), Released::InTime).await;
    released(&store, &release(&one), Released::Expired).await;
    granted(&store, &two).await;
    released(&store, &release(&one), Released::TakenByOther).await;
    busy(&store, &claim(&name, TTL)).await;
    released(&store, &release(&two), Released::InTime).await;
}

/// Fails if a token that does not hold the lock releases it.
pub async fn only_the_holder_releases(store: AnyStore) {
    let name = name();
    let (one, two) = (claim(&name, TTL), claim(&name, TTL));
    released(&store, &release(&one), Released::Expired).await;
    granted(&store, &one).await;
    released(&store, &release(&two), Released::TakenByOther).await;
    assert!(matches!(renewed(&store, &renewal(&one, TTL)).await, Renewed::Kept { .. }));
    released(&store, &release(&one), Released::InTime).await;
}

/// Fails if a renewal of a token that does not hold the lock creates it or takes it from its
/// holder.
pub async fn renewal_never_creates_or_steals(store: AnyStore) {
    let name = name();
    let (one, two) = (claim(&name, TTL), claim(&name, TTL));
    assert_eq!(renewed(&store, &renewal(&one, TTL)).await, Renewed::Gone);
    granted(&store, &two).await;
    assert_eq!(renewed(&store, &renewal(&one, TTL)).await, Renewed::TakenByOther);
    released(&store, &release(&two), Released::InTime).await;
    assert_eq!(renewed(&store, &renewal(&two, TTL)).await, Renewed::Gone);
    granted(&store, &one).await;
    released(&store, &release(&one), Released::InTime).await;
}

/// Fails if a shorter renewal after a longer one moves the expiry back.
pub async fn renewal_never_shortens(store: AnyStore) {
    let name = name();
    let one = claim(&name, SHORT_TTL);
    granted(&store, &one).await;
    let sent = Instant::now();
    let Renewed::Kept { since } = renewed(&store, &renewal(&one, TTL)).await else {
        panic!("the token holds the lock")
    };
    assert!(since >= sent && since <= Instant::now());
    assert!(matches!(renewed(&store, &renewal(&one, SHORT_TTL)).await, Renewed::Kept { .. }));
    tokio::time::sleep(SHORT_TTL * 2).await;
    busy(&store, &claim(&name, TTL)).await;
    released(&store, &release(&one), Released::InTime).await;
}

/// Fails if a lease that is not renewed ends before its ttl, or long after it.
pub async fn expired_lock_is_granted_to_another(store: AnyStore) {
    let name = name();
    let (one, two) = (claim(&name, SHORT_TTL), claim(&name, TTL));
    let sent = Instant::now();
    let first = granted(&store, &one).await;
    let (second, at) = granted_at_last(&store, &two).await;
    // One percent and two milliseconds is the difference that clients allow for.
    let allowed = (SHORT_TTL * 99 / 100).saturating_sub(Duration::from_millis(2));
    assert!(at.saturating_since(sent) >= allowed);
    assert!(second > first || !store.capabilities().fencing);
    assert_eq!(renewed(&store, &renewal(&one, TTL)).await, Renewed::TakenByOther);
    released(&store, &release(&one), Released::TakenByOther).await;
    released(&store, &release(&two), Released::InTime).await;
}

/// Fails if a grant's number is not larger than that of a grant, of any name, that completed before
/// it.
pub async fn fencing_numbers_grow(store: AnyStore) {
    if !store.capabilities().fencing {
        return;
    }
    let names = [name(), name()];
    let mut last = 0;
    for round in 0..20 {
        let claim = claim(&names[round % 2], TTL);
        let number = granted(&store, &claim).await;
        assert!(number > last, "{number} after {last}");
        assert!(number < 1 << 53, "room for hand-offs, and exact in a double");
        last = number;
        released(&store, &release(&claim), Released::InTime).await;
    }
}

/// Fails if the lock of one name affects that of another.
pub async fn names_are_independent(store: AnyStore) {
    let (one, two) = (claim(&name(), TTL), claim(&name(), TTL));
    granted(&store, &one).await;
    granted(&store, &two).await;
    released(&store, &release(&one), Released::InTime).await;
    busy(&store, &claim(&two.name, TTL)).await;
    released(&store, &release(&two), Released::InTime).await;
}

/// Fails if a release with a hold frees the name before the hold ends, or the token still counts
/// meanwhile.
pub async fn name_stays_taken_until_its_hold_ends(store: AnyStore) {
    let name = name();
    let (one, two) = (claim(&name, TTL), claim(&name, TTL));
    granted(&store, &one).await;
    let until = Instant::now().saturating_add(SHORT_TTL * 2);
    let hold = Release::new(name.clone(), one.token, Some(until));
    released(&store, &hold, Released::InTime).await;
    // Late messages of the token neither revive nor end it.
    assert_eq!(renewed(&store, &renewal(&one, TTL)).await, Renewed::TakenByOther);
    busy(&store, &one).await;
    released(&store, &hold, Released::InTime).await;
    busy(&store, &two).await;
    let (_, at) = granted_at_last(&store, &two).await;
    assert!(at.saturating_add(Duration::from_millis(10)) >= until, "the hold ended early");
    assert!(at.saturating_since(until) < PATIENCE / 2, "the hold was lengthened");
    released(&store, &release(&two), Released::InTime).await;
}

/// Fails if a claim that waits returns "busy" before its time is over, or later.
pub async fn wait_ends_in_busy_at_its_time(store: AnyStore) {
    let name = name();
    let (one, two) = (claim(&name, TTL), claim(&name, TTL));
    granted(&store, &one).await;
    let until = Instant::now().saturating_add(SHORT_TTL);
    let reports = Mutex::new(Vec::new());
    let listener = |progress| reports.lock().expect("no panic").push(progress);
    let context = AcquireContext::new(Some(until), &listener);
    let refusal = store.acquire(&two, &context).await.expect_err("the lock is taken");
    assert!(refusal.error.is_busy(), "{:?}", refusal.error);
    assert!(Instant::now() >= until);
    if !refusal.definite {
        // It may have a place in a queue until the client releases the token.
        released(&store, &release(&two), Released::TakenByOther).await;
    }
    let reports = reports.into_inner().expect("no panic");
    assert!(matches!(reports.first(), Some(WaitEvent::Busy(_))), "{reports:?}");
    released(&store, &release(&one), Released::InTime).await;
}

/// Fails if the store names another owner than the holder, if a release by force leaves the lock
/// with its holder or passes over a waiter, or if the former holder's token still counts. A store
/// that [cannot tell](Store::inspector) passes.
pub async fn owner_is_shown_and_can_be_replaced_by_force(store: AnyStore) {
    let Some(inspector) = store.inspector() else { return };
    let name = name();
    let record = async || inspector.inspect(&name).await.expect("the store answers");
    let take = async |owner: &Owner| {
        inspector.force_release(&name, owner).await.expect("the store answers")
    };
    assert!(record().await.owner.is_none(), "the lock is free");

    let (one, two) = (claim(&name, TTL), claim(&name, TTL));
    let number = granted(&store, &one).await;
    let found = record().await;
    let owner = found.owner.expect("the lock is held");
    assert_eq!((owner.token, owner.is_released), (Some(one.token), false));
    assert!(owner.left.is_some_and(|left| left <= TTL), "{:?} left of {TTL:?}", owner.left);
    assert!(found.latest_number >= number, "{} for {number}", found.latest_number);
    assert!(found.waiting.is_none_or(|waiting| waiting == 0));

    let until = Instant::now().saturating_add(PATIENCE);
    let context = AcquireContext::new(Some(until), &|_| {});
    let force = async {
        // Until the second claim waits, if the store can tell.
        while found.waiting.is_some() && record().await.waiting == Some(0) {
            tokio::time::sleep(SHORT_TTL / 10).await;
        }
        assert!(take(&owner).await, "it has the lock");
    };
    let (grant, ()) = tokio::join!(store.acquire(&two, &context), force);
    grant.expect("the waiter gets it");
    assert!(!take(&owner).await, "a repeat takes the lock from no other owner");
    assert_eq!(record().await.owner.and_then(|owner| owner.token), Some(two.token));
    assert_eq!(renewed(&store, &renewal(&one, TTL)).await, Renewed::TakenByOther);
    released(&store, &release(&one), Released::TakenByOther).await;

    let hold = Instant::now().saturating_add(TTL);
    released(&store, &Release::new(name.clone(), two.token, Some(hold)), Released::InTime).await;
    let kept = record().await.owner.expect("the lock is kept");
    assert!(kept.is_released && kept.token == Some(two.token));
    assert!(!take(&Owner::new(two.token, None, false)).await, "it has released the lock");
    assert!(take(&kept).await);
    assert!(record().await.owner.is_none(), "no hold outlives a release by force");
}

/// Fails if a claim that waits is not granted when the holder releases.
pub async fn waiter_gets_the_released_lock(store: AnyStore) {
    let name = name();
    let (one, two) = (claim(&name, TTL), claim(&name, TTL));
    let first = granted(&store, &one).await;
    let until = Instant::now().saturating_add(PATIENCE);
    let wait = async {
        store
            .acquire(&two, &AcquireContext::new(Some(until), &|_| {}))
            .await
            .expect("granted in time")
    };
    let free = async {
        tokio::time::sleep(SHORT_TTL).await;
        released(&store, &release(&one), Released::InTime).await;
    };
    let (grant, ()) = tokio::join!(wait, free);
    assert!(grant.number > first || !store.capabilities().fencing);
    busy(&store, &claim(&name, TTL)).await;
    released(&store, &release(&two), Released::InTime).await;
}

/// Fails if a wait that is dropped at some moment still holds the lock after its token was
/// released.
pub async fn dropped_wait_leaves_nothing(store: AnyStore) {
    let name = name();
    for moment in [0, 1, 5, 30, 100] {
        let (one, two) = (claim(&name, TTL), claim(&name, TTL));
        granted(&store, &one).await;
        let until = Instant::now().saturating_add(PATIENCE);
        let listener = |_| {};
        let context = AcquireContext::new(Some(until), &listener);
        let dropped =
            tokio::time::timeout(Duration::from_millis(moment), store.acquire(&two, &context));
        let free = async {
            tokio::time::sleep(Duration::from_millis(moment.saturating_sub(1))).await;
            store.release(&release(&one)).await.expect("the store answers");
        };
        // The grant and the drop may come in either order.
        drop(tokio::join!(dropped, free));
        loop {
            let reply = store.release(&release(&two)).await.expect("the store answers");
            let Some(again) = reply.retry_at else { break };
            crate::time::sleep_until(again).await;
        }
        let next = claim(&name, TTL);
        granted(&store, &next).await;
        released(&store, &release(&next), Released::InTime).await;
    }
}

/// Fails if a store that says it is fair serves waiters in another order than that of arrival.
pub async fn waiters_are_served_in_order_of_arrival(store: AnyStore) {
    let Capabilities { fair: true, .. } = store.capabilities() else { return };
    let name = name();
    let first = claim(&name, TTL);
    granted(&store, &first).await;
    let order = Mutex::new(Vec::new());
    let until = Instant::now().saturating_add(PATIENCE);
    let waiters = (0..10u64).map(|waiter| {
        let (store, order, claim) = (&store, &order, claim(&name, TTL));
        async move {
            tokio::time::sleep(BETWEEN_ARRIVALS * u32::try_from(waiter).unwrap_or(0)).await;
            let context = AcquireContext::new(Some(until), &|_| {});
            store.acquire(&claim, &context).await.expect("granted in time");
            order.lock().expect("no panic").push(waiter);
            released(store, &release(&claim), Released::InTime).await;
        }
    });
    let free = async {
        tokio::time::sleep(BETWEEN_ARRIVALS * 11).await;
        released(&store, &release(&first), Released::InTime).await;
    };
    tokio::join!(futures_util::future::join_all(waiters), free);
    assert_eq!(order.into_inner().expect("no panic"), (0..10).collect::<Vec<_>>());
}

/// Fails if, with many tasks on two clients, two hold the lock at once, an update is lost, or
/// something is left behind.
pub async fn one_holder_at_a_time_and_no_update_is_lost(store: AnyStore) {
    let key = name().as_str().replace(':', "-");
    let clients = [(); 2].map(|()| {
        LockClient::builder(Arc::clone(&store))
            .with_namespace("conformance")
            .build()
            .expect("a valid client")
    });
    // A read, an await and a write: two at once would lose an update.
    let value = Mutex::new(0);
    let last = Mutex::new(None);
    let tasks = (0..20).map(|task| {
        let (mutex, value, last) = (clients[task % 2].mutex(&key), &value, &last);
        async move {
            let mutex = mutex.with_wait(PATIENCE * 6);
            mutex
                .run(async |lease| {
                    let read = *value.lock().expect("no panic");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    *value.lock().expect("no panic") = read + 1;
                    let fence = Some(lease.fencing_token());
                    let before = std::mem::replace(&mut *last.lock().expect("no panic"), fence);
                    assert!(before < fence, "{before:?} before {fence:?}");
                })
                .await
                .expect("granted in time");
        }
    });
    futures_util::future::join_all(tasks).await;
    assert_eq!(*value.lock().expect("no panic"), 20);
    for client in &clients {
        super::wait_idle(client).await;
        assert!(super::ClientStats::of(client).is_idle());
    }
}
