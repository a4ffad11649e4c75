//! A runtime whose only thread is blocked for longer than a lease, while bodies are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::LockClient;
use lock_core::testing::settled;

use crate::polls::Polls;
use crate::{Args, say};

/// Short against any ttl.
const STEP: Duration = Duration::from_millis(5);

/// Holds many locks in bodies that step, and blocks all threads of the runtime for each of `block`'s spans.
pub(crate) async fn run(client: &LockClient, args: &Args) {
    let steps = Arc::new(AtomicU64::new(0));
    let mut all = Vec::new();
    let spans: Vec<u64> = args.text("block").split(',').map(|span| span.parse().unwrap()).collect();
    let mut lost = 0;
    for span in &spans {
        let mut bodies = Vec::new();
        let entered = Arc::new(AtomicU64::new(0));
        for number in 0..args.number("locks") {
            let mutex = client.mutex(format!("starved-{number}"));
            let (steps, polls) = (Arc::clone(&steps), Polls::default());
            all.push(polls.clone());
            let entered = Arc::clone(&entered);
            bodies.push(tokio::spawn(async move {
                let body = mutex.run(async |lease| {
                    entered.fetch_add(1, Ordering::Relaxed);
                    polls.begin(&lease);
                    loop {
                        polls.polled();
                        steps.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(STEP).await;
                    }
                });
                polls.of(body).await
            }));
        }
        while entered.load(Ordering::Relaxed) < args.number("locks") {
            tokio::time::sleep(STEP).await;
        }
        let span = Duration::from_millis(*span);
        // Both of its threads, at once.
        let block = || {
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                std::thread::sleep(span);
            })
        };
        let (one, two) = (block(), block());
        one.await.unwrap();
        two.await.unwrap();
        tokio::time::sleep(STEP * 4).await;
        for body in bodies {
            if body.is_finished() {
                let never: Result<(), _> = body.await.unwrap();
                lost += u64::from(never.is_err_and(|error| error.is_lost()));
            } else {
                body.abort();
            }
        }
        settled(client).await;
    }
    let steps = steps.load(Ordering::Relaxed);
    let late: u64 = all.iter().map(Polls::late).sum();
    say(&format!("end steps={steps} late={late} lost={lost}"));
}
