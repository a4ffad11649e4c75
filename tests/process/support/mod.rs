//! A worker process, and the history of many.

pub(crate) mod history;
pub(crate) mod worker;
