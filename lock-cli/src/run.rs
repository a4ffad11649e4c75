//! `lockctl run` and `lockctl wait`.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use lock_core::{LockClient, LostReason, MutexGuard};
use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::args::{Global, RunArgs};
use crate::client::{DRAIN_LIMIT, connect};
use crate::failure::{BUSY, Failure, STORE};
use crate::signals::{self, Signals};

/// Added to a signal's number: the exit status of what it ended.
const BY_SIGNAL: i32 = 128;

/// Runs a command while holding a lock.
pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<u8, Failure> {
    let mut signals = Signals::receive()?;
    let taken = async {
        let client = connect(global, &global.store).await?;
        let mutex = client.mutex(args.key.clone()).with_options(args.options());
        tokio::select! {
            guard = mutex.lock() => Ok((client, Ok(guard?))),
            // The client releases what the wait may have left.
            signal = signals.end() => Ok((client, Err(signal))),
        }
    };
    let taken: Result<(LockClient, Result<MutexGuard, Signal>), Failure> = taken.await;
    let taken = taken.map_err(|failure| {
        failure.with_status(BUSY, args.busy_status).with_status(STORE, args.store_status)
    });
    let (client, guard) = taken?;
    let outcome = match guard {
        Ok(guard) => under(guard, args, &mut signals).await,
        Err(signal) => Ok(by_signal(signal.as_raw())),
    };
    let _drained = client.drain(DRAIN_LIMIT).await;
    outcome
}

/// Runs the command of `args` while `guard` is held.
async fn under(guard: MutexGuard, args: &RunArgs, signals: &mut Signals) -> Result<u8, Failure> {
    let (program, arguments) = args.command.split_first().expect("BUG: clap requires a command");
    let child = Command::new(program)
        .args(arguments)
        .env("LOCK_KEY", &args.key)
        .env("LOCK_FENCE", guard.fencing_token().to_string())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            release(guard).await;
            let not_found = error.kind() == std::io::ErrorKind::NotFound;
            let status = if not_found { 127 } else { 126 };
            return Err(Failure::new(status, format!("{}: {error}", program.to_string_lossy())));
        }
    };
    loop {
        tokio::select! {
            status = child.wait() => {
                release(guard).await;
                return Ok(exit_status(status?));
            }
            reason = guard.lost() => return stop(&mut child, reason, args).await,
            signal = signals.next() => {
                if let Some(pid) = child.id() {
                    signals::pass_on(pid, signal);
                }
            }
        }
    }
}

/// Ends a command whose lock is lost.
async fn stop(child: &mut Child, reason: LostReason, args: &RunArgs) -> Result<u8, Failure> {
    if let Some(pid) = child.id() {
        signals::send(pid, Signal::TERM);
    }
    let killed = if timeout(args.grace, child.wait()).await.is_err() {
        child.kill().await?;
        ", and killed since it went on"
    } else {
        ""
    };
    Err(Failure::new(
        args.lost_status,
        format!("the lock was lost ({reason}): the command was stopped{killed}"),
    ))
}

/// A failed release does not change how the command ended.
async fn release(guard: MutexGuard) {
    if let Err(error) = guard.release().await {
        eprintln!("lockctl: the lock was not released, and ends with its ttl: {error}");
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
    key: &str,
    limit: Option<Duration>,
) -> Result<u8, Failure> {
    let mut signals = Signals::receive()?;
    let mutex = client.mutex(key.to_owned());
    let mutex = match limit {
        Some(limit) if limit.is_zero() => mutex.without_wait(),
        Some(limit) => mutex.with_wait(limit),
        None => mutex.wait_forever(),
    };
    let outcome = tokio::select! {
        guard = mutex.lock() => match guard {
            Ok(guard) => {
                release(guard).await;
                Ok(0)
            }
            Err(error) => Err(error.into()),
        },
        signal = signals.end() => Ok(by_signal(signal.as_raw())),
    };
    let _drained = client.drain(DRAIN_LIMIT).await;
    outcome
}
