//! Tests that must not run beside each other.

use std::sync::LazyLock;

use tokio::sync::{Mutex, MutexGuard};

/// Waits until no other test of this program is alone. For groups of servers that replace a master
/// which is slow to answer: a loaded machine slows it down.
pub async fn alone() -> MutexGuard<'static, ()> {
    static ONE: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);
    ONE.lock().await
}
