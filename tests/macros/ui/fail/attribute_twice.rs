use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id>")]
#[distributed_lock(key = "voucher:<voucher>")]
async fn f(user_id: u64, voucher: u64) -> Result<u64, Error> {
    Ok(user_id + voucher)
}

// The function still exists, so its callers cause no further error.
pub async fn caller() -> Result<u64, Error> {
    f(1, 2).await
}

fn main() {}
