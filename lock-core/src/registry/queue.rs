//! A FIFO queue whose entries may leave from the middle.

use std::collections::VecDeque;
use std::task::Waker;

use crate::options::ResolvedOptions;

#[derive(Debug)]
struct QueueEntry {
    id: u64,
    /// `None` once the waiter has left.
    options: Option<ResolvedOptions>,
    /// `None` before the first poll, and after a wake-up until the next poll.
    waker: Option<Waker>,
}

/// Waiters in order of arrival. An entry that leaves is blanked at once and swept out in bulk, so
/// that leaving does not walk along the queue.
#[derive(Debug, Default)]
pub(super) struct LocalQueue {
    entries: VecDeque<QueueEntry>,
    blanks: usize,
    /// Entries that do not wait for another holder.
    not_waiting: usize,
    next_id: u64,
}

impl LocalQueue {
    /// Joins the queue. Returns the id of the waiter.
    pub(super) fn join(&mut self, options: ResolvedOptions) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.not_waiting += usize::from(!options.waits());
        self.entries.push_back(QueueEntry { id, options: Some(options), waker: None });
        id
    }

    /// Leaves the queue, unless the waiter has left before.
    pub(super) fn leave(&mut self, id: u64) {
        // A waiter that was given something is the first.
        let front = self.entries.front().is_some_and(|entry| entry.id == id);
        let index = if front { Some(0) } else { self.find(id) };
        let Some(index) = index else { return };
        self.blank(index);
        if front {
            self.entries.pop_front();
            self.blanks -= 1;
        } else if self.blanks > self.entries.len() / 2 {
            self.entries.retain(|entry| entry.options.is_some());
            self.blanks = 0;
        }
    }

    /// Sets the waker of the waiter `id`.
    pub(super) fn set_waker(&mut self, id: u64, waker: &Waker) {
        if let Some(index) = self.find(id) {
            match &mut self.entries[index].waker {
                Some(set) => set.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.blanks
    }

    /// The id and the options of the first waiter.
    pub(super) fn first(&mut self) -> Option<(u64, ResolvedOptions)> {
        loop {
            let first = self.entries.front()?;
            if let Some(options) = first.options {
                return Some((first.id, options));
            }
            self.entries.pop_front();
            self.blanks -= 1;
        }
    }

    /// Takes the first waiter's waker.
    pub(super) fn first_waker(&mut self) -> Option<Waker> {
        self.entries.front_mut()?.waker.take()
    }

    /// Removes the waiters that do not wait for another holder, and returns their ids and
    /// wakers.
    pub(super) fn take_not_waiting(&mut self) -> Vec<(u64, Option<Waker>)> {
        if self.not_waiting == 0 {
            return Vec::new();
        }
        let mut taken = Vec::with_capacity(self.not_waiting);
        for index in 0..self.entries.len() {
            if self.entries[index].options.is_some_and(|options| !options.waits()) {
                taken.push((self.entries[index].id, self.entries[index].waker.take()));
                self.blank(index);
            }
        }
        taken
    }

    /// Takes the wakers of all waiters.
    pub(super) fn wakers(&mut self) -> Vec<Waker> {
        self.entries.iter_mut().filter_map(|entry| entry.waker.take()).collect()
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&id, |entry| entry.id).ok()
    }

    fn blank(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        entry.waker = None;
        if let Some(options) = entry.options.take() {
            self.blanks += 1;
            self.not_waiting -= usize::from(!options.waits());
        }
    }
}
