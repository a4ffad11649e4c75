//! The error of the demo: it is only printed.

use std::error::Error;

/// Any error.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;
