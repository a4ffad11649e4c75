use lock_core::{Error, distributed_lock};

pub struct Order {
    at: std::time::SystemTime,
}

#[distributed_lock(key = "order:<order>")]
async fn whole(order: Order) -> Result<(), Error> {
    drop(order.at);
    Ok(())
}

#[distributed_lock(key = "order:<order.at>")]
async fn field(order: Order) -> Result<(), Error> {
    drop(order.at);
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn optional(id: Option<u64>) -> Result<(), Error> {
    drop(id);
    Ok(())
}

fn main() {}
