//! Turns that are left to clients of other libraries. No such client uses a store in memory, so
//! here none takes them.

use super::*;

/// How long a turn is left.
const TURN: Duration = Duration::from_millis(250);
/// After a turn that no client took, none is left for this long.
const PAUSE: Duration = Duration::from_secs(1);
/// More than polling adds to a turn.
const MORE: Duration = Duration::from_millis(20);

fn sharing() -> LockOptions {
    LockOptions::new().with_turns_for_others()
}

/// Has the lock this often: the second release leaves a turn.
async fn sections(count: u32, client: &LockClient) {
    for _ in 0..count {
        let guard = client.mutex("k").with_options(sharing()).lock().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    }
}

#[tokio::test(start_paused = true)]
async fn every_third_turn_is_left_and_the_next_after_a_pause_if_no_client_took_it() {
    let (store, client) = fixture();
    let other = super::client(&store);
    sections(2, &client).await;
    // The key is free, and this process stays away from it.
    let start = tokio::time::Instant::now();
    let mut lock = waiter(&client, sharing()).await;
    assert!(client.mutex("k").with_options(sharing()).try_lock().await.unwrap().is_none());
    advance(MORE).await;
    assert!(other.mutex("k").try_lock().await.unwrap().is_some(), "it is free for others");
    drop(lock.as_mut().await.unwrap());
    let took = start.elapsed();
    assert!(took < TURN, "it goes on when another has had its turn: {took:?}");

    sections(1, &client).await;
    let start = tokio::time::Instant::now();
    drop(client.mutex("k").with_options(sharing()).lock().await.unwrap());
    let took = start.elapsed();
    assert!(TURN <= took && took < TURN + MORE, "{took:?}");
    let start = tokio::time::Instant::now();
    while start.elapsed() + MORE < PAUSE {
        sections(2, &client).await;
        advance(Duration::from_millis(1)).await;
    }
    assert!(start.elapsed() < PAUSE, "no turn is left during the pause");
    nothing_is_left(&store, &client).await;
}

/// The tasks of a process hand the lock on in memory, and no client outside ever finds it free.
#[tokio::test(start_paused = true)]
async fn hand_off_in_memory_ends_for_a_turn_of_others() {
    let (store, client) = fixture();
    let first = client.mutex("k").with_options(sharing()).lock().await.unwrap();
    let mut second = waiter(&client, sharing()).await;
    let mut third = waiter(&client, sharing()).await;
    drop(first);
    drop(handed(&mut second));
    assert!(poll!(&mut third).is_pending(), "it is handed nothing");
    let start = tokio::time::Instant::now();
    drop(third.as_mut().await.unwrap());
    assert!(start.elapsed() + MORE >= TURN, "{:?}", start.elapsed());
    nothing_is_left(&store, &client).await;
}

/// The first waiter stays away, and the client drains or drops it.
#[tokio::test(start_paused = true)]
async fn waiter_that_stays_away_can_be_dropped_and_drained() {
    let (store, client) = fixture();
    sections(2, &client).await;
    let lock = waiter(&client, sharing()).await;
    let mut next = waiter(&client, sharing()).await;
    drop(lock);
    let start = tokio::time::Instant::now();
    drop(next.as_mut().await.unwrap());
    assert!(start.elapsed() <= TURN + MORE, "{:?}", start.elapsed());
    advance(PAUSE).await;
    sections(1, &client).await;
    let mut lock = waiter(&client, sharing()).await;
    let drained = client.drain(TURN);
    let (drained, refused) = tokio::join!(drained, lock.as_mut());
    assert!(drained.is_clean(), "{drained:?}");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Draining);
    // The release keeps the key for a moment.
    advance(MORE).await;
    nothing_is_left(&store, &client).await;
}

/// Who waits for less than the turn claims at the end of the wait, not never.
#[tokio::test(start_paused = true)]
async fn short_wait_gets_the_lock_if_no_client_takes_the_turn_meanwhile() {
    let (store, client) = fixture();
    sections(2, &client).await;
    let wait = Duration::from_millis(100);
    let start = tokio::time::Instant::now();
    drop(client.mutex("k").with_options(sharing().with_wait(wait)).lock().await.unwrap());
    let took = start.elapsed();
    assert!(wait <= took && took < wait + MORE, "{took:?}");
    nothing_is_left(&store, &client).await;
}
