//! The values in a key template, and how they are encoded.
//!
//! A value's text is percent-encoded outside `[A-Za-z0-9_.-]`, so it never contains a separator, a
//! brace or a control byte, and different values give different text. An empty value is refused:
//! all users without a value would share one lock. Text longer than 64 bytes is replaced by `~` and
//! the SHA-256 of the value in hexadecimal; no encoded text begins with `~`, so the two forms do
//! not collide.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::Error;

/// The longest encoded text that is not replaced by a digest.
const MAX_PLAIN_LEN: usize = 64;

/// A value that may be part of a key.
///
/// Implemented for integers, `bool`, `char`, strings and references to them, and for `uuid::Uuid`
/// with the feature `uuid`; `#[derive(KeyPart)]` implements it for structs with one field. It is
/// not implemented for `Option`, because you have to decide what "none" locks, nor for everything
/// that has `Display`, because text for people is not always unique.
///
/// Two values that are not equal must write different text.
///
/// ```
/// use lock_core::{Error, KeyPart, KeyWriter};
///
/// struct Sku { maker: u16, item: u32 }
///
/// impl KeyPart for Sku {
///     fn write(&self, out: &mut KeyWriter) -> Result<(), Error> {
///         self.maker.write(out)?;
///         out.push_str("/");
///         self.item.write(out)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a lock key",
    label = "not a key part",
    note = "use a field of it (`<order.id>`), convert it (`<date.to_string()>`), or implement `KeyPart`",
    note = "for an `Option`, decide first what \"none\" locks"
)]
pub trait KeyPart {
    /// Writes the value's text, unescaped: `out` escapes it.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey), made by [`KeyWriter::refuse`], if the value
    /// cannot be part of a key.
    fn write(&self, out: &mut KeyWriter) -> Result<(), Error>;
}

/// Collects the text of one value.
#[derive(Debug, Default)]
pub struct KeyWriter {
    text: String,
}

impl KeyWriter {
    /// Adds text to the value.
    pub fn push_str(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The error for a value that cannot be part of a key.
    #[must_use]
    pub fn refuse(&self, why: &'static str) -> Error {
        Error::invalid_key(why)
    }

    /// Appends the escaped text to `key` and starts over.
    pub(crate) fn finish_hole(&mut self, key: &mut String) -> Result<(), Error> {
        if self.text.is_empty() {
            return Err(Error::invalid_key(
                "a part of the lock key is empty: all users without a value would share one lock",
            ));
        }
        let start = key.len();
        for &byte in self.text.as_bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-') {
                key.push(char::from(byte));
            } else {
                push_hex(key, "%", &[byte]);
            }
            if key.len() - start > MAX_PLAIN_LEN {
                key.truncate(start);
                push_hex(key, "~", &Sha256::digest(self.text.as_bytes()));
                break;
            }
        }
        self.text.clear();
        Ok(())
    }
}

fn push_hex(key: &mut String, mark: &str, bytes: &[u8]) {
    key.push_str(mark);
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            key.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
}

macro_rules! by_display {
    ($($type:ty),+ $(,)?) => { $(
        impl KeyPart for $type {
            fn write(&self, out: &mut KeyWriter) -> Result<(), Error> {
                // Writing to a `String` cannot fail.
                let _ = write!(out.text, "{self}");
                Ok(())
            }
        }
    )+ };
}

by_display!(
    i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, bool, char, str, String
);
by_display!(std::num::NonZeroU8, std::num::NonZeroU16, std::num::NonZeroU32, std::num::NonZeroU64);
#[cfg(feature = "uuid")]
by_display!(uuid::Uuid);

macro_rules! by_deref {
    ($($type:ty),+ $(,)?) => { $(
        impl<T: KeyPart + ?Sized> KeyPart for $type {
            fn write(&self, out: &mut KeyWriter) -> Result<(), Error> {
                (**self).write(out)
            }
        }
    )+ };
}

by_deref!(&T, &mut T, Box<T>, Rc<T>, Arc<T>);

impl<T: KeyPart + ToOwned + ?Sized> KeyPart for Cow<'_, T> {
    fn write(&self, out: &mut KeyWriter) -> Result<(), Error> {
        (**self).write(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(values: &[&str]) -> Result<String, Error> {
        let (mut out, mut key) = (KeyWriter::default(), String::new());
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                key.push(':');
            }
            value.write(&mut out)?;
            out.finish_hole(&mut key)?;
        }
        Ok(key)
    }

    #[test]
    fn plain_values_stay_readable() {
        assert_eq!(encode(&["42"]).unwrap(), "42");
        assert_eq!(encode(&["a-b_c.D"]).unwrap(), "a-b_c.D");
        assert_eq!(encode(&["1:2"]).unwrap(), "1%3a2");
        assert_eq!(encode(&["é\0"]).unwrap(), "%c3%a9%00");
    }

    #[test]
    fn long_values_become_a_digest_that_no_short_value_can_forge() {
        let long = "x".repeat(10_000);
        let digest = encode(&[&long]).unwrap();
        assert_eq!(digest.len(), 65);
        assert!(digest.starts_with('~'));
        assert_ne!(encode(&[&digest]).unwrap(), digest);
        assert_eq!(encode(&["x".repeat(64).as_str()]).unwrap(), "x".repeat(64));
    }

    #[test]
    fn empty_value_is_refused() {
        assert_eq!(encode(&[""]).unwrap_err().kind(), crate::ErrorKind::InvalidKey);
    }

    proptest! {
        #[test]
        fn different_values_give_different_keys(
            a in prop::collection::vec("(?s).{1,80}|[:%~{}.]{1,8}", 2),
            b in prop::collection::vec("(?s).{1,80}|[:%~{}.]{1,8}", 2),
        ) {
            let one: Vec<&str> = a.iter().map(String::as_str).collect();
            let two: Vec<&str> = b.iter().map(String::as_str).collect();
            let (x, y) = (encode(&one).unwrap(), encode(&two).unwrap());
            prop_assert_eq!(a == b, x == y);
            let plain = |c: u8| c.is_ascii_graphic() && !b"{}".contains(&c);
            prop_assert!(x.bytes().all(plain));
            prop_assert!(x.len() <= 2 * 65 + 1);
        }
    }
}
