//! Why a command failed: what it prints, and its exit status.

use std::error::Error as _;

use lock_core::{ConfigError, Error, ErrorKind};

/// A mistake in the command line, a key or an option.
pub(crate) const USAGE: u8 = 2;
/// The store cannot be reached, or refused.
pub(crate) const STORE: u8 = 69;
/// Another owner has the lock.
pub(crate) const BUSY: u8 = 75;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    text: String,
}

impl Failure {
    pub(crate) fn new(status: u8, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// The same with another exit status, if it is one of `from`.
    pub(crate) fn with_status(mut self, from: u8, to: u8) -> Self {
        if self.status == from {
            self.status = to;
        }
        self
    }

    /// The same with a word on what to do, if it has this status.
    pub(crate) fn with_advice(mut self, status: u8, advice: &str) -> Self {
        if self.status == status {
            self.text = format!("{}; {advice}", self.text);
        }
        self
    }

    /// The same, with what it is about.
    pub(crate) fn about(self, what: &str) -> Self {
        Self { text: format!("{what}: {}", self.text), ..self }
    }

    /// What went wrong.
    pub(crate) fn text(self) -> String {
        self.text
    }

    pub(crate) fn print(&self, json: bool) {
        if json {
            eprintln!("{}", serde_json::json!({ "error": self.text, "status": self.status }));
        } else {
            eprintln!("lockctl: {}", self.text);
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Busy { .. } => BUSY,
            ErrorKind::InvalidKey
            | ErrorKind::InvalidOptions
            | ErrorKind::Unsupported
            | ErrorKind::WrongType => USAGE,
            _ => STORE,
        };
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self { status, text: in_words_of_the_command(&text) }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let field = error.field();
        let option = match field {
            "url" => "--store, or `LOCK_URL`,",
            "members" => "the servers of --store, or of `LOCK_URL`,",
            "namespace" => "--namespace, or `LOCK_NAMESPACE`,",
            field => &format!("--{field}"),
        };
        let text = error.to_string().replacen(&format!("`{field}`"), option, 1);
        let text = in_words_of_the_command(&text);
        Self { status: USAGE, text }
    }
}

/// The library's advice names its methods.
fn in_words_of_the_command(text: &str) -> String {
    let text = text.replace("`without_wait()`", "`--wait none`");
    let text = text.replace("`wait_forever()`", "`--wait forever`");
    text.replace("write `without_max_hold()`", "leave the option out")
        .replace("write `without_min_hold()`", "leave the option out")
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self { status: 1, text: error.to_string() }
    }
}
