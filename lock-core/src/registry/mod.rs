//! Which task of this process may act on a key.
//!
//! A client has at most one claim per key in the store. Its other tasks queue here, first come
//! first served. "This process" means this client: two clients in one process are two processes to
//! each other. The right to act on a key is a [`LocalTurn`]; the task that claims or holds the lock
//! has it. A holder that ends its lease while other tasks wait may hand on the lease with the turn:
//! then no command goes to the store.

mod hand_off;
mod map;
mod others;
mod queue;
#[cfg(all(test, lock_shuttle))]
mod schedules;
mod wait_list;
mod waiter;

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use self::hand_off::{HandedClaim, HandedLease};
use self::map::ShardedMap;
pub(crate) use self::others::TurnsForOthers;
pub(crate) use self::wait_list::{Assignment, LocalTurn, Rejected, Status};
use self::wait_list::{Shared, WaitList};
pub(crate) use self::waiter::LocalWaiter;
use crate::activity::WaitingTasks;
use crate::driver::Releaser;
use crate::options::ResolvedOptions;
use crate::store::Name;
use crate::sync::AtomicBool;

/// The keys that the tasks of one client claim, hold or wait for.
#[derive(Clone, Debug)]
pub(crate) struct Registry(Arc<Shared>);

/// What a task that wants a key gets.
pub(crate) enum Admission {
    /// No other task of this process uses the key.
    Turn(LocalTurn),
    Queued(LocalWaiter),
}

impl Registry {
    pub(crate) fn new(releaser: Arc<Releaser<LocalTurn>>) -> Self {
        let draining = AtomicBool::new(false);
        Self(Arc::new(Shared { lists: ShardedMap::new(), draining, releaser }))
    }

    /// Gets the turn for a key, or joins its queue.
    ///
    /// `label` names the key for readers.
    ///
    /// A task that does not wait for another holder queues only until the task with the turn has a
    /// definite status: what that one learns about the lock is true for the caller as well.
    pub(crate) fn admit(
        &self,
        name: &Name,
        label: &'static str,
        options: ResolvedOptions,
    ) -> Result<Admission, Rejected> {
        let mut shard = self.0.lists.shard(name);
        // Read under the shard's lock: `drain` sets it before it looks at the shards.
        if self.is_draining() {
            return Err(Rejected::Draining);
        }
        if let Some(list) = shard.get(name) {
            return LocalWaiter::join(list, options).map(Admission::Queued);
        }
        let (list, turn) = WaitList::begin(Arc::clone(&self.0), name.clone(), label);
        shard.insert(name.clone(), list);
        Ok(Admission::Turn(turn))
    }

    /// Rejects all tasks that wait, and all newcomers.
    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::SeqCst);
        for waker in self.0.lists.sorted().iter().flat_map(|list| list.wakers()) {
            waker.wake();
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.is_draining()
    }

    /// The keys that tasks wait for, and how many, in the order of their names.
    pub(crate) fn waiting(&self) -> Vec<WaitingTasks> {
        let mut waiting = self.0.lists.filter_map(|list| list.waiting());
        waiting.sort_unstable_by(|one, two| one.key.as_str().cmp(two.key.as_str()));
        waiting
    }

    /// How many keys are in use.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn len(&self) -> usize {
        self.0.lists.len()
    }
}

#[cfg(test)]
#[cfg(not(lock_shuttle))]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    use super::*;
    use crate::Key;
    use crate::error::{Error, ErrorKind};
    use crate::options::LockOptions;
    use crate::store::{RECENTLY, WaitEvent};
    use crate::time::{Deadline, Instant};

    const WAITS: LockOptions = LockOptions::new();
    const DOES_NOT_WAIT: LockOptions = LockOptions::new().without_wait();

    async fn enter(
        registry: &Registry,
        options: LockOptions,
        until: Option<Instant>,
    ) -> Result<LocalTurn, Rejected> {
        let name = Name::new(Some("test"), &Key::new("k").unwrap()).unwrap();
        let mut waiter = match registry.admit(&name, "k", options.resolve().unwrap())? {
            Admission::Turn(turn) => return Ok(turn),
            Admission::Queued(waiter) => waiter,
        };
        let mut timer = pin!(Deadline::default());
        match poll_fn(|cx| waiter.poll(until, timer.as_mut(), cx)).await? {
            (_, Assignment::Lease(..)) => panic!("no task has a lease"),
            (turn, _) => Ok(turn),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_first_come_first_served_and_leave_nothing_behind() {
        let registry = Registry::new(Arc::default());
        let first = enter(&registry, WAITS, None).await.unwrap();
        let order = Arc::new(crate::sync::Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        let runtime = tokio::runtime::Handle::current();
        for task in 0..10 {
            let (registry, order) = (registry.clone(), Arc::clone(&order));
            tasks.push(runtime.spawn(async move {
                let _turn = enter(&registry, WAITS, None).await.unwrap();
                order.lock().unwrap().push(task);
            }));
            tokio::task::yield_now().await;
        }
        for leaver in [3, 9] {
            tasks[leaver].abort();
        }
        tokio::task::yield_now().await;
        drop(first);
        for (index, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_err(), [3, 9].contains(&index));
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 4, 5, 6, 7, 8]);
        assert_eq!(registry.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn turn_assigned_to_a_dropped_waiter_is_passed_on() {
        let registry = Registry::new(Arc::default());
        let first = enter(&registry, WAITS, None).await.unwrap();
        let mut second = Box::pin(enter(&registry, WAITS, None));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        drop(second);
        assert_eq!(registry.len(), 0);
        enter(&registry, DOES_NOT_WAIT, Some(Instant::now())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_behind_a_failing_store_does_not_return_busy() {
        let registry = Registry::new(Arc::default());
        let turn = enter(&registry, WAITS, None).await.unwrap();
        turn.set_status(Status::Waiting(WaitEvent::Failed(Error::of(ErrorKind::Unavailable))));
        let soon = Some(Instant::now().saturating_add(Duration::from_millis(50)));
        let Err(Rejected::Taken(status)) = enter(&registry, WAITS, soon).await else {
            panic!("the turn is taken")
        };
        assert!(Error::from(status).is_store_failure());
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_that_gives_up_during_a_hand_off_returns_busy() {
        let registry = Registry::new(Arc::default());
        let turn = enter(&registry, WAITS, None).await.unwrap();
        let in_line = async |patience: Duration| {
            let until = Some(Instant::now().saturating_add(patience));
            match enter(&registry, WAITS, until).await {
                Err(Rejected::Taken(status)) => Error::from(status),
                other => panic!("the turn is taken, but {other:?}"),
            }
        };
        assert!(in_line(RECENTLY).await.is_unknown());
        turn.set_status(Status::Held(Instant::now().saturating_add(Duration::from_secs(10))));
        turn.set_status(Status::Releasing);
        assert!(in_line(RECENTLY / 2).await.is_busy());
        // A release without a reply for longer is the store's fault.
        assert!(in_line(RECENTLY).await.is_unknown());
    }

    #[tokio::test(start_paused = true)]
    async fn try_lock_returns_what_the_claim_before_it_found() {
        let registry = Registry::new(Arc::default());
        let soon = Instant::now().saturating_add(Duration::from_millis(500));
        let failed = Status::Waiting(WaitEvent::Failed(Error::of(ErrorKind::Unavailable)));
        let held = Status::Held(soon);
        for (status, busy) in [(held, true), (failed, false)] {
            let turn = enter(&registry, WAITS, None).await.unwrap();
            let answer = async {
                tokio::task::yield_now().await;
                turn.set_status(status);
            };
            let (rejected, ()) = tokio::join!(enter(&registry, DOES_NOT_WAIT, Some(soon)), answer);
            let Err(Rejected::Taken(status)) = rejected else { panic!("the turn is taken") };
            assert_eq!(Error::from(status).is_busy(), busy);
        }
        // A claim that is given up leaves it the turn.
        let turn = enter(&registry, WAITS, None).await.unwrap();
        let give_up = async {
            tokio::task::yield_now().await;
            drop(turn);
        };
        let (entered, ()) = tokio::join!(enter(&registry, DOES_NOT_WAIT, Some(soon)), give_up);
        drop(entered.unwrap());
        assert_eq!(registry.len(), 0);
    }
}
