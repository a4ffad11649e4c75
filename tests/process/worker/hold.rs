//! Holds a lock and does a step every few milliseconds, until told otherwise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::LockClient;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::args::Args;
use crate::polls::Polls;
use crate::report::say;

/// Short against any ttl.
const STEP: Duration = Duration::from_millis(5);

pub(crate) async fn run(client: &LockClient, args: &Args) {
    let mutex = client.mutex(args.text("key").to_owned()).with_wait(Duration::from_secs(60));
    let guard = mutex.lock().await.unwrap();
    say(&format!("held fence={}", guard.fencing_token()));
    let (steps, polls) = (AtomicU64::new(0), Polls::default());
    polls.begin(&guard);
    let work = polls.of(guard.run_until_lost(async {
        loop {
            let _late = polls.polled();
            steps.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(STEP).await;
        }
    }));
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let told = async {
        loop {
            match input.next_line().await.unwrap().as_deref() {
                Some("steps") => say(&format!("steps={}", steps.load(Ordering::Relaxed))),
                _ => return,
            }
        }
    };
    tokio::select! {
        biased;
        lost = work => {
            let _: () = match lost { Ok(never) => never, Err(error) => say(&format!("lost: {error}")) };
        }
        () = told => {}
    }
    let (steps, late) = (steps.load(Ordering::Relaxed), polls.late());
    let released = guard.release().await;
    say(&format!("end steps={steps} late={late} released={released:?}"));
}
