//! The signatures again, because temporaries and captures differ between editions.

#[path = "../signatures.rs"]
mod signatures;
