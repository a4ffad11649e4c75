//! How often a process asks for one lock, however many of its tasks wait for it one after another.
//!
//! A waiter that gives up leaves behind when it asked last and what it was told. The one that comes
//! after it asks no sooner than the other would have, so that many waiters with little patience cost the
//! server no more than one with much.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{AFTER_EXPIRY, jittered};
use crate::error::Error;
use crate::store::{Name, Progress};
use crate::time::Instant;

/// The locks that somebody waited for a moment ago.
#[derive(Debug, Default)]
pub(super) struct Paces(Mutex<HashMap<Name, Past>>);

/// The pace of the waiter whose turn it is.
#[derive(Debug)]
pub(super) struct Pace<'a> {
    paces: &'a Paces,
    name: &'a Name,
    past: Option<Past>,
}

/// What the last claim was told.
#[derive(Debug)]
struct Past {
    progress: Progress,
    told: Instant,
    /// When to ask again, and when at the earliest, if the wait ends before.
    next: Instant,
    soonest: Instant,
    /// How long before the end of a wait the last claim starts: with less time its outcome would be unknown.
    an_answer: Duration,
    polls: usize,
}

/// What a waiter does next.
pub(super) enum Plan {
    /// Ask now.
    Ask,
    /// Ask then; until then this is known.
    AskAt(Instant, Progress),
    /// Wait for the end of the wait and tell this: another claim would come too soon, or too late to be answered.
    GiveUp(Error),
}

/// A pause between two claims is at least half of this, and on average all of it: with the round trip, less than 20 a second.
const POLL: Duration = Duration::from_millis(70);
/// The first pauses are shorter, since most locks are held briefly.
const FIRST_POLLS: [Duration; 3] =
    [Duration::from_millis(8), Duration::from_millis(20), Duration::from_millis(40)];
/// A wait that ends before its next poll gets a last one, this long after the one before.
const LEAST_PAUSE: Duration = Duration::from_millis(50);
/// The pause after a failure.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// A store that comes back answers within this.
const FAST_ANSWER: Duration = Duration::from_millis(20);
/// What was told longer ago than this is forgotten: it is longer than any pause.
const MEMORY: Duration = Duration::from_millis(500);
/// Forgotten names are swept out when there are this many.
const MANY: usize = 1024;

impl Paces {
    /// Goes on where the last waiter for `name` stopped.
    pub(super) fn resume<'a>(&'a self, name: &'a Name) -> Pace<'a> {
        let past = self.lock().remove(name).filter(|past| !past.is_forgotten(Instant::now()));
        Pace { paces: self, name, past }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Past>> {
        // Nothing that holds this lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pace<'_> {
    /// What to do now, for a waiter who waits until `until`.
    pub(super) fn plan(&self, until: Option<Instant>) -> Plan {
        let Some(past) = &self.past else { return Plan::Ask };
        let now = Instant::now();
        let mut next = past.next;
        if let Some(until) = until {
            let rest = until.saturating_since(now);
            let latest = now.saturating_add(rest.saturating_sub(past.an_answer));
            if rest <= past.an_answer || latest < past.soonest {
                return Plan::GiveUp(past.known(until).into());
            }
            next = next.min(latest);
        }
        if next <= now { Plan::Ask } else { Plan::AskAt(next, past.known(now)) }
    }

    /// A claim that was sent at `sent` was answered: another owner has the lock for `left`.
    pub(super) fn busy(&mut self, sent: Instant, left: Duration) {
        let polls = self.past.as_ref().map_or(0, |past| past.polls);
        let poll = FIRST_POLLS.get(polls).copied().unwrap_or(POLL);
        let pause = jittered(poll).min(left.saturating_add(AFTER_EXPIRY));
        let an_answer =
            Instant::now().saturating_since(sent).saturating_mul(2).saturating_add(AFTER_EXPIRY);
        self.past = Some(Past::new(Progress::Busy(left), pause, an_answer, polls + 1));
    }

    /// A claim failed in a way that may pass.
    pub(super) fn failed(&mut self, error: Error) {
        let polls = self.past.as_ref().map_or(0, |past| past.polls);
        let progress = Progress::Failed(error);
        self.past = Some(Past::new(progress, jittered(FAILURE_PAUSE), FAST_ANSWER, polls));
    }

    /// The lock was granted, or no pause helps.
    pub(super) fn end(&mut self) {
        self.past = None;
    }
}

impl Drop for Pace<'_> {
    fn drop(&mut self) {
        let Some(past) = self.past.take() else { return };
        let mut paces = self.paces.lock();
        if paces.len() >= MANY {
            let now = Instant::now();
            paces.retain(|_, past| !past.is_forgotten(now));
        }
        paces.insert(self.name.clone(), past);
    }
}

impl Past {
    fn new(progress: Progress, pause: Duration, an_answer: Duration, polls: usize) -> Self {
        let told = Instant::now();
        let soonest = told.saturating_add(pause.min(LEAST_PAUSE));
        Self { progress, told, next: told.saturating_add(pause), soonest, an_answer, polls }
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        now.saturating_since(self.told) > MEMORY
    }

    /// What was told, as it stands at `at`.
    fn known(&self, at: Instant) -> Progress {
        match &self.progress {
            Progress::Busy(left) => {
                Progress::Busy(left.saturating_sub(at.saturating_since(self.told)))
            }
            Progress::Failed(error) => Progress::Failed(error.clone()),
        }
    }
}
