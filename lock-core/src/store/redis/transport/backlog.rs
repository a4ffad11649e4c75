//! The commands that wait to be sent on one connection.
//!
//! - Renewals before releases before claims: leases do not wait, and there are no more renewals
//!   than leases. A release goes before a claim of another token for the same lock. It never meets
//!   a claim of its own token, because its client has given that up by then.
//! - Among each, a queue for each hash tag, which are served by turns. A call carries commands of
//!   one tag: on a cluster, of one slot. So those that share a call are found without a look at the
//!   others, and a slot with many commands holds up no other.
//! - In each queue, first come first served.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::command::{Command, Kind, Reply};
use crate::store::redis::error::Fault;
use crate::store::redis::keys::Tag;

/// A command that waits to be sent, or for its reply. `U` counts it as unanswered.
pub(super) struct QueuedCommand<U> {
    pub(super) command: Command,
    pub(super) reply: oneshot::Sender<Result<Reply, Fault>>,
    pub(super) unanswered: U,
}

/// The commands that wait to be sent.
pub(super) struct Backlog<U> {
    renewals: Queues<U>,
    releases: Queues<U>,
    claims: Queues<U>,
}

/// The commands of one sort.
struct Queues<U> {
    /// One for each tag. An empty one is kept if it is alone, as always on one server.
    queues: VecDeque<(Tag, VecDeque<QueuedCommand<U>>)>,
    /// Where the queue of a tag is: its index, and how many were taken from the front before it
    /// came.
    places: HashMap<Tag, usize>,
    taken: usize,
    len: usize,
}

/// Stop looking for commands that can share a call after skipping this many.
const MAX_SKIPPED: usize = 256;

impl<U> Backlog<U> {
    pub(super) fn new() -> Self {
        Self { renewals: Queues::new(), releases: Queues::new(), claims: Queues::new() }
    }

    pub(super) fn push(&mut self, queued: QueuedCommand<U>) {
        if queued.command.is_renewal() {
            self.renewals.push(queued);
        } else if queued.command.kind() == Kind::Release {
            self.releases.push(queued);
        } else {
            self.claims.push(queued);
        }
    }

    /// Takes the commands to send next: those that can share a call, up to `most`. The commands of
    /// callers that are gone are dropped.
    pub(super) fn take(&mut self, most: usize) -> Option<Vec<QueuedCommand<U>>> {
        let mut sorts = [&mut self.renewals, &mut self.releases, &mut self.claims].into_iter();
        sorts.find_map(|sort| sort.take(most))
    }

    /// Whether some of the commands cannot share a call.
    pub(super) fn is_mixed(&self) -> bool {
        [&self.renewals, &self.releases, &self.claims].into_iter().any(Queues::is_mixed)
    }

    pub(super) fn len(&self) -> usize {
        self.renewals.len + self.releases.len + self.claims.len
    }
}

impl<U> Queues<U> {
    fn new() -> Self {
        Self { queues: VecDeque::new(), places: HashMap::new(), taken: 0, len: 0 }
    }

    fn push(&mut self, queued: QueuedCommand<U>) {
        let tag = queued.command.tag;
        let is_last = self.queues.back().is_some_and(|(last, _)| *last == tag);
        let index = if is_last {
            self.queues.len() - 1
        } else if let Some(place) = self.places.get(&tag) {
            place.wrapping_sub(self.taken)
        } else {
            self.add(tag, VecDeque::new())
        };
        self.len += 1;
        self.queues[index].1.push_back(queued);
    }

    /// Adds a queue behind the others, and returns its index.
    fn add(&mut self, tag: Tag, queue: VecDeque<QueuedCommand<U>>) -> usize {
        let index = self.queues.len();
        self.queues.push_back((tag, queue));
        self.places.insert(tag, self.taken.wrapping_add(index));
        index
    }

    fn take(&mut self, most: usize) -> Option<Vec<QueuedCommand<U>>> {
        for _ in 0..self.queues.len() {
            let (tag, mut queue) = self.queues.pop_front()?;
            self.taken = self.taken.wrapping_add(1);
            let before = queue.len();
            let batch = take_batch(&mut queue, most);
            self.len -= before - queue.len();
            if queue.is_empty() && !self.queues.is_empty() {
                self.places.remove(&tag);
            } else {
                self.add(tag, queue);
            }
            if batch.is_some() {
                return batch;
            }
        }
        None
    }

    fn is_mixed(&self) -> bool {
        let mut queues = self.queues.iter().map(|(_, queue)| queue).filter(|it| !it.is_empty());
        let Some(first) = queues.next() else { return false };
        let ends = first.front().zip(first.back());
        queues.next().is_some()
            || ends.is_some_and(|(first, last)| !first.command.goes_with(&last.command))
    }
}

/// Takes the first command whose caller still waits, and those that can share a call with it, up to
/// `most` in all.
fn take_batch<U>(
    queue: &mut VecDeque<QueuedCommand<U>>,
    most: usize,
) -> Option<Vec<QueuedCommand<U>>> {
    let mut batch: Vec<QueuedCommand<U>> = Vec::new();
    let mut skipped = Vec::new();
    while batch.len() < most && skipped.len() < MAX_SKIPPED {
        let Some(queued) = queue.pop_front() else { break };
        if queued.reply.is_closed() {
            continue;
        }
        match batch.first() {
            Some(first) if !first.command.goes_with(&queued.command) => skipped.push(queued),
            _ => batch.push(queued),
        }
    }
    for queued in skipped.into_iter().rev() {
        queue.push_front(queued);
    }
    (!batch.is_empty()).then_some(batch)
}

#[cfg(all(test, feature = "redis-cluster"))]
mod tests {
    use super::*;
    use crate::store::redis::transport::command::Operation;
    use crate::store::{Name, Token};

    type Waiting = Vec<oneshot::Receiver<Result<Reply, Fault>>>;

    #[allow(clippy::unwrap_used)]
    fn push(backlog: &mut Backlog<()>, waiting: &mut Waiting, key: &str, tag: &'static str) {
        let name = Name::from_store(&format!("lock:{key}")).unwrap();
        let operation = Operation::Claim { ttl_ms: 1, void_after: 1, place: None };
        let (reply, receiver) = oneshot::channel();
        waiting.push(receiver);
        let token = Token::fresh().unwrap();
        let command = Command { name, tag: Tag::of(tag), token, operation };
        backlog.push(QueuedCommand { command, reply, unanswered: () });
    }

    fn taken(backlog: &mut Backlog<()>, most: usize) -> Vec<String> {
        let batch = backlog.take(most).unwrap_or_default();
        batch.iter().map(|it| it.command.name.key().to_owned()).collect()
    }

    #[test]
    fn commands_of_a_slot_share_a_call_and_slots_are_served_by_turns() {
        let (mut backlog, mut waiting) = (Backlog::new(), Vec::new());
        for number in 0..5 {
            push(&mut backlog, &mut waiting, &format!("a{number}"), "1");
            assert_eq!(backlog.is_mixed(), number > 0);
            push(&mut backlog, &mut waiting, &format!("b{number}"), "2");
        }
        assert_eq!(taken(&mut backlog, 3), ["a0", "a1", "a2"]);
        push(&mut backlog, &mut waiting, "c0", "3");
        push(&mut backlog, &mut waiting, "a5", "1");
        assert_eq!((backlog.len(), backlog.is_mixed()), (9, true));
        assert_eq!(taken(&mut backlog, 64), ["b0", "b1", "b2", "b3", "b4"]);
        assert_eq!(taken(&mut backlog, 64), ["a3", "a4", "a5"]);
        push(&mut backlog, &mut waiting, "b5", "2");
        assert_eq!(taken(&mut backlog, 64), ["c0"]);
        assert_eq!((backlog.len(), backlog.is_mixed()), (1, false));
        assert_eq!(taken(&mut backlog, 64), ["b5"]);
        assert!(taken(&mut backlog, 64).is_empty() && backlog.len() == 0);
        push(&mut backlog, &mut waiting, "b6", "2");
        assert_eq!(taken(&mut backlog, 64), ["b6"]);
    }

    #[test]
    fn commands_of_callers_that_are_gone_are_dropped() {
        let (mut backlog, mut waiting) = (Backlog::new(), Vec::new());
        for (key, tag) in [("a", "1"), ("b", "2"), ("c", "2")] {
            push(&mut backlog, &mut waiting, key, tag);
        }
        waiting.truncate(2);
        drop(waiting.swap_remove(0));
        assert_eq!(taken(&mut backlog, 64), ["b"]);
        assert!(taken(&mut backlog, 64).is_empty() && backlog.len() == 0);
    }
}
