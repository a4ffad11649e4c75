//! The server in memory and a real one, side by side.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lock_testkit::{Experiment, RedisServer, Rng, scale};
use redis::{ConnectionLike, Value};

use crate::fake::{Fake, Reply};
use crate::log::{Log, Reader};
use crate::setting::EXACT;

/// How far the clock of the real server may be ahead when it executes what the other one executed
/// before.
const MOMENT_US: u64 = 2_000_000;
const MOMENT_MS: u64 = 1_000;
/// The shipped scripts.
const SCRIPTS: [&str; 3] = [
    concat!(
        include_str!("../../lock-core/src/store/redis/scripts/shared.lua"),
        include_str!("../../lock-core/src/store/redis/scripts/acquire.lua")
    ),
    concat!(
        include_str!("../../lock-core/src/store/redis/scripts/shared.lua"),
        include_str!("../../lock-core/src/store/redis/scripts/release.lua")
    ),
    include_str!("../../lock-core/src/store/redis/scripts/renew.lua"),
];
const SEQUENCES: usize = 2_000;
/// They mostly wait for keys to expire.
const SIDE_BY_SIDE: usize = 16;
const COMMANDS: usize = 30;
/// The shortest life of keys. A machine that is too slow for one gets the next.
const SHORT_LIVES_MS: [u64; 10] = [30, 30, 30, 100, 100, 300, 300, 1_000, 1_000, 3_000];

/// The simulated server and Redis execute the same random commands.
#[test]
fn simulated_server_answers_like_redis() {
    let mut experiment = Experiment::new(
        6,
        "the simulated server answers as Redis does",
        "random commands and scripts on both",
        &["commands", "scripts", "errors", "expired keys"],
    );
    let sequences = scale(SEQUENCES) as u64;
    let (next, total) = (AtomicU64::new(0), Mutex::new(Seen::default()));
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| compare(&next, sequences, &total));
        }
    });
    let Seen { commands, scripts, errors, expired } = total.into_inner().unwrap();
    experiment.ran(usize::try_from(sequences).unwrap());
    experiment.saw("commands", commands);
    experiment.saw("scripts", scripts);
    experiment.saw("errors", errors);
    experiment.saw("expired keys", expired);
    experiment.finish();
}

/// Takes sequence after sequence, on a real server of its own.
fn compare(next: &AtomicU64, sequences: u64, total: &Mutex<Seen>) {
    let server = RedisServer::start();
    let mut real = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= sequences {
            return;
        }
        // Keys expire by real time on one of them: where the machine stood still, that says
        // nothing.
        let mut tries = SHORT_LIVES_MS.iter().map(|life| sequence(seed, *life, &mut real));
        let seen = tries.find_map(|seen| seen).expect("a machine that is quick enough for once");
        let total = &mut *total.lock().unwrap();
        total.commands += seen.commands;
        total.scripts += seen.scripts;
        total.errors += seen.errors;
        total.expired += seen.expired;
    }
}

#[derive(Default)]
struct Seen {
    /// Answered by both alike, as are those below.
    commands: usize,
    scripts: usize,
    errors: usize,
    /// Keys that were there before a pause, and not after it.
    expired: usize,
}

/// Sends the same commands to both; `None` if they differ where time decides: when a key may have
/// expired on one of them only, at that command or at an earlier one.
fn sequence(seed: u64, short_ms: u64, real: &mut redis::Connection) -> Option<Seen> {
    let (short, lives) = (Duration::from_millis(short_ms), [&*short_ms.to_string(), LONG_MS]);
    let (mut rng, mut seen, mut before) = (Rng::new(seed), Seen::default(), Vec::new());
    let fake = Fake::new(EXACT, Log::new(Reader::None));
    redis::cmd("FLUSHALL").exec(real).unwrap();
    redis::cmd("SCRIPT").arg("FLUSH").exec(real).unwrap();
    let (mut since, mut is_slow) = (Instant::now(), false);
    for _ in 0..COMMANDS {
        if rng.chance(3) {
            // Longer than the shortest lives, and much shorter than the others.
            let there = keys_of(real);
            is_slow |= since.elapsed() > short / 2;
            std::thread::sleep(short + Duration::from_millis(10));
            since = Instant::now();
            seen.expired += there - keys_of(real);
        }
        let args = any_command(&mut rng, lives);
        let (name, rest) = args.split_first().unwrap();
        let mut cmd = redis::cmd(std::str::from_utf8(name).unwrap());
        for arg in rest {
            cmd.arg(arg.as_slice());
        }
        let actual = match real.req_packed_command(&cmd.get_packed_command()) {
            Ok(value) => value,
            Err(error) => {
                let words = error.detail().unwrap_or_default();
                let code = error.code().unwrap_or_default().to_owned();
                Value::SimpleString(format!("{code} {words}"))
            }
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        fake.set_clock(u64::try_from(now.as_micros()).unwrap());
        let simulated = fake.execute(&args, None);
        let words = args.iter().map(|arg| match String::from_utf8_lossy(arg) {
            arg if arg.len() > 300 => "(script)".into(),
            arg => arg,
        });
        before.push(words.collect::<Vec<_>>().join(" "));
        if !is_same(&simulated, &actual) {
            // The order in that key depends on the millisecond.
            let by_time = args.iter().any(|arg| arg == BY_TIME.as_bytes());
            assert!(
                by_time || is_slow || since.elapsed() > short / 2,
                "seed {seed}: {before:#?}: {simulated:?} instead of {actual:?}"
            );
            return None;
        }
        seen.commands += 1;
        seen.scripts += usize::from(name.starts_with(b"EVAL"));
        seen.errors += usize::from(matches!(simulated, Reply::Error(_)));
    }
    Some(seen)
}

/// How many keys there are. Unlike `DBSIZE`, this does not count those that have expired and are
/// not yet removed.
fn keys_of(real: &mut redis::Connection) -> usize {
    redis::cmd("KEYS").arg("*").query::<Vec<String>>(real).unwrap().len()
}

const KEYS: [&str; 4] = ["lock:a", "lock:b", "lock:{0}:q:a", BY_TIME];
/// The key in which scripts keep until when each waiter is alive.
const BY_TIME: &str = "lock:{0}:a:a";
const TOKENS: [&str; 3] = [
    "0b6ca55d-620e-44ff-9cbb-d9157bed74db",
    "b6faa08e-32fc-4220-b969-e88c084615d6",
    "115f4116-de34-4ef0-8275-6b41fb9c664a",
];
/// Over long after the sequence. Short lives are over after the sleep.
const LONG_MS: &str = "50000";

fn any_command(rng: &mut Rng, lives: [&str; 2]) -> Vec<Vec<u8>> {
    let key = rng.one_of(&KEYS);
    let member_of = |rng: &mut Rng| format!("m{}", rng.within(0..=3));
    let token = rng.one_of(&TOKENS);
    let life = rng.one_of(&lives);
    let score = rng.within(0..=5).to_string();
    let line = match rng.within(0..=25) {
        0 => format!("GET {key}"),
        1 => format!("SET {key} {token} NX PX {life}"),
        2 => format!("SET {key} {token} PX {life}"),
        3 => format!("SET {key} {token} GET"),
        4 => format!("MGET {} {}", key, rng.one_of(&KEYS)),
        5 => format!("DEL {key}"),
        6 => format!("EXISTS {} {}", key, rng.one_of(&KEYS)),
        7 => format!("PTTL {key}"),
        8 => format!("PEXPIRE {key} {life}"),
        9 => format!("ZADD {key} NX {score} {}", member_of(rng)),
        10 => format!("ZADD {key} {score} {}", member_of(rng)),
        11 => format!("ZREM {key} {} {}", member_of(rng), member_of(rng)),
        12 => format!("ZSCORE {key} {}", member_of(rng)),
        13 => format!("ZRANK {key} {}", member_of(rng)),
        14 => format!("ZRANGE {key} 0 {}", rng.one_of(&["0", "-1", "1"])),
        15 => format!("ZRANGEBYSCORE {key} -inf {score} LIMIT 0 {}", rng.within(0..=3)),
        16 => format!("ZPOPMIN {key}"),
        17 => "PUBLISH no-channel message".to_owned(),
        18 => format!("ZCOUNT {key} ({score} +inf"),
        19 => rng.one_of(&["GET", "SET lock:a x PX 0", "PEXPIRE lock:a x", "NOSUCH a b"]).into(),
        _ => return any_script(rng, lives),
    };
    line.split(' ').map(|arg| arg.as_bytes().to_vec()).collect()
}

/// A call of a shipped script for one or two locks.
fn any_script(rng: &mut Rng, lives: [&str; 2]) -> Vec<Vec<u8>> {
    let which = rng.within(0..=2) as usize;
    let mut args = if rng.chance(10) {
        vec!["EVALSHA".to_owned(), redis::Script::new(SCRIPTS[which]).get_hash().to_owned()]
    } else {
        vec!["EVAL".to_owned(), SCRIPTS[which].to_owned()]
    };
    let locks = if rng.chance(70) { vec!["a"] } else { vec!["a", "b"] };
    let tokens: Vec<_> = locks.iter().map(|_| rng.one_of(&TOKENS)).collect();
    let members = tokens.iter().map(|token| {
        // No client is subscribed, so a waiter that claims to be counts as gone.
        let sign = rng.one_of(&["=", "~"]);
        format!("{token}:{}:{sign}{}", rng.one_of(&lives), if sign == "=" { "inbox" } else { "" })
    });
    let members: Vec<_> = members.collect();
    let names = locks.iter().map(|lock| format!("lock:{lock}"));
    let queues = locks.iter().map(|lock| format!("lock:{{0}}:q:{lock}"));
    let alives = locks.iter().map(|lock| format!("lock:{{0}}:a:{lock}"));
    if which == 2 {
        args.push(locks.len().to_string());
        args.extend(names);
        for token in tokens {
            args.extend([token.to_owned(), rng.one_of(&lives).to_owned()]);
        }
    } else {
        args.push((1 + 3 * locks.len()).to_string());
        args.push("lock:{0}:fence".to_owned());
        args.extend(names.chain(queues).chain(alives));
        if which == 0 {
            args.push("50000".to_owned());
        }
        for token in &tokens {
            args.push((*token).to_owned());
            if which == 0 {
                args.push(rng.one_of(&lives).to_owned());
                // Void, or good for long.
                args.push(rng.one_of(&["1000000", "9000000000000000"]).to_owned());
            } else {
                args.push(rng.one_of(&["0", "0", "0", "50000"]).to_owned());
            }
        }
        if rng.chance(50) {
            args.extend(members);
        }
    }
    args.into_iter().map(String::into_bytes).collect()
}

/// Whether both replies are the same, but for readings of a clock a moment apart.
fn is_same(simulated: &Reply, actual: &Value) -> bool {
    match (simulated, actual) {
        (Reply::Nil, Value::Nil) | (Reply::Status("OK"), Value::Okay) => true,
        (Reply::Status(one), Value::SimpleString(two)) => one == two,
        (Reply::Int(one), Value::Int(two)) => one == two || is_close_number(*one, *two),
        (Reply::Bulk(one), Value::BulkString(two)) => one == two || is_close_text(one, two),
        (Reply::Array(one), Value::Array(two)) => {
            one.len() == two.len() && one.iter().zip(two).all(|(one, two)| is_same(one, two))
        }
        // In an array.
        (Reply::Error(one), Value::ServerError(error)) => {
            *one == format!("{} {}", error.code(), error.details().unwrap_or_default())
        }
        // The error alone: the simulation does not know where in a script Redis raised it.
        (Reply::Error(one), Value::SimpleString(two)) => {
            one == two || two.starts_with(&format!("{one} script: "))
        }
        _ => false,
    }
}

/// Negative numbers are no times: they say that there is no expiry, or no key.
fn is_close_number(one: i64, two: i64) -> bool {
    matches!((u64::try_from(one), u64::try_from(two)), (Ok(one), Ok(two)) if is_close(one, two))
}

fn is_close(one: u64, two: u64) -> bool {
    match one.min(two) {
        // Microseconds since 1970, and what follows them.
        1_000_000_000_000_000.. => one.abs_diff(two) < MOMENT_US,
        // The same in milliseconds; and lives.
        1_000.. => one.abs_diff(two) < MOMENT_MS,
        _ => one.abs_diff(two) < MOMENT_MS / 2 && one > 3 && two > 3,
    }
}

fn is_close_text(one: &[u8], two: &[u8]) -> bool {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
    matches!((number(one), number(two)), (Some(one), Some(two)) if is_close(one, two))
}
