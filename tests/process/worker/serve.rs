//! A service that holds locks, some in bodies that end and some in bodies that do not, and drains
//! on SIGTERM.

use std::time::Duration;

use lock_core::LockClient;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Args;
use crate::report::say;

pub(crate) async fn run(client: &LockClient, args: &Args) {
    let mut terminated = signal(SignalKind::terminate()).unwrap();
    let (quick, stuck) = (args.number("quick"), args.number("stuck"));
    let mut bodies = Vec::new();
    for number in 0..quick + stuck {
        let mutex = client.mutex(format!("served-{number}")).with_wait(Duration::from_secs(30));
        let lasts = if number < quick { Duration::from_millis(500) } else { Duration::MAX };
        bodies.push(tokio::spawn(async move {
            mutex
                .run(|_| async move {
                    say("entered");
                    tokio::time::sleep(lasts).await;
                })
                .await
        }));
    }
    // This one waits for a lock of another client.
    let waiting = tokio::spawn(client.mutex("foreign").with_wait(Duration::from_secs(60)).lock());
    terminated.recv().await.unwrap();
    let drained = client.drain(args.millis("limit")).await;
    say(&format!("drained held={} pending={}", drained.held, drained.pending));
    let refused = waiting.await.unwrap().unwrap_err();
    say(&format!("waiter: {:?}", refused.kind()));
    let (mut finished, mut stopped) = (0, 0);
    for body in bodies {
        match body.await.unwrap() {
            Ok(()) => finished += 1,
            Err(_) => stopped += 1,
        }
    }
    say(&format!("bodies finished={finished} stopped={stopped}"));
}
