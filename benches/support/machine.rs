//! The machine: CPU pinning, and its description in the report.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The first option of this program when it is to become a pinned command.
pub(crate) const HIDDEN_OPTION: &str = "--as-pinned";

/// The core of redis-server and the core that all clients share, if there are two cores.
#[derive(Clone, Copy)]
pub(crate) struct Cores(Option<(usize, usize)>);

impl Cores {
    /// The first two cores that this process may use.
    pub(crate) fn find() -> Self {
        let allowed = sched_getaffinity(None).unwrap();
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        Self(cores.next().zip(cores.next()))
    }

    pub(crate) fn server(self) -> Option<usize> {
        self.0.map(|(server, _)| server)
    }

    /// Pins this process and its future child processes to the clients' core.
    pub(crate) fn pin_clients(self) {
        if let Some((_, clients)) = self.0 {
            pin(None, clients);
        }
    }

    /// Pins the main thread of a redis-server to the servers' core.
    pub(crate) fn pin_server(self, pid: i32) {
        if let (Some(core), Some(pid)) = (self.server(), Pid::from_raw(pid)) {
            pin(Some(pid), core);
        }
    }

    pub(crate) fn describe(self) -> String {
        match self.0 {
            Some((server, clients)) => {
                format!("redis-server on core {server}, every client process on core {clients}")
            }
            None => "none, because there is only one core".to_owned(),
        }
    }
}

/// Pins a thread, by default the caller's.
fn pin(thread: Option<Pid>, core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(thread, &set).unwrap();
}

/// Kills this process when its parent ends, for whatever reason.
pub(crate) fn die_with_parent() {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
}

/// Replaces this process with `command`, pinned to `core`; it is killed when its parent ends.
pub(crate) fn become_command(core: &str, command: &[String]) -> ! {
    die_with_parent();
    if let Ok(core) = core.parse() {
        pin(None, core);
    }
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    eprintln!("{}: {error}", command[0]);
    std::process::exit(127);
}

pub(crate) fn describe() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name))
        .unwrap_or("unknown CPU");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}

pub(crate) fn rustc() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.map_or_else(
        |_| "rustc unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// The version of a package in Cargo.lock; the newest if there are several.
pub(crate) fn version_of(package: &str) -> String {
    let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock");
    let lock = fs::read_to_string(lock).unwrap_or_default();
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines();
    let mut found = "?";
    while lines.any(|line| line == name) {
        let version = lines.next().and_then(|line| line.strip_prefix("version = "));
        found = version.map_or(found, |version| version.trim_matches('"'));
    }
    found.to_owned()
}
