//! One server: a connection that replaces itself, and the commands that are sent on it.
//!
//! This floor knows what the scripts are sent and what they reply. It knows nothing of queues, of
//! tickets, or of what may be left of a token on the server.

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
