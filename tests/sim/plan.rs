//! The parameters of a simulation, and what it counts.

use std::ops::AddAssign;
use std::time::Duration;

use lock_testkit::Rng;

use crate::fake::Traits;
use crate::net::Latency;

/// How fast the server's clock may be in a million of the clients' microseconds: as far apart as
/// the promises allow.
pub(crate) const SLOWEST_CLOCK: u64 = 990_000;
pub(crate) const FASTEST_CLOCK: u64 = 1_010_000;
const LEAST_FAULTS: u64 = 0;
const MOST_FAULTS: u64 = 7;
/// At least one, because unknown outcomes are what a lock must handle well.
const MOST_LOST_ANSWERS: u64 = 3;
/// Of twelve.
const LONG_TTLS: u64 = 2;

/// The parameters that a seed chooses.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) ttl: Duration,
    pub(crate) clients: u64,
    pub(crate) traits: Traits,
    pub(crate) latency: Latency,
    pub(crate) request_timeout: Duration,
    pub(crate) faults: u64,
    /// How many answers are lost besides.
    pub(crate) lost_answers: u64,
    pub(crate) may_forget: bool,
    /// Whether some clients are drained, and others take their places.
    pub(crate) drains: bool,
    /// Whether some locks are taken without a fencing token. If the server forgets them, the check
    /// cannot know when those leases began.
    pub(crate) unfenced: bool,
}

impl Plan {
    pub(crate) fn roll(rng: &mut Rng) -> Self {
        let usual = rng.within(0..=5);
        let longest = rng.one_of(&[5, 20, 200]);
        let may_forget = rng.chance(25);
        let ttl = match rng.within(0..=11) {
            // Far longer than anything but waiting for a lock to expire.
            ..LONG_TTLS => 10_000,
            short => [300, 1_000, 3_000][short as usize % 3],
        };
        Self {
            ttl: Duration::from_millis(ttl),
            clients: rng.within(2..=4),
            traits: Traits {
                resp3: rng.chance(80),
                clock_rate: rng.within(SLOWEST_CLOCK..=FASTEST_CLOCK),
            },
            latency: Latency { usual, longest: longest.max(usual), slow: rng.within(0..=20) },
            request_timeout: Duration::from_millis(rng.one_of(&[100, 500])),
            faults: rng.within(LEAST_FAULTS..=MOST_FAULTS),
            lost_answers: rng.within(1..=MOST_LOST_ANSWERS),
            may_forget,
            drains: rng.chance(40),
            unfenced: !may_forget && rng.chance(50),
        }
    }

    /// Whether the promises hold: whether clocks are close enough.
    pub(crate) fn is_inside(&self) -> bool {
        (SLOWEST_CLOCK..=FASTEST_CLOCK).contains(&self.traits.clock_rate)
    }
}

macro_rules! counts {
    ($($name:ident: $what:literal,)+) => {
        /// What happened, in numbers.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Counts { $(pub(crate) $name: usize,)+ }

        impl Counts {
            pub(crate) const NAMES: &[&str] = &[$($what,)+];

            pub(crate) fn all(&self) -> Vec<(&'static str, usize)> {
                vec![$(($what, self.$name),)+]
            }
        }

        impl AddAssign for Counts {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counts! {
    turns: "turns",
    contended: "contended grants",
    handed_on: "hand-offs in a process",
    queued: "places in a queue",
    unfenced: "grants without a number",
    busy: "busy answers",
    unavailable: "unavailable answers",
    ambiguous: "answers that did not arrive in time",
    unknown: "unknown answers",
    cancelled: "cancellations",
    extended: "extensions",
    lost: "lost leases",
    excused: "overlaps after the server forgot",
    voids: "void claims",
    unheard: "lost messages",
    stale: "stale writes, refused",
    drained: "drained clients",
    turned_away: "acquisitions refused by a drain",
    killed: "killed clients",
    forgotten: "servers that forgot",
    faults: "faults that struck",
}
