//! The macros of `lock-core`.
