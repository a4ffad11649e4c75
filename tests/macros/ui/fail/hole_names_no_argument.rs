use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<userid>")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:<voucher.id()>")]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:<user_id>")]
async fn none() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "order:<order_id>")]
async fn several(user_id: u64, voucher: u64) -> Result<u64, Error> {
    Ok(user_id + voucher)
}

fn main() {}
