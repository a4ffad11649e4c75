//! Checks what many processes did, by the clock that they share.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use lock_testkit::history::{
    Turn, check_but_within, first_turns, hand_offs, misnumbered, out_of_turn, overlaps,
};
use lock_testkit::temp_dir;
use tempfile::TempDir;

/// A directory for numbers and logs, removed on drop.
#[derive(Debug)]
pub(crate) struct Ground {
    dir: TempDir,
}

/// What the logs say.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// By key.
    turns: BTreeMap<String, Vec<Entry>>,
    writes: BTreeMap<String, Vec<Write>>,
    /// The turns of each process that came to their end.
    pub(crate) shares: Vec<usize>,
    /// By owner.
    pids: Vec<u32>,
    /// Each time that a process was stopped. A turn may have been between its last check of the
    /// lease and its first step.
    pub(crate) stops: Vec<Stop>,
    /// The ttl of the tasks that must renew.
    pub(crate) renewed: Duration,
    /// Outcomes that are unknown.
    unknown: usize,
}

/// A process was stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) pid: u32,
    pub(crate) from: u128,
    pub(crate) to: u128,
}

/// A turn, and whether it came to its end.
#[derive(Clone, Copy, Debug)]
struct Entry {
    turn: Turn,
    done: bool,
}

/// A write under a lock, or one that was refused.
#[derive(Clone, Copy, Debug)]
struct Write {
    at: u128,
    fence: u64,
    accepted: bool,
}

impl Ground {
    pub(crate) fn new(name: &str) -> Self {
        Self { dir: temp_dir(name) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The process that is in the middle of a turn on `key`. If it was killed there, it remains the
    /// holder until the next turn.
    pub(crate) fn holder(&self, key: &str) -> Option<u32> {
        fs::read_to_string(self.path().join(format!("holder-{key}"))).ok()?.parse().ok()
    }

    /// The size of the logs in bytes.
    pub(crate) fn size(&self) -> u64 {
        let entries = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap());
        entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.len()).sum()
    }

    /// Reads the logs.
    pub(crate) fn history(&self) -> History {
        let mut history = History::default();
        for entry in fs::read_dir(self.path()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let Some(pid) = name.strip_prefix("log-") else { continue };
            let owner = history.shares.len();
            history.pids.push(pid.parse().unwrap());
            let log = fs::read_to_string(&path).unwrap();
            // The last line may be only half written yet.
            let log = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
            let done = log.lines().filter(|line| history.read(line, owner)).count();
            history.shares.push(done);
        }
        history
    }
}

impl History {
    /// Reads a line. Returns whether it records a turn that came to its end.
    fn read(&mut self, line: &str, owner: usize) -> bool {
        let words: Vec<_> = line.split(' ').collect();
        let number = |word: &str| word.parse().unwrap();
        match words[..] {
            ["turn", key, requested, enter, exit, deadline, fence, done] => {
                let (requested, enter, exit) = (number(requested), number(enter), number(exit));
                let (deadline, fence) = (number(deadline), fence.parse().unwrap());
                let turn = Turn { owner, requested, enter, exit, deadline, fence };
                let done = done == "1";
                self.turns.entry(key.to_owned()).or_default().push(Entry { turn, done });
                done
            }
            ["write", key, at, fence, accepted] => {
                let fence = fence.parse().unwrap();
                let write = Write { at: number(at), fence, accepted: accepted == "1" };
                self.writes.entry(key.to_owned()).or_default().push(write);
                false
            }
            ["unknown"] => {
                self.unknown += 1;
                false
            }
            _ => panic!("not a line of a log: {line}"),
        }
    }

    /// Asserts that no two turns on one key overlap, that none began after its deadline, and that
    /// fencing tokens grow from turn to turn. Returns how many turns followed a turn of another
    /// process.
    pub(crate) fn check(&self) -> usize {
        self.check_but_within(&[])
    }

    /// As [`check`](Self::check), except for turns of grants that were held within one of these
    /// windows, in which the server forgot or misjudged something.
    pub(crate) fn check_but_within(&self, windows: &[RangeInclusive<u128>]) -> usize {
        for (key, entries) in &self.turns {
            let _owners = check_but_within(key, in_time(entries), windows);
        }
        self.check_numbers();
        self.hand_offs()
    }

    /// Asserts what holds even if the server forgets: no turn began after its deadline unless its
    /// process was stopped right then, no token was given twice, and each grant that was claimed
    /// after another turn had begun has a greater token.
    pub(crate) fn check_numbers(&self) {
        let late = self.entries().filter(|entry| entry.turn.enter >= entry.turn.deadline);
        let late: Vec<_> = late.map(|entry| entry.turn).collect();
        assert!(late.len() <= self.stops.len(), "turns began too late: {late:?}");
        for (key, entries) in &self.turns {
            // What a process hands on belongs to a grant that may be older.
            let misnumbered = misnumbered(&turns(entries), |turn| turn.handed_on() == 0);
            assert!(misnumbered.is_empty(), "{key}: tokens do not grow: {misnumbered:?}");
        }
    }

    /// As [`check`](Self::check), of keys that begin so.
    pub(crate) fn check_of(&self, prefix: &str) {
        for (key, entries) in &self.turns {
            if key.starts_with(prefix) {
                let _owners = check_but_within(key, in_time(entries), &[]);
            }
        }
    }

    /// For how long turns on keys that begin so overlapped, by pair.
    pub(crate) fn overlaps_of(&self, prefix: &str) -> Vec<Duration> {
        let on_keys = self.turns.iter().filter(|(key, _)| key.starts_with(prefix));
        let pairs = on_keys.flat_map(|(_, entries)| overlaps(&turns(entries)));
        let nanos = pairs.map(|(one, two)| one.end().min(two.end()).saturating_sub(two.enter));
        nanos.map(|nanos| Duration::from_nanos(nanos.try_into().unwrap())).collect()
    }

    /// The turns of each process that came to their end, by its id.
    pub(crate) fn shares_by_process(&self) -> BTreeMap<u32, usize> {
        self.pids.iter().copied().zip(self.shares.iter().copied()).collect()
    }

    /// Turns on keys that begin so.
    pub(crate) fn turns_of(&self, prefix: &str) -> usize {
        let on_keys = self.turns.iter().filter(|(key, _)| key.starts_with(prefix));
        on_keys.map(|(_, entries)| entries.len()).sum()
    }

    /// Pairs of turns that overlap. There must be none unless the server forgot a lock or misjudged
    /// time.
    pub(crate) fn overlaps(&self) -> usize {
        self.turns.values().map(|entries| overlaps(&turns(entries)).len()).sum()
    }

    /// Turns that followed a turn of another process.
    pub(crate) fn hand_offs(&self) -> usize {
        self.turns.values().map(|entries| hand_offs(&in_time(entries))).sum()
    }

    /// When each grant of the store was entered, on keys that begin so.
    pub(crate) fn grants_of(&self, prefix: &str) -> Vec<u128> {
        let on_keys = self.turns.iter().filter(|(key, _)| key.starts_with(prefix));
        let grants = on_keys.flat_map(|(_, entries)| first_turns(&turns(entries)));
        grants.map(|grant| grant.enter).collect()
    }

    /// The same of those by which a process went ahead of another one that waited.
    pub(crate) fn out_of_turn_of(&self, prefix: &str) -> Vec<u128> {
        let on_keys = self.turns.iter().filter(|(key, _)| key.starts_with(prefix));
        let pairs = on_keys.flat_map(|(_, entries)| out_of_turn(&turns(entries)));
        pairs.map(|(grant, _)| grant.enter).collect()
    }

    /// Outcomes that are unknown.
    pub(crate) fn unknown(&self) -> usize {
        self.unknown
    }

    /// All turns, also those that were cut off.
    pub(crate) fn turns(&self) -> usize {
        self.turns.values().map(Vec::len).sum()
    }

    /// Turns that came to their end.
    pub(crate) fn done(&self) -> usize {
        self.entries().filter(|entry| entry.done).count()
    }

    /// Turns that were dropped because their lease was lost.
    pub(crate) fn cut_off(&self) -> usize {
        self.entries().filter(|entry| !entry.done).count()
    }

    /// Turns that went on after their lease.
    pub(crate) fn overstayed(&self) -> usize {
        self.entries().filter(|entry| entry.done && entry.turn.exit > entry.turn.deadline).count()
    }

    /// Turns that were longer than the ttl, of the tasks that must renew. A turn counts until the
    /// end of its lease.
    pub(crate) fn renewed_turns(&self) -> usize {
        let on_renewed = self.turns.iter().filter(|(key, _)| key.starts_with('r'));
        let held = on_renewed
            .flat_map(|(_, entries)| entries)
            .map(|Entry { turn, .. }| turn.end().saturating_sub(turn.enter));
        held.filter(|held| *held > self.renewed.as_nanos()).count()
    }

    /// How many stops struck a process in the middle of a turn while its lease was valid.
    pub(crate) fn stopped_holders(&self) -> usize {
        let holds = |stop: &&Stop| {
            self.entries().any(|Entry { turn, .. }| {
                self.pids[turn.owner] == stop.pid
                    && turn.enter < stop.from
                    && stop.from < turn.end()
                    && stop.to <= turn.exit
            })
        };
        self.stops.iter().filter(holds).count()
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.turns.values().flatten()
    }

    /// Writes that the resource accepted.
    pub(crate) fn accepted(&self) -> u64 {
        self.all_writes().filter(|write| write.accepted).count() as u64
    }

    /// Writes that the resource refused.
    pub(crate) fn refused(&self) -> usize {
        self.all_writes().filter(|write| !write.accepted).count()
    }

    fn all_writes(&self) -> impl Iterator<Item = &Write> {
        self.writes.values().flatten()
    }

    /// Writes that the resource accepted although a newer holder had written.
    pub(crate) fn stale(&self) -> usize {
        let mut stale = 0;
        for writes in self.writes.values() {
            let mut taken: Vec<_> = writes.iter().filter(|write| write.accepted).collect();
            taken.sort_by_key(|write| write.at);
            let mut newest = 0;
            for write in taken {
                stale += usize::from(write.fence < newest);
                newest = newest.max(write.fence);
            }
        }
        stale
    }
}

fn turns(entries: &[Entry]) -> Vec<Turn> {
    entries.iter().map(|entry| entry.turn).collect()
}

/// The turns that began before their lease ended.
fn in_time(entries: &[Entry]) -> Vec<Turn> {
    let turns = entries.iter().map(|entry| entry.turn);
    turns.filter(|turn| turn.enter < turn.deadline).collect()
}
