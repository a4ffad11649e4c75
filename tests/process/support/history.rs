//! Checks what many processes did, by the clock that they share.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One turn of a body.
#[derive(Clone, Copy, Debug)]
struct Turn {
    enter: u128,
    exit: u128,
    deadline: u128,
    fence: u64,
}

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
        let mut turns: HashMap<String, Vec<(Turn, usize)>> = HashMap::new();
        for (process, entry) in fs::read_dir(&self.dir).unwrap().enumerate() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if !name.starts_with("log-") {
                continue;
            }
            for line in fs::read_to_string(&path).unwrap().lines() {
                let (key, turn) = parse(line);
                turns.entry(key).or_default().push((turn, process));
            }
        }
        let mut verdict = Verdict { turns: 0, handovers: 0 };
        for (key, mut turns) in turns {
            turns.sort_by_key(|(turn, _)| turn.enter);
            verdict.turns += turns.len() as u64;
            for (turn, _) in &turns {
                assert!(turn.enter < turn.deadline, "{key}: {turn:?} began too late");
            }
            for pair in turns.windows(2) {
                let [(one, owner), (two, other)] = pair else { unreachable!() };
                assert!(one.exit.min(one.deadline) <= two.enter, "{key}: {one:?} overlaps {two:?}");
                assert!(one.fence < two.fence, "{key}: {one:?} is not numbered before {two:?}");
                verdict.handovers += usize::from(owner != other);
            }
        }
        verdict
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.dir));
    }
}

fn parse(line: &str) -> (String, Turn) {
    let words: Vec<_> = line.split(' ').collect();
    let [key, enter, exit, deadline, fence] = words[..] else { panic!("not a turn: {line}") };
    let nanos = |word: &str| word.parse().unwrap();
    let (enter, exit, deadline) = (nanos(enter), nanos(exit), nanos(deadline));
    (key.to_owned(), Turn { enter, exit, deadline, fence: fence.parse().unwrap() })
}
