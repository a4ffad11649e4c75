//! Standard output.

use std::io::Write as _;

use crate::failure::Failure;

/// The reader may have gone, as `head` does.
pub(crate) fn write(text: &[u8]) -> Result<u8, Failure> {
    match std::io::stdout().write_all(text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(0),
    }
}
