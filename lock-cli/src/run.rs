//! `lockctl run` and `lockctl wait`.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use lock_core::{Key, LockClient, LostReason, MutexGuard, Released};
use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::args::{Global, RunArgs};
use crate::client::{DRAIN_LIMIT, connect};
use crate::failure::{BUSY, Failure, STORE};
use crate::output::{note, shown};
use crate::signals::{Signals, Target, ends};

/// Added to a signal's number: the exit status of what it ended.
const BY_SIGNAL: i32 = 128;

/// Runs a command while holding a lock.
pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<u8, Failure> {
    let mut signals = Signals::receive()?;
    let connected = tokio::select! {
        client = connect(global) => client,
        signal = signals.end() => return Ok(by_signal(signal.as_raw())),
    };
    let with_statuses = |failure: Failure| {
        failure.with_status(BUSY, args.busy_status).with_status(STORE, args.store_status)
    };
    let client = connected.map_err(with_statuses)?;
    let mutex = client.mutex(named(&args.key)?).with_options(args.options());
    let outcome = tokio::select! {
        guard = mutex.lock() => match guard {
            Ok(guard) => under(guard, args, global.json, &mut signals).await,
            Err(error) => Err(with_statuses(error.into())),
        },
        // The client releases what the wait may have left.
        signal = signals.end() => Ok(by_signal(signal.as_raw())),
    };
    let _drained = client.drain(DRAIN_LIMIT).await;
    outcome
}

/// The key with itself as its label: who types it may read it in the log.
fn named(key: &str) -> Result<Key, Failure> {
    Ok(Key::new(key.to_owned())?.with_label(shown(key).leak()))
}

/// Runs the command of `args` while `guard` is held.
async fn under(
    guard: MutexGuard,
    args: &RunArgs,
    json: bool,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let (program, arguments) = args.command.split_first().expect("BUG: clap requires a command");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LOCK_KEY", &args.key)
        .env("LOCK_FENCE", guard.fencing_token().to_string());
    if Target::is_group() {
        command.process_group(0);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            release(guard, json).await;
            let not_found = error.kind() == std::io::ErrorKind::NotFound;
            let status = if not_found { 127 } else { 126 };
            return Err(Failure::new(status, format!("{}: {error}", program.to_string_lossy())));
        }
    };
    let target = child.id().and_then(Target::of);
    let mut is_ending = false;
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = exit_status(status?);
                // What the command started may not have heeded the signal yet.
                if is_ending && let Some(target) = target {
                    settle(target, args, signals).await;
                }
                return match release(guard, json).await {
                    Some(Released::Expired | Released::TakenByOther) => Err(Failure::new(
                        args.lost_status,
                        format!("the lock was lost before the command ended, with status {status}"),
                    )),
                    _ => Ok(status),
                };
            }
            reason = guard.lost() => {
                return stop(&mut child, target, reason, args, signals).await;
            }
            received = signals.next() => {
                is_ending |= ends(received.signal);
                if let Some(target) = target {
                    target.pass_on(received);
                }
            }
        }
    }
}

/// Ends a command whose lock is lost.
async fn stop(
    child: &mut Child,
    target: Option<Target>,
    reason: LostReason,
    args: &RunArgs,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut is_killed = false;
    if let Some(target) = target {
        target.send(Signal::TERM);
        let ended = async {
            let _status = child.wait().await;
            target.ended().await;
        };
        is_killed = !in_time(ended, args, signals).await;
        if is_killed {
            target.send(Signal::KILL);
            let _status = child.wait().await;
        }
    }
    let killed = if is_killed { ", and killed since it went on" } else { "" };
    Err(Failure::new(
        args.lost_status,
        format!("the lock was lost ({reason}): the command was stopped{killed}"),
    ))
}

/// Waits until all that a command started has ended after a signal, and kills what has not.
async fn settle(target: Target, args: &RunArgs, signals: &mut Signals) {
    if !in_time(target.ended(), args, signals).await {
        target.send(Signal::KILL);
    }
}

/// Whether `ended` is ready within the grace. A further signal cuts the grace short.
async fn in_time(ended: impl Future<Output = ()>, args: &RunArgs, signals: &mut Signals) -> bool {
    tokio::select! {
        ended = timeout(args.grace, ended) => ended.is_ok(),
        _ = signals.end() => false,
    }
}

/// A failed release does not change how the command ended.
async fn release(guard: MutexGuard, json: bool) -> Option<Released> {
    match guard.release().await {
        Ok(released) => Some(released),
        Err(error) => {
            note(json, &format!("the lock was not released, and ends with its ttl: {error}"));
            None
        }
    }
}

fn exit_status(status: ExitStatus) -> u8 {
    let code = status.code().map(|code| u8::try_from(code).unwrap_or(u8::MAX));
    code.unwrap_or_else(|| by_signal(status.signal().unwrap_or(0)))
}

fn by_signal(number: i32) -> u8 {
    u8::try_from(BY_SIGNAL + number).unwrap_or(u8::MAX)
}

/// Waits until a lock is free.
pub(crate) async fn wait(
    client: &LockClient,
    json: bool,
    key: &str,
    limit: Option<Duration>,
) -> Result<u8, Failure> {
    let mut signals = Signals::receive()?;
    let mutex = client.mutex(named(key)?);
    let mutex = match limit {
        Some(limit) if limit.is_zero() => mutex.without_wait(),
        Some(limit) => mutex.with_wait(limit),
        None => mutex.wait_forever(),
    };
    let outcome = tokio::select! {
        guard = mutex.lock() => match guard {
            Ok(guard) => {
                release(guard, json).await;
                Ok(0)
            }
            Err(error) => Err(error.into()),
        },
        signal = signals.end() => Ok(by_signal(signal.as_raw())),
    };
    let _drained = client.drain(DRAIN_LIMIT).await;
    outcome
}
