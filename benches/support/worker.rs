//! Worker processes: this program with a hidden option. It reads jobs as lines from stdin and
//! writes answers to stdout.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines, Stdin};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Barrier, watch};

use super::clock::{MS, Timer, now, process_cpu};
use super::machine::die_with_parent;
use super::server::{Server, Usage};
use super::stats::Section;
use crate::peers::{self, Config, Kind, Peer};

/// The first option of this program when it is a worker process.
pub(crate) const HIDDEN_OPTION: &str = "--as-worker";
/// Bytes of a section on the pipe.
const SECTION_LEN: usize = 20;
/// How far ahead the start of a race lies, so that all workers know of it before.
const BARRIER: u64 = 30 * MS;
/// How long after the end of a race a waiter may take to get the lock once more. Some peers would
/// poll for many seconds.
const GRACE: u64 = 250 * MS;

/// Waiters that all want one key.
#[derive(Clone, Copy)]
pub(crate) struct Race {
    pub(crate) waiters: usize,
    /// Nanoseconds.
    pub(crate) hold: u64,
    /// How long, in nanoseconds; without it, each waiter once.
    pub(crate) lasts: Option<u64>,
}

/// What came of a race.
pub(crate) struct Raced {
    /// Its stamp.
    pub(crate) start: u64,
    pub(crate) sections: Vec<Section>,
    pub(crate) end: End,
    pub(crate) before: Usage,
    /// At the end of the race; late waiters still go on then.
    pub(crate) after: Usage,
}

/// How the waiters of a race ended.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum End {
    /// All of them, by themselves.
    Done,
    /// Some would still wait. The workers are of no more use.
    Waiting,
    /// Some had an error. Likewise.
    Failed,
}

/// The parent's end of a worker process; killed on drop, and when we die.
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) async fn start(kind: &Kind, config: &Config) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([HIDDEN_OPTION, kind.name, &config.url, &config.ttl.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut worker = Self { child, input, output };
        assert_eq!(worker.hear().await["ready"], true);
        worker
    }

    pub(crate) async fn start_all(kind: &Kind, config: &Config, count: usize) -> Vec<Self> {
        join_all((0..count).map(|_| Self::start(kind, config))).await
    }

    async fn tell(&mut self, job: Value) {
        self.input.write_all(format!("{job}\n").as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).await.unwrap();
        assert!(read > 0, "a worker process has ended: see its message above");
        serde_json::from_str(&line).unwrap()
    }

    /// Lets all workers race for `key`.
    pub(crate) async fn race(
        workers: &mut [Self],
        key: &str,
        race: Race,
        server: &Server,
    ) -> Raced {
        let before = server.usage().await;
        let start = now() + BARRIER;
        for worker in workers.iter_mut() {
            let Race { waiters, hold, lasts } = race;
            let job = json!({
                "job": "race", "key": key, "start": start,
                "waiters": waiters, "hold": hold, "lasts": lasts,
            });
            worker.tell(job).await;
        }
        let mut after = None;
        if let Some(lasts) = race.lasts {
            Timer::new().until(start + lasts).await;
            after = Some(server.usage().await);
        }
        let heard = join_all((0..).zip(workers).map(|(process, worker)| worker.sections(process)));
        let (sections, ends): (Vec<_>, Vec<_>) = heard.await.into_iter().unzip();
        let after = match after {
            Some(after) => after,
            None => server.usage().await,
        };
        let end = ends.into_iter().max().unwrap();
        Raced { start, sections: sections.concat(), end, before, after }
    }

    async fn sections(&mut self, process: u32) -> (Vec<Section>, End) {
        let head = self.hear().await;
        let count = head["sections"].as_u64().unwrap() as usize;
        let mut bytes = vec![0; count * SECTION_LEN];
        self.output.read_exact(&mut bytes).await.unwrap();
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let section = |bytes: &[u8]| Section {
            entry: number(&bytes[..8]),
            exit: number(&bytes[8..16]),
            process,
            waiter: u32::from_le_bytes(bytes[16..].try_into().unwrap()),
        };
        let sections = bytes.chunks_exact(SECTION_LEN).map(section).collect();
        let end = if head["failed"] == true {
            End::Failed
        } else if head["done"] == true {
            End::Done
        } else {
            End::Waiting
        };
        (sections, end)
    }

    /// Lets the worker ask for `key`, and hold it until [`leave`](Self::leave).
    pub(crate) async fn ask(&mut self, key: &str) {
        self.tell(json!({ "job": "hold", "key": key })).await;
    }

    /// The stamp at which it got what it asked for.
    pub(crate) async fn entered(&mut self) -> u64 {
        self.hear().await["entered"].as_u64().unwrap()
    }

    /// Ends the hold; gives the stamp of its end.
    pub(crate) async fn leave(&mut self) -> u64 {
        self.tell(json!({ "job": "leave" })).await;
        self.hear().await["left"].as_u64().unwrap()
    }

    /// Lets the worker hold `locks` keys at once; returns when it holds all.
    pub(crate) async fn hold_many(&mut self, locks: usize) -> u64 {
        self.tell(json!({ "job": "hold_many", "locks": locks })).await;
        self.hear().await["cpu"].as_u64().unwrap()
    }

    /// The CPU that the process has used, in nanoseconds, while it holds many.
    pub(crate) async fn leave_many(&mut self) -> u64 {
        self.tell(json!({ "job": "leave" })).await;
        let cpu = self.hear().await["cpu"].as_u64().unwrap();
        assert_eq!(self.hear().await["left"], true);
        cpu
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// SIGKILL; returns when the process, with its sockets, is gone.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// What the worker process does.
pub(crate) fn work(name: &str, url: &str, ttl_ms: &str) {
    die_with_parent();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = Config::new(url, ttl_ms.parse().unwrap());
        let peer = peers::named(name).unwrap().connect(&config).await;
        // What the first use of a lock costs is not what is measured.
        peer.section(&format!("warm:{}", std::process::id()), Box::pin(async {})).await;
        say(&json!({ "ready": true })).await;
        let mut jobs = BufReader::new(tokio::io::stdin()).lines();
        while let Some(job) = next(&mut jobs).await {
            match job["job"].as_str() {
                Some("race") => race(&peer, &job).await,
                Some("hold") => hold(&peer, &job, &mut jobs).await,
                Some("hold_many") => hold_many(&peer, &job, &mut jobs).await,
                _ => panic!("no such job: {job}"),
            }
        }
    });
    // A read of stdin would keep the runtime from ending.
    std::process::exit(0);
}

async fn next(jobs: &mut Lines<BufReader<Stdin>>) -> Option<Value> {
    jobs.next_line().await.unwrap().map(|line| serde_json::from_str(&line).unwrap())
}

async fn say(answer: &Value) {
    let mut out = tokio::io::stdout();
    out.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
    out.flush().await.unwrap();
}

async fn race(peer: &Arc<dyn Peer>, job: &Value) {
    let number = |name: &str| job[name].as_u64().unwrap();
    let (start, hold) = (number("start"), number("hold"));
    let end = job["lasts"].as_u64().map(|lasts| start + lasts);
    Timer::new().until(start).await;
    let mut sections = Vec::new();
    let waiters = (0..number("waiters") as u32).map(|waiter| {
        let peer = Arc::clone(peer);
        let key = job["key"].as_str().unwrap().to_owned();
        let done = Arc::new(Mutex::new(Vec::new()));
        sections.push(Arc::clone(&done));
        tokio::spawn(async move {
            let timer = Timer::new();
            loop {
                let body = async {
                    let entry = now();
                    // Late waiters only have to be let through.
                    if hold > 0 && end.is_none_or(|end| entry < end) {
                        timer.until(entry + hold).await;
                    }
                    done.lock().unwrap().push(Section { entry, exit: now(), process: 0, waiter });
                };
                peer.section(&key, Box::pin(body)).await;
                if end.is_none_or(|end| now() >= end) {
                    return;
                }
            }
        })
    });
    let waiters = join_all(waiters.collect::<Vec<_>>());
    let finished = match end {
        Some(end) => {
            let grace = Timer::new();
            tokio::select! {
                biased;
                ended = waiters => Some(ended),
                () = grace.until(end + GRACE) => None,
            }
        }
        None => Some(waiters.await),
    };
    let failed = finished.iter().flatten().any(Result::is_err);
    let done = finished.is_some() && !failed;
    let mut bytes = Vec::new();
    let sections = sections.iter().flat_map(|done| std::mem::take(&mut *done.lock().unwrap()));
    for Section { entry, exit, process: _, waiter } in sections {
        bytes.extend(entry.to_le_bytes());
        bytes.extend(exit.to_le_bytes());
        bytes.extend(waiter.to_le_bytes());
    }
    say(&json!({ "sections": bytes.len() / SECTION_LEN, "done": done, "failed": failed })).await;
    let mut out = tokio::io::stdout();
    out.write_all(&bytes).await.unwrap();
    out.flush().await.unwrap();
}

async fn hold(peer: &Arc<dyn Peer>, job: &Value, jobs: &mut Lines<BufReader<Stdin>>) {
    let mut left = 0;
    let body = async {
        say(&json!({ "entered": now() })).await;
        next(jobs).await;
        left = now();
    };
    peer.section(job["key"].as_str().unwrap(), Box::pin(body)).await;
    say(&json!({ "left": left })).await;
}

async fn hold_many(peer: &Arc<dyn Peer>, job: &Value, jobs: &mut Lines<BufReader<Stdin>>) {
    let locks = job["locks"].as_u64().unwrap() as usize;
    let all_held = Arc::new(Barrier::new(locks + 1));
    let (over, _) = watch::channel(false);
    let holders: Vec<_> = (0..locks)
        .map(|lock| {
            let peer = Arc::clone(peer);
            let (all_held, mut over) = (Arc::clone(&all_held), over.subscribe());
            tokio::spawn(async move {
                let body = async {
                    all_held.wait().await;
                    over.wait_for(|over| *over).await.unwrap();
                };
                peer.section(&format!("held:{lock}"), Box::pin(body)).await;
            })
        })
        .collect();
    all_held.wait().await;
    say(&json!({ "cpu": process_cpu() })).await;
    next(jobs).await;
    say(&json!({ "cpu": process_cpu() })).await;
    over.send(true).unwrap();
    join_all(holders).await.into_iter().for_each(Result::unwrap);
    say(&json!({ "left": true })).await;
}
