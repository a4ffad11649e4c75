//! Checks what many processes did, by the clock that they share.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use lock_tests::history::{Turn, check};

/// A directory for counters and logs, removed on drop.
#[derive(Debug)]
pub(crate) struct Ground {
    dir: PathBuf,
    keys: u64,
}

/// What was found in order.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) turns: u64,
    /// Turns that followed a turn of another process.
    pub(crate) handovers: usize,
    /// The turns of each process.
    pub(crate) shares: Vec<usize>,
}

impl Ground {
    pub(crate) fn new(name: &str, keys: u64) -> Self {
        let dir = std::env::temp_dir().join(format!("lock-tests-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for key in 0..keys {
            fs::write(dir.join(format!("counter-k{key}")), "0").unwrap();
        }
        Self { dir, keys }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// What the counters show in all.
    pub(crate) fn counted(&self) -> u64 {
        let read = |key| fs::read_to_string(self.dir.join(format!("counter-k{key}"))).unwrap();
        (0..self.keys).map(|key| read(key).parse::<u64>().unwrap()).sum()
    }

    /// Asserts that no two turns on one key overlap, that none began after its deadline, and that fencing tokens
    /// grow from turn to turn.
    pub(crate) fn check(&self) -> Verdict {
        let mut turns: HashMap<String, Vec<Turn>> = HashMap::new();
        let mut shares = Vec::new();
        for entry in fs::read_dir(&self.dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if !name.starts_with("log-") {
                continue;
            }
            let log = fs::read_to_string(&path).unwrap();
            for line in log.lines() {
                let (key, turn) = parse(line, shares.len());
                turns.entry(key).or_default().push(turn);
            }
            shares.push(log.lines().count());
        }
        let mut verdict = Verdict { turns: 0, handovers: 0, shares };
        for (key, turns) in turns {
            let owners = check(key, turns);
            verdict.turns += owners.len() as u64;
            verdict.handovers += owners.windows(2).filter(|pair| pair[0] != pair[1]).count();
        }
        verdict
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.dir));
    }
}

fn parse(line: &str, owner: usize) -> (String, Turn) {
    let words: Vec<_> = line.split(' ').collect();
    let [key, enter, exit, deadline, fence] = words[..] else { panic!("not a turn: {line}") };
    let nanos = |word: &str| word.parse().unwrap();
    let (enter, exit, deadline) = (nanos(enter), nanos(exit), nanos(deadline));
    (key.to_owned(), Turn { owner, enter, exit, deadline, fence: fence.parse().unwrap() })
}
