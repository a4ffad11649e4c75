//! Rounds: a ballot to each member at once, and what the replies come to.

use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::ending::Ending;
use super::failure::Failure;
use super::flights::{Answer, Flights};
use super::servers::{counted_once, one_each, one_vote_each};
use super::standing::{Standings, median};
use super::tally::{Reply, Tally, Verdict, majority};
use super::tokens::{LONGEST_FLIGHT, Tokens};
use super::votes::Votes;
use crate::backoff::jittered;
use crate::error::Error;
use crate::lease::deadline;
use crate::metrics::Round;
use crate::runtime::spawn_handle;
use crate::store::{
    Ballot, Claim, Grant, Member, Name, Purpose, Release, Renewal, Renewed, Terms, Token,
};
use crate::time::{Deadline, Instant};

/// The members, and what is known of the tokens there.
#[derive(Debug)]
pub(super) struct Quorum {
    pub(super) members: Arc<[Arc<dyn Member>]>,
    pub(super) terms: Terms,
    /// How long a round waits for the members that have not replied.
    pub(super) request_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) tokens: Tokens,
    /// No smaller number is proposed.
    floor: AtomicU64,
    pub(super) standings: Standings,
    home: Mutex<Option<Handle>>,
}

/// A claim's number may be refused because another one was larger. With members whose clocks are
/// close, two times in a row is rare.
const MOST_ROUNDS: u32 = 4;
/// When a claim has failed, members have this part of the request timeout to say why.
const LAST_WORDS: u32 = 4;
/// No number is proposed that is further ahead of the median of the clocks than this, in
/// microseconds, whatever a member names: members accept none further than a second from their own
/// clock, and some are behind the median.
const MOST_AHEAD: u64 = 500_000;
/// The holder before is still releasing on some members when its release has handed on the lock of
/// one: ask again after about this long.
const HAND_OFF_PAUSE: Duration = Duration::from_millis(6);
/// How often, at most.
pub(super) const HAND_OFF_TRIES: u32 = 4;

impl Quorum {
    pub(super) fn new(
        members: Vec<Arc<dyn Member>>,
        terms: Terms,
        request_timeout: Duration,
        connect_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            tokens: Tokens::new(members.len()),
            standings: Standings::new(&members),
            members: members.into(),
            terms,
            request_timeout,
            connect_timeout,
            floor: AtomicU64::new(0),
            home: Mutex::default(),
        })
    }

    pub(super) fn run_on(&self, runtime: &Handle) {
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime.clone());
        for member in &*self.members {
            member.run_on(runtime);
        }
    }

    /// Spawns what outlives its caller.
    fn spawn<F>(&self, task: F) -> Result<JoinHandle<()>, Error>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let home = self.home.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let home = match home {
            Some(home) => home,
            None => spawn_handle(None)?,
        };
        Ok(home.spawn(task))
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.members.len())
    }

    /// Claims the lock with the inner token until it is clear whether a majority has it: one round,
    /// or more if the number is refused. `tries`: how often the round is repeated, without a
    /// release, while other tokens have the lock on some members.
    pub(super) async fn claim(
        self: &Arc<Self>,
        claim: &Claim,
        inner: Token,
        until: Instant,
        tries: u32,
    ) -> Result<Grant, Failure> {
        self.connect(until).await?;
        self.standings.look_at_clocks(&self.members);
        let (mut rounds, mut tries_left) = (0, tries);
        loop {
            let limit = until.min(Instant::now().saturating_add(self.request_timeout));
            let purpose =
                if claim.fencing { Purpose::Number(self.propose()?) } else { Purpose::Lock };
            let ballot = self.ballot(&claim.name, inner, claim.ttl, purpose, limit);
            let mut votes = Votes::new(self.members.len(), purpose);
            let verdict = self.round(claim.token, ballot, limit, &mut votes, |votes| {
                match votes.tally.verdict() {
                    Verdict::Open => ControlFlow::Continue(()),
                    verdict => ControlFlow::Break(verdict),
                }
            });
            let verdict = verdict.await.unwrap_or_else(|| {
                votes.tally.close();
                votes.tally.verdict()
            });
            self.believe(&votes.tally);
            self.count(verdict, &votes);
            // The ballots may have opened connections, and closed others.
            one_each(&self.members)?;
            one_vote_each(&self.members, &votes.voters)?;
            match verdict {
                Verdict::Granted => {
                    let number = if let Purpose::Number(number) = purpose { number } else { 0 };
                    return self.granted(claim, inner, number);
                }
                Verdict::Again { is_too_large } => {
                    rounds += 1;
                    if rounds >= MOST_ROUNDS {
                        return Err(Failure::numbers(&self.members, &votes, is_too_large));
                    }
                }
                Verdict::Open | Verdict::Failed => {
                    let is_taken = votes.tally.busy_for().is_some();
                    if !is_taken || tries_left == 0 || until.remaining().is_zero() {
                        return Err(Failure::of(&self.members, &votes));
                    }
                    tries_left -= 1;
                    crate::time::sleep_until(
                        Instant::now().saturating_add(jittered(HAND_OFF_PAUSE)).min(until),
                    )
                    .await;
                }
            }
        }
    }

    fn count(&self, verdict: Verdict, votes: &Votes) {
        let tally = &votes.tally;
        let round = match verdict {
            Verdict::Granted => Round::Granted,
            Verdict::Again { .. } => Round::Again,
            Verdict::Open | Verdict::Failed if tally.busy_for().is_some() => Round::Taken,
            Verdict::Open | Verdict::Failed => Round::Failed,
        };
        self.standings.metrics.round(round, tally.accepted());
        let has_failed = matches!(round, Round::Taken | Round::Failed);
        if has_failed && tally.holding() > 0 {
            tracing::debug!(
                target: "lock_core", event = "quorum.split", voted = tally.holding(),
                answered = tally.answered(), members = self.members.len(),
                "some members of the quorum voted for a claim, and no majority"
            );
        }
    }

    fn granted(&self, claim: &Claim, inner: Token, number: u64) -> Result<Grant, Failure> {
        let until = self.tokens.until(claim.token);
        match until {
            Some(until) if self.tokens.held(claim.token, inner) => {
                Ok(Grant::new(number, since(until, claim.ttl), claim.ttl))
            }
            _ => Err(Failure::released()),
        }
    }

    /// Renews one lease. Members that lost the lock take it again, if it is free.
    pub(super) async fn renew(self: &Arc<Self>, renewal: &Renewal) -> Result<Renewed, Error> {
        let token = renewal.token;
        let (inner, is_good) = self.tokens.lease(token).unwrap_or((token, false));
        let purpose = if is_good { Purpose::Repair } else { Purpose::Renew };
        let before = self.tokens.until(token);
        let limit = renewal.until.min(Instant::now().saturating_add(self.patience()));
        let ballot = self.ballot(&renewal.name, inner, renewal.ttl, purpose, limit);
        let mut votes = Votes::new(self.members.len(), purpose);
        let quorum = self.majority();
        let verdict = self.round(token, ballot, limit, &mut votes, |votes| {
            if votes.tally.holding() >= quorum {
                return ControlFlow::Break(None);
            }
            match votes.tally.lost() {
                Some(lost) => ControlFlow::Break(Some(lost)),
                None => ControlFlow::Continue(()),
            }
        });
        let verdict = verdict.await;
        if let Some(Some(lost)) = verdict {
            return Ok(lost);
        }
        votes.tally.close();
        // Replies to earlier renewals count as well: each member has its own time.
        let until = self.tokens.until(token);
        match until {
            Some(until) if verdict.is_some() || before < Some(until) => {
                Ok(Renewed::Kept { since: since(until, renewal.ttl) })
            }
            _ => match votes.since_of_majority() {
                // Of a token that this store does not know.
                Some(since) => Ok(Renewed::Kept { since }),
                None => Err(Failure::of(&self.members, &votes).into_error()),
            },
        }
    }

    /// How long a member may take to reply, with a dial.
    fn patience(&self) -> Duration {
        self.request_timeout * 2
    }

    fn ballot(
        &self,
        name: &Name,
        token: Token,
        ttl: Duration,
        purpose: Purpose,
        until: Instant,
    ) -> Arc<Ballot> {
        let (name, terms) = (name.clone(), self.terms);
        Arc::new(Ballot { name, token, ttl, purpose, terms, until })
    }

    /// Sends a ballot to each member, and takes their replies until `judge` breaks, all have
    /// replied, or `limit`. What is under way then goes on in the background. If the claim has
    /// failed, other members are heard for a moment, since the error has what each said.
    ///
    /// If the future is dropped, what is under way is given up, and recorded as such.
    async fn round<T>(
        self: &Arc<Self>,
        token: Token,
        ballot: Arc<Ballot>,
        limit: Instant,
        votes: &mut Votes,
        judge: impl Fn(&Votes) -> ControlFlow<T>,
    ) -> Option<T> {
        let members = (0..self.members.len()).map(|index| {
            let (members, ballot) = (Arc::clone(&self.members), Arc::clone(&ballot));
            let voters = Arc::clone(&votes.voters);
            let vote = async move {
                let reply = members[index].vote(&ballot).await;
                (index, counted_once(&members, &voters, index, ballot.purpose, reply))
            };
            Box::pin(vote) as crate::store::BoxFuture<'static, Answer>
        });
        let flights = Arc::new(Flights::new(self.members.len(), members));
        // What may take a lock has a record, which a release of the token finds.
        if !self.tokens.cast(token, &ballot, &flights) && ballot.purpose != Purpose::Renew {
            return None;
        }
        let mut under_way = UnderWay { quorum: self, token, ballot, flights: Some(flights) };
        let mut timer = pin!(Deadline::default());
        let (mut limit, mut has_failed) = (limit, false);
        loop {
            let next = poll_fn(|cx| {
                if let Poll::Ready(next) = under_way.poll_next(cx) {
                    return Poll::Ready(Some(next));
                }
                timer.as_mut().poll_at(Some(limit), cx).map(|()| None)
            });
            let is_over = match next.await {
                Some(Some((member, reply))) => {
                    votes.record(member, reply);
                    false
                }
                Some(None) | None => true,
            };
            let judged = judge(votes);
            if judged.is_break() && !has_failed && votes.tally.fails_unexplained() {
                has_failed = true;
                let moment = self.request_timeout / LAST_WORDS;
                limit = limit.min(Instant::now().saturating_add(moment));
            }
            let is_done = judged.is_break() && !has_failed;
            if is_done || is_over || self.waits_for_the_silent(votes) {
                under_way.go_on_in_background();
                return judged.break_value();
            }
        }
    }

    /// Records the reply of a member.
    fn note(&self, token: Token, ballot: &Ballot, answer: &Answer) {
        let member = &self.members[answer.0];
        self.standings.note(&**member, answer);
        if self.tokens.note(token, ballot, answer) {
            self.standings.metrics.repaired(answer.0);
            tracing::debug!(
                target: "lock_core", event = "quorum.repair", server = %member,
                "a member of the quorum took a held lock again"
            );
        }
    }

    /// Whether nothing is missing but replies of members that did not reply to the last rounds, and
    /// the others are a majority. Without one, each of the silent ones may be needed.
    fn waits_for_the_silent(&self, votes: &Votes) -> bool {
        let members = 0..self.members.len();
        let heard = members.filter(|member| !self.standings.is_silent(*member)).count();
        let mut replies = votes.tally.replies().iter().enumerate();
        heard >= self.majority()
            && replies
                .all(|(member, reply)| *reply != Reply::Open || self.standings.is_silent(member))
    }

    /// Connects to a majority, if there are not so many connections, and makes sure that they are
    /// as many servers.
    async fn connect(&self, until: Instant) -> Result<(), Failure> {
        let members = self.members.iter().enumerate();
        let missing = members.filter(|(_, member)| member.clock().is_none());
        let mut missing: FuturesUnordered<_> = missing
            .map(|(index, member)| async move { (index, member.open(until).await) })
            .collect();
        let mut open = self.members.len() - missing.len();
        let mut failed = Vec::new();
        while open < self.majority() {
            match missing.next().await {
                Some((_, Ok(()))) => open += 1,
                Some((member, Err(error))) => failed.push((member, error)),
                None => break,
            }
        }
        drop(missing);
        if open < self.majority() {
            return Err(Failure::unconnected(&self.members, open, &failed));
        }
        one_each(&self.members)
    }

    /// The present time as most members see it, or a number that is larger than all that this store
    /// has seen, if a majority may accept it.
    fn propose(&self) -> Result<u64, Failure> {
        let Some(median) = self.median() else {
            return Err(Failure::unconnected(&self.members, 0, &[]));
        };
        let propose = |floor: u64| {
            let next = floor.saturating_add(1);
            // Too far ahead: it was proposed when most of the connected ones had a wrong time.
            if next > most_proposed(median) { median } else { median.max(next) }
        };
        let floor = self
            .floor
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |floor| Some(propose(floor)));
        Ok(propose(floor.unwrap_or(0)))
    }

    /// The clock of the members, in microseconds, that as many are ahead of as behind.
    pub(super) fn median(&self) -> Option<u64> {
        median(self.members.iter().filter_map(|member| member.clock()))
    }

    /// Takes note of the largest number that a member has accepted, of those that may be proposed.
    fn believe(&self, tally: &Tally) {
        let most = self.median().map(most_proposed);
        if let Some(number) = most.and_then(|most| tally.least(most)) {
            self.floor.fetch_max(number, Ordering::AcqRel);
        }
    }

    /// Releases the inner token of `token` where it may have something, in the background, and
    /// takes it out of use. Returns whether anything may be left.
    ///
    /// The releases are on their way when this returns, so that a claim of the same lock that
    /// follows is behind them.
    pub(super) fn give_up(self: &Arc<Self>, name: &Name, token: Token) -> bool {
        let Some(retired) = self.tokens.retire(token, false) else { return false };
        if !retired.touched.contains(&true) {
            return false;
        }
        let release = Release::new(name.clone(), retired.inner, None);
        let ending = Ending::new(release, &retired.touched, retired.over);
        self.tokens.ending(token, &ending, None);
        self.start(token, &ending);
        true
    }

    /// Sends the releases of an ending, and repeats them in the background.
    pub(super) fn start(self: &Arc<Self>, token: Token, ending: &Arc<Ending>) {
        let driving = Arc::clone(ending).drive(Arc::clone(&self.members));
        let this = Arc::downgrade(self);
        let mut driving = Box::pin(async move {
            driving.await;
            if let Some(this) = this.upgrade() {
                this.tokens.ended(token);
            }
        });
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        if driving.as_mut().poll(&mut cx).is_pending() {
            // Without a runtime, what is left ends with its ttl, or with the next release.
            drop(self.spawn(driving));
        }
    }

    /// When nothing of a token can be left that was never claimed here.
    pub(super) fn unknown_is_over(&self) -> Instant {
        Instant::now().saturating_add(LONGEST_FLIGHT).saturating_add(self.terms.restart_delay)
    }
}

/// The largest number that is proposed while `median` is the median of the members' clocks.
fn most_proposed(median: u64) -> u64 {
    median.saturating_add(MOST_AHEAD)
}

/// The start of a lease of `ttl` that lasts until `until` by the client's account. Not later than
/// now: an earlier command may have been for more.
fn since(until: Instant, ttl: Duration) -> Instant {
    // What is left of the ttl without the margin.
    let origin = Instant::from_origin(Duration::ZERO);
    let length = deadline(origin, ttl).saturating_since(origin);
    until.saturating_sub(length).min(Instant::now())
}

/// The ballots of a round, while its caller waits for them.
struct UnderWay<'a> {
    quorum: &'a Arc<Quorum>,
    token: Token,
    ballot: Arc<Ballot>,
    flights: Option<Arc<Flights>>,
}

impl UnderWay<'_> {
    fn poll_next(&self, cx: &mut std::task::Context<'_>) -> Poll<Option<Answer>> {
        let Some(flights) = &self.flights else { return Poll::Ready(None) };
        flights.poll_next(cx, |answer| self.quorum.note(self.token, &self.ballot, answer))
    }

    /// Leaves what is under way to a task.
    fn go_on_in_background(&mut self) {
        if self.flights.as_ref().is_some_and(|flights| flights.is_over()) {
            self.flights = None;
            return;
        }
        let Some(flights) = self.flights.take() else { return };
        let (quorum, token) = (Arc::downgrade(self.quorum), self.token);
        let (ballot, rest) = (Arc::clone(&self.ballot), Arc::clone(&flights));
        let task = async move {
            let next = || {
                poll_fn(|cx| {
                    let quorum = quorum.upgrade();
                    rest.poll_next(cx, |answer| {
                        if let Some(quorum) = &quorum {
                            quorum.note(token, &ballot, answer);
                        }
                    })
                })
            };
            while next().await.is_some() {}
        };
        if self.quorum.spawn(task).is_err() {
            self.flights = Some(flights);
            self.cancel();
        }
    }

    fn cancel(&mut self) {
        if let Some(flights) = self.flights.take() {
            let open = flights.cancel();
            self.quorum.tokens.cancelled(self.token, self.ballot.token, &open);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.cancel();
    }
}
