//! The tasks that wait for the end of a lease.

use std::task::Waker;

/// Wakers by place. The first needs no allocation: most leases have one watcher.
#[derive(Default)]
pub(super) struct Watchers {
    first: Option<(u64, Waker)>,
    more: Vec<(u64, Waker)>,
    next_place: u64,
}

impl Watchers {
    /// Registers `waker`, at its `place` if it has one already.
    pub(super) fn register(&mut self, place: &mut Option<u64>, waker: &Waker) {
        if let Some(set) = place.and_then(|place| self.find(place)) {
            set.clone_from(waker);
            return;
        }
        let watcher = (self.next_place, waker.clone());
        *place = Some(self.next_place);
        self.next_place += 1;
        match &self.first {
            None => self.first = Some(watcher),
            Some(_) => self.more.push(watcher),
        }
    }

    pub(super) fn remove(&mut self, place: u64) {
        self.first.take_if(|(watcher, _)| *watcher == place);
        self.more.retain(|(watcher, _)| *watcher != place);
    }

    pub(super) fn wake(self) {
        for (_, waker) in self.first.into_iter().chain(self.more) {
            waker.wake();
        }
    }

    #[cfg(feature = "test-util")]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    fn find(&mut self, place: u64) -> Option<&mut Waker> {
        let mut all = self.first.iter_mut().chain(&mut self.more);
        all.find(|(watcher, _)| *watcher == place).map(|(_, waker)| waker)
    }
}
