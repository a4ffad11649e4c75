//! Durations as people write them.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A duration as text with its units.
pub(super) struct Human(pub(super) Duration);

impl<'de> Deserialize<'de> for Human {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        words(deserializer, &[]).map(|found| match found {
            Text::Duration(duration) => Self(duration),
            Text::Word(_) => unreachable!("BUG: no word is accepted"),
        })
    }
}

/// An optional duration.
pub(super) fn span<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    Ok(Option::<Human>::deserialize(deserializer)?.map(|Human(duration)| duration))
}

/// A duration, or one of the words that may be in its place.
pub(super) enum Text {
    Duration(Duration),
    Word(&'static str),
}

/// Reads a duration or one of `words`.
pub(super) fn words<'de, D: Deserializer<'de>>(
    deserializer: D,
    words: &'static [&'static str],
) -> Result<Text, D::Error> {
    deserializer.deserialize_str(Words(words))
}

struct Words(&'static [&'static str]);

impl Visitor<'_> for Words {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit, such as \"10s\"")?;
        self.0.iter().try_for_each(|word| write!(f, ", or \"{word}\""))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
        if let Some(word) = self.0.iter().find(|word| **word == text) {
            return Ok(Text::Word(word));
        }
        humantime::parse_duration(text).map(Text::Duration).map_err(|error| {
            let expected: &dyn serde::de::Expected = &self;
            E::custom(format_args!("{text:?} is not {expected}: {error}"))
        })
    }
}
