//! What happens to which command.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::op::Op;

/// What happens to a command.
///
/// A message ([`Op::Message`]) is lost, delayed, held or doubled alone: neither replies nor other
/// messages wait behind it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Action {
    /// It does not arrive, nor does anything after it on its connection, in either direction.
    LoseRequest,
    /// It is executed; its reply does not arrive, nor does any later one on its connection.
    LoseReply,
    /// The connection is closed before it arrives.
    CloseBefore,
    /// It is executed, then the connection is closed instead of the reply.
    CloseAfter,
    /// It arrives later, and what follows on its connection waits behind it.
    DelayRequest(Duration),
    /// Its reply arrives later, and what follows on its connection waits behind it.
    DelayReply(Duration),
    /// As [`DelayRequest`](Self::DelayRequest), until the gate opens.
    HoldRequest(Gate),
    /// As [`DelayReply`](Self::DelayReply), until the gate opens.
    HoldReply(Gate),
    /// As [`HoldRequest`](Self::HoldRequest) at the first gate, then as
    /// [`HoldReply`](Self::HoldReply) at the second.
    HoldBoth(Gate, Gate),
    /// As [`LoseRequest`](Self::LoseRequest), but when the gate opens the command alone arrives,
    /// over another connection.
    Stray(Gate),
    /// It is executed twice; the second reply is dropped.
    Duplicate,
    /// It does not arrive; the client gets this error in reply.
    Refuse(&'static str),
    /// It does not arrive; the client gets these bytes in reply.
    Answer(Arc<[u8]>),
    /// It is executed; the client gets these bytes instead of the reply.
    Replace(Arc<[u8]>),
    /// It is executed; the connection is closed behind this many bytes of the reply.
    Truncate(usize),
    /// It is executed; its reply arrives byte by byte.
    Slice,
    /// The connection is reset before it arrives.
    ResetBefore,
    /// It is executed, then the connection is reset instead of the reply.
    ResetAfter,
    /// It is executed; its reply alone does not arrive. A message does not arrive.
    Vanish,
    /// A message arrives after some time up to this, another one for each message.
    Scatter(Duration),
}

/// Holds up what waits at it until the test opens it.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

/// A test that never opens a gate must not leave a thread behind.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets all through, now and later.
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub(super) fn wait(&self) {
        let open = self.0.0.lock().unwrap();
        let _open = self.0.1.wait_timeout_while(open, LONGEST_HOLD, |open| !*open).unwrap();
    }
}

/// A rule in force.
#[must_use = "a test has to check whether the rule hit"]
#[derive(Clone, Debug)]
pub struct Rule(Arc<State>);

#[derive(Debug)]
struct State {
    op: Op,
    action: Action,
    skip: AtomicUsize,
    left: AtomicUsize,
    hits: AtomicUsize,
    locks: AtomicUsize,
}

/// A rule that is not in force yet.
#[derive(Debug)]
#[must_use = "a rule applies once it is limited by `once`, `times` or `always`"]
pub struct RuleBuilder<'p> {
    rules: &'p Rules,
    op: Op,
    action: Action,
    skip: usize,
}

/// The rules of a proxy.
#[derive(Debug, Default)]
pub(super) struct Rules(Mutex<Vec<Rule>>);

impl<'p> RuleBuilder<'p> {
    pub(super) fn new(rules: &'p Rules, op: Op, action: Action) -> Self {
        Self { rules, op, action, skip: 0 }
    }

    /// Lets this many pass first.
    pub fn after(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    /// Applies to one command.
    pub fn once(self) -> Rule {
        self.times(1)
    }

    /// Applies to all from now on.
    pub fn always(self) -> Rule {
        self.times(usize::MAX)
    }

    /// Applies to this many.
    pub fn times(self, count: usize) -> Rule {
        let Self { rules, op, action, skip } = self;
        let (skip, left) = (AtomicUsize::new(skip), AtomicUsize::new(count));
        let (hits, locks) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let rule = Rule(Arc::new(State { op, action, skip, left, hits, locks }));
        rules.0.lock().unwrap().push(rule.clone());
        rule
    }
}

impl Rule {
    /// How many commands it hit.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.0.hits.load(Ordering::Acquire)
    }

    /// How many locks the commands that it hit concern: scripts take many in one call.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.0.locks.load(Ordering::Acquire)
    }

    /// Ends the rule.
    pub fn end(&self) {
        self.0.left.store(0, Ordering::Release);
    }

    /// Whether it applies to this command, which counts it.
    fn takes(&self, op: Op, locks: usize) -> bool {
        let State { op: wanted, skip, left, hits, locks: total, .. } = &*self.0;
        let one_less = |count: usize| count.checked_sub(1);
        if *wanted != op || left.load(Ordering::Acquire) == 0 {
            return false;
        }
        if skip.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok() {
            return false;
        }
        let taken = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok();
        if taken {
            total.fetch_add(locks, Ordering::AcqRel);
            hits.fetch_add(1, Ordering::AcqRel);
        }
        taken
    }
}

impl Rules {
    /// What happens to a command of this kind, which concerns so many locks.
    pub(super) fn action(&self, op: Op, locks: usize) -> Option<Action> {
        let rules = self.0.lock().unwrap();
        rules.iter().find(|rule| rule.takes(op, locks)).map(|rule| rule.0.action.clone())
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}
