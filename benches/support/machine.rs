//! Where this runs: pinning, and what the report says of the machine.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The core of redis-server and the one that all clients share, if there are two.
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

    /// Puts this process, and those that it starts, on the clients' core.
    pub(crate) fn pin_clients(self) {
        if let Some((_, clients)) = self.0 {
            pin(clients);
        }
    }

    pub(crate) fn describe(self) -> String {
        match self.0 {
            Some((server, clients)) => {
                format!("redis-server on core {server}, every client process on core {clients}")
            }
            None => "none: there are not two cores".to_owned(),
        }
    }
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).unwrap();
}

/// Ends this process when the one that started it ends, however that happens.
pub(crate) fn die_with_parent() {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
}

/// Becomes `command`, pinned, and ends with the process that started this one.
pub(crate) fn become_command(core: &str, command: &[String]) -> ! {
    die_with_parent();
    if let Ok(core) = core.parse() {
        pin(core);
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
    let asked = Command::new("rustc").arg("--version").output();
    asked.map_or_else(
        |_| "rustc unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// The version of a package that Cargo.lock holds: the newest, where it holds several.
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
