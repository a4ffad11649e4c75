//! Holds a lock, and abandons it in one of the ways in which programs do.

use std::time::Duration;

use lock_core::LockClient;

use crate::args::Args;
use crate::report::say;

/// Longer than any test waits.
const FOR_EVER: Duration = Duration::from_secs(3_600);

pub(crate) async fn run(client: &LockClient, args: &Args) {
    let mutex = client.mutex(args.text("key").to_owned());
    match args.text("way") {
        "panic" => {
            let body = tokio::spawn(async move {
                mutex
                    .run(async |_| {
                        say("held");
                        told().await;
                        panic!("a body that panics on purpose");
                    })
                    .await
            });
            assert!(body.await.unwrap_err().is_panic());
        }
        "abort" => {
            let body = tokio::spawn(async move {
                mutex
                    .run(async |_| {
                        say("held");
                        tokio::time::sleep(FOR_EVER).await;
                    })
                    .await
            });
            told().await;
            body.abort();
            assert!(body.await.unwrap_err().is_cancelled());
        }
        "runtime" => {
            // From then on its tasks are this runtime's.
            drop(client.mutex("first").lock().await.unwrap().release().await);
            let client = client.clone();
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                let guard = runtime.block_on(async { client.mutex("other").lock().await.unwrap() });
                let held = runtime.block_on(async { mutex.lock().await.unwrap() });
                runtime.spawn(async move {
                    let _guards = (guard, held);
                    tokio::time::sleep(FOR_EVER).await;
                });
                say("held");
                runtime.block_on(told());
                drop(runtime);
            });
            tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
        }
        "forget" => {
            let guard = mutex.lock().await.unwrap();
            say("held");
            told().await;
            #[allow(clippy::mem_forget)] // what it is about
            std::mem::forget(guard);
        }
        other => panic!("no such way: {other}"),
    }
    say("left");
    told().await;
}

/// Waits for a line.
async fn told() {
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()))
        .await
        .unwrap()
        .unwrap();
}
