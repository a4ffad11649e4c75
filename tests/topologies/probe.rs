//! For how long no locks are granted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_core::LockClient;
use lock_testkit::{eventually_some, ms};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Longer than it takes to replace a master on a loaded machine.
const BOUND: Duration = ms(60_000);
/// A failover may bring back a lock that was released. It is free before the test looks for what is
/// left.
const TTL: Duration = ms(3_000);
/// Between two calls.
const PAUSE: Duration = ms(20);

/// Takes and releases a lock, another one each time, and measures the calls.
#[derive(Debug)]
pub(crate) struct Probe {
    calls: Arc<Mutex<Vec<Call>>>,
    is_over: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

/// From when the lock was requested until it was granted, with all attempts that failed.
#[derive(Clone, Copy, Debug)]
struct Call {
    begun: Instant,
    took: Duration,
}

impl Probe {
    /// The names of the locks end in `tag`.
    pub(crate) fn start(runtime: &Handle, client: &LockClient, tag: &str) -> Self {
        let (calls, is_over) = (Arc::<Mutex<Vec<Call>>>::default(), Arc::<AtomicBool>::default());
        let (client, tag) = (client.clone(), tag.to_owned());
        let (made, ended) = (Arc::clone(&calls), Arc::clone(&is_over));
        let task = runtime.spawn(async move {
            for number in 0.. {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let mutex = client.mutex(format!("probe-{number}{tag}")).with_ttl(TTL);
                let mutex = mutex.with_wait(ms(1_000));
                let begun = Instant::now();
                while !ended.load(Ordering::Relaxed) {
                    if let Ok(guard) = mutex.lock().await {
                        let took = begun.elapsed();
                        made.lock().unwrap().push(Call { begun, took });
                        drop(guard.release().await);
                        break;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { calls, is_over, task }
    }

    /// Waits until a lock is granted that is requested from now on. Gives the longest time since
    /// `fault` in which none was.
    pub(crate) async fn away_since(&self, fault: Instant) -> Duration {
        let now = Instant::now();
        eventually_some("a lock", BOUND, || {
            let calls = self.calls.lock().unwrap();
            calls.last().filter(|call| call.begun > now)?;
            let ended = calls.iter().rev().take_while(|call| call.begun + call.took > fault);
            ended.map(|call| call.took).max()
        })
        .await
    }

    /// The calls, sorted by how long they took.
    pub(crate) fn spans(&self) -> Vec<Duration> {
        let mut spans: Vec<_> = self.calls.lock().unwrap().iter().map(|call| call.took).collect();
        spans.sort_unstable();
        spans
    }

    pub(crate) async fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}
