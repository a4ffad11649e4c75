//! [`LockOptions`] and [`Wait`] as serde reads and writes them.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::duration::{Text, span, words};
use super::field::checked;
use crate::options::{LockOptions, Wait, check_span, check_ttl};

/// The options as they are written. What is absent is inherited.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of lock options, such as `ttl` and `wait`")]
struct Written {
    #[serde(default, deserialize_with = "ttl")]
    ttl: Option<Duration>,
    wait: Option<Wait>,
    renewal: Option<bool>,
    #[serde(default, deserialize_with = "max_hold")]
    max_hold: Option<Option<Duration>>,
    #[serde(default, deserialize_with = "min_hold")]
    min_hold: Option<Option<Duration>>,
    fencing: Option<bool>,
    turns_for_others: Option<bool>,
}

/// Words for what is not a duration.
const NONE: &str = "none";
const FOREVER: &str = "forever";

/// A table with a field per option that is set. Bounds are checked here already, one option at a
/// time; which options fit each other is known when they are used.
impl<'de> Deserialize<'de> for LockOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { ttl, wait, renewal, max_hold, min_hold, fencing, turns_for_others } =
            Written::deserialize(deserializer)?;
        let mut options = Self::new();
        if let Some(ttl) = ttl {
            options = options.with_ttl(ttl);
        }
        if let Some(wait) = wait {
            options = options.waiting(wait);
        }
        options = match renewal {
            Some(true) => options.with_renewal(),
            Some(false) => options.without_renewal(),
            None => options,
        };
        options = match max_hold {
            Some(Some(hold)) => options.with_max_hold(hold),
            Some(None) => options.without_max_hold(),
            None => options,
        };
        options = match min_hold {
            Some(Some(hold)) => options.with_min_hold(hold),
            Some(None) => options.without_min_hold(),
            None => options,
        };
        options = match fencing {
            Some(true) => options.with_fencing(),
            Some(false) => options.without_fencing(),
            None => options,
        };
        Ok(match turns_for_others {
            Some(true) => options.with_turns_for_others(),
            Some(false) => options.without_turns_for_others(),
            None => options,
        })
    }
}

impl Serialize for LockOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let hold = |hold: Duration| humantime::format_duration(hold).to_string();
        let held = |bound: Option<Duration>| bound.map_or_else(|| NONE.to_owned(), hold);
        if let Some(ttl) = self.ttl() {
            map.serialize_entry("ttl", &hold(ttl))?;
        }
        if let Some(wait) = self.wait() {
            map.serialize_entry("wait", &wait)?;
        }
        if let Some(renewal) = self.renewal() {
            map.serialize_entry("renewal", &renewal)?;
        }
        if let Some(bound) = self.max_hold() {
            map.serialize_entry("max_hold", &held(bound))?;
        }
        if let Some(bound) = self.min_hold() {
            map.serialize_entry("min_hold", &held(bound))?;
        }
        if let Some(fencing) = self.fencing() {
            map.serialize_entry("fencing", &fencing)?;
        }
        if let Some(turns) = self.turns_for_others() {
            map.serialize_entry("turns_for_others", &turns)?;
        }
        map.end()
    }
}

/// A duration, `"none"` or `"forever"`.
impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match words(deserializer, &[NONE, FOREVER])? {
            Text::Word(FOREVER) => Ok(Self::Forever),
            Text::Word(_) => Ok(Self::None),
            Text::Duration(wait) => {
                checked(check_span("wait", wait, "or write \"none\" or \"forever\""))?;
                Ok(Self::UpTo(wait))
            }
        }
    }
}

impl Serialize for Wait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Forever => serializer.serialize_str(FOREVER),
            Self::None => serializer.serialize_str(NONE),
            Self::UpTo(wait) => serializer.collect_str(&humantime::format_duration(*wait)),
        }
    }
}

fn ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let ttl = span(deserializer)?;
    ttl.map_or(Ok(()), |ttl| checked(check_ttl(ttl)))?;
    Ok(ttl)
}

fn max_hold<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<Duration>>, D::Error> {
    hold("max_hold", deserializer)
}

fn min_hold<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<Duration>>, D::Error> {
    hold("min_hold", deserializer)
}

fn hold<'de, D: Deserializer<'de>>(
    field: &'static str,
    deserializer: D,
) -> Result<Option<Option<Duration>>, D::Error> {
    match Option::<Hold>::deserialize(deserializer)? {
        Some(Hold(Some(hold))) => {
            checked(check_span(field, hold, "or write \"none\""))?;
            Ok(Some(Some(hold)))
        }
        written => Ok(written.map(|Hold(bound)| bound)),
    }
}

/// A duration or `"none"`.
struct Hold(Option<Duration>);

impl<'de> Deserialize<'de> for Hold {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match words(deserializer, &[NONE])? {
            Text::Word(_) => Self(None),
            Text::Duration(hold) => Self(Some(hold)),
        })
    }
}
