//! A worker process, contests of many, and their history.

pub(crate) mod contest;
pub(crate) mod history;
pub(crate) mod wall;
pub(crate) mod worker;
