//! Many tasks take turns on a few keys: each turn adds one to a counter file, slowly and without any care, and
//! records when it began and ended.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::{LockClient, LockOptions};
use lock_tests::history::now;

use crate::{Args, say};

/// Two readings of a clock in a row take no longer, unless the process is stopped in between. In nanoseconds.
const SOON: u128 = 5_000_000;

pub(crate) async fn run(client: &LockClient, args: &Args) {
    let (tasks, keys) = (args.number("tasks"), args.number("keys"));
    say("ready");
    let end = now() + args.millis("for").as_nanos();
    let dir = PathBuf::from(args.text("dir"));
    let work = Duration::from_micros(args.number("work"));
    let mut running = Vec::new();
    for task in 0..tasks {
        let (client, dir) = (client.clone(), dir.clone());
        let key = format!("k{}", task % keys);
        running.push(tokio::spawn(async move { contend(&client, &dir, &key, work, end).await }));
    }
    let mut log = Vec::new();
    let (mut busy, mut lost, mut failed, mut failure) = (0, 0, 0, None);
    for task in running {
        let (turns, counts) = task.await.unwrap();
        log.extend(turns);
        busy += counts.busy;
        lost += counts.lost;
        failed += counts.failed;
        failure = counts.failure.or(failure);
    }
    let path = dir.join(format!("log-{}", std::process::id()));
    fs::write(path, log.concat()).unwrap();
    let turns = log.len();
    say(&format!("done turns={turns} busy={busy} lost={lost} failed={failed} {failure:?}"));
}

#[derive(Default)]
struct Counts {
    busy: u64,
    lost: u64,
    failed: u64,
    /// The last failure, for the report.
    failure: Option<lock_core::Error>,
}

async fn contend(
    client: &LockClient,
    dir: &Path,
    key: &str,
    work: Duration,
    end: u128,
) -> (Vec<String>, Counts) {
    let counter = dir.join(format!("counter-{key}"));
    let options = LockOptions::new().with_wait(Duration::from_secs(2));
    let (mut turns, mut counts) = (Vec::new(), Counts::default());
    while now() < end {
        let mutex = client.mutex(key).with_options(options);
        let turn = mutex.run(async |lease| {
            let enter = now();
            let left = lease.remaining().as_nanos();
            // Stopped between the two readings: nothing is known but that it began.
            let deadline = enter + if now() - enter > SOON { 1 } else { left };
            let before: u64 = fs::read_to_string(&counter).unwrap().parse().unwrap();
            tokio::time::sleep(work).await;
            // In one piece, as a rename, so that a reader never sees half a number.
            let next = counter.with_extension(lease.fencing_token().to_string());
            let mut file = fs::File::create(&next).unwrap();
            file.write_all((before + 1).to_string().as_bytes()).unwrap();
            fs::rename(&next, &counter).unwrap();
            format!("{key} {enter} {} {deadline} {}\n", now(), lease.fencing_token())
        });
        match turn.await {
            Ok(line) => turns.push(line),
            Err(error) if error.is_busy() => counts.busy += 1,
            Err(error) if error.is_lost() => counts.lost += 1,
            Err(error) if error.is_unavailable() => {
                counts.failed += 1;
                counts.failure = Some(error);
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    (turns, counts)
}
