//! What happened in a simulation, in order.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

/// A log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Inner>>);

struct Inner {
    origin: Instant,
    /// Kept only where somebody will read or compare it.
    text: Option<String>,
    events: u64,
}

impl Log {
    pub(crate) fn new(keep: bool) -> Self {
        let text = keep.then(String::new);
        Self(Arc::new(Mutex::new(Inner { origin: Instant::now(), text, events: 0 })))
    }

    /// Notes an event, and gives its number.
    pub(crate) fn note(&self, what: impl FnOnce() -> String) -> u64 {
        let mut inner = self.0.lock().unwrap();
        inner.events += 1;
        let at = inner.origin.elapsed().as_millis();
        if let Some(text) = &mut inner.text {
            writeln!(text, "{at:>6} {}", what()).unwrap();
        }
        inner.events
    }

    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().text.clone().unwrap_or_default()
    }
}
