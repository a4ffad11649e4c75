//! Bodies of every entry point that step until their lease ends, in a process whose threads are
//! blocked for longer than that, or that is stopped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use lock_core::testing::wait_idle;
use lock_core::{Error, Lease, LockClient, distributed_lock};
use lock_tower::LockLayer;
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::args::Args;
use crate::polls::Polls;
use crate::report::say;

/// Short against any ttl, and long enough for a thousand of them.
const STEP: Duration = Duration::from_millis(25);

/// A body that never ends by itself.
#[derive(Clone)]
struct Body {
    polls: Polls,
    all: Arc<Counts>,
}

/// What the bodies of one round count together.
#[derive(Default)]
struct Counts {
    entered: AtomicU64,
    steps: AtomicU64,
    /// Polls that began after the deadline.
    late: AtomicU64,
}

impl Body {
    async fn steps(&self, lease: &Lease) {
        self.polls.begin(lease);
        self.all.entered.fetch_add(1, Ordering::Relaxed);
        loop {
            self.all.late.fetch_add(u64::from(self.polls.polled()), Ordering::Relaxed);
            self.all.steps.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(STEP).await;
        }
    }

    /// Claims until the body is entered, because other processes may starve this one. Returns
    /// whether the lease was lost; a body has no other end.
    async fn enter(&self, client: &LockClient, way: &str, number: usize) -> bool {
        loop {
            let lost = self.enter_once(client, way, number).await;
            if self.polls.has_begun() {
                return lost;
            }
        }
    }

    async fn enter_once(&self, client: &LockClient, way: &str, number: usize) -> bool {
        let key = format!("body-{number}");
        let ended: Result<(), Error> = match way {
            "run" => client.mutex(key).run(async |lease| self.steps(&lease).await).await,
            "bind" => {
                let Ok(guard) = client.mutex(key).lock().await else { return false };
                let lease = guard.lease();
                guard.run_until_lost(self.steps(&lease)).await
            }
            "macro" => locked(client, number, self).await,
            "layer" => return self.request(client, key).await,
            // Not an entry point of the library: nothing checks the clock before the body is
            // polled.
            "select" => {
                let Ok(guard) = client.mutex(key).lock().await else { return false };
                tokio::select! {
                    biased;
                    () = self.steps(&guard) => {}
                    _ = guard.lost() => {}
                }
                return true;
            }
            other => panic!("no such way: {other}"),
        };
        ended.is_err_and(|error| error.is_lost())
    }

    async fn request(&self, client: &LockClient, key: String) -> bool {
        let layer = LockLayer::from_fn(client.clone(), move |_| Some(key.clone()));
        let body = self.clone();
        let service = layer.layer(service_fn(move |request: Request<String>| {
            let body = body.clone();
            async move {
                let lease = request.extensions().get::<Lease>().unwrap().clone();
                body.steps(&lease).await;
                Ok::<_, std::convert::Infallible>(Response::new(String::new()))
            }
        }));
        let response = service.oneshot(Request::new(String::new())).await.unwrap();
        response.status() == StatusCode::SERVICE_UNAVAILABLE
    }
}

#[distributed_lock(key = "body-<number>", client = client, lease = lease)]
async fn locked(client: &LockClient, number: usize, body: &Body) -> Result<(), Error> {
    body.steps(&lease).await;
    Ok(())
}

/// For each of `block`'s spans: enters many bodies, in each of `ways` in turn, and blocks all
/// threads of the runtime for the span. If the span is 0, the test stops this process until all
/// leases are over.
pub(crate) async fn run(client: &LockClient, args: &Args) {
    let ttl = args.millis("ttl");
    let many = usize::try_from(args.number("locks")).unwrap();
    let ways: Vec<_> = args.text("ways").split(',').map(str::to_owned).collect();
    for (round, span) in args.text("block").split(',').enumerate() {
        let span = Duration::from_millis(span.parse().unwrap());
        let all = Arc::new(Counts::default());
        let mut bodies = Vec::new();
        for number in round * many..(round + 1) * many {
            let body = Body { polls: Polls::default(), all: Arc::clone(&all) };
            let (client, polls) = (client.clone(), body.polls.clone());
            let way = ways[number % ways.len()].clone();
            let entered = async move { polls.of(body.enter(&client, &way, number)).await };
            bodies.push((number, tokio::spawn(entered)));
        }
        while all.entered.load(Ordering::Relaxed) < many as u64 {
            tokio::time::sleep(STEP).await;
        }
        say("held");
        if !span.is_zero() {
            block(span).await;
        }
        let over = span.is_zero() || span > ttl;
        if !over {
            // Some steps more.
            tokio::time::sleep(STEP * 4).await;
        }
        let mut lost = vec![0; ways.len()];
        for (number, body) in bodies {
            if over || body.is_finished() {
                lost[number % ways.len()] += usize::from(body.await.unwrap());
            } else {
                body.abort();
            }
        }
        wait_idle(client).await;
        let lost = ways.iter().zip(lost).map(|(way, lost)| format!("{way}={lost} "));
        let lost: String = lost.collect();
        let (steps, late) = (all.steps.load(Ordering::Relaxed), all.late.load(Ordering::Relaxed));
        say(&format!("round {lost}steps={steps} late={late}"));
    }
}

/// Keeps both threads of the runtime, from the same moment on.
async fn block(span: Duration) {
    let both = Arc::new(Barrier::new(2));
    let blocked = [(); 2].map(|()| {
        let both = Arc::clone(&both);
        tokio::spawn(async move {
            both.wait();
            std::thread::sleep(span);
        })
    });
    for thread in blocked {
        thread.await.unwrap();
    }
}
