//! The macro's signatures once more, as a crate of the previous edition.
