//! A server that is killed as by `kill -9` and starts again: with nothing, or with all that it
//! wrote down. Or its machine crashes, and what was not forced to the disk is gone, too.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread::sleep;

use lock_testkit::{Experiment, RedisServer, ms, scale};

use crate::support::history::History;
use crate::support::worker::{End, Worker};
use crate::support::workload::{Outcome, Workload};

/// Longer than any restart takes.
const TTL: u64 = 5_000;
/// For waiters of a lock that was released and came back with the restart.
const SHORT_TTL: u64 = 1_000;
/// What was written within this time before a crash is gone. Redis forces all to the disk once a
/// second.
const NOT_ON_DISK: u64 = 400;

/// How the server ends, before it starts again.
type Ending = fn(&mut RedisServer, &mut Experiment);

/// Ends and starts the server while processes contend, and one holds a lock of its own. Gives how
/// the holder ended.
fn restarts(
    ttl: u64,
    config: &'static [&'static str],
    experiment: &mut Experiment,
    ending: Ending,
) -> (Outcome, End) {
    let workload = Workload {
        ttl,
        wait: 3_000,
        work: 20_000,
        tasks: 4,
        config,
        events: &[
            ("turns", 1, History::turns),
            ("hand-offs between processes", 6, History::hand_offs),
        ],
        ..Workload::fenced("restarts", 2, ms(scale(3) as u64 * 1_000))
    };
    let mut end = None;
    let outcome = workload.run(|field| {
        let (holder, _) = Worker::hold(&field.server, "held", ttl);
        while !field.is_over(ms(1_000), experiment) {
            sleep(ms(300));
            ending(&mut field.server, experiment);
            sleep(ms(50));
            field.server.boot();
            experiment.saw("restarts", 1);
            sleep(ms(500));
        }
        end = Some(holder.release());
    });
    outcome.keeps_its_order(experiment);
    (outcome, end.unwrap())
}

fn kill(server: &mut RedisServer, _: &mut Experiment) {
    server.kill();
}

/// The machine of the server crashes: the end of its file is not there when it starts again.
fn crash(server: &mut RedisServer, experiment: &mut Experiment) {
    let file = append_only_file(server);
    let on_disk = fs::metadata(&file).unwrap().len();
    sleep(ms(NOT_ON_DISK));
    server.kill();
    let file = File::options().write(true).open(file).unwrap();
    let lost = file.metadata().unwrap().len().checked_sub(on_disk).expect("it is not rewritten");
    file.set_len(on_disk).unwrap();
    experiment.saw("bytes lost in crashes", usize::try_from(lost).unwrap());
}

fn append_only_file(server: &RedisServer) -> PathBuf {
    let setting = |name: &str| {
        let (_, value): (String, String) = server.cli(&format!("CONFIG GET {name}"));
        value
    };
    let dir = PathBuf::from(setting("dir")).join(setting("appenddirname"));
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut grows = files.filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
    grows.next().unwrap()
}

/// Locks and counter are gone. The server's clock keeps the fencing tokens growing, and holders
/// learn of the loss.
#[test]
fn fencing_tokens_grow_across_an_empty_restart() {
    let events = ["restarts", "turns", "leases lost"];
    let fault = "kill -9 and restart without persistence";
    let name = "numbers grow, loss is noticed, a resource that checks tokens loses no update";
    let mut experiment = Experiment::new(24, name, fault, &events).counted_last(&["leases lost"]);
    let (_, end) = restarts(TTL, &[], &mut experiment, kill);
    experiment.saw("leases lost", usize::from(end.lost.is_some()));
    experiment.finish();
}

/// Locks that were taken are free again, and locks that were released are taken again.
#[test]
fn fencing_tokens_grow_across_a_crash_with_fsync_every_second() {
    let events = ["restarts", "turns", "steps of a holder", "bytes lost in crashes"];
    let fault = "kill -9, the end of the file lost, and restart, AOF everysec";
    let name = "numbers grow, a resource that checks tokens loses no update";
    let mut experiment =
        Experiment::new(24, name, fault, &events).counted_last(&["steps of a holder"]);
    let config = &["appendonly yes", "appendfsync everysec"];
    let (_, end) = restarts(SHORT_TTL, config, &mut experiment, crash);
    experiment.saw("steps of a holder", end.steps);
    experiment.finish();
}

/// Nothing is gone: locks outlive the server, and so does exclusion.
#[test]
fn restart_with_all_writes_persisted_keeps_locks_and_exclusion() {
    let events = ["restarts", "turns", "hand-offs between processes", "leases kept"];
    let fault = "kill -9 and restart, AOF always";
    let name = "no two turns at once, leases outlive the server, numbers grow";
    let mut experiment = Experiment::new(24, name, fault, &events).counted_last(&["leases kept"]);
    let (outcome, end) =
        restarts(TTL, &["appendonly yes", "appendfsync always"], &mut experiment, kill);
    let hand_offs = outcome.history.check();
    assert!(hand_offs > 5, "{hand_offs} {}", outcome.words());
    assert!(end.lost.is_none() && end.released == "Ok(InTime)", "{end:?}");
    experiment.saw("hand-offs between processes", hand_offs);
    experiment.saw("leases kept", 1);
    experiment.finish();
}
