//! How a request's lock is released before its response goes out.

use lock_core::MutexGuard;

use crate::rejection::with_causes;

/// Releases the lock and waits for the result. A failure is logged and never changes the response.
pub(crate) async fn release(guard: MutexGuard) {
    if let Err(error) = guard.release().await {
        tracing::warn!(
            target: "lock_tower", error = with_causes(&error),
            "the lock of a finished request was not released"
        );
    }
}
