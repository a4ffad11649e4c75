//! The three ways to order.

use std::fmt;

use serde::Serialize;

/// A way to order, and the first part of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    None,
    Macro,
    Layer,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Macro, Self::Layer];

    /// Whether it takes a lock.
    pub(crate) fn locks(self) -> bool {
        self != Self::None
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Macro => "macro",
            Self::Layer => "layer",
        })
    }
}
