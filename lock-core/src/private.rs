//! What generated code and `lock-tower` call. Not part of the public API: anything here may change
//! in any release.

pub use ::core;
pub use ::std;

use std::sync::Arc;

use crate::client::LockClient;
use crate::error::Error;
use crate::key::{IntoKey, Key, KeyPart, KeyWriter};
use crate::lock::AcquireRequest;
pub use crate::lock::Entered;
use crate::options::LockOptions;

/// Builds a key from a template's pieces.
#[derive(Debug)]
pub struct Template {
    template: &'static str,
    name: Result<String, Error>,
    hole: KeyWriter,
}

impl Template {
    /// A key of this template, as it was written in the source.
    #[must_use]
    pub fn new(template: &'static str) -> Self {
        let name = Ok(String::with_capacity(template.len() + ROOM_FOR_VALUES));
        Self { template, name, hole: KeyWriter::default() }
    }

    /// Adds literal text.
    pub fn lit(&mut self, text: &'static str) {
        if let Ok(name) = &mut self.name {
            name.push_str(text);
        }
    }

    /// Adds a value. The first value that is refused decides the result.
    pub fn hole<T: KeyPart + ?Sized>(&mut self, value: &T) {
        if let Ok(name) = &mut self.name
            && let Err(error) =
                value.write(&mut self.hole).and_then(|()| self.hole.finish_hole(name))
        {
            self.name = Err(error);
        }
    }

    /// The key.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) if a value was refused or the name breaks a
    /// rule.
    pub fn done(self) -> Result<Key, Error> {
        Key::labelled(self.name?, self.template)
    }
}

/// Enough for an id or two without another allocation.
const ROOM_FOR_VALUES: usize = 24;

/// What `client = ..` accepts.
#[diagnostic::on_unimplemented(
    message = "`client = ..` must be a `LockClient`, but this is `{Self}`",
    label = "not a lock client",
    note = "name the field or variable that holds the `LockClient`, or implement `AsRef<LockClient>`"
)]
pub trait AsClient {
    /// The client.
    fn as_client(&self) -> &LockClient;
}

#[diagnostic::do_not_recommend]
impl<T: AsRef<LockClient> + ?Sized> AsClient for T {
    fn as_client(&self) -> &LockClient {
        self.as_ref()
    }
}

/// The client of `client = ..`.
///
/// # Errors
///
/// None today.
pub fn client<C: AsClient + ?Sized>(client: &C) -> Result<LockClient, Error> {
    Ok(client.as_client().clone())
}

/// The client without `client = ..`.
///
/// # Errors
///
/// [`NoClient`](crate::ErrorKind::NoClient) if none is installed.
pub fn installed() -> Result<LockClient, Error> {
    LockClient::installed()
}

/// The key of `key = expr`.
///
/// # Errors
///
/// What is wrong with it.
pub fn key(key: impl IntoKey) -> Result<Key, Error> {
    key.into_key()
}

/// Options with nothing set.
#[must_use]
pub const fn options() -> LockOptions {
    LockOptions::new()
}

/// Takes the lock, or enters the one that the task holds.
///
/// # Errors
///
/// As `Mutex::lock`.
pub async fn acquire(
    client: Result<LockClient, Error>,
    key: Result<Key, Error>,
    options: LockOptions,
) -> Result<Entered, Error> {
    let client = client?;
    Entered::enter(AcquireRequest::new(Arc::clone(&client.0), key, options)).await
}

/// A return type that can report a lock error.
#[diagnostic::on_unimplemented(
    message = "`#[distributed_lock]` cannot report a lock error through `{Self}`",
    label = "must be `Result<_, E>` with `E: From<lock_core::Error>`",
    note = "or give `on_error = path`, a function that turns the error into `{Self}`"
)]
pub trait LockReturn: Sized {
    /// The value that reports the error.
    fn refuse(error: Error) -> Self;
}

impl<T, E: FromLockError> LockReturn for Result<T, E> {
    fn refuse(error: Error) -> Self {
        Err(E::from_lock_error(error))
    }
}

/// An error type that can hold a lock error.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` cannot hold a lock error",
    label = "needs `From<lock_core::Error>`",
    note = "with thiserror, add a variant: `#[error(transparent)] Lock(#[from] lock_core::Error)`",
    note = "or give `on_error = path`, a function that turns the error into the return value"
)]
pub trait FromLockError {
    /// Wraps the error.
    fn from_lock_error(error: Error) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> FromLockError for E {
    fn from_lock_error(error: Error) -> Self {
        error.into()
    }
}

/// Calls the function of `on_busy` or `on_error`, so that a closure's argument type is inferred and
/// its result is checked at the call.
pub fn hand_over<R, F: FnOnce(Error) -> R>(function: F, error: Error) -> R {
    function(error)
}
