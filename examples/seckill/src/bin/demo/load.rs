//! Many users who press the button several times at once.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::{Request, StatusCode, Uri};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use indicatif::{ProgressBar, ProgressStyle};
use seckill::db::{Audit, Database};
use seckill::routes::USER_HEADER;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::cli::Options;
use crate::error::BoxError;
use crate::fleet::Fleet;
use crate::mode::Mode;

/// Longer than any honest answer takes; what is later counts as an error.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How long a user waits after a 503, or after nothing but 409s.
const PRESS_AGAIN: Duration = Duration::from_millis(500);

/// The damage is done when one press of so many has its answer.
const FIRST_PART: u64 = 5;

/// What came of one mode.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) mode: Mode,
    pub(crate) audit: Audit,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// What the first of them was.
    pub(crate) first_error: Option<String>,
    pub(crate) took: Duration,
    /// Of every answer, ascending.
    pub(crate) latencies: Vec<Duration>,
}

/// Puts one mode after the other under the same load, each with a voucher of its own.
pub(crate) async fn every_mode(fleet: &Fleet, options: &Options) -> Result<Vec<Outcome>, BoxError> {
    let mut outcomes = Vec::new();
    for mode in Mode::ALL {
        let voucher = fleet.voucher(mode);
        // As many as there are users: one for each, and not one to spare.
        fleet.database().offer(&voucher, options.users).await?;
        let crowd = Crowd::new(fleet.addresses(), mode, &voucher, options)?;
        let measured = if options.chaos && mode.locks() {
            let (measured, damaged) = tokio::join!(crowd.press(), crowd.damage(fleet));
            damaged?;
            measured
        } else {
            crowd.press().await
        };
        let audit = audit(fleet.database(), &voucher).await?;
        outcomes.push(measured.with(mode, audit));
    }
    Ok(outcomes)
}

async fn audit(database: &Database, voucher: &str) -> Result<Audit, BoxError> {
    let voucher = database.voucher(voucher).await?.ok_or("the voucher is gone")?;
    Ok(database.audit(&voucher).await?)
}

/// The users, and the buttons in front of them.
struct Crowd<'a> {
    client: Client<HttpConnector, Empty<Bytes>>,
    buttons: Vec<Uri>,
    next: AtomicUsize,
    options: &'a Options,
    progress: Progress,
}

struct Measured {
    took: Duration,
    answers: Vec<Answer>,
}

struct Answer {
    took: Duration,
    error: Option<String>,
    /// "Your other click is being handled".
    is_conflict: bool,
}

impl<'a> Crowd<'a> {
    fn new(
        addresses: &[String],
        mode: Mode,
        voucher: &str,
        options: &'a Options,
    ) -> Result<Self, BoxError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            buttons: addresses
                .iter()
                .map(|address| format!("{address}/{mode}/vouchers/{voucher}/orders").parse())
                .collect::<Result<_, _>>()?,
            next: AtomicUsize::new(0),
            options,
            progress: Progress::start(mode, options),
        })
    }

    /// Every user once, some of them at the same moment, each with all presses at once.
    async fn press(&self) -> Measured {
        let began = Instant::now();
        let answers = stream::iter(1..=self.options.users)
            .map(|user| self.press_as(user))
            .buffer_unordered(self.options.concurrency as usize)
            .flat_map(stream::iter)
            .collect()
            .await;
        let took = began.elapsed();
        self.progress.finish(took);
        Measured { took, answers }
    }

    /// Does damage to the servers once a part of the users has pressed.
    async fn damage(&self, fleet: &Fleet) -> Result<(), BoxError> {
        self.progress.first_part().await;
        let damage = fleet.damage().await?;
        self.progress.tell(&damage);
        Ok(())
    }

    /// All presses of a user, who presses again if each got "another is being handled": if several
    /// instances ask the members of a quorum at the same moment, it may be that none gets a
    /// majority.
    async fn press_as(&self, user: u32) -> Vec<Answer> {
        let began = Instant::now();
        let presses = (0..self.options.duplicates).map(|_| self.press_once(user));
        let mut answers = join_all(presses).await;
        while answers.iter().all(|answer| answer.is_conflict) && began.elapsed() < ANSWER_LIMIT {
            self.progress.pressed_alone();
            sleep(PRESS_AGAIN).await;
            let again = self.request_once(user).await;
            // It is the answer to the last press, later.
            if let Some(last) = answers.last_mut() {
                *last = Answer { took: began.elapsed(), ..again };
            }
        }
        answers.iter().for_each(|answer| self.progress.failed(answer));
        answers
    }

    async fn press_once(&self, user: u32) -> Answer {
        let answer = self.request_once(user).await;
        self.progress.answered();
        answer
    }

    async fn request_once(&self, user: u32) -> Answer {
        let began = Instant::now();
        let mut is_conflict = false;
        let error = match timeout(ANSWER_LIMIT, self.request_again(user)).await {
            Ok(Ok(status)) => match status {
                // Ordered, ordered before, "your other click is being handled", or sold out: who
                // should have got one and did not is counted in the database.
                StatusCode::CREATED | StatusCode::OK | StatusCode::CONFLICT | StatusCode::GONE => {
                    is_conflict = status == StatusCode::CONFLICT;
                    None
                }
                other => Some(other.to_string()),
            },
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", ANSWER_LIMIT.as_secs())),
        };
        Answer { took: began.elapsed(), error, is_conflict }
    }

    /// Requests; presses again after each 503 if damage is done to the servers meanwhile.
    async fn request_again(&self, user: u32) -> Result<StatusCode, BoxError> {
        loop {
            let status = self.request(user).await?;
            if status != StatusCode::SERVICE_UNAVAILABLE || !self.options.chaos {
                return Ok(status);
            }
            self.progress.pressed_again();
            sleep(PRESS_AGAIN).await;
        }
    }

    async fn request(&self, user: u32) -> Result<StatusCode, BoxError> {
        // In turn, so that the presses of one user meet in different processes.
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let button = self.buttons[turn % self.buttons.len()].clone();
        let request = Request::post(button).header(USER_HEADER, user).body(Empty::new())?;
        let response = self.client.request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        Ok(status)
    }
}

impl Measured {
    fn with(self, mode: Mode, audit: Audit) -> Outcome {
        let mut latencies: Vec<_> = self.answers.iter().map(|answer| answer.took).collect();
        latencies.sort_unstable();
        let mut errors = self.answers.iter().filter_map(|answer| answer.error.as_ref());
        let first_error = errors.next().cloned();
        Outcome {
            mode,
            audit,
            requests: self.answers.len() as u64,
            errors: u64::from(first_error.is_some()) + errors.count() as u64,
            first_error,
            took: self.took,
            latencies,
        }
    }
}

/// A bar, if there is a terminal, and one line in the end.
struct Progress {
    mode: Mode,
    bar: ProgressBar,
    errors: AtomicU64,
    again: AtomicU64,
    alone: AtomicU64,
    /// Closed when the first part of the presses have their answers.
    first_part: Semaphore,
}

impl Progress {
    fn start(mode: Mode, options: &Options) -> Self {
        let presses = u64::from(options.users) * u64::from(options.duplicates);
        let style = ProgressStyle::with_template(
            "{prefix:>7} {wide_bar:.cyan/blue} {pos}/{len} presses {msg}",
        )
        .expect("BUG: the template is correct");
        let bar = ProgressBar::new(presses).with_style(style).with_prefix(mode.to_string());
        let (errors, again, alone) = <(AtomicU64, AtomicU64, AtomicU64)>::default();
        Self { mode, bar, errors, again, alone, first_part: Semaphore::new(0) }
    }

    fn failed(&self, answer: &Answer) {
        if answer.error.is_some() {
            let errors = self.errors.fetch_add(1, Ordering::Relaxed) + 1;
            self.bar.set_message(format!("{errors} errors"));
        }
    }

    fn answered(&self) {
        self.bar.inc(1);
        if self.bar.position() >= self.bar.length().unwrap_or(0) / FIRST_PART {
            self.first_part.close();
        }
    }

    /// Ready when the first part of the presses have their answers.
    async fn first_part(&self) {
        // Closed, never opened.
        let _closed = self.first_part.acquire().await;
    }

    fn pressed_again(&self) {
        self.again.fetch_add(1, Ordering::Relaxed);
    }

    fn pressed_alone(&self) {
        self.alone.fetch_add(1, Ordering::Relaxed);
    }

    fn tell(&self, damage: &str) {
        let mode = self.mode;
        // Progress is a courtesy: a closed standard error is no reason to fail.
        self.bar.suspend(|| writeln!(io::stderr(), "{mode:>7}: {damage}")).ok();
    }

    fn finish(&self, took: Duration) {
        let (mode, presses) = (self.mode, self.bar.position());
        self.bar.finish_and_clear();
        let told = |count: &AtomicU64, what| match count.load(Ordering::Relaxed) {
            0 => String::new(),
            count => format!(", {count} {what}"),
        };
        let again = told(&self.again, "repeated after a 503");
        let alone = told(&self.alone, "more after nothing but 409s");
        let took = took.as_secs_f64();
        writeln!(io::stderr(), "{mode:>7}: {presses} presses in {took:.1} s{again}{alone}").ok();
    }
}
