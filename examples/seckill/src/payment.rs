//! The call that makes the gap between reading and writing.

use std::time::Duration;

/// Asks a payment provider whether the user can pay.
///
/// There is no provider here, only the time that one takes to answer. That time is what a second
/// click falls into: with the default of 20 ms, short for a call to another company, a double click
/// or a client that retries is well inside.
#[derive(Clone, Copy, Debug)]
pub struct PaymentCheck {
    latency: Duration,
}

impl PaymentCheck {
    /// A provider that answers after `latency`.
    #[must_use]
    pub const fn new(latency: Duration) -> Self {
        Self { latency }
    }

    /// Every user can pay.
    pub async fn check(&self, _user: u32) {
        tokio::time::sleep(self.latency).await;
    }
}
