//! Who in this process wants or holds a key.
//!
//! A process has at most one claim per key in the store; its other tasks stand in line here, first
//! come first served. The right to act for the process is a [`Seat`]: whoever claims or holds the
//! lock sits on it, and when the seat is dropped the next in line gets it. A lease that its holder ends while others
//! stand in line may go along with the seat: then nobody asks the store.

mod handed;
mod line;
mod queue;
#[cfg(all(test, lock_shuttle))]
mod schedules;

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub(crate) use self::handed::{Handed, Pledge};
use self::line::{Line, Waiter};
pub(crate) use self::line::{Seat, Turn, Wants};
use crate::driver::Janitor;
use crate::error::{Error, ErrorKind};
use crate::store::Name;
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use crate::time::Instant;

/// Keys are spread over this many maps so that tasks on different keys rarely meet.
const SHARDS: usize = 32;

/// The keys that this process wants or holds.
#[derive(Debug)]
pub(crate) struct Registry {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    draining: AtomicBool,
    /// Takes leases that were handed to one who was gone.
    janitor: Arc<Janitor>,
}

type Shard = HashMap<Address, Arc<Line>, BuildHasherDefault<Known>>;

/// A name and where it is looked up, so that it is hashed once in the life of a lock.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    name: Name,
    hash: u64,
}

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

/// Where one stands who wants a key.
pub(crate) enum Stand {
    Seated(Seat),
    InLine(Waiter),
}

/// Why there is no seat.
#[derive(Debug)]
pub(crate) enum NoSeat {
    /// The seat is taken, and the caller did not want to wait, or not longer.
    Taken(Situation),
    Draining,
}

impl Registry {
    pub(crate) fn new(janitor: Arc<Janitor>) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            draining: AtomicBool::new(false),
            janitor,
        }
    }

    /// Where `name` is looked up.
    pub(crate) fn address(&self, name: Name) -> Address {
        let hash = self.hasher.hash_one(&name);
        Address { name, hash }
    }

    /// Joins the line for a key.
    ///
    /// One who is impatient waits only while the task on the seat has not achieved anything yet: what it finds out
    /// about the lock is true for the caller as well.
    pub(crate) fn stand(
        self: &Arc<Self>,
        address: &Address,
        wants: Wants,
    ) -> Result<Stand, NoSeat> {
        let mut shard = self.shard(address);
        // Read under the shard's lock: `drain` sets it before it looks at the shards.
        if self.is_draining() {
            return Err(NoSeat::Draining);
        }
        if let Some(line) = shard.get(address) {
            return Ok(Stand::InLine(line.join(wants)?));
        }
        let (line, seat) = Line::begin(Arc::clone(self), address.clone());
        shard.insert(address.clone(), line);
        Ok(Stand::Seated(seat))
    }

    /// Refuses all who wait, and all who come.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        let all = |shard| -> Vec<_> { Self::lock(shard).clone().into_iter().collect() };
        let mut lines: Vec<_> = self.shards.iter().flat_map(all).collect();
        // Where a key is kept is chance; who is woken first is not, so that a seed repeats itself.
        lines.sort_by(|(one, _), (two, _)| one.name.as_str().cmp(two.name.as_str()));
        for waker in lines.iter().flat_map(|(_, line)| line.wakers()) {
            waker.wake();
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// How many keys have a seat.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| Self::lock(shard).len()).sum()
    }

    fn shard(&self, address: &Address) -> MutexGuard<'_, Shard> {
        // Maps look at the low bits and at the seven highest.
        #[allow(clippy::cast_possible_truncation)] // only a few bits matter
        let index = (address.hash >> 32) as usize % SHARDS;
        Self::lock(&self.shards[index])
    }

    fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
        // A panic in the few lines that hold this lock leaves the map whole.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Address {
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.name == other.name
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// The hash of an [`Address`], which knows it.
#[derive(Default)]
struct Known(u64);

impl Hasher for Known {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
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
#[cfg(not(lock_shuttle))]
mod tests {
    use std::time::Duration;

    use std::future::poll_fn;
    use std::pin::pin;

    use super::*;
    use crate::Key;
    use crate::store::RECENTLY;
    use crate::time::Deadline;

    const PATIENT: Wants = Wants { impatient: false, ttl: Duration::from_secs(10), fencing: true };
    const IMPATIENT: Wants = Wants { impatient: true, ..PATIENT };

    fn key(registry: &Registry) -> Address {
        registry.address(Name::new("test", &Key::new("k").unwrap()).unwrap())
    }

    async fn enter(
        registry: &Arc<Registry>,
        wants: Wants,
        until: Option<Instant>,
    ) -> Result<Seat, NoSeat> {
        let mut waiter = match registry.stand(&key(registry), wants)? {
            Stand::Seated(seat) => return Ok(seat),
            Stand::InLine(waiter) => waiter,
        };
        let mut timer = pin!(Deadline::default());
        match poll_fn(|cx| waiter.poll(until, timer.as_mut(), cx)).await? {
            Turn::Seat(seat, _) => Ok(seat),
            Turn::Lease(..) => panic!("nobody has a lease"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn seats_go_first_come_first_served_and_leave_nothing_behind() {
        let registry = Arc::new(Registry::new(Arc::default()));
        let first = enter(&registry, PATIENT, None).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        let runtime = tokio::runtime::Handle::current();
        for turn in 0..10 {
            let (registry, order) = (Arc::clone(&registry), Arc::clone(&order));
            tasks.push(runtime.spawn(async move {
                let _seat = enter(&registry, PATIENT, None).await.unwrap();
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
        let registry = Arc::new(Registry::new(Arc::default()));
        let first = enter(&registry, PATIENT, None).await.unwrap();
        let mut second = Box::pin(enter(&registry, PATIENT, None));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        drop(second);
        assert_eq!(registry.len(), 0);
        enter(&registry, IMPATIENT, Some(Instant::now())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_behind_a_failing_store_is_not_told_busy() {
        let registry = Arc::new(Registry::new(Arc::default()));
        let seat = enter(&registry, PATIENT, None).await.unwrap();
        seat.set(Situation::Failed(Error::of(ErrorKind::Unavailable)));
        let soon = Some(Instant::now().saturating_add(Duration::from_millis(50)));
        let Err(NoSeat::Taken(situation)) = enter(&registry, PATIENT, soon).await else {
            panic!("the seat is taken")
        };
        assert!(Error::from(situation).is_store_failure());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_while_the_lock_changes_hands_is_told_busy() {
        let registry = Arc::new(Registry::new(Arc::default()));
        let seat = enter(&registry, PATIENT, None).await.unwrap();
        let in_line = async |patience: Duration| {
            let until = Some(Instant::now().saturating_add(patience));
            match enter(&registry, PATIENT, until).await {
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
        let registry = Arc::new(Registry::new(Arc::default()));
        let soon = Instant::now().saturating_add(Duration::from_millis(500));
        let failed = Situation::Failed(Error::of(ErrorKind::Unavailable));
        let held = Situation::Held(soon);
        for (situation, busy) in [(held, true), (failed, false)] {
            let seat = enter(&registry, PATIENT, None).await.unwrap();
            let answer = async {
                tokio::task::yield_now().await;
                seat.set(situation);
            };
            let (told, ()) = tokio::join!(enter(&registry, IMPATIENT, Some(soon)), answer);
            let Err(NoSeat::Taken(situation)) = told else { panic!("the seat is taken") };
            assert_eq!(Error::from(situation).is_busy(), busy);
        }
        // A claim that comes to nothing leaves the seat to it.
        let seat = enter(&registry, PATIENT, None).await.unwrap();
        let give_up = async {
            tokio::task::yield_now().await;
            drop(seat);
        };
        let (entered, ()) = tokio::join!(enter(&registry, IMPATIENT, Some(soon)), give_up);
        drop(entered.unwrap());
        assert_eq!(registry.len(), 0);
    }
}
