//! What one attribute on one function says, checked and complete: everything that `expand` needs.

use std::time::Duration;

use proc_macro2::Span;
use syn::{Expr, Ident, Path, Type};

use crate::item::{Boxed, Function};
use crate::template::Template;

/// A function to be locked.
pub(crate) struct Lock {
    pub(crate) function: Function,
    /// The body, if it is an async block that the function returns boxed.
    pub(crate) boxed: Option<Boxed>,
    /// The output of the future, with `impl Trait` replaced by `_`. Keeps the user's spans.
    pub(crate) output: Type,
    /// The path of `lock_core`.
    pub(crate) root: Path,
    /// The installed client if there is none.
    pub(crate) client: Option<Expr>,
    pub(crate) key: Key,
    /// In the order in which they were written, which is the order of evaluation.
    pub(crate) settings: Vec<Setting>,
    /// The `LockOptions` below the settings.
    pub(crate) options: Option<Expr>,
    /// The name of the lease in the body.
    pub(crate) lease: Option<Ident>,
    pub(crate) on_lost: OnLost,
    /// Handles `Busy`; otherwise `on_error` does.
    pub(crate) on_busy: Option<Expr>,
    /// Handles the other errors; otherwise `From<lock_core::Error>` does.
    pub(crate) on_error: Option<Expr>,
}

pub(crate) enum Key {
    Template(KeyTemplate),
    Given(Expr),
}

/// A template, the place of its literal, and the names that its holes may use.
pub(crate) struct KeyTemplate {
    pub(crate) template: Template,
    pub(crate) span: Span,
    /// The parameters, with the spans of their declarations. Empty in `key!`.
    pub(crate) names: Vec<Ident>,
}

/// One of the lock's options.
pub(crate) enum Setting {
    Ttl(Length),
    Wait(Wait),
    MaxHold(Hold),
    MinHold(Hold),
    Renew(Switch),
    Fencing(Switch),
    TurnsForOthers(Switch),
}

pub(crate) enum Wait {
    No,
    Forever,
    UpTo(Duration),
    Computed(Expr),
}

/// A bound on how long the lock is held; `No` lifts it.
pub(crate) enum Hold {
    No,
    Known(Duration),
    Computed(Expr),
}

pub(crate) enum Switch {
    Known(bool),
    Computed(Expr),
}

/// A length of time.
pub(crate) enum Length {
    Known(Duration),
    Computed(Expr),
}

#[derive(Clone, Copy)]
pub(crate) enum OnLost {
    Cancel,
    Finish,
}
