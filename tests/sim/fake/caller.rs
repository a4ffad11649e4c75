//! Who sends a command.

use crate::net::Conn;

/// The connection that sends a command, and what is known of it.
pub(crate) struct Caller {
    pub(super) conn: Conn,
    pub(super) resp3: bool,
    /// Its last command was `ASKING`.
    pub(super) is_asking: bool,
}
