use lock_core::distributed_lock;

#[distributed_lock(key = "order:<user_id>")]
async fn number(user_id: u64) -> u64 {
    user_id
}

#[distributed_lock(key = "order:<user_id>")]
async fn nothing(user_id: u64) {
    drop(user_id);
}

#[distributed_lock(key = "order:<user_id>", on_busy = |_| None)]
async fn option(user_id: u64) -> Option<u64> {
    Some(user_id)
}

fn main() {}
