//! What one attribute on one function says, checked and complete: all that `expand` needs to know.

use std::time::Duration;

use proc_macro2::Span;
use syn::{Expr, Ident, Path, Type};

use crate::item::{Boxed, Function};
use crate::template::Template;

/// A function to be locked.
pub(crate) struct Lock {
    pub(crate) function: Function,
    pub(crate) body: Body,
    /// `T` of the future's output, `impl Trait` replaced by `_`. Carries the user's spans.
    pub(crate) output: Type,
    /// `lock_core`, by whatever path.
    pub(crate) root: Path,
    pub(crate) client: Client,
    pub(crate) key: Key,
    /// In the order in which they were written, which is the order in which they are evaluated.
    pub(crate) settings: Vec<Setting>,
    pub(crate) lease: Lease,
    pub(crate) on_lost: OnLost,
    pub(crate) refusal: Refusal,
}

/// Where the body is.
pub(crate) enum Body {
    /// In the function.
    Plain,
    /// In the one async block that the function returns boxed.
    Boxed(Box<Boxed>),
}

pub(crate) enum Client {
    Installed,
    Given(Expr),
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

pub(crate) enum Setting {
    Ttl(Length),
    Wait(Wait),
    MaxHold(Hold),
    MinHold(Hold),
    Renew(bool),
}

pub(crate) enum Wait {
    No,
    Forever,
    UpTo(Length),
}

/// A bound on how long the lock is held.
pub(crate) enum Hold {
    Unbounded,
    For(Length),
}

/// A length of time.
pub(crate) enum Length {
    Known(Duration),
    Computed(Expr),
}

pub(crate) enum Lease {
    Unnamed,
    Named(Ident),
}

#[derive(Clone, Copy)]
pub(crate) enum OnLost {
    Cancel,
    Finish,
}

/// Who turns a lock error into the function's return value.
pub(crate) enum Refusal {
    /// `From<lock_core::Error>`, for all errors.
    Convert,
    /// `on_error`, for all errors.
    Error(Expr),
    /// `on_busy`; `From` for the other errors.
    Busy(Expr),
    /// Each its own.
    Both { busy: Expr, error: Expr },
}
