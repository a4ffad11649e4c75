//! Standard output.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use serde_json::json;

use crate::failure::Failure;

/// Writes `text`. The reader may have gone, as `head` does.
pub(crate) fn write(text: &[u8]) -> Result<u8, Failure> {
    is_read(text).map(|_| 0)
}

/// Writes `text`. Returns whether there is a reader.
pub(crate) fn is_read(text: &[u8]) -> Result<bool, Failure> {
    match io::stdout().write_all(text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Tells on standard error what is no failure.
pub(crate) fn note(json: bool, text: &str) {
    if json {
        eprintln!("{}", json!({ "note": text }));
    } else {
        eprintln!("lockctl: {text}");
    }
}

/// Text from the store as a terminal may show it: control characters, and those that change the
/// direction of the text, are written as escapes.
pub(crate) fn shown(text: &str) -> String {
    let is_unsafe = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            write!(safe, "{}", c.escape_unicode()).expect("BUG: a string takes all");
        } else {
            safe.push(c);
        }
    }
    safe
}
