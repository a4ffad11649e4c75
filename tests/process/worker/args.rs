//! The arguments of a worker: its task, then `name=value` pairs.

use std::time::Duration;

pub(crate) struct Args(Vec<String>);

impl Args {
    pub(crate) fn of_process() -> Self {
        Self(std::env::args().skip(1).collect())
    }

    pub(crate) fn task(&self) -> &str {
        &self.0[0]
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        let prefix = format!("{name}=");
        let found = self.0.iter().find_map(|arg| arg.strip_prefix(&prefix));
        found.unwrap_or_else(|| panic!("no argument {name}"))
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap()
    }

    pub(crate) fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name))
    }
}
