//! The design and its reasons.
//!
//! These pages contain no API. They explain the rules that the code keeps, and what went wrong
//! without them, to readers who want to judge the library or change it:
//!
//! 1. [`promise`]: what is promised, under which assumptions, and what is not.
//! 2. [`lease`]: when a lease ends for the client, and why never later than for the server.
//! 3. [`redis`]: the keys, the scripts, and the queue of waiting processes.
//! 4. [`hand_off`]: what happens inside one process, and how releases and renewals run.
//!
//! The words are those of the crate's [front page](crate). `ARCHITECTURE.md` in the repository says
//! which file implements what, and has a glossary.

#[doc = include_str!("promise.md")]
pub mod promise {}

#[doc = include_str!("lease.md")]
pub mod lease {}

#[doc = include_str!("redis.md")]
pub mod redis {}

#[doc = include_str!("hand_off.md")]
pub mod hand_off {}
