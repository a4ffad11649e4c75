//! Errors and what caused them.

use std::error::Error;
use std::iter::successors;

/// An error and its causes, as a report of it would show them.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let texts = successors(Some(error), |error| (*error).source()).map(ToString::to_string);
    texts.collect::<Vec<_>>().join(": ")
}
