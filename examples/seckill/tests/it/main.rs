//! The example, tried: in one process, over HTTP in two, and as the demo.
#![allow(clippy::unwrap_used, clippy::future_not_send, missing_debug_implementations)]

mod demo;
mod fence;
mod instances;
mod metrics;
mod routes;
mod service;
mod support;
