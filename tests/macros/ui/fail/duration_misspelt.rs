use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "a", ttl = 10)]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "10")]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "10 seconds")]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "10sec")]
async fn f4(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = 10s)]
async fn f5(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "1.5s")]
async fn f6(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "30s1m")]
async fn f7(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "soon")]
async fn f8(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "")]
async fn f9(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = true)]
async fn f10(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "99999999999999999999s")]
async fn f11(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = user_id)]
async fn number(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
