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
/// # Labels
///
/// Names often contain personal data, so logs, spans, metrics, panics and `Debug` show the *label*
/// of a key and never its name. The label is always text of the program: the template of
/// [`key!`](crate::key) and `#[distributed_lock]`, a `&'static str` that is the whole key, or what
/// [`with_label`](Self::with_label) gives. Any other key is labelled `-`. Text that a program keeps
/// in a `static` or leaks counts as its own: give a `String` if it should not be shown.
///
/// ```
/// use lock_core::{ErrorKind, Key};
///
/// let literal = Key::new("nightly-report")?;
/// assert_eq!((literal.as_str(), literal.label()), ("nightly-report", "nightly-report"));
///
/// let file = String::from("upload-7.csv");
/// let import = Key::new(file)?;
/// assert_eq!((import.as_str(), import.label()), ("upload-7.csv", "-"));
/// assert_eq!(import.with_label("<file>").label(), "<file>");
///
/// assert_eq!(Key::new("").unwrap_err().kind(), ErrorKind::InvalidKey);
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Key {
    name: Arc<str>,
    label: &'static str,
}

/// The label of a key that has none.
const UNLABELLED: &str = "-";

impl Key {
    /// A key with this exact name, checked at once.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) if the name breaks a rule above.
    pub fn new(name: impl IntoKey) -> Result<Self, Error> {
        name.into_key()
    }

    /// Sets the [label](Self#labels): a template such as `import:<file>`, in place of the values
    /// that the name contains.
    ///
    /// ```
    /// use lock_core::{Key, LockClient, store::MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let job = std::env::args().next().unwrap_or_default(); // known at run time only
    /// let guard = client.mutex(Key::new(job)?.with_label("<job>")).lock().await?;
    /// assert_eq!(guard.key().label(), "<job>");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_label(mut self, label: &'static str) -> Self {
        self.label = label;
        self
    }

    /// A key of a name and its label.
    pub(crate) fn labelled(
        name: impl AsRef<str> + Into<Arc<str>>,
        label: &'static str,
    ) -> Result<Self, Error> {
        check(name.as_ref())?;
        Ok(Self { name: name.into(), label })
    }

    /// The name, without the client's namespace.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// What names the key in logs and metrics: its [label](Self#labels), or `-`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        self.label
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

/// Shows the label, never the name.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.label()).finish()
    }
}

/// Checks the rules for the name of a key.
fn check(name: &str) -> Result<(), Error> {
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
            "a lock key has at most 512 bytes: put long values into holes of a template, which \
             shortens them",
        ));
    }
    Ok(())
}

/// What can be used as a key: text, a [`Key`], or what [`key!`](crate::key) gives.
///
/// Borrowed text must be `'static`, since it becomes the key's [label](Key#labels): a literal or a
/// constant. Of other text give the `String`, or a copy by `to_owned()`; better, put the value in a
/// hole of a template.
///
/// An invalid key is reported at the first use of the lock, so that making a lock needs no `?`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a lock key",
    label = "not a key",
    note = "keys are literals, `String`, `Key`, or `key!(\"order:<id>\")`",
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

/// Text of the program, which is its own label.
impl IntoKey for &'static str {
    fn into_key(self) -> Result<Key, Error> {
        Key::labelled(self, self)
    }
}

impl IntoKey for String {
    fn into_key(self) -> Result<Key, Error> {
        Key::labelled(self, UNLABELLED)
    }
}

impl IntoKey for &String {
    fn into_key(self) -> Result<Key, Error> {
        Key::labelled(self.as_str(), UNLABELLED)
    }
}

impl IntoKey for Cow<'_, str> {
    fn into_key(self) -> Result<Key, Error> {
        Key::labelled(self, UNLABELLED)
    }
}

impl IntoKey for Result<Key, Error> {
    fn into_key(self) -> Result<Key, Error> {
        self
    }
}
