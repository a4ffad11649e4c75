use lock_core::distributed_lock;

#[distributed_lock(key = "order:<name>", on_error = |_| name.len())]
async fn f(name: String) -> usize {
    name.into_bytes().len()
}

fn main() {}
