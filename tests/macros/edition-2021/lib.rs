//! The signatures of locked functions, as a crate of the previous edition.
