use async_trait::async_trait;
use lock_core::{Error, distributed_lock};

struct Id(u64);

#[async_trait]
trait Orders {
    #[distributed_lock(key = "order:<id>")]
    async fn order(&self, Id(id): Id, voucher: u64) -> Result<u64, Error>
    where
        Self: Sync,
    {
        Ok(id + voucher)
    }
}

fn main() {}
