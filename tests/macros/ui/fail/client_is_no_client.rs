use lock_core::{Error, distributed_lock};

pub struct Service {
    db: String,
}

impl Service {
    #[distributed_lock(key = "order:<user_id>", client = self.db)]
    async fn order(&self, user_id: u64) -> Result<usize, Error> {
        Ok(self.db.len())
    }
}

fn main() {}
