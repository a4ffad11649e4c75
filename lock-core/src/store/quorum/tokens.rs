//! What is known of each token that a client claims, holds or releases.
//!
//! The value of the locks on the members is an *inner* token. The first inner token of
//! an acquisition is the client's own. A round that fails releases its inner token on the members,
//! and the next round draws another one: a release that comes late would take away the claim that
//! came after it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ending::Ending;
use super::flights::{Answer, Flights};
use super::tally;
use crate::error::Error;
use crate::lease::deadline;
use crate::store::{Ballot, Purpose, Token};
use crate::time::Instant;

/// The tokens of the clients of one store.
#[derive(Debug)]
pub(super) struct Tokens {
    members: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    records: HashMap<Token, Record>,
    /// How many records there may be before the next sweep.
    sweep_at: usize,
}

#[derive(Debug)]
struct Record {
    inner: Token,
    state: State,
    /// By member: until when it holds the lock for the inner token, by this client's account.
    until: Vec<Option<Instant>>,
    /// By member: the process that said so, if it names itself.
    by: Vec<Option<Arc<str>>>,
    /// By member: whether it may have the lock, or a place in its queue, for the inner token.
    touched: Vec<bool>,
    flights: Vec<Arc<Flights>>,
    /// The releases of inner tokens of this acquisition that are not over.
    endings: Vec<Arc<Ending>>,
    /// When nothing of the inner token can be left.
    over: Instant,
    /// The client has released it, so that it is not claimed again. Until then its record stays,
    /// even if nothing is left anywhere: without it the first inner token would be used again.
    is_final: bool,
    /// It was released with a hold, which shows its owner until then.
    kept_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Claiming,
    Held,
    Ended,
}

/// An inner token that is to be released.
pub(super) struct Retired {
    pub(super) inner: Token,
    pub(super) touched: Vec<bool>,
    pub(super) over: Instant,
}

/// Records are swept when there are at least this many. A token whose release was given up is not
/// asked about again.
const SWEEP_AT: usize = 1024;
/// A claim that was neither granted nor released is remembered for as long as a wait may last.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);
/// A ballot is void this long after it was sent at the latest: the longest request timeout, times
/// the most that a command is queued for, and some for the clock.
pub(super) const LONGEST_FLIGHT: Duration = Duration::from_secs(120);

impl Tokens {
    pub(super) fn new(members: usize) -> Self {
        Self { members, table: Mutex::default() }
    }

    /// The inner token for the next round of `token`, and whether an earlier call has claimed with
    /// it.
    pub(super) fn begin(&self, token: Token) -> Result<(Token, bool), Error> {
        let mut table = self.lock();
        if table.records.len() >= table.sweep_at.max(SWEEP_AT) {
            let now = Instant::now();
            table.records.retain(|_, record| record.may_be_asked_about(now));
            table.sweep_at = table.records.len() * 2;
        }
        let members = self.members;
        let record = table.records.entry(token).or_insert_with(|| Record::new(token, members));
        if record.state == State::Ended {
            record.renew_inner(token)?;
        }
        Ok((record.inner, record.touched.contains(&true)))
    }

    /// A round of ballots with the inner token is cast. `false` if the token was released
    /// meanwhile: then the ballots must not be sent.
    pub(super) fn cast(&self, token: Token, ballot: &Ballot, flights: &Arc<Flights>) -> bool {
        self.change(token, ballot.token, |record| {
            record.flights.retain(|flights| !flights.is_over());
            record.flights.push(Arc::clone(flights));
            record.last_until(ballot.ttl);
        })
    }

    /// The token may have the lock, or a place, at one member from now on.
    pub(super) fn touch(&self, token: Token, inner: Token, member: usize, ttl: Duration) -> bool {
        self.change(token, inner, |record| {
            record.touched[member] = true;
            record.last_until(ttl);
        })
    }

    /// A member replied to a ballot. Returns whether its server took a held lock that it did not
    /// have, by this client's account.
    pub(super) fn note(&self, token: Token, ballot: &Ballot, (member, reply): &Answer) -> bool {
        let mut table = self.lock();
        let Some(record) = table.records.get_mut(&token) else { return false };
        if record.inner != ballot.token {
            return false;
        }
        let voted = match reply {
            Ok(voted) => voted,
            Err(failed) => {
                record.touched[*member] |= !failed.definite;
                return false;
            }
        };
        let Some(since) = voted.vote.since() else { return false };
        record.touched[*member] = true;
        let before = record.voted(*member, voted.process.clone(), deadline(since, ballot.ttl));
        record.last_until(ballot.ttl);
        ballot.purpose == Purpose::Repair && before.is_none_or(|before| before <= since)
    }

    /// Ballots that were under way were given up: these members may still receive them.
    pub(super) fn cancelled(&self, token: Token, inner: Token, members: &[usize]) {
        let mut table = self.lock();
        let Some(record) = table.records.get_mut(&token) else { return };
        if record.inner == inner {
            for member in members {
                record.touched[*member] = true;
            }
        }
    }

    /// The token has the lock. `false` if it was released meanwhile.
    pub(super) fn held(&self, token: Token, inner: Token) -> bool {
        self.change(token, inner, |record| record.state = State::Held)
    }

    /// The inner token of a lease, and whether the lease is good by this client's account: only
    /// then a renewal may take the lock again on members that lost it.
    pub(super) fn lease(&self, token: Token) -> Option<(Token, bool)> {
        let table = self.lock();
        let record = table.records.get(&token)?;
        let is_good = record.state == State::Held
            && tally::until(&record.until).is_some_and(|until| until > Instant::now());
        Some((record.inner, is_good))
    }

    /// Until when a majority holds the lock for the token.
    pub(super) fn until(&self, token: Token) -> Option<Instant> {
        tally::until(&self.lock().records.get(&token)?.until)
    }

    /// Takes the inner token out of use, so that no ballot of it is cast any more, and ends those
    /// that are under way. `None` if the token is not known.
    ///
    /// `is_final`: the client has released the token.
    pub(super) fn retire(&self, token: Token, is_final: bool) -> Option<Retired> {
        let flights = {
            let mut table = self.lock();
            let record = table.records.get_mut(&token)?;
            record.state = State::Ended;
            record.is_final |= is_final;
            std::mem::take(&mut record.flights)
        };
        // Without the lock of the table, which their replies take.
        let open: Vec<usize> = flights.iter().flat_map(|flights| flights.cancel()).collect();
        let mut table = self.lock();
        let record = table.records.get_mut(&token)?;
        for member in open {
            record.touched[member] = true;
        }
        let touched = record.touched.iter_mut().map(std::mem::take).collect();
        record.until.fill(None);
        Some(Retired { inner: record.inner, touched, over: record.over })
    }

    /// An inner token of `token` is being released.
    pub(super) fn ending(&self, token: Token, ending: &Arc<Ending>, hold: Option<Instant>) {
        let mut table = self.lock();
        let members = self.members;
        let record = table.records.entry(token).or_insert_with(|| {
            // Released by its client, and never claimed here.
            Record { is_final: true, ..Record::new(token, members) }
        });
        record.state = State::Ended;
        record.kept_until = hold;
        record.over = record.over.max(ending.hopeless_at()).max(hold.unwrap_or(record.over));
        record.endings.push(Arc::clone(ending));
    }

    /// The releases of the token's inner tokens that are not over, and the last one in any case.
    pub(super) fn endings(&self, token: Token) -> Vec<Arc<Ending>> {
        let mut table = self.lock();
        let Some(record) = table.records.get_mut(&token) else { return Vec::new() };
        let last = record.endings.pop();
        record.endings.retain(|ending| !ending.is_over());
        record.endings.extend(last);
        record.endings.clone()
    }

    /// A release of an inner token has ended. Forgets the token if nothing of it is left.
    pub(super) fn ended(&self, token: Token) {
        let mut table = self.lock();
        let is_over = table.records.get(&token).is_some_and(|record| {
            record.is_final
                && record.kept_until.is_none()
                && !record.touched.contains(&true)
                && record.endings.iter().all(|ending| ending.is_over())
        });
        if is_over {
            table.records.remove(&token);
        }
    }

    /// Forgets a token of which nothing is left, or for which only the background still works.
    pub(super) fn forget(&self, token: Token) {
        let mut table = self.lock();
        if table.records.get(&token).is_some_and(|record| record.kept_until.is_none()) {
            table.records.remove(&token);
        }
    }

    /// The client's token for an inner one of a lease that it holds, or has released with a hold.
    pub(super) fn outer(&self, inner: Token) -> Option<Token> {
        let table = self.lock();
        let is_held = |record: &Record| record.state == State::Held || record.kept_until.is_some();
        let mut held = table.records.iter().filter(|(_, record)| is_held(record));
        held.find_map(|(token, record)| (record.inner == inner).then_some(*token))
    }

    /// The inner token in use for a client's token.
    pub(super) fn inner(&self, token: Token) -> Option<Token> {
        Some(self.lock().records.get(&token)?.inner)
    }

    /// Changes the record, unless the inner token is not in use any more.
    fn change(&self, token: Token, inner: Token, change: impl FnOnce(&mut Record)) -> bool {
        let mut table = self.lock();
        match table.records.get_mut(&token) {
            Some(record) if record.inner == inner && record.state != State::Ended => {
                change(record);
                true
            }
            _ => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing that holds this lock panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn new(inner: Token, members: usize) -> Self {
        Self {
            inner,
            state: State::Claiming,
            until: vec![None; members],
            by: vec![None; members],
            touched: vec![false; members],
            flights: Vec::new(),
            endings: Vec::new(),
            over: Instant::now().saturating_add(LONGEST_FLIGHT),
            is_final: false,
            kept_until: None,
        }
    }

    fn may_be_asked_about(&self, now: Instant) -> bool {
        let longest = if self.is_final { Duration::ZERO } else { LONGEST_WAIT };
        self.over.saturating_add(longest) > now
    }

    /// A process has the lock until then, as it said through a member. If it said so through other
    /// members before, it counts for this one alone, and what other processes said through this one
    /// is forgotten. Returns until when the process had it before.
    fn voted(
        &mut self,
        member: usize,
        process: Option<Arc<str>>,
        until: Instant,
    ) -> Option<Instant> {
        let mut before = None;
        for (index, (other, by)) in self.until.iter_mut().zip(&self.by).enumerate() {
            let is_same = *by == process;
            if index == member || is_same && by.is_some() {
                before = before.max(other.take().filter(|_| is_same));
            }
        }
        (self.until[member], self.by[member]) = (before.max(Some(until)), process);
        before
    }

    fn renew_inner(&mut self, token: Token) -> Result<(), Error> {
        self.inner = Token::of(token.client())?;
        self.state = State::Claiming;
        self.touched.fill(false);
        self.until.fill(None);
        Ok(())
    }

    /// Something may be left for `ttl` after the longest flight.
    fn last_until(&mut self, ttl: Duration) {
        let over = Instant::now().saturating_add(LONGEST_FLIGHT).saturating_add(ttl);
        self.over = self.over.max(over);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    use super::*;
    use crate::Key;
    use crate::store::{BoxFuture, Name, Release, Terms, Vote, VoteError, Voted};

    const TTL: Duration = Duration::from_secs(2);

    fn ballot(inner: Token) -> Ballot {
        let terms = Terms { restart_delay: TTL, durable: false };
        let (until, purpose) = (Instant::now(), Purpose::Lock);
        Ballot { name: name(), token: inner, ttl: TTL, purpose, terms, until }
    }

    fn name() -> Name {
        Name::new(Some("test"), &Key::new("k").unwrap()).unwrap()
    }

    fn flights() -> Arc<Flights> {
        Arc::new(Flights::new(0, std::iter::empty()))
    }

    fn unnamed(vote: Vote) -> Result<Voted, VoteError> {
        Ok(Voted { vote, process: None })
    }

    /// A renewal that was delayed could take a lock again that was released.
    #[test]
    fn no_ballot_of_a_released_token_is_cast() {
        let (tokens, token) = (Tokens::new(3), Token::fresh().unwrap());
        let (inner, _) = tokens.begin(token).unwrap();
        assert!(inner == token && tokens.cast(token, &ballot(inner), &flights()));
        assert!(tokens.held(token, inner));
        assert!(tokens.retire(token, false).is_some());
        assert!(!tokens.cast(token, &ballot(inner), &flights()));
        // The next round has another value, which names the same client.
        let (next, is_waiting) = tokens.begin(token).unwrap();
        assert!(next != inner && next.client() == token.client() && !is_waiting);
        assert!(!tokens.cast(token, &ballot(inner), &flights()));
        assert!(tokens.cast(token, &ballot(next), &flights()));
    }

    /// A release that comes late, from a connection that broke, would take away the next round.
    #[test]
    fn inner_token_is_not_used_again_although_nothing_of_it_is_left() {
        let (tokens, token) = (Tokens::new(3), Token::fresh().unwrap());
        let (inner, _) = tokens.begin(token).unwrap();
        let retired = tokens.retire(token, false).unwrap();
        let ending = Ending::new(Release::new(name(), inner, None), &[false; 3], retired.over);
        tokens.ending(token, &ending, None);
        tokens.ended(token);
        assert_ne!(tokens.begin(token).unwrap().0, inner);
    }

    /// A member that did not have the lock by this client's account, or not any more.
    #[test]
    fn renewal_that_takes_the_lock_again_is_a_repair() {
        let (tokens, token) = (Tokens::new(3), Token::fresh().unwrap());
        let (inner, _) = tokens.begin(token).unwrap();
        let claim = ballot(inner);
        let renewal = Ballot { purpose: Purpose::Repair, ..claim.clone() };
        let at = |after| Instant::now().saturating_add(after);
        let vote = |since| unnamed(Vote::Accepted { since });
        let now = Instant::now();
        assert!(!tokens.note(token, &claim, &(0, vote(now))), "by the claim");
        assert!(!tokens.note(token, &renewal, &(0, vote(at(TTL / 3)))), "it has it");
        assert!(tokens.note(token, &renewal, &(0, vote(at(TTL * 2)))), "it had expired there");
        let taken = unnamed(Vote::Taken { left: TTL, least: 0 });
        assert!(!tokens.note(token, &claim, &(1, taken)));
        assert!(tokens.note(token, &renewal, &(1, vote(now))), "it was another's");
        assert!(!tokens.note(token, &renewal, &(1, vote(now))), "it has it");
    }

    /// The addresses of two members lead to one server, or did one after the other.
    #[test]
    fn process_counts_for_one_member_at_a_time() {
        let (tokens, token) = (Tokens::new(3), Token::fresh().unwrap());
        let (inner, _) = tokens.begin(token).unwrap();
        let ballot = ballot(inner);
        let note = |member, process: &str, since| {
            let vote = Vote::Accepted { since };
            let answer = (member, Ok(Voted { vote, process: Some(process.into()) }));
            tokens.note(token, &ballot, &answer);
        };
        let now = Instant::now();
        let later = now.saturating_add(TTL);
        note(0, "a", now);
        note(2, "a", later);
        assert!(tokens.until(token).is_none(), "one server is no majority");
        note(0, "a", now);
        assert!(tokens.until(token).is_none());
        note(1, "b", now);
        assert_eq!(tokens.until(token), Some(deadline(now, TTL)));
        note(2, "c", later);
        assert_eq!(tokens.until(token), Some(deadline(later, TTL)), "two of a, b and c");
    }

    /// The name of a member leads to an empty server by now, which a renewal gave the lock for less
    /// time. The lease lasted as long as at the server before.
    #[test]
    fn expiry_at_one_server_does_not_count_for_the_next_one() {
        let (tokens, token) = (Tokens::new(3), Token::fresh().unwrap());
        let (inner, _) = tokens.begin(token).unwrap();
        let since = Instant::now();
        let long = Ballot { ttl: TTL * 3, ..ballot(inner) };
        let short = Ballot { purpose: Purpose::Repair, ..ballot(inner) };
        let note = |ballot: &Ballot, member, process: &str| {
            let vote = Vote::Accepted { since };
            let answer = (member, Ok(Voted { vote, process: Some(process.into()) }));
            tokens.note(token, ballot, &answer)
        };
        note(&long, 0, "x");
        note(&long, 1, "z");
        assert_eq!(tokens.until(token), Some(deadline(since, TTL * 3)));
        assert!(!note(&short, 0, "x"), "it has it, and for longer");
        assert_eq!(tokens.until(token), Some(deadline(since, TTL * 3)));
        assert!(note(&short, 0, "y"), "it did not have it");
        assert_eq!(tokens.until(token), Some(deadline(since, TTL)));
    }

    /// A reply is noted while its ballots are locked. A round that began in another thread at that
    /// moment waited for these with the table locked, and both for ever.
    #[test]
    fn round_that_begins_while_a_reply_is_noted_does_not_wait_for_it() {
        let (tokens, token) = (Arc::new(Tokens::new(3)), Token::fresh().unwrap());
        let (inner, _) = tokens.begin(token).unwrap();
        let since = Instant::now();
        let vote: BoxFuture<'static, Answer> =
            Box::pin(async move { (0, unnamed(Vote::Accepted { since })) });
        let first = Arc::new(Flights::new(1, std::iter::once(vote)));
        assert!(tokens.cast(token, &ballot(inner), &first));
        let (replied, is_noting) = mpsc::channel();
        let (ended, both_end) = mpsc::channel();
        let (noting, is_noted) = (Arc::clone(&tokens), ended.clone());
        std::thread::spawn(move || {
            let mut cx = Context::from_waker(Waker::noop());
            let _reply = first.poll_next(&mut cx, |answer| {
                replied.send(()).unwrap();
                // Until the other thread has the table, or has had it.
                let limit = Instant::now().saturating_add(TTL / 20);
                while noting.table.try_lock().is_ok() && !limit.remaining().is_zero() {
                    std::thread::yield_now();
                }
                noting.note(token, &ballot(inner), answer);
            });
            is_noted.send(()).unwrap();
        });
        std::thread::spawn(move || {
            is_noting.recv().unwrap();
            assert!(tokens.cast(token, &ballot(inner), &flights()));
            ended.send(()).unwrap();
        });
        for _ in 0..2 {
            both_end.recv_timeout(TTL * 5).expect("neither waits for the other");
        }
    }

    /// What a member may have is released there, and nowhere else.
    #[test]
    fn members_that_may_have_the_lock_are_remembered() {
        let (tokens, token) = (Tokens::new(3), Token::fresh().unwrap());
        let (inner, _) = tokens.begin(token).unwrap();
        let ballot = ballot(inner);
        let since = Instant::now();
        tokens.note(token, &ballot, &(0, unnamed(Vote::Accepted { since })));
        tokens.note(token, &ballot, &(1, unnamed(Vote::Taken { left: TTL, least: 0 })));
        assert!(tokens.until(token).is_none(), "one is no majority");
        tokens.cancelled(token, inner, &[2]);
        let retired = tokens.retire(token, true).unwrap();
        assert_eq!(retired.touched, [true, false, true]);
        let ending = Ending::new(Release::new(name(), inner, None), &[false; 3], retired.over);
        tokens.ending(token, &ending, None);
        tokens.ended(token);
        assert!(tokens.inner(token).is_none(), "nothing is left");
    }
}
