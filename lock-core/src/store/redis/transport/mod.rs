//! One server, perhaps one that sentinels name: a connection that replaces itself, and the commands
//! that are sent on it.
//!
//! | type | is | owned by |
//! |---|---|---|
//! | [`Connection`] | what a store sends on, for as long as it lives: replaced below, never above | the store |
//! | `Dialer` | the way to a new connection, and what earlier dials taught | the `Connection` |
//! | [`Live`] | one open connection with its number, its *generation*; waits and calls keep it while they use it | the `Connection`, until it is replaced |
//! | `Batcher` | the scripts that one open connection has to send, and the task that sends them | a `Live` |
//! | `Link` | one request on one open connection: its time limit, and what its outcome says of the connection | a `Live` and its `Batcher` |
//! | `Wire` | the multiplexed connection of redis-rs: bytes in order, without limits or opinions | a `Link` |
//! | [`Listener`] | a second connection that only receives messages, where RESP3 is refused | `wait/pubsub` |
//!
//! This floor knows the form of what the scripts are sent and of what they reply: tokens, places,
//! tickets and channels are values to it. What they mean for a wait, and what may be left of a
//! token on the server, is known above.

mod addresses;
mod backlog;
mod batch;
mod clock;
mod command;
mod connection;
mod connector;
mod dial;
mod link;
mod listener;
mod naming;
mod outage;
mod process;
mod replicas;
mod resp;
mod sentinel;
mod watch;

pub(crate) use self::batch::Submitted;
#[cfg(feature = "redis-quorum")]
pub(crate) use self::clock::millis_left;
pub(crate) use self::clock::{is_far, micros, millis_up};
#[cfg(feature = "redis-quorum")]
pub(crate) use self::command::VoteOperation;
pub(crate) use self::command::{
    AcquireReply, Command, Cut, Holder, LARGEST_NUMBER, Operation, QueuePlace, Reply, free,
    read_acquire, read_freed, read_release,
};
#[cfg(feature = "test-util")]
pub(crate) use self::command::{Kind, replies};
pub(crate) use self::connection::{Connection, Live, Observer};
pub(crate) use self::connector::Endpoint;
#[cfg(feature = "test-util")]
pub(crate) use self::connector::LookUp;
#[cfg(feature = "redis-cluster")]
pub(crate) use self::connector::Wire;
#[cfg(feature = "test-util")]
pub use self::connector::{Connector, Socket};
pub(crate) use self::link::{Health, Timeouts};
pub(crate) use self::listener::Listener;
pub(crate) use self::process::ClockId;
pub(crate) use self::replicas::ReplicaAcks;
pub(crate) use self::sentinel::Sentinels;
