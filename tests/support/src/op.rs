//! What a command does for a lock.

/// What a command does for a lock.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// A claim.
    Acquire,
    /// A renewal or extension.
    Renew,
    /// A claim or a renewal on a member of a quorum.
    Vote,
    /// A release.
    Release,
    /// The request for RESP3, with which a handshake begins.
    Hello,
    /// The request for the server's clock, with which a handshake ends.
    Time,
    /// The request for the kind of server, with which the check at the start begins.
    Info,
    /// The name of a connection.
    Client,
    /// The subscription of an inbox.
    Subscribe,
    /// A message on its way to the inbox of a client: not a command, but sent by the server.
    Message,
    /// Anything else: the rest of the handshake and of the check.
    Other,
}

impl Op {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::Other as usize + 1;
}
