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
use tokio::time::timeout;

use crate::cli::Options;
use crate::error::BoxError;
use crate::fleet::Fleet;
use crate::mode::Mode;

/// Longer than any honest answer takes; what is later counts as an error.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

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
        let crowd = Crowd::new(fleet.addresses(), mode, &voucher)?;
        let measured = crowd.press(mode, options).await;
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
struct Crowd {
    client: Client<HttpConnector, Empty<Bytes>>,
    buttons: Vec<Uri>,
    next: AtomicUsize,
}

struct Measured {
    took: Duration,
    answers: Vec<Answer>,
}

struct Answer {
    took: Duration,
    error: Option<String>,
}

impl Crowd {
    fn new(addresses: &[String], mode: Mode, voucher: &str) -> Result<Self, BoxError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            buttons: addresses
                .iter()
                .map(|address| format!("{address}/{mode}/vouchers/{voucher}/orders").parse())
                .collect::<Result<_, _>>()?,
            next: AtomicUsize::new(0),
        })
    }

    /// Every user once, some of them at the same moment, each with all presses at once.
    async fn press(&self, mode: Mode, options: &Options) -> Measured {
        let progress = Progress::start(mode, options);
        let began = Instant::now();
        let answers = stream::iter(1..=options.users)
            .map(|user| {
                let presses = (0..options.duplicates).map(|_| self.press_once(user, &progress));
                join_all(presses)
            })
            .buffer_unordered(options.concurrency as usize)
            .flat_map(stream::iter)
            .collect()
            .await;
        let took = began.elapsed();
        progress.finish(took);
        Measured { took, answers }
    }

    async fn press_once(&self, user: u32, progress: &Progress) -> Answer {
        let began = Instant::now();
        let error = match timeout(ANSWER_LIMIT, self.request(user)).await {
            Ok(Ok(status)) => match status {
                // Ordered, ordered before, "your other click is being handled", or sold out: who
                // should have got one and did not is counted in the database.
                StatusCode::CREATED | StatusCode::OK | StatusCode::CONFLICT | StatusCode::GONE => {
                    None
                }
                other => Some(other.to_string()),
            },
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", ANSWER_LIMIT.as_secs())),
        };
        let answer = Answer { took: began.elapsed(), error };
        progress.answered(&answer);
        answer
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
}

impl Progress {
    fn start(mode: Mode, options: &Options) -> Self {
        let presses = u64::from(options.users) * u64::from(options.duplicates);
        let style = ProgressStyle::with_template(
            "{prefix:>7} {wide_bar:.cyan/blue} {pos}/{len} presses {msg}",
        )
        .expect("BUG: the template is correct");
        let bar = ProgressBar::new(presses).with_style(style).with_prefix(mode.to_string());
        Self { mode, bar, errors: AtomicU64::new(0) }
    }

    fn answered(&self, answer: &Answer) {
        if answer.error.is_some() {
            let errors = self.errors.fetch_add(1, Ordering::Relaxed) + 1;
            self.bar.set_message(format!("{errors} errors"));
        }
        self.bar.inc(1);
    }

    fn finish(&self, took: Duration) {
        let (mode, presses) = (self.mode, self.bar.position());
        self.bar.finish_and_clear();
        // Progress is a courtesy: a closed standard error is no reason to fail.
        writeln!(io::stderr(), "{mode:>7}: {presses} presses in {:.1} s", took.as_secs_f64()).ok();
    }
}
