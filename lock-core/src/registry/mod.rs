//! Who in this process wants or holds a key.
//!
//! A process has at most one claim per key in the store; its other tasks stand in line here, first
//! come first served. The right to act for the process is a [`Seat`]: whoever claims or holds the
//! lock sits on it, and when the seat is dropped the next in line gets it.

mod queue;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Notify, oneshot};

use self::queue::Queue;
use crate::error::{Error, ErrorKind};
use crate::store::{Name, Progress};
use crate::time::{Instant, sleep_until_some};

/// Keys are spread over this many maps so that tasks on different keys rarely meet.
const SHARDS: usize = 32;

/// The keys that this process wants or holds.
#[derive(Debug)]
pub(crate) struct Registry {
    shards: [Mutex<HashMap<Name, Slot>>; SHARDS],
    hasher: RandomState,
    draining: AtomicBool,
    drained: Notify,
}

#[derive(Debug)]
struct Slot {
    situation: Situation,
    /// The last answer of the store, and until when it was true.
    before: Option<(Situation, Instant)>,
    queue: Queue,
}

/// A store that has not answered for less than this is not what a waiter gives up on: what it said before is.
const RECENTLY: Duration = Duration::from_millis(250);

/// With less time than this a claim may not be answered before the wait is over, so that its outcome
/// would be unknown; that others of this process had the lock meanwhile is known.
const TIME_TO_ASK: Duration = Duration::from_millis(10);

/// What is known about the task on the seat, for those who stand behind it.
#[derive(Clone, Debug)]
pub(crate) enum Situation {
    /// It asked the store and has no answer yet.
    Asking,
    /// Another owner has the lock for up to this long.
    Busy(Duration),
    /// The store failed it.
    Failed(Error),
    /// It holds the lock until about this time.
    Held(Instant),
    /// It gives the lock back, which takes no longer than a round trip.
    Releasing,
}

/// Why there is no seat.
#[derive(Debug)]
pub(crate) enum NoSeat {
    /// The seat is taken, and the caller did not want to wait, or not longer.
    Taken(Situation),
    Draining,
}

/// What one who stands in line gets.
#[derive(Debug)]
enum Turn {
    Seat(Seat),
    /// Only for those who are impatient.
    Told(Situation),
}

impl From<Turn> for Result<Seat, NoSeat> {
    fn from(turn: Turn) -> Self {
        match turn {
            Turn::Seat(seat) => Ok(seat),
            Turn::Told(situation) => Err(NoSeat::Taken(situation)),
        }
    }
}

/// The right to act on a key for this process.
#[derive(Debug)]
pub(crate) struct Seat {
    registry: Arc<Registry>,
    name: Name,
    /// Whether dropping it passes it on.
    live: bool,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            draining: AtomicBool::new(false),
            drained: Notify::new(),
        }
    }

    /// Takes the seat if it is free. If the task on it has not achieved anything yet, waits for that at most until
    /// `until`: what it finds out about the lock is true for the caller as well.
    pub(crate) async fn try_enter(
        self: &Arc<Self>,
        name: &Name,
        until: Instant,
    ) -> Result<Seat, NoSeat> {
        self.stand(name, Some(until), true).await
    }

    /// Takes the seat, waiting in line until `until`, for ever if `None`.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        name: &Name,
        until: Option<Instant>,
    ) -> Result<Seat, NoSeat> {
        self.stand(name, until, false).await
    }

    async fn stand(
        self: &Arc<Self>,
        name: &Name,
        until: Option<Instant>,
        impatient: bool,
    ) -> Result<Seat, NoSeat> {
        let (place, mut turn) = {
            let mut shard = self.shard(name);
            // Read under the shard's lock: `drain` sets it before it empties the shards.
            if self.draining.load(Ordering::Acquire) {
                return Err(NoSeat::Draining);
            }
            let Some(slot) = shard.get_mut(name) else {
                shard.insert(name.clone(), Slot::new());
                return Ok(Seat { registry: Arc::clone(self), name: name.clone(), live: true });
            };
            if impatient && slot.situation.is_answer() {
                return Err(NoSeat::Taken(slot.situation.clone()));
            }
            let (sender, turn) = oneshot::channel();
            (slot.queue.join(sender, impatient), turn)
        };
        let _leave = Leave { registry: self, name, place };
        tokio::select! {
            biased;
            turn = &mut turn => match turn.map_err(|_| NoSeat::Draining)? {
                // The seat goes to the next one, who has time for an answer.
                Turn::Seat(_) if until.is_some_and(|until| until.remaining() < TIME_TO_ASK) => {
                    Err(NoSeat::Taken(self.situation(name)))
                }
                turn => turn.into(),
            },
            () = sleep_until_some(until) => match turn.try_recv() {
                Ok(turn) => turn.into(),
                Err(TryRecvError::Closed) => Err(NoSeat::Draining),
                Err(TryRecvError::Empty) => Err(NoSeat::Taken(self.situation(name))),
            },
        }
    }

    /// Refuses all who wait, and all who come.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for slot in shard.values_mut() {
                slot.queue.clear();
            }
        }
        self.drained.notify_waiters();
    }

    /// Waits until the registry is drained.
    pub(crate) async fn drained(&self) {
        loop {
            let drained = self.drained.notified();
            if self.is_draining() {
                return;
            }
            drained.await;
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// How many keys have a seat.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn len(&self) -> usize {
        let count = |shard: &Mutex<HashMap<Name, Slot>>| {
            shard.lock().unwrap_or_else(PoisonError::into_inner).len()
        };
        self.shards.iter().map(count).sum()
    }

    fn situation(&self, name: &Name) -> Situation {
        self.shard(name).get(name).map_or(Situation::Asking, Slot::known)
    }

    fn shard(&self, name: &Name) -> MutexGuard<'_, HashMap<Name, Slot>> {
        #[allow(clippy::cast_possible_truncation)] // only the low bits matter
        let index = self.hasher.hash_one(name) as usize % SHARDS;
        // A panic in the few lines that hold this lock leaves the map whole.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Tells those who stand behind what is going on.
    pub(crate) fn set(&self, situation: Situation) {
        let told = match self.registry.shard(&self.name).get_mut(&self.name) {
            Some(slot) => slot.set(situation),
            None => return,
        };
        for (impatient, situation) in told {
            // One that has left in this moment needs no answer.
            drop(impatient.send(Turn::Told(situation)));
        }
    }

    /// Passes on what a waiting claim reports.
    pub(crate) fn report(&self, progress: Progress) {
        self.set(match progress {
            Progress::Busy(left) => Situation::Busy(left),
            Progress::Failed(error) => Situation::Failed(error),
        });
    }
}

/// The seat goes to the next in line; with nobody there the key is forgotten.
impl Drop for Seat {
    fn drop(&mut self) {
        if self.live {
            self.pass_on();
        }
    }
}

impl Seat {
    fn pass_on(&self) {
        while let Some(next) = self.next() {
            let seat =
                Self { registry: Arc::clone(&self.registry), name: self.name.clone(), live: true };
            match next.send(Turn::Seat(seat)) {
                // The waiter left in this moment: ask the next one from here, not from another drop.
                Err(Turn::Seat(mut seat)) => seat.live = false,
                Ok(()) | Err(Turn::Told(_)) => return,
            }
        }
    }

    /// The next in line; if there is none, the key is forgotten.
    fn next(&self) -> Option<oneshot::Sender<Turn>> {
        let mut shard = self.registry.shard(&self.name);
        let slot = shard.get_mut(&self.name)?;
        // No answer, so there is nobody to tell.
        drop(slot.set(Situation::Asking));
        let next = slot.queue.next();
        if next.is_none() {
            shard.remove(&self.name);
        }
        next
    }
}

impl Slot {
    fn new() -> Self {
        Self { situation: Situation::Asking, before: None, queue: Queue::default() }
    }

    /// Notes what is going on; gives those who wait for nothing more than that.
    fn set(&mut self, situation: Situation) -> Vec<(oneshot::Sender<Turn>, Situation)> {
        let old = std::mem::replace(&mut self.situation, situation);
        if old.is_answer() {
            self.before = Some((old, Instant::now()));
        }
        if !self.situation.is_answer() {
            return Vec::new();
        }
        let told = self.queue.take_impatient().into_iter();
        told.map(|turn| (turn, self.situation.clone())).collect()
    }

    /// What one who gives up now can be told.
    fn known(&self) -> Situation {
        match &self.before {
            Some((before, until))
                if !self.situation.is_answer()
                    && Instant::now() < until.saturating_add(RECENTLY) =>
            {
                before.clone()
            }
            _ => self.situation.clone(),
        }
    }
}

impl Situation {
    /// Whether the store has said so.
    fn is_answer(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Failed(_) | Self::Held(_) => true,
            Self::Asking | Self::Releasing => false,
        }
    }
}

/// Leaves the line when the waiting future is dropped.
struct Leave<'a> {
    registry: &'a Registry,
    name: &'a Name,
    place: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.registry.shard(self.name).get_mut(self.name) {
            slot.queue.leave(self.place);
        }
    }
}

impl From<NoSeat> for Error {
    fn from(none: NoSeat) -> Self {
        match none {
            NoSeat::Draining => Self::of(ErrorKind::Draining),
            NoSeat::Taken(situation) => situation.into(),
        }
    }
}

impl From<Situation> for Error {
    /// What to tell a task that stood behind and gave up.
    fn from(situation: Situation) -> Self {
        match situation {
            Situation::Busy(left) => Self::busy(left),
            Situation::Held(until) => Self::busy(until.remaining()),
            Situation::Failed(error) => error,
            Situation::Asking | Situation::Releasing => Self::plain(
                ErrorKind::Unknown,
                "the claim that goes before this one was not answered in time",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Key;

    fn name() -> Name {
        Name::new("test", &Key::new("k").unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn seats_go_first_come_first_served_and_leave_nothing_behind() {
        let registry = Arc::new(Registry::new());
        let first = registry.enter(&name(), None).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        let runtime = tokio::runtime::Handle::current();
        for turn in 0..10 {
            let (registry, order) = (Arc::clone(&registry), Arc::clone(&order));
            tasks.push(runtime.spawn(async move {
                let _seat = registry.enter(&name(), None).await.unwrap();
                order.lock().unwrap().push(turn);
            }));
            tokio::task::yield_now().await;
        }
        for leaver in [3, 9] {
            tasks[leaver].abort();
        }
        tokio::task::yield_now().await;
        drop(first);
        for (turn, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_err(), [3, 9].contains(&turn));
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 4, 5, 6, 7, 8]);
        assert_eq!(registry.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_seat_that_was_passed_to_a_dropped_future_goes_on() {
        let registry = Arc::new(Registry::new());
        let first = registry.enter(&name(), None).await.unwrap();
        let name_ = name();
        let mut second = Box::pin(registry.enter(&name_, None));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        drop(second);
        assert_eq!(registry.len(), 0);
        registry.try_enter(&name(), Instant::now()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_behind_a_failing_store_is_not_told_busy() {
        let registry = Arc::new(Registry::new());
        let seat = registry.enter(&name(), None).await.unwrap();
        seat.set(Situation::Failed(Error::of(ErrorKind::Unavailable)));
        let soon = Some(Instant::now().saturating_add(Duration::from_millis(50)));
        let Err(NoSeat::Taken(situation)) = registry.enter(&name(), soon).await else {
            panic!("the seat is taken")
        };
        assert!(Error::from(situation).is_unavailable());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_while_the_lock_changes_hands_is_told_busy() {
        let registry = Arc::new(Registry::new());
        let seat = registry.enter(&name(), None).await.unwrap();
        let in_line = async |patience: Duration| {
            let until = Some(Instant::now().saturating_add(patience));
            match registry.enter(&name(), until).await {
                Err(NoSeat::Taken(situation)) => Error::from(situation),
                other => panic!("the seat is taken, but {other:?}"),
            }
        };
        assert!(in_line(RECENTLY).await.is_unknown());
        seat.set(Situation::Held(Instant::now().saturating_add(Duration::from_secs(10))));
        seat.set(Situation::Releasing);
        assert!(in_line(RECENTLY / 2).await.is_busy());
        // A release that nobody answers for longer is the store's fault.
        assert!(in_line(RECENTLY).await.is_unknown());
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_does_not_wait_learns_what_the_claim_before_it_finds_out() {
        let registry = Arc::new(Registry::new());
        let (name, soon) = (name(), Instant::now().saturating_add(Duration::from_millis(500)));
        let failed = Situation::Failed(Error::of(ErrorKind::Unavailable));
        let held = Situation::Held(soon);
        for (situation, busy) in [(held, true), (failed, false)] {
            let seat = registry.enter(&name, None).await.unwrap();
            let answer = async {
                tokio::task::yield_now().await;
                seat.set(situation);
            };
            let (told, ()) = tokio::join!(registry.try_enter(&name, soon), answer);
            let Err(NoSeat::Taken(situation)) = told else { panic!("the seat is taken") };
            assert_eq!(Error::from(situation).is_busy(), busy);
        }
        // A claim that comes to nothing leaves the seat to it.
        let seat = registry.enter(&name, None).await.unwrap();
        let give_up = async {
            tokio::task::yield_now().await;
            drop(seat);
        };
        let (entered, ()) = tokio::join!(registry.try_enter(&name, soon), give_up);
        drop(entered.unwrap());
        assert_eq!(registry.len(), 0);
    }
}
