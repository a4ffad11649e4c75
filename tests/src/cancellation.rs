//! All that a caller may await, to be dropped after each number of polls, and what has to hold
//! after that.
//!
//! The simulation and the faults on a real Redis sweep over the same operations.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use lock_core::store::RedisStoreBuilder;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{
    Error, ErrorKind, Key, LockClient, LockOptions, LostReason, MutexGuard, Released,
    distributed_lock,
};
use lock_tower::{ExtractKey, KeyRejection, LockLayer};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};
use tower::{Layer as _, ServiceExt as _, service_fn};

/// So long that no lock is freed by its expiry within a [trial](Trial).
const TTL: Duration = Duration::from_secs(10);
/// The longest wait for a lock here.
const WAIT: Duration = Duration::from_secs(5);
/// A lock that is held for more than 5 ms is not handed on in memory.
const BRIEFLY: Duration = Duration::from_millis(1);

type Swept = Pin<Box<dyn Future<Output = ()> + Send>>;
type MakeStore = Arc<dyn Fn() -> RedisStoreBuilder + Send + Sync>;

/// Something public that is awaited.
pub struct Operation {
    /// Its name where it is defined.
    pub name: &'static str,
    how: How,
    /// Whether it sends no command if another task of its own process has, or gets, the lock.
    at_once: bool,
    /// Whether it goes on when it is dropped.
    goes_on: bool,
}

enum How {
    /// It claims the lock.
    Claims(Box<dyn Fn(Ground) -> Swept + Send + Sync>),
    /// It begins with the lock.
    Holds(Box<dyn Fn(Ground, MutexGuard) -> Swept + Send + Sync>),
    /// It has to do with no lock.
    Connects(Box<dyn Fn(Ground) -> Swept + Send + Sync>),
}

/// What an operation works with.
struct Ground {
    client: LockClient,
    store: MakeStore,
    key: String,
    /// Is kept by what may go on, or has yet to begin.
    presence: Arc<()>,
}

/// Another user of the lock: it holds the lock before an operation that claims it, and releases it
/// after a while; or it waits behind an operation that holds it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rival {
    /// None.
    None,
    /// None, and the client has yet to connect.
    NoneAndNoConnection,
    /// Another client.
    Elsewhere,
    /// Another task of the same client, for so long that the lock goes back to the store.
    Here,
    /// Another task of the same client, for so short a time that the lock is handed on in memory.
    HereBriefly,
}

/// When a future is dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Moment {
    /// Right behind its last poll.
    AfterItsPoll,
    /// When it was woken, in place of the next poll.
    InPlaceOfAPoll,
}

/// A server, and how to try on it what a dropped future leaves behind.
pub struct Trial<'a> {
    /// The store of the client that drops futures.
    pub store: MakeStore,
    /// Another client.
    pub other: &'a LockClient,
    /// What is locked.
    pub key: String,
    /// After what time a rival in front gives the lock back, and a rival behind queues.
    pub pause: Duration,
    /// How the client's connections break in the instant of a drop.
    pub at_drop: Option<&'a (dyn Fn() + Send + Sync)>,
    /// What there is of the lock on the server.
    pub leftovers: &'a (dyn Fn() -> Vec<String> + Send + Sync),
    /// How soon everything has to be released; far less than the ttl of 10 s.
    pub bound: Duration,
}

impl Operation {
    /// All there are.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mutexes = [
            Self::claims("Mutex::lock", |ground| async move {
                drop(ground.client.mutex(&ground.key).lock().await.unwrap());
            }),
            Self::claims("Mutex::lock without fencing", |ground| async move {
                let mutex = ground.client.mutex(&ground.key).without_fencing();
                drop(mutex.lock().await.unwrap());
            }),
            Self::claims("Mutex::try_lock", |ground| async move {
                drop(ground.client.mutex(&ground.key).try_lock().await.unwrap());
            })
            .at_once(),
            Self::claims("Mutex::run", |ground| async move {
                let mutex = ground.client.mutex(&ground.key);
                mutex.run(|_| work()).await.unwrap();
            }),
            Self::claims("Mutex::run within Mutex::run", |ground| async move {
                let mutex = ground.client.mutex(&ground.key);
                let inner = async |_| mutex.run(|_| work()).await.unwrap();
                mutex.run(inner).await.unwrap();
            }),
        ];
        let guards = [
            Self::holds("MutexGuard::release", |_, guard| async move {
                assert_eq!(guard.release().await.unwrap(), Released::InTime);
            })
            .at_once(),
            Self::holds("MutexGuard::run_until_lost", |_, guard| async move {
                guard.run_until_lost(work()).await.unwrap();
            }),
            Self::holds("Lease::extend", |_, guard| async move {
                guard.extend(TTL * 2).await.unwrap();
            }),
            Self::holds("Lease::lost", |_, guard| async move {
                let lease = guard.lease();
                let give_back = async move {
                    work().await;
                    drop(guard);
                };
                let (reason, ()) = tokio::join!(lease.lost(), give_back);
                assert_eq!(reason, LostReason::Released);
            }),
            Self::holds("LockClient::drain", |ground, guard| async move {
                let give_back = async move {
                    work().await;
                    drop(guard);
                };
                let (drained, ()) = tokio::join!(ground.client.drain(WAIT), give_back);
                assert!(drained.is_clean(), "{drained:?}");
            }),
        ];
        let functions = [
            Self::claims("a locked function", |ground| async move {
                locked(&ground.client, &ground.key).await.unwrap();
            }),
            Self::claims("a locked function within LockClient::scope", |ground| async move {
                ground.client.scope(scoped(&ground.key)).await.unwrap();
            }),
            Self::claims("a locked function with wait = none, on_busy", |ground| async move {
                impatient(&ground.client, &ground.key).await.unwrap();
            })
            .at_once(),
            Self::claims(
                "a locked function with wait = forever, on_lost = finish",
                |ground| async move { patient(&ground.client, &ground.key).await.unwrap() },
            ),
            Self::claims("a locked method with wait = \"5s\"", |ground| async move {
                Desk { client: ground.client }.locked(&ground.key).await.unwrap();
            }),
        ];
        let layers = [
            Self::claims("LockService::call", |ground| serve(ground, |layer| layer)),
            Self::claims("LockService::call with_wait", |ground| {
                serve(ground, |layer| layer.with_wait(WAIT))
            }),
            Self::claims("LockService::call with_wait, hold_for_body", |ground| {
                serve(ground, |layer| layer.with_wait(WAIT).hold_for_body())
            }),
            Self::claims("LockService::call with_wait, shield", |ground| {
                serve(ground, |layer| layer.with_wait(WAIT).shield())
            })
            .goes_on(),
        ];
        let connect = Self::new(
            "RedisStore::connect",
            How::Connects(Box::new(|ground| {
                Box::pin(async move { drop((ground.store)().connect().await.unwrap()) })
            })),
        );
        mutexes.into_iter().chain(guards).chain(functions).chain(layers).chain([connect]).collect()
    }

    fn new(name: &'static str, how: How) -> Self {
        Self { name, how, at_once: false, goes_on: false }
    }

    fn claims<F: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        start: impl Fn(Ground) -> F + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, How::Claims(Box::new(move |ground| Box::pin(start(ground)))))
    }

    fn holds<F: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        start: impl Fn(Ground, MutexGuard) -> F + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, How::Holds(Box::new(move |ground, guard| Box::pin(start(ground, guard)))))
    }

    fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }

    fn goes_on(self) -> Self {
        Self { goes_on: true, ..self }
    }

    /// The rivals to try it with.
    #[must_use]
    pub fn rivals(&self) -> &'static [Rival] {
        match self.how {
            How::Claims(_) => &[
                Rival::None,
                Rival::NoneAndNoConnection,
                Rival::Elsewhere,
                Rival::Here,
                Rival::HereBriefly,
            ],
            How::Holds(_) => &[Rival::None, Rival::Elsewhere, Rival::Here, Rival::HereBriefly],
            How::Connects(_) => &[Rival::None],
        }
    }

    /// Whether it has anything to wait for.
    #[must_use]
    pub fn waits(&self, rival: Rival) -> bool {
        !(self.at_once && matches!(rival, Rival::Here | Rival::HereBriefly))
    }
}

impl Trial<'_> {
    /// Drops `operation` after so many polls, and checks that nothing is left of it. Whether it
    /// ended before.
    ///
    /// # Panics
    ///
    /// If something is left; `case` is named then.
    pub async fn drop_after(
        &self,
        operation: &Operation,
        rival: Rival,
        polls: usize,
        moment: Moment,
        case: &str,
    ) -> bool {
        let client = self.client(rival).await;
        let presence = Arc::new(());
        let ground = Ground {
            client: client.clone(),
            store: Arc::clone(&self.store),
            key: self.key.clone(),
            presence: Arc::clone(&presence),
        };
        let mutex = match rival {
            Rival::None | Rival::NoneAndNoConnection => None,
            Rival::Elsewhere => Some(self.other.mutex(&self.key)),
            Rival::Here | Rival::HereBriefly => Some(client.mutex(&self.key)),
        };
        let pause = if rival == Rival::HereBriefly { BRIEFLY } else { self.pause };
        let (swept, rival): (Swept, Option<JoinHandle<()>>) = match &operation.how {
            How::Claims(start) | How::Connects(start) => {
                let guard = match mutex {
                    Some(mutex) => Some(mutex.lock().await.unwrap()),
                    None => None,
                };
                let give_back = |guard: MutexGuard| async move {
                    sleep(pause).await;
                    // An answer may be lost on purpose.
                    drop(guard.release().await);
                };
                (start(ground), guard.map(|guard| tokio::spawn(give_back(guard))))
            }
            How::Holds(start) => {
                let guard = client.mutex(&self.key).lock().await.unwrap();
                let take = |mutex: lock_core::Mutex| async move {
                    match mutex.lock().await {
                        Ok(guard) => drop(guard.release().await),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Draining),
                    }
                };
                let rival = mutex.map(|mutex| tokio::spawn(take(mutex)));
                if rival.is_some() {
                    sleep(pause).await;
                }
                (start(ground, guard), rival)
            }
        };

        let ended = cut(swept, polls, moment).await;
        if let Some(break_connections) = self.at_drop.filter(|_| !ended) {
            break_connections();
        }
        let vitals = || ClientStats::of(&client);
        if let Some(rival) = rival {
            let done = timeout(self.bound, rival).await;
            done.unwrap_or_else(|_| panic!("{case}: the rival waits: {:?}", vitals())).unwrap();
        }
        if operation.goes_on && !ended {
            let at_work = || Arc::strong_count(&presence) > 1 || !vitals().is_idle();
            let done = timeout(self.bound, while_it_is_so(at_work)).await;
            assert!(done.is_ok(), "{case}: what goes on does not end: {:?}", vitals());
        }
        let done = timeout(self.bound, wait_idle(&client)).await;
        assert!(done.is_ok() && vitals().is_idle(), "{case}: {:?}", vitals());
        let leftovers = (self.leftovers)();
        assert!(leftovers.is_empty(), "{case}: {leftovers:?}");
        let next = timeout(self.bound, self.other.mutex(&self.key).try_lock()).await;
        let Ok(Ok(Some(guard))) = next else { panic!("{case}: {next:?}") };
        guard.release().await.unwrap();
        ended
    }

    async fn client(&self, rival: Rival) -> LockClient {
        let store = (self.store)();
        let store = match rival {
            Rival::NoneAndNoConnection => store.connect_lazy().unwrap(),
            _ => store.connect().await.unwrap(),
        };
        let options = LockOptions::new().with_ttl(TTL).with_wait(WAIT);
        LockClient::builder(store).with_defaults(options).build().unwrap()
    }
}

/// Polls `future` at most `polls` times, then drops it: whether it ended before.
pub async fn cut(future: impl Future<Output = ()>, polls: usize, moment: Moment) -> bool {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if left == 0 && moment == Moment::AfterItsPoll => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn while_it_is_so(so: impl Fn() -> bool) {
    while so() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// What is done under a lock.
async fn work() {
    yield_now().await;
    yield_now().await;
}

#[distributed_lock(key = key.to_owned(), client = client)]
async fn locked(client: &LockClient, key: &str) -> Result<(), Error> {
    work().await;
    Ok(())
}

#[distributed_lock(key = key.to_owned())]
async fn scoped(key: &str) -> Result<(), Error> {
    work().await;
    Ok(())
}

#[distributed_lock(key = key.to_owned(), client = client, wait = none, on_busy = |_| Ok(()))]
async fn impatient(client: &LockClient, key: &str) -> Result<(), Error> {
    work().await;
    Ok(())
}

#[distributed_lock(key = key.to_owned(), client = client, wait = forever, on_lost = finish)]
async fn patient(client: &LockClient, key: &str) -> Result<(), Error> {
    work().await;
    Ok(())
}

struct Desk {
    client: LockClient,
}

impl Desk {
    #[distributed_lock(key = key.to_owned(), client = self.client, wait = "5s")]
    async fn locked(&self, key: &str) -> Result<(), Error> {
        work().await;
        Ok(())
    }
}

/// A request to a layer with these settings, until the whole answer is read.
async fn serve(ground: Ground, set: fn(LockLayer<SlowKey>) -> LockLayer<SlowKey>) {
    let layer = set(LockLayer::new(ground.client, SlowKey(ground.key)));
    let presence = ground.presence;
    let service = layer.layer(service_fn(move |_: Request<String>| {
        let presence = Arc::clone(&presence);
        async move {
            work().await;
            drop(presence);
            Ok::<_, Infallible>(Response::new(Drip { drops: 2, waited: false }))
        }
    }));
    let response = service.oneshot(Request::new(String::new())).await.unwrap();
    assert!(matches!(response.status(), StatusCode::OK | StatusCode::CONFLICT), "{response:?}");
    drop(response.into_body().collect().await.unwrap());
}

/// A key that is known after a while.
#[derive(Clone)]
struct SlowKey(String);

impl ExtractKey for SlowKey {
    async fn extract(&self, _: &mut Parts) -> Result<Option<Key>, KeyRejection> {
        yield_now().await;
        Ok(Some(Key::new(&self.0)?))
    }
}

/// A body that comes in drops.
#[derive(Debug)]
struct Drip {
    drops: usize,
    waited: bool,
}

impl Body for Drip {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.drops == 0 {
            return Poll::Ready(None);
        }
        self.waited = !self.waited;
        if self.waited {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.drops -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"drop")))))
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Trial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").field("key", &self.key).finish_non_exhaustive()
    }
}
