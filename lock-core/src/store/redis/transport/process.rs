//! Which process of which server a connection leads to. Its clock is that process's, and so is its
//! memory.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::redis::info::Info;

/// The process behind the last connection.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Where it was, and the id that it drew when it started.
    known: Option<(String, String)>,
    clock: ClockId,
}

/// Whose clock a time was read from: times of two clocks are not compared.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ClockId(u64);

impl ClockId {
    /// One that no other process of no other server has.
    fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }
}

impl Process {
    /// A connection to `address` is open, to the process that says `info` of itself. Returns
    /// whether it took the place of another one there and has none of its data: no key in
    /// `database`.
    ///
    /// A process that does not tell its id counts as another one each time.
    pub(super) fn met(&mut self, address: &str, info: &Info, database: i64) -> bool {
        let Some(run_id) = info.field("run_id").filter(|id| !id.is_empty()) else {
            self.known = None;
            self.clock = ClockId::fresh();
            return false;
        };
        let now = (address.to_owned(), run_id.to_owned());
        if self.known.as_ref() == Some(&now) {
            return false;
        }
        self.clock = ClockId::fresh();
        let before = self.known.replace(now);
        let is_there_again = before.is_some_and(|(before, _)| before == address);
        is_there_again && info.field(&format!("db{database}")).is_none()
    }

    /// Where it was, if it told its id.
    pub(super) fn address(&self) -> Option<&str> {
        self.known.as_ref().map(|(address, _)| address.as_str())
    }

    pub(super) fn clock(&self) -> ClockId {
        self.clock
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn info(run_id: &str, keys: &str) -> Info {
        Info::read(Value::BulkString(format!("run_id:{run_id}\r\n{keys}\r\n").into_bytes()))
    }

    #[test]
    fn clock_is_that_of_the_process_and_the_address() {
        let mut process = Process::default();
        let mut clock = |address, info: &Info| {
            process.met(address, info, 0);
            process.clock()
        };
        let first = clock("a", &info("1", ""));
        assert_eq!(clock("a", &info("1", "")), first);
        let other = clock("b", &info("1", ""));
        assert_ne!(other, first);
        assert_ne!(clock("b", &info("2", "")), other);
        let unknown = clock("b", &Info::unknown());
        assert_ne!(clock("b", &Info::unknown()), unknown);
        assert_ne!(clock("b", &info("2", "")), unknown);
    }

    #[test]
    fn process_that_took_the_place_of_another_without_its_data_forgot() {
        let mut process = Process::default();
        assert!(!process.met("a", &info("1", ""), 0), "the first one");
        assert!(!process.met("a", &info("1", ""), 0), "the same one");
        assert!(!process.met("a", &info("2", "db0:keys=3"), 0), "with its data");
        assert!(process.met("a", &info("3", "db1:keys=3"), 0));
        assert!(!process.met("b", &info("4", ""), 0), "elsewhere");
        assert!(!process.met("b", &Info::unknown(), 0));
    }
}
