//! The lock types.

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
