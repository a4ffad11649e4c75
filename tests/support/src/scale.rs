//! How much work a test does, and other numbers from the environment.

use std::str::FromStr;

/// How often a heavy test repeats its work: `small` times, or `LOCK_TESTS_SCALE` times as often.
///
/// # Panics
///
/// If the variable is not a number, or is zero.
#[must_use]
pub fn scale(small: usize) -> usize {
    let factor: usize = number("LOCK_TESTS_SCALE").unwrap_or(1);
    assert!(factor > 0, "LOCK_TESTS_SCALE=0: no work would be done");
    small * factor
}

/// The value of an environment variable, if it is set.
///
/// # Panics
///
/// If the value is not a number of this type.
#[must_use]
pub fn number<N: FromStr>(name: &str) -> Option<N> {
    let text = std::env::var_os(name)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name}={}: not such a number", text.to_string_lossy())))
}
