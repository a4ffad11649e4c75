//! What the scenarios build on: processes, clocks, statistics, tables, charts and the report.

pub(crate) mod chart;
pub(crate) mod clock;
pub(crate) mod machine;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod stats;
pub(crate) mod table;
pub(crate) mod worker;
