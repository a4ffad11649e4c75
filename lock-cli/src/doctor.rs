//! `lockctl doctor`.

use std::time::{Duration, Instant};

use lock_core::store::{self, MissingPermissions};
use lock_core::{Error, ErrorKind, LockClient};
use serde_json::json;

use crate::args::Global;
use crate::client::{DRAIN_LIMIT, check_is_shared, connect_to};
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
    /// Something is missing that no lock depends on.
    Note,
    Risk,
    Bad,
}

/// Where the records beside locks without a namespace are.
const RECORDS: &str = "lock";
/// Round trips that are measured.
const SAMPLES: usize = 20;
/// Hand-offs that are measured.
const HAND_OFFS: usize = 3;
/// A hand-off takes a round trip and a message, and this much for a busy machine. Without messages
/// it takes until the next poll, most of 100 ms.
const SLACK: Duration = Duration::from_millis(20);

/// Checks that a store can keep locks. Exits with 1 if something puts them at risk.
pub(crate) async fn check(global: &Global, url: Option<&str>) -> Result<u8, Failure> {
    let url = url.unwrap_or(&global.store);
    let namespace = global.namespace().unwrap_or(RECORDS);
    let mut findings = Vec::new();
    let mut find = |check, outcome, text: String| findings.push(Finding { check, outcome, text });
    // The start-up check of services: scripts, a queue and a hand-off, under names of its own.
    let checked = store::connect(url).await;
    if let Ok(store) = &checked {
        check_is_shared(&**store)?;
    }
    let is_good = checked.is_ok();
    match checked {
        Ok(store) => find("start-up check", Outcome::Good, format!("{store} can keep locks")),
        Err(error) if error.kind() == ErrorKind::InvalidOptions => return Err(error.into()),
        Err(error) => find("start-up check", Outcome::Bad, Failure::from(error).text()),
    }
    if global.namespace().is_none() {
        let text = "not tried for the names of the locks themselves, such as `~order:*`";
        find("permissions", Outcome::Note, text.to_owned());
    }
    // What fails from here on is a finding as well.
    match connect_to(url, Some(namespace)).await {
        Ok(client) => {
            let rules = look_around(&client, &mut find).await;
            if is_good && let Err(failure) = look_closer(url, &client, &rules, &mut find).await {
                let text = format!("no lock of the namespace `{namespace}`: {}", failure.text());
                find("use", Outcome::Bad, text);
            }
        }
        // Else the start-up check has said it.
        Err(failure) if is_good => find("use", Outcome::Bad, failure.text()),
        Err(_) => {}
    }
    report(global, &findings)
}

/// Asks what the user may do and how the server is. Returns what the user needs for messages as far
/// as it is not known to be permitted.
async fn look_around(
    client: &LockClient,
    find: &mut impl FnMut(&'static str, Outcome, String),
) -> String {
    let namespace = client.namespace();
    // Whether messages can be received is not tried.
    let mut rules = "`+subscribe` (on a cluster `+ssubscribe`)".to_owned();
    match client.missing_permissions().await {
        Ok(missing) if missing.is_empty() => {
            let text = format!("all that locks of the namespace `{namespace}` need");
            find("permissions", Outcome::Good, text);
        }
        Ok(missing) => {
            name_missing(&missing, find);
            if !missing.rules.is_empty() {
                rules = format!("what the user lacks, or {rules}");
            }
        }
        Err(error) => {
            find("permissions", Outcome::Bad, Failure::from(error).text());
            rules = format!("`+publish`, `&{namespace}:*`, {rules}");
        }
    }
    match client.health().await {
        Ok(health) => {
            find("server", Outcome::Good, health.server);
            for problem in health.problems {
                find("server", Outcome::Risk, problem);
            }
            for note in health.notes {
                find("server", Outcome::Note, note);
            }
        }
        Err(error) => find("server", Outcome::Bad, Failure::from(error).text()),
    }
    rules
}

fn name_missing(
    missing: &MissingPermissions,
    find: &mut impl FnMut(&'static str, Outcome, String),
) {
    if !missing.rules.is_empty() {
        // Without a message waiters find out by themselves, only later.
        let is_about_messages = |rule: &String| rule.ends_with("publish") || rule.starts_with('&');
        let is_slow = missing.rules.iter().all(is_about_messages);
        let outcome = if is_slow { Outcome::Risk } else { Outcome::Bad };
        let rules = missing.rules.join(" ");
        find("permissions", outcome, format!("the user lacks, for `ACL SETUSER`: {rules}"));
    }
    if !missing.unknown_commands.is_empty() {
        let commands = missing.unknown_commands.join(", ");
        let text =
            format!("the server does not know {commands}: renamed, or the server is too old");
        find("commands", Outcome::Bad, text);
    }
}

/// Uses the store as a service does, under the namespace of the command line.
async fn look_closer(
    url: &str,
    client: &LockClient,
    rules: &str,
    find: &mut impl FnMut(&'static str, Outcome, String),
) -> Result<(), Failure> {
    let (p50, worst) = round_trips(client).await?;
    find("latency", Outcome::Good, format!("{p50:.1?} median, {worst:.1?} at most"));
    let mut took = Duration::MAX;
    for _ in 0..HAND_OFFS {
        took = took.min(hand_off(url, client.namespace()).await?);
    }
    if took < p50 * 2 + SLACK {
        find("hand-off", Outcome::Good, format!("after {took:.1?}, by a message"));
    } else {
        let text = format!(
            "after {took:.1?}, later than by a message: this machine or the server is busy, or no \
             messages arrive and waiters poll: then permit {rules}"
        );
        find("hand-off", Outcome::Risk, text);
    }
    if let Err(error) = client.list(1).await {
        let text = format!(
            "`lockctl ls` and the console cannot list locks: {}",
            Failure::from(error).text()
        );
        find("list", Outcome::Note, text);
    }
    Ok(())
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
async fn hand_off(url: &str, namespace: &str) -> Result<Duration, Failure> {
    let namespace = Some(namespace);
    let (holder, waiter) = (connect_to(url, namespace).await?, connect_to(url, namespace).await?);
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
            Outcome::Note => "note",
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
