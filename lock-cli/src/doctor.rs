//! `lockctl doctor`.

use std::time::{Duration, Instant};

use lock_core::store::RedisStore;
use lock_core::{Error, LockClient};
use serde_json::json;

use crate::args::Global;
use crate::client::{DRAIN_LIMIT, connect};
use crate::failure::{Failure, STORE};
use crate::output::write;

/// What one check found.
struct Finding {
    check: &'static str,
    outcome: Outcome,
    text: String,
}

enum Outcome {
    Good,
    Risk,
    Bad,
}

/// Round trips that are measured.
const SAMPLES: usize = 20;
/// Hand-overs that are measured.
const HAND_OVERS: usize = 3;
/// A hand-over takes a round trip and a message, and this much for a busy machine. Without messages
/// it takes until the next poll, most of 100 ms.
const SLACK: Duration = Duration::from_millis(20);

/// Checks that a store can keep locks. Exits with 1 if something puts them at risk.
pub(crate) async fn check(global: &Global, url: Option<&str>) -> Result<u8, Failure> {
    let url = url.unwrap_or(&global.store);
    let mut findings = Vec::new();
    let mut find = |check, outcome, text: String| findings.push(Finding { check, outcome, text });
    // The start-up check of services: permissions, scripts, a queue and a hand-over.
    match RedisStore::connect(url).await {
        Ok(store) => {
            find("start-up check", Outcome::Good, format!("{store} can keep locks"));
            let client = connect(global, url).await?;
            let health = client.health().await?;
            find("server", Outcome::Good, health.server);
            for problem in health.problems {
                find("server", Outcome::Risk, problem);
            }
            let (p50, worst) = round_trips(&client).await?;
            find("latency", Outcome::Good, format!("{p50:.1?} median, {worst:.1?} at most"));
            let mut took = Duration::MAX;
            for _ in 0..HAND_OVERS {
                took = took.min(hand_over(global, url).await?);
            }
            if took < p50 * 2 + SLACK {
                find("hand-over", Outcome::Good, format!("after {took:.1?}, by a message"));
            } else {
                let text = format!("after {took:.1?}: messages do not arrive, so waiters poll");
                find("hand-over", Outcome::Risk, text);
            }
        }
        Err(error) => find("start-up check", Outcome::Bad, Failure::from(error).text()),
    }
    report(global, &findings)
}

/// The median and the longest of some round trips.
async fn round_trips(client: &LockClient) -> Result<(Duration, Duration), Error> {
    let mut spans = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let sent = Instant::now();
        client.inspect("lockctl-doctor").await?;
        spans.push(sent.elapsed());
    }
    spans.sort_unstable();
    Ok((spans[SAMPLES / 2], spans[SAMPLES - 1]))
}

/// How long a waiting client takes to get a lock that another one releases.
async fn hand_over(global: &Global, url: &str) -> Result<Duration, Failure> {
    let (holder, waiter) = (connect(global, url).await?, connect(global, url).await?);
    let key = format!("lockctl-doctor:{}", holder.id());
    let guard = holder.mutex(key.clone()).lock().await?;
    let waiting = tokio::spawn(waiter.mutex(key.clone()).lock());
    // Until it has a place in the queue.
    let begun = Instant::now();
    while holder.inspect(key.clone()).await?.waiting == Some(0) && begun.elapsed() < DRAIN_LIMIT {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let released = Instant::now();
    guard.release().await?;
    let guard = waiting.await.map_err(|gone| Failure::new(STORE, gone.to_string()))??;
    let took = released.elapsed();
    guard.release().await?;
    Ok(took)
}

fn report(global: &Global, findings: &[Finding]) -> Result<u8, Failure> {
    let mut text = String::new();
    for Finding { check, outcome, text: found } in findings {
        let word = match outcome {
            Outcome::Good => "ok",
            Outcome::Risk => "risk",
            Outcome::Bad => "failed",
        };
        if global.json {
            let line = json!({ "check": check, "outcome": word, "text": found });
            text.push_str(&format!("{line}\n"));
        } else {
            text.push_str(&format!("{word:6}  {check:14}  {found}\n"));
        }
    }
    write(text.as_bytes())?;
    let is_bad = findings.iter().any(|finding| matches!(finding.outcome, Outcome::Bad));
    let is_risky = findings.iter().any(|finding| matches!(finding.outcome, Outcome::Risk));
    Ok(if is_bad { STORE } else { u8::from(is_risky) })
}
