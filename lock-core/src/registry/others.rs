//! Turns that are left to clients of other libraries.
//!
//! Those clients look for a free key from time to time, and a key that waiters hand on is never
//! free. With [`turns_for_others`](crate::LockOptions::turns_for_others), a process that has had a
//! key for two sections frees it without handing it on, and claims it again when another client has
//! had it, or after the longest pause of a client that looks. If no client came, the next turn is
//! left only after a while.
//!
//! This bounds what the process does to itself. Another process whose waiter claims meanwhile gets
//! the key, as after any release.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::store::Name;
use crate::time::Instant;

/// After so many sections a turn is left: every third is another client's.
const SECTIONS: u32 = 2;
/// How long a turn is left: redsync looks again after 50 to 250 ms, most others do sooner.
const TURN: Duration = Duration::from_millis(250);
/// A turn that no client took cost [`TURN`]. After this, the next one is left.
const AFTER_UNUSED: Duration = Duration::from_secs(1);
/// The share of another client is a third of the time, too: it may have had several sections in a
/// row. But no turn is put off for longer than this because of a section that was long.
const LONGEST_SHARE: Duration = Duration::from_secs(1);
/// What is known of a key is of no use after this.
const LIFE: Duration = Duration::from_secs(5);
/// From this many keys on, those that were not used lately are forgotten.
const MIN_SWEEP: usize = 256;

/// The keys for which turns are left, by what this process did last.
#[derive(Debug, Default)]
pub(crate) struct TurnsForOthers(Mutex<Keys>);

#[derive(Debug, Default)]
struct Keys {
    keys: HashMap<Name, Turns>,
    sweep_at: usize,
}

#[derive(Debug)]
struct Turns {
    /// Sections since the last turn that was left.
    sections: u32,
    /// No turn is left before this.
    not_before: Instant,
    /// How many processes of this library wanted the key when the last turn was left: each of them
    /// leaves turns.
    processes: u32,
    /// Until when a turn is left, unless another client has had it before.
    open_until: Option<Instant>,
    used: Instant,
}

impl TurnsForOthers {
    /// A section of `name` has ended. Whether its release leaves a turn: it does not hand the lock
    /// on, and the next claim of this process stays away for a while.
    pub(crate) fn leaves_turn(&self, name: &Name, now: Instant) -> bool {
        let mut known = self.lock();
        known.sweep(now);
        let turns = known.keys.entry(name.clone()).or_insert_with(|| Turns {
            sections: 0,
            not_before: now,
            processes: 1,
            open_until: None,
            used: now,
        });
        turns.used = now;
        turns.open_until = None;
        turns.sections = turns.sections.saturating_add(1);
        if turns.sections < SECTIONS || now < turns.not_before {
            return false;
        }
        turns.sections = 0;
        turns.open_until = Some(now.saturating_add(TURN));
        true
    }

    /// Until when a turn of `name` is left, if it is one now.
    pub(crate) fn open_until(&self, name: &Name, now: Instant) -> Option<Instant> {
        self.lock().keys.get(name)?.open_until.filter(|until| now < *until)
    }

    /// The turn is over: another client has it or has had it, or not. Meanwhile `waiting` other
    /// processes waited in the store's queue.
    pub(crate) fn close(&self, name: &Name, was_used: bool, waiting: u64, now: Instant) {
        if let Some(turns) = self.lock().keys.get_mut(name) {
            turns.open_until = None;
            turns.processes = u32::try_from(waiting).unwrap_or(u32::MAX).saturating_add(1);
            turns.not_before = if was_used { now } else { now.saturating_add(AFTER_UNUSED) };
        }
    }

    /// At `now` this process has the key again, after other clients had it for a time.
    pub(crate) fn had(&self, name: &Name, others: Duration, now: Instant) {
        if others.is_zero() {
            return;
        }
        if let Some(turns) = self.lock().keys.get_mut(name) {
            let times = SECTIONS.saturating_mul(turns.processes);
            let share = others.saturating_mul(times).min(LONGEST_SHARE);
            turns.sections = 0;
            turns.not_before = turns.not_before.max(now.saturating_add(share));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Keys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    fn sweep(&mut self, now: Instant) {
        if self.keys.len() >= self.sweep_at.max(MIN_SWEEP) {
            self.keys.retain(|_, turns| now < turns.used.saturating_add(LIFE));
            self.sweep_at = self.keys.len() * 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    fn name(key: &str) -> Name {
        Name::new(Some("test"), &Key::new(key.to_owned()).unwrap()).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn every_third_turn_is_left_and_rarely_if_no_client_takes_it() {
        let (turns, key) = (TurnsForOthers::default(), name("k"));
        let left_at = |now| turns.leaves_turn(&key, at(now));
        assert_eq!([left_at(1), left_at(2), left_at(3), left_at(4)], [false, true, false, true]);
        assert_eq!(turns.open_until(&key, at(5)), Some(at(254)));
        assert_eq!(turns.open_until(&key, at(254)), None);
        assert_eq!(turns.open_until(&name("other"), at(5)), None);
        turns.close(&key, true, 0, at(6));
        assert_eq!(turns.open_until(&key, at(7)), None);
        assert_eq!([left_at(7), left_at(8)], [false, true]);
        turns.close(&key, false, 0, at(258));
        assert_eq!([left_at(259), left_at(260), left_at(1_257)], [false, false, false]);
        assert!(left_at(1_258));
    }

    #[test]
    fn client_that_had_several_sections_in_a_row_gets_its_next_turn_later() {
        let (turns, key) = (TurnsForOthers::default(), name("k"));
        let left_at = |now| turns.leaves_turn(&key, at(now));
        assert_eq!([left_at(1), left_at(2)], [false, true]);
        turns.close(&key, true, 0, at(100));
        turns.had(&key, Duration::from_millis(30), at(130));
        assert_eq!([left_at(131), left_at(132), left_at(189)], [false, false, false]);
        assert!(left_at(190));
        // Four processes leave turns, one after another.
        turns.close(&key, true, 3, at(200));
        turns.had(&key, Duration::from_millis(30), at(230));
        assert_eq!([left_at(231), left_at(469), left_at(470)], [false, false, true]);
        turns.had(&key, Duration::from_secs(60), at(500));
        assert_eq!([left_at(501), left_at(1_499), left_at(1_500)], [false, false, true]);
    }

    #[test]
    fn keys_that_are_not_used_any_more_are_forgotten() {
        let turns = TurnsForOthers::default();
        for number in 0..10_000_u32 {
            turns.leaves_turn(&name(&number.to_string()), at(u64::from(number) * 100));
        }
        assert!(turns.lock().keys.len() <= MIN_SWEEP);
    }
}
