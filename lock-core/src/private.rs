//! What generated code and `lock-tower` call. Not part of the public API: anything here may change
//! in any release.

pub use ::core;
pub use ::std;

use std::sync::Arc;
use std::time::Duration;

use crate::client::LockClient;
use crate::error::Error;
use crate::key::{IntoKey, Key, KeyPart, KeyWriter};
use crate::lock::AcquireRequest;
pub use crate::lock::Entered;
use crate::options::{LockOptions, Wait};

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

/// The client of `client = ..`. A `Result` like that of [`installed`], so that generated code
/// treats both alike.
///
/// # Errors
///
/// None.
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

/// What `wait = expr` accepts.
#[diagnostic::on_unimplemented(
    message = "`wait = ..` takes a duration or a `Wait`, but this is `{Self}`",
    label = "not a wait",
    note = "write `wait = \"2s\"`, `wait = none`, `wait = forever`, or an expression of the type `Duration` or `Wait`"
)]
pub trait IntoWait {
    /// How long to wait.
    fn into_wait(self) -> Wait;
}

impl IntoWait for Duration {
    fn into_wait(self) -> Wait {
        Wait::UpTo(self)
    }
}

impl IntoWait for Wait {
    fn into_wait(self) -> Wait {
        self
    }
}

/// What `max_hold = expr` and `min_hold = expr` accept.
#[diagnostic::on_unimplemented(
    message = "`max_hold = ..` and `min_hold = ..` take a duration, but this is `{Self}`",
    label = "not a duration",
    note = "write `\"1m\"`, `none`, or an expression of the type `Duration` or `Option<Duration>`"
)]
pub trait IntoHold {
    /// The bound, if there is one.
    fn into_hold(self) -> Option<Duration>;
}

impl IntoHold for Duration {
    fn into_hold(self) -> Option<Duration> {
        Some(self)
    }
}

impl IntoHold for Option<Duration> {
    fn into_hold(self) -> Option<Duration> {
        self
    }
}

/// The option of `wait = expr`.
pub fn wait(wait: impl IntoWait) -> LockOptions {
    options().waiting(wait.into_wait())
}

/// The option of `max_hold = expr`.
pub fn max_hold(hold: impl IntoHold) -> LockOptions {
    hold.into_hold().map_or(options().without_max_hold(), |hold| options().with_max_hold(hold))
}

/// The option of `min_hold = expr`.
pub fn min_hold(hold: impl IntoHold) -> LockOptions {
    hold.into_hold().map_or(options().without_min_hold(), |hold| options().with_min_hold(hold))
}

/// The option of `renew = expr`.
#[must_use]
pub fn renewal(renew: bool) -> LockOptions {
    if renew { options().with_renewal() } else { options().without_renewal() }
}

/// The option of `fencing = expr`.
#[must_use]
pub fn fencing(fencing: bool) -> LockOptions {
    if fencing { options().with_fencing() } else { options().without_fencing() }
}

/// The option of `turns_for_others = expr`.
#[must_use]
pub fn turns_for_others(leave: bool) -> LockOptions {
    if leave { options().with_turns_for_others() } else { options().without_turns_for_others() }
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
pub fn pass_error<R, F: FnOnce(Error) -> R>(function: F, error: Error) -> R {
    function(error)
}
