//! What the tasks of one simulation share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::fake::Fake;
use crate::history::History;
use crate::log::Log;
use crate::plan::{Counts, Plan};
use crate::resource::Resource;

/// What all tasks of a simulation share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) plan: Arc<Plan>,
    pub(crate) log: Log,
    pub(crate) history: History,
    pub(crate) resource: Resource,
    pub(crate) fake: Fake,
    /// When the last fault is over at the latest, but for answers that are lost.
    pub(crate) calm: Instant,
    pub(crate) told: Arc<Mutex<Told>>,
}

#[derive(Default)]
pub(crate) struct Told {
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<String>,
    pub(crate) left_to_ttl: bool,
}

impl World {
    pub(crate) fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = Counts::default();
        count(&mut counts);
        self.told.lock().unwrap().counts += counts;
    }

    /// A lease that its holder takes for valid for `left` must not end before that on the server,
    /// unless the server may forget it.
    pub(crate) fn check_lease(&self, owner: usize, key: usize, left: Duration) {
        if self.plan.may_forget || !self.plan.is_inside() {
            return;
        }
        let believed = left.as_micros() as u64 * self.plan.traits.clock_rate / 1_000_000;
        let on_server = self.fake.left_us(&format!("lock:k{key}"));
        if believed > on_server {
            self.violation(format!(
                "{owner} believes in its lease of k{key} for {believed} us, the server for {on_server} us"
            ));
        }
    }

    /// Whether the lock is held, as far as the server knows.
    pub(crate) fn is_held(&self, key: usize) -> bool {
        self.fake.leftovers().contains(&format!("lock:k{key}"))
    }

    pub(crate) fn violation(&self, what: String) {
        self.log.note(|| format!("VIOLATION {what}"));
        self.told.lock().unwrap().violations.push(what);
    }
}
