use lock_core::{Error, distributed_lock};

trait Orders {
    #[distributed_lock(key = "order:<user_id>")]
    async fn order(&self, user_id: u64) -> Result<u64, Error>;
}

fn main() {}
