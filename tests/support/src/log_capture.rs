//! Captures logs.

use std::io;
use std::sync::{Arc, Mutex, Once};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Captures the logs of this thread, at every level, until dropped.
///
/// Tasks of a `current_thread` runtime run on the test's thread, so their logs are captured too.
#[derive(Debug)]
#[must_use = "nothing is captured once it is dropped"]
pub struct LogCapture {
    text: Text,
    _guard: DefaultGuard,
}

#[derive(Clone, Debug, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl LogCapture {
    /// Begins to capture.
    pub fn start() -> Self {
        // tracing caches for all threads whether a place logs. A global subscriber that listens
        // everywhere keeps it switched on, while other tests begin and end.
        static LISTENER: Once = Once::new();
        LISTENER.call_once(|| {
            // Fails if another one is installed, which listens as well.
            let _there = tracing::subscriber::set_global_default(tracing_subscriber::registry());
        });
        let text = Text::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(text.clone())
            .finish();
        Self { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// The logs so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.0.lock().unwrap()).into_owned()
    }

    /// Whether a line of `level`, such as `WARN`, contains `what`.
    #[must_use]
    pub fn contains(&self, level: &str, what: &str) -> bool {
        self.text().lines().any(|line| line.contains(level) && line.contains(what))
    }
}

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Text {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
