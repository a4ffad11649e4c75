//! What the programme consists of.

use std::ffi::OsString;

use tokio::process::Command;

/// A command whose experiments belong to the programme.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    quick: Dose,
    full: Dose,
}

/// How much of it.
pub(crate) struct Dose {
    pub(crate) words: &'static str,
    /// About how long it takes on two idle cores; shown as progress.
    pub(crate) seconds: u64,
    /// The profile that it is built in, if not the one of all tests.
    profile: Option<&'static str>,
    variables: &'static [(&'static str, &'static str)],
    /// For the program, not for cargo.
    arguments: &'static [&'static str],
}

const SMALL: Dose =
    Dose { words: "small", seconds: 60, profile: None, variables: &[], arguments: &[] };
/// Optimised, with all checks of a debug build: what computes rather than waits.
const FAST: Option<&str> = Some("programme");
/// Most tests wait rather than work, so two cores serve more than two of them.
const SIX_AT_A_TIME: &[&str] = &["--test-threads", "6"];
/// With processes of their own.
const FOUR_AT_A_TIME: &[&str] = &["--test-threads", "4"];
/// Those of clusters and sentinels wait for each other, and so do those of quorums.
const TWO_AT_A_TIME: &[&str] = &["--test-threads", "12"];
/// A real clock is compared with another one, and nothing may take the processors meanwhile.
const ONE_AT_A_TIME: &[&str] = &["--test-threads", "1"];

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "model",
        about: "all interleavings of a small model",
        // Built for other suites anyway, it is done sooner than it is optimised.
        quick: Dose { seconds: 40, ..SMALL },
        full: Dose {
            words: "all bounds",
            seconds: 210,
            profile: FAST,
            variables: &[("LOCK_TESTS_SCALE", "10")],
            ..SMALL
        },
    },
    Suite {
        name: "schedules",
        about: "tasks of one process, in many interleavings",
        quick: Dose {
            words: "8,000 schedules",
            seconds: 10,
            variables: &[("LOCK_SCHEDULES", "2000")],
            ..SMALL
        },
        full: Dose {
            words: "100,000 schedules",
            seconds: 120,
            variables: &[("LOCK_SCHEDULES", "25000")],
            ..SMALL
        },
    },
    Suite {
        name: "sim",
        about: "the real client on a simulated network and clock",
        quick: Dose {
            words: "3,000 seeds",
            seconds: 150,
            variables: &[("LOCK_SIM_SEEDS", "3000")],
            arguments: ONE_AT_A_TIME,
            ..SMALL
        },
        full: Dose {
            words: "200,000 seeds, the rest ten times",
            seconds: 640,
            profile: FAST,
            variables: &[("LOCK_SIM_SEEDS", "200000"), ("LOCK_TESTS_SCALE", "10")],
            arguments: ONE_AT_A_TIME,
        },
    },
    Suite {
        name: "faults",
        about: "a proxy that injects faults in front of a real server",
        quick: Dose { seconds: 80, arguments: SIX_AT_A_TIME, ..SMALL },
        full: Dose {
            words: "four times",
            seconds: 100,
            variables: &[("LOCK_TESTS_SCALE", "4")],
            arguments: SIX_AT_A_TIME,
            ..SMALL
        },
    },
    Suite {
        name: "scale",
        about: "thousands of waiters and keys, one test at a time",
        quick: Dose { seconds: 5, ..SMALL },
        full: Dose {
            words: "ten times",
            seconds: 30,
            variables: &[("LOCK_TESTS_SCALE", "10")],
            ..SMALL
        },
    },
    Suite {
        name: "process",
        about: "several processes that are paused and killed",
        quick: Dose { seconds: 60, arguments: FOUR_AT_A_TIME, ..SMALL },
        full: Dose {
            words: "ten times",
            seconds: 420,
            variables: &[("LOCK_TESTS_SCALE", "10")],
            arguments: FOUR_AT_A_TIME,
            ..SMALL
        },
    },
    Suite {
        name: "topologies",
        about: "clusters, sentinels and quorums, under contention",
        quick: Dose { seconds: 60, arguments: TWO_AT_A_TIME, ..SMALL },
        full: Dose {
            words: "all rounds",
            seconds: 1_200,
            variables: &[("LOCK_TESTS_SCALE", "10")],
            arguments: TWO_AT_A_TIME,
            ..SMALL
        },
    },
    Suite {
        name: "tower",
        about: "hostile requests to the layer",
        quick: Dose { seconds: 25, ..SMALL },
        full: Dose { words: "the same", seconds: 10, ..SMALL },
    },
    Suite {
        name: "fuzz",
        about: "odd keys, templates and replies",
        quick: Dose { seconds: 2, ..SMALL },
        full: Dose {
            words: "a hundred times",
            seconds: 60,
            variables: &[("LOCK_TESTS_SCALE", "100")],
            ..SMALL
        },
    },
    Suite {
        name: "mutants",
        about: "known bugs, each of which a suite must notice",
        // Each is built by itself.
        quick: Dose { words: "a handful", seconds: 20, arguments: &["--quick"], ..SMALL },
        full: Dose { words: "every mutant", seconds: 480, ..SMALL },
    },
];

impl Suite {
    pub(crate) fn dose(&self, quick: bool) -> &Dose {
        if quick { &self.quick } else { &self.full }
    }

    /// Builds what [`command`](Self::command) runs.
    pub(crate) fn build(&self, quick: bool) -> Command {
        let mut command = self.cargo(quick);
        match self.name {
            "mutants" => command.arg("--").args(self.dose(quick).arguments).arg("--no-run"),
            _ => command.arg("--no-run"),
        };
        command
    }

    pub(crate) fn command(&self, quick: bool) -> Command {
        let mut command = self.cargo(quick);
        command.arg("--").args(self.dose(quick).arguments);
        command
    }

    fn cargo(&self, quick: bool) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(cargo);
        match self.name {
            "mutants" => command.args(["run", "--bin", "mutants"]),
            "schedules" => command.args(["test", "--lib", "schedules"]),
            test => command.args(["test", "--test", test]),
        };
        if self.name == "schedules" {
            // Built apart, since everything is built anew for it.
            command.args(["--package", "lock-core", "--no-default-features"]);
            command.args(["--features", "test-util", "--target-dir", "target/schedules"]);
            command.env("RUSTFLAGS", "--cfg lock_shuttle");
        } else {
            command.args(["--package", "lock-tests", "--all-features"]);
        }
        let Dose { words: _, seconds: _, profile, variables, arguments: _ } = self.dose(quick);
        if let Some(profile) = profile {
            command.args(["--profile", profile]);
        }
        // What the caller set is for one suite at most, and no dose of this run.
        let ours = |name: &OsString| {
            let name = name.to_string_lossy();
            ["LOCK_TESTS_", "LOCK_SIM_", "LOCK_SCHEDULES"].iter().any(|of| name.starts_with(of))
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| ours(name)) {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied());
        command
    }
}
