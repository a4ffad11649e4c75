//! What happened in a simulation, in order.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

/// A log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Inner>>);

struct Inner {
    origin: Instant,
    reader: Reader,
    text: String,
    events: u64,
}

/// Who reads a log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reader {
    None,
    /// The test, to compare it.
    Test,
    /// An engineer who watches a simulation that may never end.
    Human,
}

impl Log {
    pub(crate) fn new(reader: Reader) -> Self {
        let inner = Inner { origin: Instant::now(), reader, text: String::new(), events: 0 };
        Self(Arc::new(Mutex::new(inner)))
    }

    /// Notes an event, and gives its number.
    pub(crate) fn note(&self, what: impl FnOnce() -> String) -> u64 {
        let mut inner = self.0.lock().unwrap();
        inner.events += 1;
        let at = inner.origin.elapsed().as_millis();
        match inner.reader {
            Reader::None => {}
            Reader::Test => writeln!(inner.text, "{at:>6} {}", what()).unwrap(),
            Reader::Human => {
                let what = what();
                if !what.is_empty() {
                    println!("{at:>6} {what}");
                }
            }
        }
        inner.events
    }

    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().text.clone()
    }
}
