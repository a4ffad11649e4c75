//! What the cells stand on: processes, clocks, figures, and their tables and charts.

pub(crate) mod args;
pub(crate) mod chart;
pub(crate) mod clock;
pub(crate) mod machine;
pub(crate) mod report;
pub(crate) mod server;
pub(crate) mod stats;
pub(crate) mod table;
pub(crate) mod worker;
