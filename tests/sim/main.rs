//! Simulates clients, a network and a Redis server in one thread, under simulated time and by the
//! choices of a seed.
//!
//! `LOCK_SIM_SEEDS=n` runs `n` seeds. A seed of a master under sentinels, or of a cluster, takes a
//! hundred times as long, so there are a hundredth as many, or as `LOCK_SIM_TOPOLOGY_SEEDS=n` says,
//! and a tenth of a quorum in memory. A seed that fails is named; `LOCK_SIM_SEED=n` repeats it, and
//! with `--nocapture` shows what happened.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

mod cancel_every_poll;
mod cluster;
mod demoted;
mod differential;
mod fake;
mod history;
mod log;
mod members;
mod messages;
mod nemesis;
mod net;
mod pair;
mod plan;
mod queue;
mod quorum;
mod resource;
mod seeds;
mod sentinel;
mod setting;
mod simulation;
mod stress;
mod topology;
mod turns;
mod workload;
mod world;
