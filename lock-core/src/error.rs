//! One error type for every use of a lock, and one for configuration.
//!
//! [`Error`] is opaque: match on [`Error::kind`] or use the predicates. Three outcomes are kept
//! apart on purpose: *busy* (another owner has the lock), *unavailable* (the store did nothing) and
//! *unknown* (the store got a request and did not reply). An unknown outcome is never treated as
//! success or as "busy". No error contains a key, a token or a password.
//!
//! A message says what its own error knows and leaves the rest to its [source](StdError::source).
//! So a printer of chains (`{:#}` of `anyhow`) says everything once.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a lock could not be taken, kept or released.
///
/// ```
/// use lock_core::{ErrorKind, LockClient, store::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::builder(MemoryStore::new()).build()?;
/// let held = client.mutex("report").lock().await?;
///
/// let error = client.mutex("report").without_wait().lock().await.unwrap_err();
/// assert!(error.is_busy() && error.is_retryable());
/// match error.kind() {
///     ErrorKind::Busy { retry_after, .. } => println!("again in {retry_after:?}"),
///     other => panic!("not {other:?}"),
/// }
/// # drop(held); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    detail: Option<Cow<'static, str>>,
    /// Until an operator changes something, each retry ends the same way.
    is_permanent: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The outcome that an [`Error`] reports.
///
/// # Examples
///
/// ```
/// # use lock_core::{LockClient, store::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = LockClient::builder(MemoryStore::new()).build()?;
/// use lock_core::ErrorKind;
///
/// let held = client.mutex("report").lock().await?;
/// let error = client.mutex("report").without_wait().lock().await.unwrap_err();
/// let answer = match error.kind() {
///     ErrorKind::Busy { retry_after, .. } => format!("try again in {retry_after:?}"),
///     ErrorKind::Unavailable | ErrorKind::Unknown => "the store failed".to_owned(),
///     ErrorKind::Lost { reason, .. } => format!("stopped: {reason}"),
///     _ => format!("a mistake: {error}"),
/// };
/// assert!(answer.starts_with("try again"));
/// # drop(held);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another owner has the lock, and it did not become free within `wait`.
    ///
    /// The message says whether the owner is in this process. It may be the very task that waited:
    /// guards are not re-entrant.
    #[non_exhaustive]
    Busy {
        /// A sensible pause before the next attempt: what is left of the holder's lease, at most a
        /// second, since most holders are done earlier.
        retry_after: Duration,
    },
    /// The client is shutting down and takes no more locks.
    Draining,
    /// The key breaks a rule of [`Key`](crate::Key), or a part of it is empty.
    InvalidKey,
    /// A setting is invalid: an option that is out of its bounds, or one of the store, such as its
    /// URL. [`Error::config_error`] names it.
    InvalidOptions,
    /// The lease has ended: before the body did, before [`extend`](crate::Lease::extend) was
    /// confirmed, or before a nested call entered it.
    #[non_exhaustive]
    Lost {
        /// How it ended.
        reason: LostReason,
    },
    /// No client was given, and none is installed.
    NoClient,
    /// The future was polled outside a tokio runtime, or in one without timers or I/O, or the
    /// runtime given to the client has shut down, or the client's tasks do not run when a blocking
    /// call needs them. Also in a runtime whose clock is paused, without the feature `test-util`:
    /// leases would not follow it.
    ///
    /// A release that fails with this is sent where the client is used next.
    NoRuntime,
    /// The store could not be reached, or replied that it cannot serve: nothing was done, or
    /// nothing that counts. A grant that too few replicas have confirmed, where they have to, is
    /// none: its lock is freed as after [`Unknown`](Self::Unknown).
    Unavailable,
    /// The store may or may not have acted: it did not reply in time, or its error does not say
    /// what it did. Also the result of a wait that lost contact with the store while it had a place
    /// in the queue (the lock may have been handed to it), and of a grant that arrived when too
    /// little of its lease was left.
    ///
    /// A lock that this leaves behind is released in the background as soon as the store replies,
    /// unless the next waiter of this client goes on with the claim.
    Unknown,
    /// This store does not support the operation; another store may.
    Unsupported,
    /// This task already holds the key and would wait for itself.
    WouldDeadlock,
    /// The store has a value under this name that is not a lock.
    WrongType,
}

impl ErrorKind {
    /// The kind as spans and metrics name it.
    pub(crate) fn outcome(self) -> &'static str {
        match self {
            Self::Busy { .. } => "busy",
            Self::Draining => "draining",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
            Self::WouldDeadlock => "would_deadlock",
            // Mistakes of the program or its configuration.
            Self::InvalidKey
            | Self::InvalidOptions
            | Self::Lost { .. }
            | Self::NoClient
            | Self::NoRuntime
            | Self::Unsupported
            | Self::WrongType => "refused",
        }
    }
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum LostReason {
    /// The client was drained while the lease was held.
    Draining,
    /// The deadline passed without a confirmed renewal.
    Expired,
    /// [`LockClient::force_release`](crate::LockClient::force_release) took the lock: this
    /// client's, or another client's whose message arrived.
    ForceReleased,
    /// The store no longer knows the lock: it was deleted, or it expired early.
    Gone,
    /// `max_hold` was reached.
    MaxHold,
    /// Its own guard released it.
    Released,
    /// Another owner has the lock.
    TakenByOther,
}

impl Error {
    /// What happened.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Another owner has the lock. `false` if that is not certain.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Busy { .. })
    }

    /// The store could not be reached, or cannot serve: nothing was done, or nothing that counts
    /// (kind `Unavailable`).
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.0.kind == ErrorKind::Unavailable
    }

    /// The store failed: it could not be reached, or it did not reply (kinds `Unavailable` and
    /// `Unknown`).
    #[must_use]
    pub fn is_store_failure(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::Unknown)
    }

    /// The store may or may not have acted.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0.kind == ErrorKind::Unknown
    }

    /// The lease has ended (kind `Lost`).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Lost { .. })
    }

    /// The same call may succeed later without a change of code or configuration.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.is_busy() || self.is_store_failure() && !self.is_permanent() || self.is_lost()
    }

    /// No retry helps before an operator changes something.
    pub(crate) fn is_permanent(&self) -> bool {
        self.0.is_permanent
    }

    /// How long to wait before the next attempt, if the lock is busy; `None` for other kinds.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.0.kind {
            ErrorKind::Busy { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    /// The setting that is wrong, if the kind is [`InvalidOptions`](ErrorKind::InvalidOptions).
    #[must_use]
    pub fn config_error(&self) -> Option<&ConfigError> {
        self.cause()?.downcast_ref()
    }

    /// For stores: another owner has the lock, for up to `left`; [`Duration::MAX`] if its value has
    /// no expiry.
    #[must_use]
    pub fn busy(left: Duration) -> Self {
        if left == Duration::MAX {
            Self::plain(busy_for(left), NO_EXPIRY)
        } else {
            Self::of(busy_for(left))
        }
    }

    /// The lock has a value without an expiry.
    pub(crate) fn is_without_expiry(&self) -> bool {
        self.0.detail.as_deref() == Some(NO_EXPIRY)
    }

    /// A guard or a task of this process has the lock, for up to `left`.
    pub(crate) fn busy_here(left: Duration) -> Self {
        Self::plain(
            busy_for(left),
            "the lock is held in this process: by another task, or by a guard that this very task \
             keeps",
        )
    }

    /// The error as a subscriber of tracing records it together with its causes.
    pub(crate) fn with_causes(&self) -> &(dyn StdError + 'static) {
        self
    }

    /// The message and those of the causes, each said once, for a message that has no source of its
    /// own for them.
    #[cfg(feature = "redis-quorum")]
    pub(crate) fn text_with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(cause) = source {
            let said = cause.to_string();
            if !text.contains(&said) {
                text = format!("{text}: {said}");
            }
            source = cause.source();
        }
        text
    }

    /// What was given as the source, whatever it says.
    pub(crate) fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }

    /// For stores: the store could not be reached, or refused to act; nothing was done, or nothing
    /// that counts.
    pub fn unavailable(
        what: impl Into<Cow<'static, str>>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self::with(ErrorKind::Unavailable, what, Some(Arc::new(source)))
    }

    /// The error of an operation whose attempt `earlier` failed before this one. If `earlier` is
    /// unknown, so is the outcome, even if this attempt did nothing.
    pub(crate) fn after(self, earlier: &Self) -> Self {
        if earlier.is_unknown() {
            self.in_doubt("an earlier attempt may have been executed")
        } else {
            self
        }
    }

    /// Turns "unavailable" into "unknown": something may have been done, for the reason `why`.
    pub(crate) fn in_doubt(self, why: &'static str) -> Self {
        if self.0.kind != ErrorKind::Unavailable {
            return self;
        }
        let doubt = Self::with(ErrorKind::Unknown, format!("{self}; {why}"), self.0.source.clone());
        if self.is_permanent() { doubt.permanent() } else { doubt }
    }

    /// Maps the error for a command that was never sent: its outcome is not in doubt.
    #[cfg(feature = "redis")]
    pub(crate) fn before_the_call(self) -> Self {
        if self.0.kind != ErrorKind::Unknown {
            return self;
        }
        Self::with(ErrorKind::Unavailable, self.to_string(), self.0.source.clone())
    }

    /// For stores: the store did not reply; it may or may not have acted.
    pub fn unknown(
        what: impl Into<Cow<'static, str>>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self::with(ErrorKind::Unknown, what, Some(Arc::new(source)))
    }

    /// For stores: the store refuses until an operator changes its configuration or permissions, so
    /// no caller should retry.
    #[must_use]
    pub fn permanent(self) -> Self {
        let Inner { kind, detail, source, .. } = &*self.0;
        let (detail, source) = (detail.clone(), source.clone());
        Self(Arc::new(Inner { kind: *kind, detail, is_permanent: true, source }))
    }

    /// For stores: the value under the name is not a lock.
    pub fn wrong_type(source: impl StdError + Send + Sync + 'static) -> Self {
        let source: Arc<dyn StdError + Send + Sync> = Arc::new(source);
        let kind = ErrorKind::WrongType;
        Self(Arc::new(Inner { kind, detail: None, is_permanent: false, source: Some(source) }))
    }

    /// For stores: the store cannot do `what`, now or later.
    #[must_use]
    pub fn unsupported(what: impl Into<Cow<'static, str>>) -> Self {
        Self::plain(ErrorKind::Unsupported, what)
    }

    pub(crate) fn of(kind: ErrorKind) -> Self {
        Self(Arc::new(Inner { kind, detail: None, is_permanent: false, source: None }))
    }

    pub(crate) fn plain(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self::with(kind, what, None)
    }

    pub(crate) fn invalid_key(why: &'static str) -> Self {
        Self::plain(ErrorKind::InvalidKey, why)
    }

    pub(crate) fn lost(reason: LostReason) -> Self {
        Self::of(ErrorKind::Lost { reason })
    }

    fn with(
        kind: ErrorKind,
        what: impl Into<Cow<'static, str>>,
        source: Option<Arc<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner { kind, detail: Some(what.into()), is_permanent: false, source }))
    }
}

/// What holds a lock for ever is no lease.
const NO_EXPIRY: &str = "the lock is held by a value without an expiry, which no client of this \
                         library writes: delete it, or give it an expiry";

fn busy_for(left: Duration) -> ErrorKind {
    ErrorKind::Busy { retry_after: left.clamp(MIN_RETRY_AFTER, MAX_RETRY_AFTER) }
}

/// A retry sooner than this only adds load.
const MIN_RETRY_AFTER: Duration = Duration::from_millis(20);
/// Most holders are done long before their lease ends.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(1);

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self(Arc::new(Inner {
            kind: ErrorKind::InvalidOptions,
            detail: None,
            is_permanent: false,
            source: Some(Arc::new(error)),
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, detail, source, .. } = &*self.0;
        if let Some(detail) = detail {
            return f.write_str(detail);
        }
        f.write_str(match kind {
            ErrorKind::Busy { .. } => {
                "the lock is held by another owner: another process, or another client of this one"
            }
            ErrorKind::Draining => "the lock client is shutting down",
            ErrorKind::InvalidKey => "the lock key is invalid",
            // The whole message: on its own, "a setting is invalid" would not help.
            ErrorKind::InvalidOptions => {
                return match source {
                    Some(source) => write!(f, "{source}"),
                    None => f.write_str("a setting of the lock is invalid"),
                };
            }
            ErrorKind::Lost { reason } => {
                return write!(f, "the lock was lost: {reason}");
            }
            ErrorKind::NoClient => {
                "no lock client: call `LockClient::install` at start-up, or pass one with `client = ..`"
            }
            ErrorKind::NoRuntime => "locks must be used inside a tokio runtime",
            ErrorKind::Unavailable => "the lock store is unavailable",
            ErrorKind::Unknown => "the lock store did not reply in time",
            ErrorKind::Unsupported => "the lock store does not support this",
            ErrorKind::WouldDeadlock => {
                "this task already holds the lock and would wait for itself: use the lease it holds"
            }
            ErrorKind::WrongType => {
                "the store has a value under this name that is not a lock: choose another key or namespace"
            }
        })
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, detail, source, .. } = &*self.0;
        let mut debug = f.debug_struct("Error");
        debug.field("kind", kind);
        if let Some(detail) = detail {
            debug.field("detail", detail);
        }
        if let Some(source) = source {
            debug.field("source", &format_args!("{source}"));
        }
        debug.finish()
    }
}

impl StdError for Error {
    /// The cause, without what would be said twice: an error of redis-rs says the same as its own
    /// source, and an invalid setting is the whole message already.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let mut cause = self.cause()?;
        while let Some(inner) = cause.source()
            && inner.to_string() == cause.to_string()
        {
            cause = inner;
        }
        (cause.to_string() != self.to_string()).then_some(cause)
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Draining => "the client was drained",
            Self::Expired => "its deadline passed without a confirmed renewal",
            Self::ForceReleased => "it was released by force",
            Self::Gone => "the store no longer knows it",
            Self::MaxHold => "it was held for `max_hold`",
            Self::Released => "its guard released it",
            Self::TakenByOther => "another owner has it",
        })
    }
}

/// A setting that is invalid. Found when a client or store is built, or when an option is first
/// used.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{LockClient, LockOptions, store::MemoryStore};
///
/// let options = LockOptions::new().with_ttl(Duration::from_millis(1));
/// let error = LockClient::builder(MemoryStore::new()).with_defaults(options).build().unwrap_err();
/// assert_eq!(error.field(), "ttl");
/// assert_eq!(error.to_string(), "`ttl` is 1ms: choose 100ms to 24h");
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigError {
    field: &'static str,
    problem: Cow<'static, str>,
}

impl ConfigError {
    /// The setting `field` has this `problem`; the text says what to do about it.
    pub fn new(field: &'static str, problem: impl Into<Cow<'static, str>>) -> Self {
        Self { field, problem: problem.into() }
    }

    /// The setting `field` is longer than the store allows.
    pub(crate) fn too_long(field: &'static str, span: Duration, longest: Duration) -> Self {
        let problem = format!(
            "is {span:?}, longer than the {longest:?} that this store allows: choose less, or give \
             all clients of a quorum a longer `with_restart_delay`"
        );
        Self::new(field, problem)
    }

    /// The setting that is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.field, self.problem)
    }
}

impl StdError for ConfigError {}
