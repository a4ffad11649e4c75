//! Coupons for the first who press, one per user, served by several processes.
//!
//! - [`service`]: the three ways to take an order. Start reading here.
//! - [`routes`]: one route for each way, and the page.
//! - [`db`]: vouchers, orders and fences in SQL.
//! - [`server`]: one process of the service, from its options to its last request.
//!
//! The binary `seckill` is such a process; `demo` starts several and puts them under load.

pub mod db;
mod error;
pub mod payment;
pub mod process;
pub mod routes;
pub mod server;
pub mod service;
