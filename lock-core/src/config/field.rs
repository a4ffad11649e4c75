//! Fields of a configuration that are checked while they are read, so that the reader names the
//! place where a wrong one stands.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use super::MEMORY;
use super::duration::span;
use crate::client::{check_name, check_namespace, check_warning};
use crate::error::ConfigError;

/// A URL, or several with spaces in between or as a list. Only those that certainly hold no
/// password are checked here: some readers print the line that they refuse.
pub(super) fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let urls = deserializer.deserialize_any(Urls)?;
    let is_in_memory = urls.split_whitespace().eq([MEMORY]);
    if !is_in_memory && urls.split_whitespace().all(is_plain) {
        checked(redis::check_urls(&urls))?;
    }
    Ok(urls)
}

struct Urls;

impl<'de> Visitor<'de> for Urls {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL, or a list of the URLs of a quorum")
    }

    fn visit_str<E: Error>(self, url: &str) -> Result<String, E> {
        Ok(url.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<String, A::Error> {
        let mut urls = Vec::new();
        while let Some(url) = list.next_element::<String>()? {
            urls.push(url);
        }
        Ok(urls.join(" "))
    }
}

/// Whether only hosts, names and numbers follow the scheme. Anything else may be a login, also one
/// without its `@`, or a query with a password under any name.
fn is_plain(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.strip_suffix("#insecure").unwrap_or(rest);
    rest.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | ',' | '-' | '_' | '/'))
}

pub(super) fn namespace<'de, D>(deserializer: D) -> Result<Option<String>, D::Error>
where
    D: Deserializer<'de>,
{
    text(deserializer, check_namespace)
}

pub(super) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    text(deserializer, check_name)
}

/// A reader for each field that is a span of time, since an error of its check says its name.
macro_rules! spans {
    ($($field:ident: $check:path;)*) => {$(
        pub(super) fn $field<'de, D>(deserializer: D) -> Result<Option<Duration>, D::Error>
        where
            D: Deserializer<'de>,
        {
            let found = span(deserializer)?;
            checked(found.map_or(Ok(()), |found| $check(stringify!($field), found)))?;
            Ok(found)
        }
    )*};
}

spans! {
    wait_warning: check_warning;
    hold_warning: check_warning;
    request_timeout: redis::check_timeout;
    connect_timeout: redis::check_timeout;
    restart_delay: quorum::check_restart_delay;
}

pub(super) fn replica_acks<'de, D>(deserializer: D) -> Result<Option<u32>, D::Error>
where
    D: Deserializer<'de>,
{
    let count = Option::<u32>::deserialize(deserializer)?;
    checked(count.map_or(Ok(()), redis::check_replica_acks))?;
    Ok(count)
}

fn text<'de, D: Deserializer<'de>>(
    deserializer: D,
    check: impl FnOnce(&str) -> Result<(), ConfigError>,
) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    checked(text.as_deref().map_or(Ok(()), check))?;
    Ok(text)
}

/// The result of a check as an error of the reader, which adds the place.
pub(super) fn checked<E: Error>(result: Result<(), ConfigError>) -> Result<(), E> {
    result.map_err(E::custom)
}

#[cfg(feature = "redis")]
mod redis {
    pub(super) use crate::store::check_urls;
    pub(super) use crate::store::redis::{check_replica_acks, check_timeout};
}

#[cfg(not(feature = "redis"))]
// What this build has no use for is not wrong. The twins of these functions can fail.
#[allow(clippy::unnecessary_wraps)]
mod redis {
    use std::time::Duration;

    use crate::error::ConfigError;

    pub(super) fn check_urls(_: &str) -> Result<(), ConfigError> {
        Err(super::super::without_redis())
    }

    pub(super) fn check_timeout(_: &'static str, _: Duration) -> Result<(), ConfigError> {
        Ok(())
    }

    pub(super) fn check_replica_acks(_: u32) -> Result<(), ConfigError> {
        Ok(())
    }
}

#[cfg(feature = "redis-quorum")]
mod quorum {
    pub(super) use crate::store::quorum::check_restart_delay;
}

#[cfg(not(feature = "redis-quorum"))]
mod quorum {
    use std::time::Duration;

    use crate::error::ConfigError;

    // As above.
    #[allow(clippy::unnecessary_wraps)]
    pub(super) fn check_restart_delay(_: &'static str, _: Duration) -> Result<(), ConfigError> {
        Ok(())
    }
}
