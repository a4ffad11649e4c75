//! A lock that goes back to the store: this process claims it again right behind the release.

use lock_core::store::{
    AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, Grant, Release, ReleaseReply,
    Renewal, Renewed, Store,
};

use super::*;

/// Records the calls in the order of their first polls, and grants no more than [`SHORT`] at first,
/// as a store that hands the lock between processes.
#[derive(Clone, Debug)]
struct Recorder {
    inner: GatedStore<MemoryStore>,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

const SHORT: Duration = Duration::from_secs(3);

impl Recorder {
    fn note<'a, T>(&self, call: &'static str, reply: BoxFuture<'a, T>) -> BoxFuture<'a, T>
    where
        T: 'a,
    {
        let calls = Arc::clone(&self.calls);
        Box::pin(async move {
            calls.lock().unwrap().push(call);
            reply.await
        })
    }
}

impl Store for Recorder {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        self.note("claim", self.inner.try_acquire(claim))
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        waiting: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        let call = if claim.fencing { "claim" } else { "plain claim" };
        self.note(
            call,
            Box::pin(async move {
                let mut short = claim.clone();
                short.ttl = short.ttl.min(SHORT);
                self.inner.acquire(&short, waiting).await
            }),
        )
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        self.note("renewal", self.inner.renew(renewals))
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        self.note("release", self.inner.release(release))
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

impl std::fmt::Display for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("recorder")
    }
}

fn recorded(store: &GatedStore<MemoryStore>) -> (Recorder, LockClient) {
    let recorder = Recorder { inner: store.clone(), calls: Arc::default() };
    let options = LockOptions::new().with_ttl(TTL).wait_forever();
    let client = LockClient::builder(recorder.clone()).with_defaults(options).build().unwrap();
    (recorder, client)
}

#[tokio::test(start_paused = true)]
async fn next_claim_follows_the_release_without_waiting_for_its_reply() {
    for awaited in [false, true] {
        let (store, _) = fixture();
        let (recorder, client) = recorded(&store);
        let guard = client.mutex("k").lock().await.unwrap();
        let runtime = tokio::runtime::Handle::current();
        let next = runtime.spawn(client.mutex("k").lock());
        tokio::time::sleep(BUDGET).await;

        store.set(|gates| gates.release = Gate::Slow(Duration::from_secs(1)));
        let start = tokio::time::Instant::now();
        if awaited {
            let release = runtime.spawn(guard.release());
            tokio::task::yield_now().await;
            assert!(!release.is_finished());
        } else {
            drop(guard);
        }
        // Both are sent long before the first has a reply.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(*recorder.calls.lock().unwrap(), ["claim", "release", "claim"]);
        assert_eq!(ClientStats::of(&client).pending, 1);
        let guard = next.await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        store.set(|gates| gates.release = Gate::Open);
        drop(guard);
        nothing_is_left(&store, &client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_that_gives_up_behind_a_release_returns_the_last_known_status() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    store.set(|gates| (gates.release, gates.acquire) = (Gate::Never, Gate::Never));
    drop(guard);
    // The first claims behind the release and gets no reply; the second knows the lock's last
    // holder only.
    let soon = Duration::from_millis(100);
    let first = client.mutex("k").with_wait(soon * 2).lock();
    let second = client.mutex("k").with_wait(soon).lock();
    let (first, second) = tokio::join!(first, second);
    assert!(first.unwrap_err().is_unknown());
    assert!(second.unwrap_err().is_busy());
    // When the last holder is long gone, no waiter returns "busy" because of it.
    let late = client.mutex("k").with_wait(soon * 20).lock();
    let behind = client.mutex("k").with_wait(soon * 19).lock();
    let (late, behind) = tokio::join!(late, behind);
    assert!(late.unwrap_err().is_unknown());
    assert!(behind.unwrap_err().is_unknown());
    drop(store);
}

#[tokio::test(start_paused = true)]
async fn lease_without_renewal_that_was_granted_short_is_lengthened_once() {
    let (store, _) = fixture();
    let (recorder, client) = recorded(&store);
    let guard = client.mutex("k").without_renewal().lock().await.unwrap();
    assert!(guard.remaining() <= SHORT);
    let start = tokio::time::Instant::now();
    tokio::time::sleep(SOON).await;
    assert!(guard.remaining() > TTL * 9 / 10, "{:?}", guard.remaining());
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(start.elapsed() > TTL * 9 / 10 && start.elapsed() < TTL);
    assert_eq!(*recorder.calls.lock().unwrap(), ["claim", "renewal"]);
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn lease_that_was_granted_short_is_lengthened_unless_the_section_is_short() {
    let (store, _) = fixture();
    let (recorder, client) = recorded(&store);
    let guard = client.mutex("k").lock().await.unwrap();
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert_eq!(*recorder.calls.lock().unwrap(), ["claim"]);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(*recorder.calls.lock().unwrap(), ["claim", "renewal"]);
    assert!(guard.remaining() > SHORT);
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.is_valid());
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn mutex_without_fencing_requests_no_number() {
    let (store, _) = fixture();
    let (recorder, client) = recorded(&store);
    let plain = client.mutex("k").without_fencing();
    drop(plain.lock().await.unwrap());
    wait_idle(&client).await;
    drop(plain.with_fencing().lock().await.unwrap());
    wait_idle(&client).await;
    assert_eq!(*recorder.calls.lock().unwrap(), ["plain claim", "release", "claim", "release"]);
    nothing_is_left(&store, &client).await;
}
