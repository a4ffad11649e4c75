//! A line that people may leave from the middle.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::Seat;

/// Waiters in order of arrival. One that leaves is blanked at once and swept out in bulk, so that
/// leaving costs no walk along the line.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<(u64, Option<oneshot::Sender<Seat>>)>,
    blanks: usize,
    next_place: u64,
}

impl Queue {
    /// Joins the line; the place is needed to leave it.
    pub(super) fn join(&mut self, turn: oneshot::Sender<Seat>) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        self.waiters.push_back((place, Some(turn)));
        place
    }

    /// Leaves the line; nothing happens if the turn has come already.
    pub(super) fn leave(&mut self, place: u64) {
        let Ok(index) = self.waiters.binary_search_by_key(&place, |(place, _)| *place) else {
            return;
        };
        if self.waiters[index].1.take().is_some() {
            self.blanks += 1;
        }
        if self.blanks > self.waiters.len() / 2 {
            self.waiters.retain(|(_, turn)| turn.is_some());
            self.blanks = 0;
        }
    }

    /// Takes the first out of the line.
    pub(super) fn next(&mut self) -> Option<oneshot::Sender<Seat>> {
        while let Some((_, turn)) = self.waiters.pop_front() {
            if turn.is_some() {
                return turn;
            }
            self.blanks -= 1;
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.len() == self.blanks
    }

    /// Sends everybody away.
    pub(super) fn clear(&mut self) {
        self.waiters.clear();
        self.blanks = 0;
    }
}
