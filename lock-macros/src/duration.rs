//! Durations as the attribute spells them: `"10s"`, `"250ms"`, `"1m30s"`.
//!
//! Whole numbers with a unit, larger units first, each unit once. Fractions and spaces are
//! rejected, so that a length has few spellings. Anything else must be a `Duration` expression.

use std::time::Duration;

/// The units, largest first, with their length in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// What is wrong with the text of a duration. `messages` has the words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A number without a unit: `10`.
    NoUnit(String),
    /// A number with a unit that does not exist: `10 seconds`.
    UnknownUnit { number: String, unit: String },
    /// A number with a fraction: `1.5s`.
    Fraction,
    /// A unit after a smaller or an equal one: `30s1m`.
    Order,
    /// More milliseconds than a `u64` holds.
    TooLong,
    /// Not a number at all: `soon`, `-1s`, nothing.
    NotANumber,
}

/// Reads `text` as a length of time.
pub(crate) fn parse(text: &str) -> Result<Duration, Mistake> {
    if text.is_empty() {
        return Err(Mistake::NotANumber);
    }
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut total = 0_u64;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        if number.is_empty() {
            return Err(Mistake::NotANumber);
        }
        if after.starts_with(['.', ',']) {
            return Err(Mistake::Fraction);
        }
        let (unit, after) = split(after, |c| !c.is_ascii_digit());
        if unit.is_empty() {
            return Err(Mistake::NoUnit(number.to_owned()));
        }
        let Some(&(_, length)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(Mistake::UnknownUnit {
                number: number.to_owned(),
                unit: unit.trim().to_owned(),
            });
        };
        // The iterator has passed every unit used so far and every larger unit.
        if !units.any(|(name, _)| *name == unit) {
            return Err(Mistake::Order);
        }
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(length))
            .and_then(|length| total.checked_add(length))
            .ok_or(Mistake::TooLong)?;
        rest = after;
    }
    Ok(Duration::from_millis(total))
}

/// Spells `length` as [`parse`] reads it, for messages.
pub(crate) fn spell(length: Duration) -> String {
    let mut rest = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, unit) in UNITS {
        if rest >= unit {
            text.push_str(&format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Splits `text` after its longest prefix of characters that `belongs` accepts.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_parsed() {
        for (text, millis) in [
            ("250ms", 250),
            ("0s", 0),
            ("1s", 1_000),
            ("10s", 10_000),
            ("090s", 90_000),
            ("2m", 120_000),
            ("1m30s", 90_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("1d2h3m4s5ms", 93_784_005),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn mistakes_are_distinguished() {
        let unknown = |number: &str, unit: &str| Mistake::UnknownUnit {
            number: number.to_owned(),
            unit: unit.to_owned(),
        };
        for (text, mistake) in [
            ("", Mistake::NotANumber),
            ("soon", Mistake::NotANumber),
            ("-1s", Mistake::NotANumber),
            (" 1s", Mistake::NotANumber),
            ("10", Mistake::NoUnit("10".to_owned())),
            ("1m30", Mistake::NoUnit("30".to_owned())),
            ("10 seconds", unknown("10", "seconds")),
            ("10sec", unknown("10", "sec")),
            ("10us", unknown("10", "us")),
            ("10S", unknown("10", "S")),
            ("1m 30s", unknown("1", "m")),
            ("10s ", unknown("10", "s")),
            ("1.5s", Mistake::Fraction),
            ("1,5s", Mistake::Fraction),
            ("30s1m", Mistake::Order),
            ("1s1s", Mistake::Order),
            ("18446744073709551616ms", Mistake::TooLong),
            ("18446744073709551615s", Mistake::TooLong),
            ("213503982335d", Mistake::TooLong),
        ] {
            assert_eq!(parse(text), Err(mistake), "{text:?}");
        }
    }

    #[test]
    fn spelled_duration_parses_to_the_same_length() {
        for millis in [0, 1, 999, 1_000, 1_001, 59_999, 90_000, 86_400_000, 93_784_005, u64::MAX] {
            let length = Duration::from_millis(millis);
            assert_eq!(parse(&spell(length)), Ok(length));
        }
    }
}
