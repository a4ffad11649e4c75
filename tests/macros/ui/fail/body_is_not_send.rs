use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id>")]
async fn f(user_id: u64) -> Result<u64, Error> {
    let shared = std::rc::Rc::new(user_id);
    std::future::ready(()).await;
    Ok(*shared)
}

fn spawn(_: impl Future<Output = Result<u64, Error>> + Send) {}

pub fn caller() {
    spawn(f(1));
}

fn main() {}
