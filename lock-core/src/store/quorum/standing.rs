//! How each member fares: whether it votes, why not if it does not, and how its clock is.
//!
//! Each reply is compared with what is known already, which costs one atomic load. Only a change is
//! logged.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::flights::Answer;
use crate::error::ErrorKind;
use crate::metrics::QuorumMetrics;
use crate::store::{Member, Vote};
use crate::time::Instant;

/// How the members of a quorum fare.
#[derive(Debug)]
pub(super) struct Standings {
    pub(super) metrics: QuorumMetrics,
    members: Box<[Record]>,
    /// When the clocks are looked at again, in milliseconds of this machine's clock.
    next_look: AtomicU64,
}

#[derive(Debug)]
struct Record {
    standing: AtomicU8,
    /// How many ballots in a row it did not reply to in time.
    silences: AtomicU32,
    /// Its clock is too far from the median of all.
    is_apart: AtomicBool,
}

/// Whether a member votes, and why not if it does not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
enum Standing {
    /// It was not asked yet.
    Unknown,
    Up,
    /// It may have forgotten locks.
    Quarantine,
    /// It did not reply in time.
    Silent,
    /// There is no connection, or it refused.
    Away,
}

/// A member that was silent in so many rounds in a row is asked, but not waited for.
const MOST_SILENCES: u32 = 2;
/// Members accept no number that is further from their clock.
const FAR: Duration = Duration::from_secs(1);
/// How often the clocks are compared.
const LOOK: Duration = Duration::from_secs(5);

impl Standings {
    pub(super) fn new(members: &[Arc<dyn Member>]) -> Self {
        let record = |_: &Arc<dyn Member>| Record {
            standing: AtomicU8::new(Standing::Unknown as u8),
            silences: AtomicU32::new(0),
            is_apart: AtomicBool::new(false),
        };
        Self {
            metrics: QuorumMetrics::new(members.iter().map(ToString::to_string)),
            members: members.iter().map(record).collect(),
            next_look: AtomicU64::new(0),
        }
    }

    /// Whether the member did not reply to the last rounds.
    pub(super) fn is_silent(&self, member: usize) -> bool {
        self.members[member].silences.load(Ordering::Relaxed) >= MOST_SILENCES
    }

    /// Takes note of a reply of `member`, the one that `answer` names.
    pub(super) fn note(&self, member: &dyn Member, answer: &Answer) {
        let (index, reply) = answer;
        let record = &self.members[*index];
        let now = match reply {
            Ok(voted) => {
                record.silences.store(0, Ordering::Relaxed);
                match voted.vote {
                    Vote::Quarantined { .. } => Standing::Quarantine,
                    // It replied, late.
                    Vote::Void => return,
                    Vote::Accepted { .. }
                    | Vote::Refused { .. }
                    | Vote::Taken { .. }
                    | Vote::Free => Standing::Up,
                }
            }
            // It refuses this lock alone.
            Err(failed) if failed.error.kind() == ErrorKind::WrongType => Standing::Up,
            Err(failed) if failed.definite || failed.error.is_permanent() => Standing::Away,
            Err(_) => {
                // One reply that comes late is no news.
                let before = record.silences.fetch_add(1, Ordering::Relaxed);
                if before.saturating_add(1) < MOST_SILENCES {
                    return;
                }
                Standing::Silent
            }
        };
        if record.standing.load(Ordering::Relaxed) != now as u8 {
            self.changed(member, *index, now);
        }
    }

    fn changed(&self, member: &dyn Member, index: usize, now: Standing) {
        let before = self.members[index].standing.swap(now as u8, Ordering::Relaxed);
        if before == now as u8 {
            return;
        }
        self.metrics.votes(index, now == Standing::Up);
        if now != Standing::Up {
            tracing::warn!(
                target: "lock_core", event = "quorum.member", server = %member, standing = %now,
                "a member of the quorum does not vote"
            );
        } else if before != Standing::Unknown as u8 {
            tracing::info!(
                target: "lock_core", event = "quorum.member", server = %member, standing = %now,
                "a member of the quorum votes again"
            );
        }
    }

    /// Compares the clocks of the members from time to time.
    pub(super) fn look_at_clocks(&self, members: &[Arc<dyn Member>]) {
        let now = Instant::now().saturating_since(Instant::from_origin(Duration::ZERO));
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let (now, next) = (millis(now), self.next_look.load(Ordering::Relaxed));
        if now < next {
            return;
        }
        self.next_look.store(now.saturating_add(millis(LOOK)), Ordering::Relaxed);
        let clocks: Vec<Option<u64>> = members.iter().map(|member| member.clock()).collect();
        let Some(median) = median(clocks.iter().copied().flatten()) else { return };
        for (index, (clock, member)) in clocks.iter().zip(members).enumerate() {
            let Some(clock) = clock else { continue };
            let apart = Duration::from_micros(clock.abs_diff(median));
            let ahead = if *clock < median { -apart.as_secs_f64() } else { apart.as_secs_f64() };
            self.metrics.clock_is_ahead(index, ahead);
            let is_apart = apart > FAR;
            if self.members[index].is_apart.swap(is_apart, Ordering::Relaxed) != is_apart {
                clock_changed(&**member, is_apart, ahead);
            }
        }
    }
}

fn clock_changed(member: &dyn Member, is_apart: bool, ahead_seconds: f64) {
    if is_apart {
        tracing::warn!(
            target: "lock_core", event = "quorum.member", server = %member, standing = "clock",
            ahead_seconds,
            "the clock of a member of the quorum is apart from the others: it refuses the numbers \
             of claims until it is set"
        );
    } else {
        tracing::info!(
            target: "lock_core", event = "quorum.member", server = %member, standing = "clock",
            ahead_seconds,
            "the clock of a member of the quorum agrees with the others again"
        );
    }
}

/// The time that half of the clocks have passed.
pub(super) fn median(clocks: impl Iterator<Item = u64>) -> Option<u64> {
    let mut clocks: Vec<u64> = clocks.collect();
    clocks.sort_unstable();
    clocks.get(clocks.len() / 2).copied()
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Quarantine => "quarantine",
            Self::Silent => "silent",
            Self::Away => "away",
        })
    }
}
