//! Faults that were reported for other lock libraries, each on a real Redis server. Each test cites
//! the public reports. The letters are those of the table in `tests/README.md`.
// Figures are printed, and show with `--nocapture`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

mod acquire;
mod addresses;
mod bad_input;
mod batch;
mod batch_limits;
mod batch_refusal;
mod blocked_runtime;
mod cancel_every_poll;
mod cancellation;
mod cancelled_waiter;
mod credentials;
mod dead_waiters;
mod deadline;
mod declared_keys;
#[path = "../macros/ending.rs"]
mod ending;
mod fencing;
mod harness;
mod in_doubt;
mod keys;
mod late_claim;
mod lifecycle;
mod locked_functions;
mod logging;
mod lost_wakeup;
mod metrics;
mod operator;
mod others;
mod outage;
mod permissions;
mod pubsub;
mod pubsub_order;
mod queue;
mod queue_type;
mod release;
mod renewal;
mod restart;
mod script_errors;
mod secrets;
mod stale_grant;
mod table;
mod waiting;
mod without_namespace;
mod wrong_server;
