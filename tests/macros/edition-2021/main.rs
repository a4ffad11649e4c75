//! Temporaries and captures differ between editions: what compiles in one must in the other.

#[path = "../signatures.rs"]
#[rustfmt::skip] // this edition orders imports in another way
mod signatures;
