//! The release of an inner token on the members: repeated on each until nothing of the token can
//! be left there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;

use super::tally::majority;
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::store::{Member, Release, Released};
use crate::time::{Instant, sleep_until};

/// A release on those members that may have something of the token.
#[derive(Debug)]
pub(super) struct Ending {
    release: Release,
    begun: Instant,
    hopeless_at: Instant,
    progress: Mutex<Progress>,
    changed: Notify,
}

#[derive(Debug)]
struct Progress {
    members: Vec<MemberEnd>,
    /// Whether a task works on it.
    is_driven: bool,
}

/// What became of the release on one member.
#[derive(Clone, Debug)]
enum MemberEnd {
    /// It never had anything of the token.
    NotAsked,
    /// No attempt has ended.
    Open,
    /// It found this; something of the token may still arrive.
    Found(Released),
    /// It found this, and nothing of the token is left.
    Done(Released),
    /// The last attempt failed.
    Failed(Error),
    /// No attempt succeeded for as long as anything could be left.
    GivenUp(Error),
}

/// What a release on a majority is known to have found.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// Not yet known.
    Open,
    Found(Released),
    /// Every member that was asked has replied or failed, and what they say decides nothing.
    Undecided(Vec<(usize, Error)>),
}

impl Ending {
    /// Of `release`, whose token may have something on the members that are `asked`. Nothing of it
    /// can be left after `hopeless_at`.
    pub(super) fn new(release: Release, asked: &[bool], hopeless_at: Instant) -> Arc<Self> {
        let members = asked
            .iter()
            .map(|asked| if *asked { MemberEnd::Open } else { MemberEnd::NotAsked })
            .collect();
        let progress = Mutex::new(Progress { members, is_driven: false });
        let (begun, changed) = (Instant::now(), Notify::new());
        Arc::new(Self { release, begun, hopeless_at, progress, changed })
    }

    pub(super) fn hopeless_at(&self) -> Instant {
        self.hopeless_at
    }

    /// Releases on each member until nothing of the token can be left there. Ends at once if
    /// another task works on it.
    pub(super) async fn drive(self: Arc<Self>, members: Arc<[Arc<dyn Member>]>) {
        {
            let mut progress = self.lock();
            if std::mem::replace(&mut progress.is_driven, true) {
                return;
            }
        }
        let _driving = Driving(&self);
        let asked = members.iter().enumerate().filter(|(index, _)| !self.is_done(*index));
        join_all(asked.map(|(index, member)| self.end_at(index, &**member))).await;
    }

    async fn end_at(&self, index: usize, member: &dyn Member) {
        let mut backoff = Backoff::default();
        loop {
            let again_at = match member.release(&self.release).await {
                Ok(reply) => {
                    let Some(at) = reply.retry_at.filter(|at| *at < self.hopeless_at) else {
                        return self.set(index, MemberEnd::Done(reply.released));
                    };
                    self.set(index, MemberEnd::Found(reply.released));
                    at
                }
                Err(error) => {
                    let at = Instant::now().saturating_add(backoff.next_pause());
                    if !error.is_store_failure() || at >= self.hopeless_at {
                        return self.set(index, MemberEnd::GivenUp(error));
                    }
                    self.set(index, MemberEnd::Failed(error));
                    at
                }
            };
            sleep_until(again_at).await;
        }
    }

    fn set(&self, index: usize, end: MemberEnd) {
        {
            let mut progress = self.lock();
            let member = &mut progress.members[index];
            // What an attempt has found is not forgotten because the next one fails, or finds what
            // it has left.
            let first = match member {
                MemberEnd::Found(first) => Some(*first),
                _ => None,
            };
            *member = match (first, end) {
                (Some(first), MemberEnd::Found(_) | MemberEnd::Failed(_)) => {
                    MemberEnd::Found(first)
                }
                (Some(first), MemberEnd::Done(_) | MemberEnd::GivenUp(_)) => MemberEnd::Done(first),
                (_, end) => end,
            };
        }
        self.changed.notify_waiters();
    }

    /// Whether nothing of the token can be left at a member.
    fn is_done(&self, index: usize) -> bool {
        self.lock().members[index].is_done()
    }

    /// Whether nothing of the token can be left anywhere.
    pub(super) fn is_over(&self) -> bool {
        self.hopeless_at <= Instant::now() || self.lock().members.iter().all(MemberEnd::is_done)
    }

    /// Whether nothing of the token is left that matters: on fewer members than a majority, whose
    /// replies to the first attempt are on their way, or which have failed, or may still receive a
    /// claim, for [`ASK_AGAIN`]. The background takes care of those. No majority can be had with
    /// what they keep, which ends with its ttl.
    pub(super) fn is_under_control(&self) -> bool {
        let (progress, now) = (self.lock(), Instant::now());
        let is_patient = now < self.begun.saturating_add(ASK_AGAIN);
        let left = |end: &MemberEnd| !matches!(end, MemberEnd::NotAsked | MemberEnd::Done(_));
        let waits = is_patient
            && progress.count(|end| matches!(end, MemberEnd::Failed(_) | MemberEnd::Found(_))) > 0;
        self.hopeless_at <= now || !waits && progress.count(left) < majority(progress.members.len())
    }

    /// Whether no task works on it.
    pub(super) fn is_left(&self) -> bool {
        !self.lock().is_driven
    }

    /// Waits until a majority has said what became of the lock, or until each member has replied
    /// or failed; until `until` at most.
    pub(super) async fn outcome(&self, until: Instant) -> Outcome {
        loop {
            let changed = self.changed.notified();
            let outcome = self.lock().outcome();
            if !matches!(outcome, Outcome::Open) {
                return outcome;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(until) => return self.lock().close(),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn count(&self, is: impl Fn(&MemberEnd) -> bool) -> usize {
        self.members.iter().filter(|end| is(end)).count()
    }

    fn outcome(&self) -> Outcome {
        let quorum = majority(self.members.len());
        let in_time = self.count(|end| end.found() == Some(Released::InTime));
        if in_time >= quorum {
            return Outcome::Found(Released::InTime);
        }
        let open = self.count(|end| matches!(end, MemberEnd::Open));
        let failed = self.count(|end| matches!(end, MemberEnd::Failed(_) | MemberEnd::GivenUp(_)));
        let taken = self.count(|end| end.found() == Some(Released::TakenByOther));
        let expired = self.count(|end| end.found() == Some(Released::Expired));
        if in_time + open + failed < quorum && (taken + expired > 0 || open == 0) {
            // Another token that has a majority is among these replies.
            let is_taken = taken > 0;
            return Outcome::Found(if is_taken {
                Released::TakenByOther
            } else {
                Released::Expired
            });
        }
        if open > 0 { Outcome::Open } else { self.undecided() }
    }

    /// The outcome if no more is waited for.
    fn close(&self) -> Outcome {
        match self.outcome() {
            Outcome::Open => self.undecided(),
            known => known,
        }
    }

    fn undecided(&self) -> Outcome {
        let failed = self.members.iter().enumerate().filter_map(|(index, end)| match end {
            MemberEnd::Failed(error) | MemberEnd::GivenUp(error) => Some((index, error.clone())),
            MemberEnd::Open => {
                let silent = "it did not answer in time";
                Some((index, Error::plain(ErrorKind::Unknown, silent)))
            }
            MemberEnd::NotAsked | MemberEnd::Found(_) | MemberEnd::Done(_) => None,
        });
        Outcome::Undecided(failed.collect())
    }
}

impl MemberEnd {
    fn is_done(&self) -> bool {
        matches!(self, Self::NotAsked | Self::Done(_) | Self::GivenUp(_))
    }

    fn found(&self) -> Option<Released> {
        match self {
            Self::Found(released) | Self::Done(released) => Some(*released),
            _ => None,
        }
    }
}

/// The task that works on an ending. If it is dropped, another one may go on.
struct Driving<'a>(&'a Ending);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.0.lock().is_driven = false;
        self.0.changed.notify_waiters();
    }
}

/// How long after a release something of its token is asked about again.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::store::{Name, Token};

    /// A release that began so long ago, of a token that something may be left of for long.
    fn ending(asked: [bool; 3], age: Duration) -> Ending {
        let name = Name::new(Some("test"), &Key::new("k").unwrap()).unwrap();
        let release = Release::new(name, Token::fresh().unwrap(), None);
        let hopeless_at = Instant::now().saturating_add(ASK_AGAIN * 60);
        let ending = Ending::new(release, &asked, hopeless_at);
        let mut ending = Arc::into_inner(ending).unwrap();
        ending.begun = ending.begun.saturating_sub(age);
        ending
    }

    fn failed() -> MemberEnd {
        MemberEnd::Failed(Error::plain(ErrorKind::Unavailable, "it refuses connections"))
    }

    /// Of a claim that got one vote, while another claim had the second member, and whose ballot
    /// was on its way to the third when that died: both together were a majority that might have
    /// had it.
    #[test]
    fn dead_member_holds_up_the_release_of_a_split_claim_for_a_moment() {
        for (age, is_under_control) in [(Duration::ZERO, false), (ASK_AGAIN, true)] {
            let ending = ending([true, false, true], age);
            ending.set(0, MemberEnd::Done(Released::InTime));
            ending.set(2, failed());
            assert!(
                matches!(ending.lock().outcome(), Outcome::Undecided(failed) if failed.len() == 1)
            );
            assert_eq!(ending.is_under_control(), is_under_control, "after {age:?}");
            assert!(!ending.is_over(), "the background goes on");
        }
    }

    /// It replied while a claim might still arrive there, and has failed since.
    #[test]
    fn member_that_died_after_its_first_reply_holds_up_a_release_for_a_moment() {
        for (age, is_under_control) in [(Duration::ZERO, false), (ASK_AGAIN, true)] {
            let ending = ending([true; 3], age);
            ending.set(0, MemberEnd::Done(Released::InTime));
            ending.set(1, MemberEnd::Found(Released::InTime));
            ending.set(1, failed());
            ending.set(2, MemberEnd::Done(Released::InTime));
            assert_eq!(ending.is_under_control(), is_under_control, "after {age:?}");
            assert!(!ending.is_over(), "the background goes on");
        }
    }

    /// Each of those that fail, that may still receive a claim, or that have not replied, may keep
    /// the lock.
    #[test]
    fn release_is_not_under_control_while_a_majority_may_keep_the_lock() {
        let given_up = MemberEnd::GivenUp(Error::of(ErrorKind::NoRuntime));
        let ends = [MemberEnd::Open, MemberEnd::Found(Released::InTime), failed(), given_up];
        for one in &ends {
            for two in &ends {
                let ending = ending([true; 3], ASK_AGAIN * 10);
                ending.set(0, MemberEnd::Done(Released::InTime));
                ending.set(1, one.clone());
                ending.set(2, two.clone());
                assert!(!ending.is_under_control(), "{one:?} {two:?}");
                ending.set(2, MemberEnd::Done(Released::InTime));
                assert!(ending.is_under_control(), "{one:?}");
            }
        }
    }

    /// A member whose reply is on its way is not waited for.
    #[test]
    fn slow_member_holds_up_no_release() {
        let ending = ending([true; 3], Duration::ZERO);
        ending.set(0, MemberEnd::Done(Released::InTime));
        assert!(!ending.is_under_control());
        ending.set(1, MemberEnd::Done(Released::InTime));
        assert!(ending.is_under_control());
    }
}
