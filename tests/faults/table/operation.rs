//! The operations of a client that a fault may hit, and how each may end.

use std::time::Duration;

use futures_util::future::join_all;
use lock_core::store::RedisStore;
use lock_core::{Error, ErrorKind, LockClient, LostReason, MutexGuard, Released};
use lock_testkit::{Op, Proxy, ms};

use super::fault::{CONNECT_TIMEOUT, Class, Injected, REQUEST_TIMEOUT, Times};

/// An operation of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Operation {
    TryLock,
    Lock,
    /// The lock is taken. The fault hits the claim that enters the queue.
    Queue,
    Release,
    /// A renewal by the client's own task.
    Renew,
    Extend,
    Subscribe,
    /// `HELLO` on the first connection.
    Greet,
    /// `TIME`, which ends the handshake.
    AskTime,
    /// The commands of the check at the start.
    CheckInfo,
    CheckClaim,
    CheckRenewal,
    CheckRelease,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    Done,
    Busy,
    Unavailable,
    Unknown,
    /// A timeout, because the store had not ended the wait in time.
    Late,
    NotALock,
    Lost(LostReason),
    NotInTime(Released),
    Other(ErrorKind),
}

/// The TTL of leases that are to be renewed. With enough time, several renewals share a call.
pub(super) fn short_ttl(width: usize) -> Duration {
    if width == 1 { ms(1_200) } else { ms(3_600) }
}

/// How long a wait lasts if the fault does not end.
const WAIT_IN_VAIN: Duration = ms(700);
/// Long enough to recover in any way from a fault that ends.
const WAIT: Duration = ms(8_000);

impl Operation {
    /// The command that the fault hits.
    pub(super) fn command(self) -> Op {
        match self {
            Self::TryLock | Self::Lock | Self::Queue | Self::CheckClaim => Op::Acquire,
            Self::Release | Self::CheckRelease => Op::Release,
            Self::Renew | Self::Extend | Self::CheckRenewal => Op::Renew,
            Self::Subscribe => Op::Subscribe,
            Self::Greet => Op::Hello,
            Self::AskTime => Op::Time,
            Self::CheckInfo => Op::Info,
        }
    }

    /// Whether the operation opens a connection.
    pub(super) fn connects(self) -> bool {
        matches!(self, Self::Greet | Self::AskTime) || self.checks()
    }

    /// Whether the operation is part of the check at the start.
    pub(super) fn checks(self) -> bool {
        matches!(self, Self::CheckInfo | Self::CheckClaim | Self::CheckRenewal | Self::CheckRelease)
    }

    /// Whether the operation waits for a lock that another client holds at first.
    pub(super) fn queues(self) -> bool {
        matches!(self, Self::Queue | Self::Subscribe)
    }

    /// Whether the operation starts with a held lock.
    pub(super) fn holds(self) -> bool {
        matches!(self, Self::Release | Self::Renew | Self::Extend)
    }

    /// Runs the operation, with each of `keys` at the same time.
    pub(super) async fn perform(
        self,
        proxy: &Proxy,
        client: &LockClient,
        held: Vec<MutexGuard>,
        keys: &[String],
        injected: &Injected,
    ) -> Vec<End> {
        let wait = if injected.times == Times::Once { WAIT } else { WAIT_IN_VAIN };
        let lock = async |key: &String| match client.mutex(key).with_wait(wait).lock().await {
            Ok(guard) if guard.is_valid() => End::Done,
            Ok(_) => End::Lost(LostReason::Expired),
            Err(error) if format!("{error:?}") == LATE => End::Late,
            Err(error) => End::of(&error),
        };
        match self {
            Self::TryLock => {
                let try_lock = async |key: &String| match client.mutex(key).try_lock().await {
                    Ok(Some(_)) => End::Done,
                    Ok(None) => End::Busy,
                    Err(error) => End::of(&error),
                };
                join_all(keys.iter().map(try_lock)).await
            }
            Self::Lock | Self::Greet | Self::AskTime => join_all(keys.iter().map(lock)).await,
            Self::Queue | Self::Subscribe => {
                let release = async {
                    injected.hit().await;
                    for guard in held {
                        guard.release().await.unwrap();
                    }
                };
                tokio::join!(join_all(keys.iter().map(lock)), release).0
            }
            Self::Release => {
                let release = async |guard: MutexGuard| match guard.release().await {
                    Ok(Released::InTime) => End::Done,
                    Ok(other) => End::NotInTime(other),
                    Err(error) => End::of(&error),
                };
                join_all(held.into_iter().map(release)).await
            }
            Self::Renew => {
                let keep = async |guard: MutexGuard| {
                    // Well beyond the lease's current end.
                    match guard
                        .run_until_lost(tokio::time::sleep(short_ttl(keys.len()) * 3 / 2))
                        .await
                    {
                        Ok(()) => End::Done,
                        Err(error) => End::of(&error),
                    }
                };
                join_all(held.into_iter().map(keep)).await
            }
            Self::Extend => {
                let extend = async |guard: &MutexGuard| match guard.extend(ms(70_000)).await {
                    Ok(()) => End::Done,
                    Err(error) => {
                        let lost = error.is_lost();
                        assert_eq!(guard.is_valid(), !lost, "a lease is lost by {error:?}");
                        End::of(&error)
                    }
                };
                join_all(held.iter().map(extend)).await
            }
            Self::CheckInfo | Self::CheckClaim | Self::CheckRenewal | Self::CheckRelease => {
                vec![match store(proxy).connect().await {
                    Ok(_) => End::Done,
                    Err(error) => End::of(&error),
                }]
            }
        }
    }

    /// The ends that are allowed.
    #[allow(clippy::match_same_arms)] // a line for each rule, whatever others say
    pub(super) fn allowed(self, class: Class, times: Times) -> &'static [End] {
        use Class::{
            Break, Darkness, Forbidden, Garbage, HalfDone, Harmless, Misplaced, NoSuchUser,
            Nonsense, NotNow, Silence, Split, UnknownScript, Vague, WrongType,
        };
        use End::{Done, Lost, NotALock, NotInTime, Unavailable, Unknown};
        use LostReason::{Expired, TakenByOther};
        use Operation::{
            AskTime, CheckClaim, CheckInfo, CheckRelease, CheckRenewal, Extend, Greet, Lock, Queue,
            Release, Renew, Subscribe, TryLock,
        };
        use Times::{Always, Once};

        match (self, class, times) {
            (_, Harmless, _) => &[Done],
            // Callers get the same error as for any other cause. The background release learns when
            // it is done.
            (Release, HalfDone, Once) => &[Done, NotInTime(Released::Expired)],
            (_, HalfDone, _) => self.allowed(NotNow, times),
            // Without the queue, by the lock alone.
            (Release, Split, Always) => &[Done],
            (_, Split, _) => self.allowed(NotNow, times),
            // Another dial, and one more try.
            (TryLock | Extend, Misplaced, Once) => &[Done],
            (_, Misplaced, _) => self.allowed(NotNow, times),
            // The dial goes on without it.
            (
                CheckInfo,
                NotNow | Vague | Forbidden | NoSuchUser | UnknownScript | WrongType | Garbage,
                _,
            ) => &[Done],
            (CheckInfo, Silence | Break | Nonsense, _) => &[Unavailable],
            // No lock is involved.
            (Greet | AskTime | Subscribe, Vague, _)
            | (CheckClaim | CheckRenewal | CheckRelease, Vague, _) => self.allowed(NotNow, times),
            // Some garbage is as good as an answer, since the client does not look at it.
            (Greet, Nonsense, _) => &[Done],
            (_, Nonsense, _) => self.allowed(Break, times),
            // There is no connection, so nothing was sent.
            (CheckInfo | CheckClaim | CheckRenewal | CheckRelease, Darkness, _) => &[Unavailable],
            // By then the claim is queued.
            (Subscribe, Darkness, Always) => &[Unknown],
            (_, Darkness, _) => self.allowed(Silence, times),

            // One claim, and one more if the connection breaks.
            (TryLock, Break | UnknownScript, Once) => &[Done],
            (TryLock, Silence | Garbage | Vague, _) | (TryLock, Break, Always) => &[Unknown],
            (TryLock, NotNow | Forbidden | NoSuchUser | UnknownScript, _) => &[Unavailable],
            (TryLock | Lock | Queue, WrongType, _) => &[NotALock],

            // Claims until the wait is over, unless that is useless.
            (Lock | Queue, Forbidden | NoSuchUser, _) => &[Unavailable],
            (Lock | Queue, _, Once) => &[Done],
            (Lock | Queue, NotNow | UnknownScript, Always) => &[Unavailable],
            // What comes after the first claim.
            (Lock | Queue, Silence | Break | Garbage | Vague, Always) => &[Unknown],

            // Two attempts. The second one reports what the first one did.
            (Release, WrongType, _) => &[NotInTime(Released::TakenByOther)],
            (Release, Silence, _) => &[Done, Unknown],
            (Release, _, Once) => &[Done],
            (Release, Break | Garbage | Vague, Always) => &[Unknown],
            (Release, NotNow | Forbidden | NoSuchUser | UnknownScript, Always) => &[Unavailable],

            // Renewed until the deadline.
            (Renew | Extend, WrongType, _) => &[Lost(TakenByOther)],
            (Renew, _, Once) => &[Done],
            (Renew, _, Always) => &[Lost(Expired)],

            (Extend, Break | UnknownScript, Once) => &[Done],
            (Extend, Silence | Garbage | Vague, _) | (Extend, Break, Always) => &[Unknown],
            (Extend, NotNow | Forbidden | NoSuchUser | UnknownScript, _) => &[Unavailable],

            // Messages only make it faster.
            (Subscribe, _, _) => &[Done],

            // Nothing can have been executed yet.
            (Greet, NoSuchUser, _) => &[Unavailable],
            // A connection that closes on it is tried by the older protocol, which has no `HELLO`.
            (Greet, Break, Always) => &[Unavailable, Done],
            (Greet, NotNow | Forbidden | WrongType | UnknownScript, _) => &[Done],
            (Greet, Garbage, _) => &[Done],
            (AskTime, Forbidden | NoSuchUser, _) => &[Unavailable],
            // Two numbers are a time. The first claim finds out if it is wrong.
            (AskTime, Garbage, Always) => &[Unavailable, Done],
            (Greet | AskTime, _, Once) => &[Done],
            (Greet | AskTime, _, Always) => &[Unavailable],

            // One attempt for each.
            (CheckClaim | CheckRenewal | CheckRelease, UnknownScript, Once) => &[Done],
            (CheckClaim | CheckRenewal | CheckRelease, WrongType, _) => &[NotALock],
            (CheckClaim | CheckRenewal | CheckRelease, Silence | Break, _) => &[Unknown],
            (CheckClaim | CheckRenewal | CheckRelease, Garbage, _) => &[Unknown, Done],
            (
                CheckClaim | CheckRenewal | CheckRelease,
                NotNow | Forbidden | NoSuchUser | UnknownScript,
                _,
            ) => &[Unavailable],
        }
    }
}

/// A store behind the proxy.
pub(super) fn store(proxy: &Proxy) -> lock_core::store::RedisStoreBuilder {
    RedisStore::builder(proxy.url())
        .with_request_timeout(REQUEST_TIMEOUT)
        .with_connect_timeout(CONNECT_TIMEOUT)
}

/// How refusals are known that no retry mends.
const PERMANENT: [&str; 3] = ["lacks a permission", "CrossSlot", "does not know a command"];

/// The client's message when its store does not end a wait in time.
const LATE: &str = "Error { kind: Unknown }";

impl End {
    /// The end that an error reports. Its predicates must agree.
    fn of(error: &Error) -> Self {
        let end = match error.kind() {
            ErrorKind::Busy { .. } => Self::Busy,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::Unknown => Self::Unknown,
            ErrorKind::WrongType => Self::NotALock,
            ErrorKind::Lost { reason, .. } => Self::Lost(reason),
            other => Self::Other(other),
        };
        assert_eq!(error.is_busy(), end == Self::Busy, "{error:?}");
        assert_eq!(error.is_unknown(), end == Self::Unknown, "{error:?}");
        let unavailable = matches!(end, Self::Unavailable | Self::Unknown);
        assert_eq!(error.is_store_failure(), unavailable, "{error:?}");
        let lost = matches!(end, Self::Lost(_));
        assert_eq!(error.is_lost(), lost, "{error:?}");
        let text = format!("{error:?}");
        let is_permanent = unavailable && PERMANENT.iter().any(|it| text.contains(it));
        let is_retryable = unavailable && !is_permanent || lost || end == Self::Busy;
        assert_eq!(error.is_retryable(), is_retryable, "{error:?}");
        assert_eq!(error.retry_after().is_some(), end == Self::Busy, "{error:?}");
        end
    }
}
