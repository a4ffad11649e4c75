//! The kinds of lock: one file each, over one private core.
//!
//! The core: `acquire` takes a lock, `guard` keeps and releases it, `run_until_lost` stops a body
//! when the lease ends, `entered` is what `run`, the macro and the layer use, with re-entry. The
//! kinds: `mutex`.

mod acquire;
mod entered;
mod guard;
mod mutex;
mod run_until_lost;

pub(crate) use self::acquire::AcquireRequest;
pub use self::entered::Entered;
pub use self::guard::MutexGuard;
pub use self::mutex::Mutex;
pub use self::run_until_lost::RunUntilLost;
