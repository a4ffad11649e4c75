use std::time::Duration;

use lock_core::{Error, LockClient, distributed_lock};

const TTL: Duration = Duration::from_secs(3);

pub struct Service(LockClient);

impl Service {
    #[distributed_lock(
        key = "order:<user_id>:{voucher}",
        ttl = TTL,
        wait = "1m30s",
        max_hold = "1h",
        min_hold = Duration::from_millis(self.linger()),
        renew = true,
        fencing = true,
        turns_for_others = false,
        options = lock_core::LockOptions::new().with_ttl(TTL),
        client = self.0,
        lease = lease,
        on_busy = Self::busy,
        on_error = |error| Err(error),
        on_lost = finish,
        crate = lock_core,
    )]
    pub async fn order(&self, user_id: u64, voucher: &str) -> Result<u64, Error> {
        Ok(lease.fencing_token().get() + user_id + voucher.len() as u64)
    }

    fn busy(error: Error) -> Result<u64, Error> {
        Err(error)
    }

    fn linger(&self) -> u64 {
        10
    }
}

#[distributed_lock(key = String::from("nightly"), wait = none, max_hold = none, min_hold = none)]
pub async fn nightly() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = lock_core::key!("report:<day>"), wait = forever, renew = false)]
pub async fn report(day: u32) -> Result<u32, Error> {
    Ok(day)
}

fn main() {}
