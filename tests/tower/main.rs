//! The layer, on real HTTP: axum, hyper without axum, and services called directly.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(clippy::disallowed_methods, reason = "tests spawn clients and servers")]

mod body;
mod compose;
mod console;
mod disconnect;
mod handling;
mod keys;
mod one_order;
mod outage;
mod pressure;
mod refusals;
mod support;
