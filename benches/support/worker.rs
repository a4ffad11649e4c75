//! Worker processes: this program with a hidden option. It reads jobs as lines from stdin and
//! writes answers to stdout.

use std::fmt;
use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use lock_testkit::{ChildProcess, Line, Signal};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::{Barrier, watch};

use super::clock::{MS, Timer, now, process_cpu};
use super::machine::die_with_parent;
use super::server::{Server, Usage};
use super::stats::Section;
use crate::peers::{self, Config, Kind, Peer};

/// The first option of this program when it is a worker process.
pub(crate) const HIDDEN_OPTION: &str = "--as-worker";
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

/// The parent's end of a worker process.
pub(crate) struct Worker(ChildProcess);

impl Worker {
    pub(crate) async fn start(kind: &Kind, config: &Config) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let ttl = config.ttl.as_millis().to_string();
        command.args([HIDDEN_OPTION, kind.name, &config.url, &ttl]);
        let worker = Self(ChildProcess::spawn(&mut command).unwrap());
        assert_eq!(worker.0.next_line().await, "ready");
        worker
    }

    pub(crate) async fn start_all(kind: &Kind, config: &Config, count: usize) -> Vec<Self> {
        join_all((0..count).map(|_| Self::start(kind, config))).await
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
            let lasts = lasts.map_or_else(String::new, |lasts| format!(" lasts={lasts}"));
            let job = format!("race key={key} start={start} waiters={waiters} hold={hold}{lasts}");
            worker.0.tell(job);
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
        let head = self.0.next_line().await;
        let mut sections = Vec::new();
        for _ in 0..head.number("sections") {
            let line = self.0.next_line().await;
            let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
            let mut next = || numbers.next().unwrap();
            let (entry, exit, waiter) = (next(), next(), next() as u32);
            sections.push(Section { entry, exit, process, waiter });
        }
        let end = match head.find("end").unwrap() {
            "done" => End::Done,
            "waiting" => End::Waiting,
            _ => End::Failed,
        };
        (sections, end)
    }

    /// Lets the worker request `key`, and hold it until [`leave`](Self::leave).
    pub(crate) fn ask(&mut self, key: &str) {
        self.0.tell(format!("hold key={key}"));
    }

    /// The stamp at which it got the lock.
    pub(crate) async fn entered(&mut self) -> u64 {
        self.0.next_line().await.number("entered")
    }

    /// Ends the hold; gives the stamp of its end.
    pub(crate) async fn leave(&mut self) -> u64 {
        self.0.tell("leave");
        self.0.next_line().await.number("left")
    }

    /// Lets the worker hold `locks` keys at once; returns when it holds all.
    pub(crate) async fn hold_many(&mut self, locks: usize) -> u64 {
        self.0.tell(format!("hold_many locks={locks}"));
        self.0.next_line().await.number("cpu")
    }

    /// The CPU that the process has used, in nanoseconds, while it holds many.
    pub(crate) async fn leave_many(&mut self) -> u64 {
        self.0.tell("leave");
        let cpu = self.0.next_line().await.number("cpu");
        assert_eq!(self.0.next_line().await, "left");
        cpu
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    /// SIGKILL; returns when the process, with its sockets, is gone.
    pub(crate) fn kill(mut self) {
        self.0.kill();
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
        say("ready");
        let mut jobs = BufReader::new(tokio::io::stdin()).lines();
        while let Some(job) = next(&mut jobs).await {
            match job.split(' ').next() {
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

async fn next(jobs: &mut Lines<BufReader<Stdin>>) -> Option<Line> {
    jobs.next_line().await.unwrap().map(Line::from)
}

fn say(answer: impl fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}").unwrap();
    out.flush().unwrap();
}

async fn race(peer: &Arc<dyn Peer>, job: &Line) {
    let (start, hold) = (job.number("start"), job.number("hold"));
    let end = job.find("lasts").map(|_| start + job.number("lasts"));
    Timer::new().until(start).await;
    let mut sections = Vec::new();
    let waiters = (0..job.number("waiters") as u32).map(|waiter| {
        let peer = Arc::clone(peer);
        let key = job.find("key").unwrap().to_owned();
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
    let end = match &finished {
        None => "waiting",
        Some(ended) if ended.iter().all(Result::is_ok) => "done",
        Some(_) => "failed",
    };
    let sections = sections.iter().flat_map(|done| std::mem::take(&mut *done.lock().unwrap()));
    let lines: Vec<_> = sections
        .map(|Section { entry, exit, waiter, .. }| format!("\n{entry} {exit} {waiter}"))
        .collect();
    say(format_args!("end={end} sections={}{}", lines.len(), lines.concat()));
}

async fn hold(peer: &Arc<dyn Peer>, job: &Line, jobs: &mut Lines<BufReader<Stdin>>) {
    let mut left = 0;
    let body = async {
        say(format_args!("entered={}", now()));
        next(jobs).await;
        left = now();
    };
    peer.section(job.find("key").unwrap(), Box::pin(body)).await;
    say(format_args!("left={left}"));
}

async fn hold_many(peer: &Arc<dyn Peer>, job: &Line, jobs: &mut Lines<BufReader<Stdin>>) {
    let locks = job.number("locks") as usize;
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
    say(format_args!("cpu={}", process_cpu()));
    next(jobs).await;
    say(format_args!("cpu={}", process_cpu()));
    over.send(true).unwrap();
    join_all(holders).await.into_iter().for_each(Result::unwrap);
    say("left");
}
