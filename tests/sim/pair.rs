//! A master and its replica: how the rule passes from one to the other, and what that may cost.

use std::ops::RangeInclusive;
use std::time::Duration;

use lock_testkit::Rng;
use lock_testkit::history::now;
use tokio::time::{Instant, sleep};

use crate::fake::{Fake, Feed, Role};
use crate::log::Log;
use crate::net::Net;
use crate::topology::{CHANGES_LOST, FAILOVERS, LIVED_ON, Seen};

/// How long a change is under way to the replica at most, in milliseconds.
const LONGEST_LAG: u64 = 60;
/// How long a copy of all keys takes at most, in milliseconds.
const LONGEST_COPY: u64 = 500;
/// Longer than a slot takes to move.
const HELD: Duration = Duration::from_secs(60);
/// How often it is looked whether a replica has all.
const LOOK: Duration = Duration::from_millis(20);

/// What ends the rule of a master.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// Its process is killed, with its data.
    Killed,
    /// It is cut off from all.
    Unreachable,
    /// It is cut off from its replica and from those that watch it, and lives on.
    CutOff,
    /// An operator orders it; it lives on until it is demoted.
    Ordered,
    /// It executes nothing more until its replica has all, and gives the rule up.
    HandedOver,
}

impl End {
    /// Whether there are two masters for a while.
    fn lives_on(self) -> bool {
        matches!(self, Self::CutOff | Self::Ordered)
    }
}

/// A master and its replica.
pub(crate) struct Pair {
    pub(crate) servers: [Fake; 2],
    /// The number of the first one in the network; the other one follows.
    first: usize,
    net: Net,
    log: Log,
    pub(crate) rng: Rng,
    /// Which of them it is.
    pub(crate) master: usize,
    /// From the master to the replica.
    feed: Feed,
    ttl: Duration,
    /// About failovers: when leases may overlap if no replica has confirmed them.
    pub(crate) windows: Vec<RangeInclusive<u128>>,
    pub(crate) seen: Seen,
}

impl Pair {
    /// The first of the servers is the master.
    pub(crate) fn new(
        servers: [Fake; 2],
        first: usize,
        net: &Net,
        log: &Log,
        rng: &mut Rng,
        ttl: Duration,
    ) -> Self {
        let feed = servers[0].feed(Duration::ZERO, LONGEST_LAG, rng.split());
        servers[1].become_a(Role::Replica(feed.clone()));
        let (net, log, rng) = (net.clone(), log.clone(), rng.split());
        let (windows, seen) = (Vec::new(), Seen::default());
        Self { servers, first, net, log, rng, master: 0, feed, ttl, windows, seen }
    }

    /// The master.
    pub(crate) fn ruler(&self) -> &Fake {
        &self.servers[self.master]
    }

    /// Nothing arrives at the replica any more, until it has become the master.
    pub(crate) fn stops(&self) {
        self.feed.hold_until(Instant::now() + HELD);
    }

    /// Nothing arrives at the replica for a while; not always.
    pub(crate) async fn may_lag(&mut self) {
        if self.rng.chance(60) {
            self.feed.hold_until(Instant::now() + self.rng.ms(10..=900));
            sleep(self.rng.ms(1..=900)).await;
        }
    }

    /// The rule of the master ends, and those that watch it agree that another one is needed.
    pub(crate) async fn end(&mut self, end: End) {
        let old = self.master;
        self.log.note(|| format!("FAULT the rule of {} ends: {end:?}", self.first + old));
        match end {
            End::Killed => self.net.take_server_down(self.first + old),
            End::Unreachable => self.net.cut_server_off(self.first + old),
            End::CutOff => {}
            End::Ordered => return,
            End::HandedOver => {
                while !self.feed.is_level() {
                    self.servers[old].stall(LOOK * 2);
                    sleep(LOOK).await;
                }
                return;
            }
        }
        self.seen.add(CHANGES_LOST, self.feed.cut());
        sleep(self.rng.ms(100..=1_500)).await;
    }

    /// The replica becomes the master.
    pub(crate) fn promote(&mut self) {
        self.seen.add(CHANGES_LOST, self.feed.cut());
        self.master = 1 - self.master;
        self.ruler().become_a(Role::Master);
        self.seen.add(FAILOVERS, 1);
        self.log.note(|| format!("{} is the master", self.first + self.master));
    }

    /// The former master, which was replaced at `began`, becomes a replica.
    pub(crate) async fn retire(&mut self, end: End, began: u128) {
        let old = 1 - self.master;
        if end == End::Killed {
            self.servers[old].forget_all();
        }
        self.seen.add(LIVED_ON, usize::from(end.lives_on()));
        let ended = if end.lives_on() { now() } else { began };
        if end != End::HandedOver {
            self.windows.push(began..=ended + self.ttl.as_nanos());
        }
        self.demote().await;
    }

    /// The former master becomes a replica, and has a copy of all when this ends.
    pub(crate) async fn demote(&mut self) {
        let old = 1 - self.master;
        self.log.note(|| format!("{} is a replica", self.first + old));
        let (copy, rng) = (self.rng.ms(5..=LONGEST_COPY), self.rng.split());
        self.feed = self.ruler().feed(copy, LONGEST_LAG, rng);
        self.servers[old].become_a(Role::Replica(self.feed.clone()));
        // A sentinel ends the connections of its clients; an order to the server does not.
        if self.rng.chance(70) {
            self.net.break_streams(self.first + old);
        }
        self.net.bring_server_up(self.first + old);
        self.is_level().await;
    }

    /// Waits until the replica has all.
    pub(crate) async fn is_level(&self) {
        while !self.feed.is_level() {
            sleep(LOOK).await;
        }
    }
}
