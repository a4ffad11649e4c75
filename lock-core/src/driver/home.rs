//! The runtime for what outlives the call that begins it: connections, first of all.
//!
//! Mostly it is the one of the caller. A thread without one blocks in a runtime that ends with the call, so there it is the one of
//! the client's tasks.

use std::cell::RefCell;

use tokio::runtime::Handle;

thread_local! {
    static HOME: RefCell<Option<Handle>> = const { RefCell::new(None) };
}

/// While this lives, what is begun on this thread goes to the runtime that it was made with.
#[derive(Debug)]
pub(crate) struct AtHome(Option<Handle>);

impl AtHome {
    pub(crate) fn of(runtime: Option<Handle>) -> Self {
        Self(HOME.replace(runtime))
    }
}

impl Drop for AtHome {
    fn drop(&mut self) {
        HOME.set(self.0.take());
    }
}

/// Where to spawn.
#[cfg(feature = "redis")]
pub(crate) fn home() -> Option<Handle> {
    HOME.with_borrow(Clone::clone).or_else(|| Handle::try_current().ok())
}
