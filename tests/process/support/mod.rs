//! Worker processes, the workload that they run, and their history.

pub(crate) mod history;
pub(crate) mod wall;
pub(crate) mod worker;
pub(crate) mod workload;
