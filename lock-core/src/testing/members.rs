//! Members of a quorum in the memory of this process, behind a network that a simulation controls.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind};
use crate::store::{
    AcquireContext, AcquireError, Ballot, BoxFuture, Capabilities, Claim, Grant, Held, Member,
    MemoryStore, Name, Owner, Purpose, QuorumStore, Release, ReleaseReply, Renewal, Renewed, Store,
    Terms, Token, Vote, VoteError, Voted,
};
use crate::time::{Instant, sleep_until, timeout_at};

/// How far from its clock a member accepts a number, in microseconds, as in the script for votes.
const WINDOW: u64 = 1_000_000;
/// Where clocks begin, so that one that is behind is not before zero.
const EPOCH: u64 = 1_000_000_000_000;
/// How long a call that has no time of its own waits for a reply.
const PATIENCE: Duration = Duration::from_millis(500);

/// A member of a quorum in memory. It votes as a server does, has a clock of its own, and forgets
/// on demand. A clone is the same member.
#[derive(Clone)]
pub struct MemoryMember(Arc<Inner>);

struct Inner {
    store: MemoryStore,
    /// How fast its clock is in a million of this process's microseconds.
    rate: u64,
    origin: Instant,
    state: Mutex<State>,
}

struct State {
    /// By how many microseconds its clock was ahead at the start.
    ahead: u64,
    forgot_at: Option<Instant>,
    /// The last number that it accepted for a lock.
    numbers: HashMap<Name, u64>,
    process: Arc<str>,
}

/// What the network does to one call. `None`: it is lost, and the caller hears nothing.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::exhaustive_structs)] // simulations make it
pub struct Fate {
    /// How long the request takes.
    pub request: Option<Duration>,
    /// How long the reply takes.
    pub reply: Option<Duration>,
    /// How long after the reply the request arrives a second time.
    pub again: Option<Duration>,
}

/// Decides what becomes of each call of one client to one member.
pub type Network = Arc<dyn Fn() -> Fate + Send + Sync>;

/// A quorum of `members`, each behind a network, as one client sees it. Calls are executed by tasks
/// of the runtime that the client runs on.
///
/// # Panics
///
/// If there are fewer than three members.
pub fn quorum_of(
    members: impl IntoIterator<Item = (MemoryMember, Network)>,
    restart_delay: Duration,
    request_timeout: Duration,
) -> QuorumStore {
    let way = |(member, network)| -> Arc<dyn Member> {
        Arc::new(Way { member, network, flights: Mutex::default() })
    };
    let members: Vec<_> = members.into_iter().map(way).collect();
    assert!(members.len() >= 3, "a quorum has at least three members");
    QuorumStore::of(members, Terms { restart_delay, durable: false }, request_timeout)
}

impl MemoryMember {
    /// A member whose clock is `ahead` microseconds ahead, and shows `rate` microseconds in a
    /// million.
    #[must_use]
    pub fn new(rate: u64, ahead: u64) -> Self {
        let state = State { ahead, forgot_at: None, numbers: HashMap::new(), process: process() };
        let (store, origin, state) = (MemoryStore::new(), Instant::now(), Mutex::new(state));
        Self(Arc::new(Inner { store, rate, origin, state }))
    }

    /// Forgets all, as a server that restarts without its data.
    pub fn restart_empty(&self) {
        let mut state = self.state();
        state.forgot_at = Some(Instant::now());
        state.numbers.clear();
        state.process = process();
        drop(state);
        self.0.store.flush();
    }

    /// How many locks are held or waited for.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.0.store.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its clock shows.
    fn us(&self, state: &State, now: Instant) -> u64 {
        EPOCH + state.ahead + self.by_its_clock(now.saturating_since(self.0.origin))
    }

    /// How many of its microseconds a span has.
    fn by_its_clock(&self, span: Duration) -> u64 {
        let micros = span.as_micros() * u128::from(self.0.rate) / 1_000_000;
        u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// How long a span of its clock is by the clock of this process.
    fn by_local(&self, span: Duration) -> Duration {
        let micros = span.as_micros() * 1_000_000 / u128::from(self.0.rate.max(1));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Votes now on a ballot that was sent at `sent`.
    fn execute(&self, ballot: &Ballot, sent: Instant) -> Vote {
        let now = Instant::now();
        if now > ballot.until {
            return Vote::Void;
        }
        let mut state = self.state();
        if let Some(forgot_at) = state.forgot_at {
            let over = forgot_at.saturating_add(self.by_local(ballot.terms.restart_delay));
            if now < over {
                return Vote::Quarantined { left: over.saturating_since(now) };
            }
        }
        let us = self.us(&state, now);
        let last = state.numbers.get(&ballot.name).copied().unwrap_or(0);
        let least = last.max(us - WINDOW);
        let (ttl, takes) = (self.by_local(ballot.ttl), ballot.purpose != Purpose::Renew);
        match (self.0.store.vote(&ballot.name, ballot.token, ttl, takes), ballot.purpose) {
            (Held::Free, _) => Vote::Free,
            (Held::ByOther(left), _) => Vote::Taken { left, least },
            (Held::ByToken, Purpose::Number(number)) => {
                if number <= least || number > us + WINDOW {
                    return Vote::Refused { since: sent, least };
                }
                state.numbers.insert(ballot.name.clone(), number);
                Vote::Accepted { since: sent }
            }
            (Held::ByToken, _) => Vote::Accepted { since: sent },
        }
    }
}

/// Another process each time.
fn process() -> Arc<str> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string().into()
}

/// One client's way to a member.
struct Way {
    member: MemoryMember,
    network: Network,
    /// Until when a ballot of a token may arrive.
    flights: Mutex<HashMap<Token, Instant>>,
}

impl Way {
    fn flights(&self) -> MutexGuard<'_, HashMap<Token, Instant>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a call, which is executed even if its caller is gone. `None`: there is no reply by
    /// `until`.
    async fn call<T: Send + 'static>(
        &self,
        until: Instant,
        execute: impl Fn() -> T + Send + 'static,
    ) -> Option<T> {
        let Fate { request, reply, again } = (self.network)();
        let (sender, receiver) = oneshot::channel();
        #[allow(clippy::disallowed_methods)] // the network of a simulation
        tokio::spawn(async move {
            // Kept to the end, so that a caller without a reply waits for it.
            let sender = sender;
            let Some(request) = request else { return after(PATIENCE * 4).await };
            after(request).await;
            let result = execute();
            match reply {
                Some(reply) => {
                    after(reply).await;
                    drop(sender.send(result));
                }
                None => after(PATIENCE * 4).await,
            }
            if let Some(again) = again {
                after(again).await;
                drop(execute());
            }
        });
        timeout_at(until, receiver).await.ok()?.ok()
    }
}

async fn after(span: Duration) {
    sleep_until(Instant::now().saturating_add(span)).await;
}

fn no_reply() -> Error {
    Error::plain(ErrorKind::Unknown, "no reply")
}

impl Store for Way {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        self.member.0.store.try_acquire(claim)
    }

    /// The wait in the queue of a conductor.
    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        context: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(async move {
            let Fate { request, reply, .. } = (self.network)();
            let Some(request) = request else {
                after(PATIENCE).await;
                return Err(AcquireError::in_doubt(no_reply()));
            };
            after(request).await;
            let grant = self.member.0.store.acquire(claim, context).await?;
            let Some(reply) = reply else {
                after(PATIENCE).await;
                return Err(AcquireError::in_doubt(no_reply()));
            };
            after(reply).await;
            Ok(grant)
        })
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        self.member.0.store.renew(renewals)
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        Box::pin(async move {
            let (member, sent) = (self.member.clone(), release.clone());
            let until = Instant::now().saturating_add(PATIENCE);
            let released = self.call(until, move || member.0.store.release_one(&sent)).await;
            let released = released.ok_or_else(no_reply)?;
            let mut flights = self.flights();
            match flights.get(&release.token).filter(|until| **until > Instant::now()) {
                Some(until) => Ok(ReleaseReply::retry_at(released, *until)),
                None => {
                    flights.remove(&release.token);
                    Ok(ReleaseReply::definite(released))
                }
            }
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
    }
}

impl Member for Way {
    fn open(&self, _until: Instant) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn clock(&self) -> Option<u64> {
        Some(self.member.us(&self.member.state(), Instant::now()))
    }

    fn process(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.member.state().process))
    }

    fn vote<'a>(&'a self, ballot: &'a Ballot) -> BoxFuture<'a, Result<Voted, VoteError>> {
        Box::pin(async move {
            let (member, sent) = (self.member.clone(), Instant::now());
            let over = ballot.until.saturating_add(Duration::from_millis(1));
            self.flights()
                .entry(ballot.token)
                .and_modify(|until| *until = (*until).max(over))
                .or_insert(over);
            let ballot = ballot.clone();
            let until = ballot.until;
            let execute = move || {
                let process = Some(Arc::clone(&member.state().process));
                Voted { vote: member.execute(&ballot, sent), process }
            };
            let voted = self.call(until, execute).await;
            voted.ok_or_else(|| VoteError { error: no_reply(), definite: false })
        })
    }

    fn last_number<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<u64, Error>> {
        let number = self.member.state().numbers.get(name).copied().unwrap_or(0);
        Box::pin(async move { Ok(number) })
    }

    fn revoke<'a>(
        &'a self,
        _name: &'a Name,
        _owner: &'a Owner,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async { Ok(false) })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory {}", self.member.state().process)
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").field("member", &self.member).finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryMember").field("rate", &self.0.rate).finish_non_exhaustive()
    }
}
