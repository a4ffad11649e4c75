//! A replica, whose keys are a late copy of those of its master, and the sentinels that name the
//! master.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lock_testkit::Rng;
use tokio::time::Instant;

use super::keys::Keys;
use super::resp::Reply;

/// What a server is to its clients.
#[derive(Debug)]
pub(crate) enum Role {
    Master,
    /// Copies what arrives from its master.
    Replica(Feed),
    /// Names a master.
    Sentinel(Named),
}

/// The master, as a sentinel names it.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) host: String,
    pub(crate) epoch: u64,
    /// Whether the sentinel leads a failover.
    pub(crate) is_moving: bool,
}

/// The name by which sentinels know the master.
pub(crate) const MASTER_NAME: &str = "shop";

/// The changes of a master on their way to its replica, and the acknowledgements on their way back.
#[derive(Clone, Debug)]
pub(crate) struct Feed(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    rng: Rng,
    /// How long a change may be under way, in milliseconds.
    longest: u64,
    changes: VecDeque<Change>,
    /// `None`: it has not answered yet.
    acknowledged: Option<u64>,
    held_until: Instant,
    is_cut: bool,
}

#[derive(Debug)]
struct Change {
    number: u64,
    /// What the master has after it; `None` when the replica has it.
    keys: Option<Keys>,
    arrives: Instant,
    /// When the master knows that it arrived.
    acknowledged: Instant,
}

impl Feed {
    /// A replica that gets a copy of `keys` first, which are those of change `number`, and takes so
    /// long for it.
    pub(super) fn new(keys: Keys, number: u64, copy: Duration, longest: u64, rng: Rng) -> Self {
        let feed = Self(Arc::new(Mutex::new(Inner {
            rng,
            longest,
            changes: VecDeque::new(),
            acknowledged: None,
            held_until: Instant::now() + copy,
            is_cut: false,
        })));
        feed.send(keys, number);
        feed
    }

    pub(super) fn send(&self, keys: Keys, number: u64) {
        let mut inner = self.lock();
        if inner.is_cut {
            return;
        }
        // Usually soon.
        let longest = if inner.rng.chance(80) { 2 } else { inner.longest };
        let (way, back) = (inner.rng.ms(0..=longest), inner.rng.ms(0..=2));
        let due = (Instant::now() + way).max(inner.held_until);
        let last = inner.changes.back();
        let arrives = last.map_or(due, |last| due.max(last.arrives));
        let acknowledged =
            last.map_or(arrives + back, |last| (arrives + back).max(last.acknowledged));
        inner.changes.push_back(Change { number, keys: Some(keys), arrives, acknowledged });
    }

    /// Nothing arrives before `until`.
    pub(crate) fn hold_until(&self, until: Instant) {
        self.lock().held_until = until;
    }

    /// What has not arrived by now never does. Returns how many changes are lost.
    pub(crate) fn cut(&self) -> usize {
        let mut inner = self.lock();
        inner.forget_acknowledged();
        inner.is_cut = true;
        let now = Instant::now();
        let lost = inner.changes.iter().filter(|change| change.arrives > now).count();
        inner.changes.retain(|change| change.arrives <= now && change.keys.is_some());
        // Nor does an acknowledgement.
        let Some(never) = now.checked_add(Duration::from_secs(1_000_000)) else {
            return lost;
        };
        inner.changes.iter_mut().for_each(|change| change.acknowledged = never);
        lost
    }

    pub(super) fn is_cut(&self) -> bool {
        self.lock().is_cut
    }

    /// The keys of the last change that has arrived, unless the replica has them.
    pub(super) fn take_arrived(&self) -> Option<Keys> {
        let mut inner = self.lock();
        let now = Instant::now();
        let arrived = inner.changes.iter_mut().take_while(|change| change.arrives <= now);
        let newest = arrived.filter_map(|change| change.keys.take()).last();
        inner.forget_acknowledged();
        newest
    }

    /// Whether the replica has all that the master has.
    pub(crate) fn is_level(&self) -> bool {
        let now = Instant::now();
        self.lock().changes.iter().all(|change| change.arrives <= now)
    }

    /// Whether the master knows that change `number` arrived.
    pub(super) fn has_acknowledged(&self, number: u64) -> bool {
        let mut inner = self.lock();
        inner.forget_acknowledged();
        inner.acknowledged.is_some_and(|newest| newest >= number)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }
}

impl Inner {
    fn forget_acknowledged(&mut self) {
        let now = Instant::now();
        while let Some(change) = self.changes.front().filter(|it| it.acknowledged <= now) {
            self.acknowledged = Some(change.number);
            // A later one has more, if there is one that has arrived.
            let is_taken = change.keys.is_none();
            let is_outdated = self.changes.get(1).is_some_and(|next| next.arrives <= now);
            if !is_taken && !is_outdated {
                return;
            }
            self.changes.pop_front();
        }
    }
}

impl Named {
    /// The answer to `SENTINEL MASTER`.
    pub(super) fn reply(&self, name: &[u8]) -> Reply {
        if name != MASTER_NAME.as_bytes() {
            return Reply::error("ERR No such master with that name");
        }
        let flags = if self.is_moving { "master,failover_in_progress" } else { "master" };
        let epoch = self.epoch.to_string();
        let fields = [
            ("name", MASTER_NAME),
            ("ip", &self.host),
            ("port", "6379"),
            ("flags", flags),
            ("config-epoch", &epoch),
        ];
        Reply::Map(
            fields.iter().flat_map(|(name, value)| [*name, *value]).map(Reply::bulk).collect(),
        )
    }
}
