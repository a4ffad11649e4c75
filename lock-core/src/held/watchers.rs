//! The tasks that wait for the end of a lease.

use std::task::Waker;

/// Wakers by the ids of watchers. The first needs no allocation: most leases have one watcher.
#[derive(Default)]
pub(super) struct Watchers {
    first: Option<(u64, Waker)>,
    more: Vec<(u64, Waker)>,
    next_id: u64,
}

impl Watchers {
    /// Registers `waker`, under its `id` if it has one already.
    pub(super) fn register(&mut self, id: &mut Option<u64>, waker: &Waker) {
        if let Some(set) = id.and_then(|id| self.find(id)) {
            set.clone_from(waker);
            return;
        }
        let watcher = (self.next_id, waker.clone());
        *id = Some(self.next_id);
        self.next_id += 1;
        match &self.first {
            None => self.first = Some(watcher),
            Some(_) => self.more.push(watcher),
        }
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.first.take_if(|(watcher, _)| *watcher == id);
        self.more.retain(|(watcher, _)| *watcher != id);
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

    fn find(&mut self, id: u64) -> Option<&mut Waker> {
        let mut all = self.first.iter_mut().chain(&mut self.more);
        all.find(|(watcher, _)| *watcher == id).map(|(_, waker)| waker)
    }
}
