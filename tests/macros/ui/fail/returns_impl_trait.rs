use lock_core::distributed_lock;

#[distributed_lock(key = "order:<user_id>")]
async fn f(user_id: u64) -> impl std::fmt::Display {
    user_id
}

#[distributed_lock(key = "order:<user_id>")]
async fn never(user_id: u64) -> ! {
    std::process::exit(user_id as i32)
}

fn main() {}
