//! How a lock is taken and kept.
//!
//! [`LockOptions`] are *overrides*: an option that is not set is inherited. The mutex and the
//! arguments of the macro or the layer come first, then the client's defaults, then the library's.

use std::time::Duration;

use crate::error::ConfigError;

/// Overrides for how a lock is taken and kept.
///
/// | option | default | bounds | |
/// |---|---|---|---|
/// | `ttl` | 10 s | 100 ms – 24 h | after this long without a renewal the store frees the lock by itself |
/// | `wait` | 5 s | 1 ms – 24 h, none, for ever | how long to wait for another holder |
/// | `renewal` | on | | renew the lease while it is held; without it the lease ends after `ttl` |
/// | `max_hold` | none | 1 ms – 24 h | end the lease after this long, however often it could be renewed |
/// | `min_hold` | none | 1 ms – 24 h, at most `max_hold`, at most a `ttl` that is not renewed | keep the key taken at least this long, even if released earlier |
/// | `fencing` | on | | number each grant, so that a resource can refuse late holders |
/// | `turns_for_others` | off | | leave turns to clients of other libraries that share the lock |
///
/// Bounds are checked when the options are used, with an error that names the option.
///
/// ```
/// use std::time::Duration;
/// use lock_core::LockOptions;
///
/// const IMPORT: LockOptions =
///     LockOptions::new().with_ttl(Duration::from_secs(30)).without_wait();
/// assert_eq!(IMPORT.ttl(), Some(Duration::from_secs(30)));
/// assert_eq!(IMPORT.max_hold(), None);
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LockOptions {
    ttl: Option<Duration>,
    wait: Option<Wait>,
    renewal: Option<bool>,
    // `Some(None)` is "without", which overrides an inherited value.
    max_hold: Option<Option<Duration>>,
    min_hold: Option<Option<Duration>>,
    fencing: Option<bool>,
    turns_for_others: Option<bool>,
}

/// How long to wait for another holder.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Wait {
    /// Until the lock is free.
    Forever,
    /// Not at all: one round trip to the store.
    None,
    /// At most this long.
    UpTo(Duration),
}

impl LockOptions {
    /// No overrides: everything is inherited.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ttl: None,
            wait: None,
            renewal: None,
            max_hold: None,
            min_hold: None,
            fencing: None,
            turns_for_others: None,
        }
    }

    /// Sets the time to live of the lock in the store.
    #[must_use]
    pub const fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Waits at most this long for another holder.
    #[must_use]
    pub const fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = Some(Wait::UpTo(wait));
        self
    }

    /// Does not wait for another holder.
    #[must_use]
    pub const fn without_wait(mut self) -> Self {
        self.wait = Some(Wait::None);
        self
    }

    /// Waits until the lock is free.
    #[must_use]
    pub const fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Waits for another holder as `wait` says: for a value that is known at run time.
    #[must_use]
    pub const fn waiting(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Renews the lease while it is held.
    #[must_use]
    pub const fn with_renewal(mut self) -> Self {
        self.renewal = Some(true);
        self
    }

    /// Lets the lease end after `ttl`.
    #[must_use]
    pub const fn without_renewal(mut self) -> Self {
        self.renewal = Some(false);
        self
    }

    /// Ends the lease after this long, however often it could be renewed. This also bounds a guard
    /// that was forgotten or is kept somewhere, which is otherwise renewed as long as its process
    /// lives.
    #[must_use]
    pub const fn with_max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(Some(max_hold));
        self
    }

    /// Puts no bound on how long the lock is held.
    #[must_use]
    pub const fn without_max_hold(mut self) -> Self {
        self.max_hold = Some(None);
        self
    }

    /// Keeps the key taken at least this long, even if it is released earlier: for scheduled jobs,
    /// so that another instance whose clock is late does not run the same job again. A crash, or
    /// the loss of the lease, ends it when the ttl does.
    ///
    /// It counts from the grant. More than `max_hold`, or than a `ttl` that is not renewed, is an
    /// error when the options are used.
    #[must_use]
    pub const fn with_min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = Some(Some(min_hold));
        self
    }

    /// Frees the key as soon as it is released.
    #[must_use]
    pub const fn without_min_hold(mut self) -> Self {
        self.min_hold = Some(None);
        self
    }

    /// Numbers each grant with a [`FencingToken`](crate::FencingToken).
    #[must_use]
    pub const fn with_fencing(mut self) -> Self {
        self.fencing = Some(true);
        self
    }

    /// Does not number the grant. This saves something only on stores where a number costs a round
    /// trip of its own. On Redis the script that grants the lock also mints the number, so an
    /// unfenced grant costs the same as a fenced one.
    ///
    /// Without a number, a resource cannot tell a holder that was paused past the end of its lease
    /// from the present one. Use this where a double run costs work but no data, or where a
    /// database constraint guards the data as well. The lease's
    /// [`FencingToken`](crate::FencingToken) is 0, which every check of this crate refuses.
    /// Exclusion, renewal and the order of service are the same, and holders with and without a
    /// number exclude each other.
    #[must_use]
    pub const fn without_fencing(mut self) -> Self {
        self.fencing = Some(false);
        self
    }

    /// Leaves turns to clients of other libraries, such as redsync, with which the lock is shared
    /// for a while. They look for a free key from time to time, and here a release hands the lock
    /// to the next waiter, so a key that is always wanted is never free for them.
    ///
    /// With this, a process that has had the key for two sections in a row frees it, and waits for
    /// up to 250 ms until another client has had it. So such a client gets a third of the sections,
    /// and more if it locks again at once. If none came, the next turn is left a second later: a
    /// lock that only this library wants is then idle for up to a fifth of the time. While a turn
    /// is left, `try_lock` finds the lock busy. All clients of this library that want the key
    /// should have it; with a `min_hold` it does nothing.
    ///
    /// A process that waits in the store's queue may end such a turn early, and takes the key.
    #[must_use]
    pub const fn with_turns_for_others(mut self) -> Self {
        self.turns_for_others = Some(true);
        self
    }

    /// Hands the lock on as long as waiters want it, the default.
    #[must_use]
    pub const fn without_turns_for_others(mut self) -> Self {
        self.turns_for_others = Some(false);
        self
    }

    /// The time to live, if set.
    #[must_use]
    pub const fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// How long to wait, if set.
    #[must_use]
    pub const fn wait(&self) -> Option<Wait> {
        self.wait
    }

    /// Whether to renew, if set.
    #[must_use]
    pub const fn renewal(&self) -> Option<bool> {
        self.renewal
    }

    /// The longest hold, if set; `Some(None)` means "no bound".
    #[must_use]
    pub const fn max_hold(&self) -> Option<Option<Duration>> {
        self.max_hold
    }

    /// The shortest hold, if set; `Some(None)` means "none".
    #[must_use]
    pub const fn min_hold(&self) -> Option<Option<Duration>> {
        self.min_hold
    }

    /// Whether to number the grant, if set.
    #[must_use]
    pub const fn fencing(&self) -> Option<bool> {
        self.fencing
    }

    /// Whether to leave turns to clients of other libraries, if set.
    #[must_use]
    pub const fn turns_for_others(&self) -> Option<bool> {
        self.turns_for_others
    }

    /// These overrides on top of `inherited` ones.
    #[must_use]
    pub fn or(self, inherited: Self) -> Self {
        let Self { ttl, wait, renewal, max_hold, min_hold, fencing, turns_for_others } = self;
        Self {
            ttl: ttl.or(inherited.ttl),
            wait: wait.or(inherited.wait),
            renewal: renewal.or(inherited.renewal),
            max_hold: max_hold.or(inherited.max_hold),
            min_hold: min_hold.or(inherited.min_hold),
            fencing: fencing.or(inherited.fencing),
            turns_for_others: turns_for_others.or(inherited.turns_for_others),
        }
    }

    /// The options that result, with the library's defaults where nothing is set.
    pub(crate) fn resolve(self) -> Result<ResolvedOptions, ConfigError> {
        let Self { ttl, wait, renewal, max_hold, min_hold, fencing, turns_for_others } = self;
        let resolved = ResolvedOptions {
            ttl: ttl.unwrap_or(DEFAULT_TTL),
            wait: wait.unwrap_or(Wait::UpTo(DEFAULT_WAIT)),
            renewal: renewal.unwrap_or(true),
            max_hold: max_hold.flatten(),
            min_hold: min_hold.flatten(),
            fencing: fencing.unwrap_or(true),
            turns_for_others: turns_for_others.unwrap_or(false),
        };
        check_ttl(resolved.ttl)?;
        if let Wait::UpTo(wait) = resolved.wait {
            if wait.is_zero() {
                return Err(ConfigError::new("wait", "is zero: write `without_wait()`"));
            }
            check_span("wait", wait, "or write `wait_forever()`")?;
        }
        if let Some(max_hold) = resolved.max_hold {
            check_span("max_hold", max_hold, "or write `without_max_hold()`")?;
        }
        if let Some(min_hold) = resolved.min_hold {
            check_span("min_hold", min_hold, "or write `without_min_hold()`")?;
            if resolved.max_hold.is_some_and(|max_hold| min_hold > max_hold) {
                return Err(ConfigError::new("min_hold", "is longer than `max_hold`"));
            }
            if !resolved.renewal && min_hold > resolved.ttl {
                return Err(ConfigError::new(
                    "min_hold",
                    "is longer than a `ttl` that is not renewed: the key would be free before",
                ));
            }
        }
        Ok(resolved)
    }
}

/// Options with nothing left to inherit, and within bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedOptions {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) renewal: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) fencing: bool,
    pub(crate) turns_for_others: bool,
}

impl ResolvedOptions {
    /// The same, if the store keeps locks for as long as that.
    pub(crate) fn within(self, longest_ttl: Option<Duration>) -> Result<Self, ConfigError> {
        check_longest("ttl", self.ttl, longest_ttl)?;
        check_longest("min_hold", self.min_hold.unwrap_or(Duration::ZERO), longest_ttl)?;
        Ok(self)
    }

    /// Whether to wait for another holder.
    pub(crate) fn waits(&self) -> bool {
        self.wait != Wait::None
    }
}

/// A crashed holder blocks its key for this long; a process that is paused for longer loses the
/// lease.
const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// Half the default ttl: a waiter gives up before a crashed holder's lease ends.
const DEFAULT_WAIT: Duration = Duration::from_secs(5);
/// In less time than this, the margin and a round trip leave nothing for the body.
const MIN_TTL: Duration = Duration::from_millis(100);
/// The resolution of stores and timers.
const MIN_SPAN: Duration = Duration::from_millis(1);
/// A longer span is a mistake.
const MAX_SPAN: Duration = Duration::from_secs(24 * 60 * 60);

/// Checks a time to live.
pub(crate) fn check_ttl(ttl: Duration) -> Result<(), ConfigError> {
    if ttl < MIN_TTL || ttl > MAX_SPAN {
        return Err(ConfigError::new("ttl", format!("is {ttl:?}: choose 100ms to 24h")));
    }
    Ok(())
}

/// Checks a span for which the store is to keep a lock, against the longest that it allows.
pub(crate) fn check_longest(
    field: &'static str,
    span: Duration,
    longest: Option<Duration>,
) -> Result<(), ConfigError> {
    match longest {
        Some(longest) if span > longest => Err(ConfigError::too_long(field, span, longest)),
        _ => Ok(()),
    }
}

/// Checks a wait or a hold; `or` says what to write for none or more.
pub(crate) fn check_span(field: &'static str, span: Duration, or: &str) -> Result<(), ConfigError> {
    if span < MIN_SPAN || span > MAX_SPAN {
        return Err(ConfigError::new(field, format!("is {span:?}: choose 1ms to 24h, {or}")));
    }
    Ok(())
}

/// The setters of [`LockOptions`] for a type that has `with_options`.
macro_rules! option_setters {
    ($($(#[$doc:meta])* $name:ident($($value:ident: $type:ty)?);)+) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $name(self, $($value: $type)?) -> Self {
                self.with_options($crate::LockOptions::new().$name($($value)?))
            }
        )+
    };
    () => {
        $crate::options::option_setters! {
            /// Sets how long the store keeps the lock without a renewal.
            with_ttl(ttl: ::std::time::Duration);
            /// Waits at most this long for another holder.
            with_wait(wait: ::std::time::Duration);
            /// Does not wait for another holder.
            without_wait();
            /// Waits until the lock is free.
            wait_forever();
            /// Lets the lease end after its ttl.
            without_renewal();
            /// Ends the lease after this long, however often it could be renewed.
            with_max_hold(max_hold: ::std::time::Duration);
            /// Keeps the key taken at least this long, even if it is released earlier.
            with_min_hold(min_hold: ::std::time::Duration);
            /// Numbers each grant with a [`FencingToken`](crate::FencingToken).
            with_fencing();
            /// Takes the lock without a number for the grant:
            /// [`LockOptions::without_fencing`](crate::LockOptions::without_fencing).
            without_fencing();
            /// Leaves turns to clients of other libraries that share the lock:
            /// [`LockOptions::with_turns_for_others`](crate::LockOptions::with_turns_for_others).
            with_turns_for_others();
        }
    };
}
pub(crate) use option_setters;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: LockOptions) -> &'static str {
        options.resolve().unwrap_err().field()
    }

    #[test]
    fn bad_spans_are_refused_by_name() {
        let new = LockOptions::new;
        for bad in [Duration::ZERO, Duration::from_micros(500), Duration::MAX] {
            assert_eq!(refused(new().with_ttl(bad)), "ttl");
            assert_eq!(refused(new().with_wait(bad)), "wait");
            assert_eq!(refused(new().with_max_hold(bad)), "max_hold");
            assert_eq!(refused(new().with_min_hold(bad)), "min_hold");
        }
        let (one, two) = (Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(refused(new().with_max_hold(one).with_min_hold(two)), "min_hold");
        new().with_max_hold(two).with_min_hold(one).resolve().unwrap();
        assert_eq!(refused(new().with_ttl(one).with_min_hold(two).without_renewal()), "min_hold");
    }

    #[test]
    fn what_is_not_set_is_inherited_and_without_overrides() {
        let client = LockOptions::new()
            .with_ttl(Duration::from_secs(30))
            .with_max_hold(MAX_SPAN)
            .without_fencing();
        let call = LockOptions::new().without_wait().without_max_hold();
        let resolved = call.or(client).resolve().unwrap();
        assert_eq!(resolved.ttl, Duration::from_secs(30));
        assert_eq!(resolved.wait, Wait::None);
        assert_eq!(resolved.max_hold, None);
        assert!(resolved.renewal && !resolved.fencing);
        assert!(call.with_fencing().or(client).resolve().unwrap().fencing);
    }
}
