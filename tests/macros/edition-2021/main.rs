//! Temporaries and captures differ between editions: what compiles in one must in the other.

#[path = "../signatures.rs"]
mod signatures;
