//! One server: a connection that replaces itself, and the commands that are sent on it.
//!
//! This floor knows the form of what the scripts are sent and of what they reply: tokens, places,
//! tickets and channels are values to it. What they mean for a wait, and what may be left of a
//! token on the server, is known above.

mod batch;
mod clock;
mod command;
mod connection;
mod connector;
mod dial;
mod link;
mod listener;

pub(crate) use self::clock::{micros, millis_up};
pub(crate) use self::command::{
    AcquireReply, Command, Holder, LARGEST_NUMBER, Operation, QueuePlace, read_acquire,
    read_release,
};
#[cfg(feature = "test-util")]
pub(crate) use self::command::{Kind, Reply, replies};
pub(crate) use self::connection::{Connection, Live, Observer};
pub(crate) use self::connector::Endpoint;
#[cfg(feature = "test-util")]
pub(crate) use self::connector::LookUp;
#[cfg(feature = "test-util")]
pub use self::connector::{Connector, Socket};
pub(crate) use self::link::{Health, Timeouts};
pub(crate) use self::listener::Listener;
