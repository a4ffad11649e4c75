//! Keys: what is locked.
//!
//! A key made from a template keeps the template's literal text as it is and escapes every hole, so
//! two different sets of values never give one key. See [`KeyPart`].

mod part;

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub use self::part::{KeyPart, KeyWriter};
use crate::Error;

/// The longest name, in bytes, that a key may have together with its namespace.
pub(crate) const MAX_NAME_LEN: usize = 512;

/// The name of a lock.
///
/// - It is not empty and has at most 512 bytes (together with the client's namespace).
/// - It does not begin with `{`: the store uses such names for its own records.
/// - Otherwise every text is allowed, and compared byte by byte.
///
/// Make keys that contain values with [`key!`](crate::key) rather than `format!`: it escapes the
/// values.
///
/// ```
/// use lock_core::{ErrorKind, Key};
///
/// assert_eq!(Key::new("nightly-report")?.as_str(), "nightly-report");
/// assert_eq!(Key::new("").unwrap_err().kind(), ErrorKind::InvalidKey);
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Key {
    name: Arc<str>,
    /// The name in logs and metrics: the template, which contains no values.
    label: Option<&'static str>,
}

impl Key {
    /// A key with this exact name.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) if the name breaks a rule above.
    pub fn new(name: impl Into<String>) -> Result<Self, Error> {
        Self::checked(name.into(), None)
    }

    /// A key made from `template`, its holes already filled in and escaped.
    pub(crate) fn from_template(name: String, template: &'static str) -> Result<Self, Error> {
        Self::checked(name, Some(template))
    }

    fn checked(name: String, label: Option<&'static str>) -> Result<Self, Error> {
        if name.is_empty() {
            return Err(Error::invalid_key("a lock key cannot be empty: it would lock everything"));
        }
        if name.starts_with('{') {
            return Err(Error::invalid_key(
                "a lock key cannot begin with `{`: put a word before it, such as `order:`",
            ));
        }
        if name.len() > MAX_NAME_LEN {
            return Err(Error::invalid_key(
                "a lock key has at most 512 bytes: put long values into holes of a template, \
                 which shortens them",
            ));
        }
        Ok(Self { name: name.into(), label })
    }

    /// The name, without the client's namespace.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The template that the key was made from, or `"-"`. It contains no values, so it may appear
    /// in logs and metrics.
    pub(crate) fn label(&self) -> &'static str {
        self.label.unwrap_or("-")
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// Shows the template, never the values: keys often contain personal data.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.label()).finish()
    }
}

/// What can be used as a key: text, a [`Key`], or what [`key!`](crate::key) gives.
///
/// An invalid key is reported at the first use of the lock, so that making a lock needs no `?`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a lock key",
    label = "not a key",
    note = "keys are `&str`, `String`, `Key`, or `key!(\"order:<id>\")`",
    note = "to lock on a value, put it in a template: `key!(\"order:<value>\")`"
)]
pub trait IntoKey {
    /// Makes the key.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) if it breaks a rule of [`Key`].
    fn into_key(self) -> Result<Key, Error>;
}

impl IntoKey for Key {
    fn into_key(self) -> Result<Key, Error> {
        Ok(self)
    }
}

impl IntoKey for &Key {
    fn into_key(self) -> Result<Key, Error> {
        Ok(self.clone())
    }
}

impl IntoKey for &str {
    fn into_key(self) -> Result<Key, Error> {
        Key::new(self)
    }
}

impl IntoKey for String {
    fn into_key(self) -> Result<Key, Error> {
        Key::new(self)
    }
}

impl IntoKey for &String {
    fn into_key(self) -> Result<Key, Error> {
        Key::new(self.as_str())
    }
}

impl IntoKey for Cow<'_, str> {
    fn into_key(self) -> Result<Key, Error> {
        Key::new(self)
    }
}

impl IntoKey for Result<Key, Error> {
    fn into_key(self) -> Result<Key, Error> {
        self
    }
}
