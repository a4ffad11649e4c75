//! A line that people may leave from the middle.

use std::collections::VecDeque;
use std::task::Waker;

use super::Wants;

/// One who stands in line.
#[derive(Debug)]
struct Waiter {
    place: u64,
    /// `None` once it has left.
    wants: Option<Wants>,
    /// `None` before its first poll, and while it is about to be polled.
    waker: Option<Waker>,
}

/// Waiters in order of arrival. One that leaves is blanked at once and swept out in bulk, so that
/// leaving costs no walk along the line.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
    blanks: usize,
    impatient: usize,
    next_place: u64,
}

impl Queue {
    /// Joins the line; the place is needed to leave it.
    pub(super) fn join(&mut self, wants: Wants) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        self.impatient += usize::from(wants.impatient);
        self.waiters.push_back(Waiter { place, wants: Some(wants), waker: None });
        place
    }

    /// Leaves the line, if it was not left before.
    pub(super) fn leave(&mut self, place: u64) {
        // The one who is called stands in front.
        let front = self.waiters.front().is_some_and(|waiter| waiter.place == place);
        let index = if front { Some(0) } else { self.find(place) };
        let Some(index) = index else { return };
        self.take(index);
        if front {
            self.waiters.pop_front();
            self.blanks -= 1;
        } else if self.blanks > self.waiters.len() / 2 {
            self.waiters.retain(|waiter| waiter.wants.is_some());
            self.blanks = 0;
        }
    }

    /// Has the one at `place` woken by `waker`.
    pub(super) fn set_waker(&mut self, place: u64, waker: &Waker) {
        if let Some(index) = self.find(place) {
            match &mut self.waiters[index].waker {
                Some(set) => set.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
    }

    /// The first in line, and what it wants.
    pub(super) fn first(&mut self) -> Option<(u64, Wants)> {
        loop {
            let first = self.waiters.front()?;
            if let Some(wants) = first.wants {
                return Some((first.place, wants));
            }
            self.waiters.pop_front();
            self.blanks -= 1;
        }
    }

    /// What wakes the first in line.
    pub(super) fn first_waker(&mut self) -> Option<Waker> {
        self.waiters.front_mut()?.waker.take()
    }

    /// Takes out all who would not stand behind one who has the lock, or knows that it is taken.
    pub(super) fn take_impatient(&mut self) -> Vec<(u64, Option<Waker>)> {
        if self.impatient == 0 {
            return Vec::new();
        }
        let mut impatient = Vec::with_capacity(self.impatient);
        for index in 0..self.waiters.len() {
            if self.waiters[index].wants.is_some_and(|wants| wants.impatient) {
                impatient.push((self.waiters[index].place, self.waiters[index].waker.take()));
                self.take(index);
            }
        }
        impatient
    }

    /// What wakes all of them.
    pub(super) fn wakers(&mut self) -> Vec<Waker> {
        self.waiters.iter_mut().filter_map(|waiter| waiter.waker.take()).collect()
    }

    fn find(&self, place: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&place, |waiter| waiter.place).ok()
    }

    fn take(&mut self, index: usize) {
        let waiter = &mut self.waiters[index];
        waiter.waker = None;
        if let Some(wants) = waiter.wants.take() {
            self.blanks += 1;
            self.impatient -= usize::from(wants.impatient);
        }
    }
}
