use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id > 3>")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:<user_id")]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:{user_id")]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:user>")]
async fn f4(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:}")]
async fn f5(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:<>")]
async fn f6(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:{}")]
async fn f7(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:<user id>")]
async fn f8(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:<type>")]
async fn f9(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "")]
async fn f10(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
