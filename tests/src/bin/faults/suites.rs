//! What the programme consists of.

pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) cargo: &'static [&'static str],
    /// More arguments for the small dose.
    pub(crate) quick: &'static [&'static str],
    /// What makes it the full dose.
    pub(crate) full: &'static [(&'static str, &'static str)],
}

const TEN_TIMES: &[(&str, &str)] = &[("LOCK_TESTS_DOSE", "10")];

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "model",
        about: "all interleavings of a small model",
        cargo: &["test", "--package", "lock-tests", "--all-features", "--test", "model"],
        quick: &[],
        full: TEN_TIMES,
    },
    Suite {
        name: "sim",
        about: "the real client on a simulated network and clock",
        cargo: &["test", "--package", "lock-tests", "--all-features", "--test", "sim"],
        quick: &[],
        full: &[("LOCK_SIM_SEEDS", "50000")],
    },
    Suite {
        name: "faults",
        about: "a proxy that injects faults in front of a real server",
        cargo: &["test", "--package", "lock-tests", "--all-features", "--test", "faults"],
        quick: &[],
        full: TEN_TIMES,
    },
    Suite {
        name: "process",
        about: "several processes that are paused and killed",
        cargo: &["test", "--package", "lock-tests", "--all-features", "--test", "process"],
        quick: &[],
        full: TEN_TIMES,
    },
    Suite {
        name: "tower",
        about: "hostile requests to the layer",
        cargo: &["test", "--package", "lock-tests", "--all-features", "--test", "tower"],
        quick: &[],
        full: TEN_TIMES,
    },
    Suite {
        name: "fuzz",
        about: "odd keys, templates and replies",
        cargo: &["test", "--package", "lock-tests", "--all-features", "--test", "fuzz"],
        quick: &[],
        full: TEN_TIMES,
    },
    Suite {
        name: "zoo",
        about: "known bugs, each of which a suite must catch",
        cargo: &["run", "--package", "lock-tests", "--all-features", "--bin", "zoo", "--"],
        quick: &["--quick"],
        full: &[],
    },
];
