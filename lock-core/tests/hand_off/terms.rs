//! Hand-offs between holders with different options.

use super::*;

/// The next task enters before `min_hold` is over.
#[tokio::test(start_paused = true)]
async fn lock_under_min_hold_is_not_handed_on() {
    let (store, client) = fixture();
    let hold = Duration::from_secs(3);
    let guard = client.mutex("k").with_min_hold(hold).lock().await.unwrap();
    let mut next = waiter(&client, LockOptions::new()).await;
    let start = tokio::time::Instant::now();
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    let next = next.as_mut().await.unwrap();
    assert!(start.elapsed() >= hold, "{:?}", start.elapsed());
    drop(next);

    // A waiter with `min_hold` can take a handed lock, and keeps the key that long itself.
    let guard = client.mutex("k").lock().await.unwrap();
    let mut job = waiter(&client, LockOptions::new().with_min_hold(hold)).await;
    drop(guard);
    drop(handed(&mut job));
    let start = tokio::time::Instant::now();
    drop(client.mutex("k").lock().await.unwrap());
    assert!(start.elapsed() + BUDGET >= hold, "{:?}", start.elapsed());
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn each_holder_has_its_own_max_hold() {
    let (store, client) = fixture();
    let ms = Duration::from_millis;
    let guard = client.mutex("k").with_max_hold(ms(3)).lock().await.unwrap();
    let mut second = waiter(&client, LockOptions::new()).await;
    let mut third = waiter(&client, LockOptions::new().with_max_hold(ms(50))).await;
    advance(ms(2)).await;
    drop(guard);
    let guard = handed(&mut second);
    advance(ms(2)).await;
    assert!(
        guard.is_valid() && guard.remaining() > TTL / 2,
        "the first holder's bound no longer counts"
    );
    drop(guard);
    let guard = handed(&mut third);
    let left = guard.remaining();
    assert!(left <= ms(50) && left > ms(48), "{left:?}");
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn handed_lease_is_lengthened_to_a_longer_ttl_and_not_cut_to_a_shorter() {
    let short = LockOptions::new().with_ttl(Duration::from_secs(1));
    for next in [
        LockOptions::new().with_ttl(TTL * 6),
        LockOptions::new().with_ttl(TTL * 6).without_renewal(),
    ] {
        let (store, client) = fixture();
        let guard = client.mutex("k").with_options(short).lock().await.unwrap();
        let mut long = waiter(&client, next).await;
        drop(guard);
        let guard = handed(&mut long);
        assert!(guard.remaining() < Duration::from_secs(1));
        tokio::time::sleep(SOON).await;
        assert_eq!(store.renewals(), 1, "lengthened soon");
        assert!(guard.remaining() > TTL * 5, "{:?}", guard.remaining());
        let start = tokio::time::Instant::now();
        if next.renewal() == Some(false) {
            assert_eq!(guard.lost().await, LostReason::Expired);
            assert!(start.elapsed() > TTL * 5 && start.elapsed() < TTL * 6);
            assert_eq!(store.renewals(), 1, "once");
        } else {
            tokio::time::sleep(TTL * 20).await;
            assert!(guard.is_valid());
        }
        drop(guard);
        nothing_is_left(&store, &client).await;
    }
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let mut next = waiter(&client, short).await;
    drop(guard);
    let guard = handed(&mut next);
    assert!(guard.remaining() > Duration::from_secs(9));
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_valid());
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn failed_lengthening_is_retried_until_the_deadline() {
    let (store, client) = fixture();
    let short = LockOptions::new().with_ttl(Duration::from_secs(1));
    let fixed = LockOptions::new().without_renewal();
    let guard = client.mutex("k").with_options(short).lock().await.unwrap();
    let mut next = waiter(&client, fixed).await;
    store.set(|gates| gates.renew = Gate::Refused);
    drop(guard);
    let guard = handed(&mut next);
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(store.renewals() > 1 && guard.is_valid());
    store.set(|gates| gates.renew = Gate::Open);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(guard.remaining() > TTL * 9 / 10, "{:?}", guard.remaining());
    drop(guard);

    let guard = client.mutex("k").with_options(short).lock().await.unwrap();
    let mut next = waiter(&client, fixed).await;
    store.set(|gates| gates.renew = Gate::Never);
    drop(guard);
    let guard = handed(&mut next);
    let start = tokio::time::Instant::now();
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(start.elapsed() <= Duration::from_secs(1));
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn hand_offs_at_the_same_ttl_cost_no_renewal() {
    let (store, client) = fixture();
    for options in [LockOptions::new(), LockOptions::new().without_renewal()] {
        let mut guard = client.mutex("k").with_options(options).lock().await.unwrap();
        for _ in 0..40 {
            let mut next = waiter(&client, options).await;
            advance(Duration::from_micros(100)).await;
            drop(guard);
            guard = handed(&mut next);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(store.renewals(), 0);
        drop(guard);
        wait_idle(&client).await;
    }
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn short_rest_of_a_lease_is_not_handed_on() {
    let (store, client) = fixture();
    let tiny = LockOptions::new().with_ttl(Duration::from_millis(100)).without_renewal();
    let guard = client.mutex("k").with_options(tiny).lock().await.unwrap();
    // A waiter with the same ttl would take the lease, but not one with a hundred times as much.
    let mut next = waiter(&client, LockOptions::new()).await;
    drop(guard);
    let next = next.as_mut().await.unwrap();
    assert_eq!(parts(next.fencing_token()).1, 0);
    assert!(next.remaining() > TTL / 2);
    drop(next);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn holders_with_and_without_fencing_share_a_queue() {
    let (store, client) = fixture();
    let plain = LockOptions::new().without_fencing();
    let zero = FencingToken::from_raw(0);

    // Between two holders without fencing.
    let guard = client.mutex("k").with_options(plain).lock().await.unwrap();
    assert_eq!(guard.fencing_token(), zero);
    let mut next = waiter(&client, plain).await;
    let mut fenced = waiter(&client, LockOptions::new()).await;
    let mut last = waiter(&client, plain).await;
    drop(guard);
    let guard = handed(&mut next);
    assert_eq!(guard.fencing_token(), zero);

    // A waiter that needs a number gets it from the store.
    drop(guard);
    let guard = fenced.as_mut().await.unwrap();
    assert!(guard.fencing_token() > zero);
    assert_eq!(parts(guard.fencing_token()).1, 0);

    // A holder without fencing has no number; the waiters behind it have larger ones.
    let mut behind = waiter(&client, LockOptions::new()).await;
    let before = guard.fencing_token();
    drop(guard);
    let guard = handed(&mut last);
    assert_eq!(guard.fencing_token(), zero);
    drop(guard);
    let guard = handed(&mut behind);
    assert_eq!(parts(guard.fencing_token()), (parts(before).0, 2));
    drop(guard);
    nothing_is_left(&store, &client).await;
}
