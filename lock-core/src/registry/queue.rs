//! A line that people may leave from the middle.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::Turn;

/// A place in line.
#[derive(Debug)]
struct Waiter {
    place: u64,
    /// `None` once it has left.
    turn: Option<oneshot::Sender<Turn>>,
    /// Wants to know what the task on the seat achieves rather than stand behind it.
    impatient: bool,
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
    pub(super) fn join(&mut self, turn: oneshot::Sender<Turn>, impatient: bool) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        self.impatient += usize::from(impatient);
        self.waiters.push_back(Waiter { place, turn: Some(turn), impatient });
        place
    }

    /// Leaves the line; nothing happens if the turn has come already.
    pub(super) fn leave(&mut self, place: u64) {
        let Ok(index) = self.waiters.binary_search_by_key(&place, |waiter| waiter.place) else {
            return;
        };
        self.take(index);
        if self.blanks > self.waiters.len() / 2 {
            self.waiters.retain(|waiter| waiter.turn.is_some());
            self.blanks = 0;
        }
    }

    /// Takes the first out of the line.
    pub(super) fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some(waiter) = self.waiters.pop_front() {
            if waiter.turn.is_some() {
                self.impatient -= usize::from(waiter.impatient);
                return waiter.turn;
            }
            self.blanks -= 1;
        }
        None
    }

    /// Takes out all who would not stand behind one who has the lock, or knows that it is taken.
    pub(super) fn take_impatient(&mut self) -> Vec<oneshot::Sender<Turn>> {
        if self.impatient == 0 {
            return Vec::new();
        }
        let all = 0..self.waiters.len();
        let impatient: Vec<_> = all.filter(|&index| self.waiters[index].impatient).collect();
        impatient.into_iter().filter_map(|index| self.take(index)).collect()
    }

    /// Sends everybody away.
    pub(super) fn clear(&mut self) {
        self.waiters.clear();
        (self.blanks, self.impatient) = (0, 0);
    }

    fn take(&mut self, index: usize) -> Option<oneshot::Sender<Turn>> {
        let waiter = &mut self.waiters[index];
        let turn = waiter.turn.take()?;
        self.blanks += 1;
        self.impatient -= usize::from(std::mem::take(&mut waiter.impatient));
        Some(turn)
    }
}
