use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id>")]
async fn wrong_type(user_id: u64) -> Result<u64, Error> {
    let name: String = user_id;
    Ok(name)
}

#[distributed_lock(key = "order:<user_id>")]
async fn no_tail(user_id: u64) -> Result<u64, Error> {
    drop(user_id);
}

#[distributed_lock(key = "order:<user_id>")]
async fn unknown_name(user_id: u64) -> Result<u64, Error> {
    Ok(userid)
}

#[distributed_lock(key = "order:<user_id>")]
async fn wrong_early_return(user_id: u64) -> Result<u64, Error> {
    if user_id == 0 {
        return 0;
    }
    Ok(user_id)
}

fn main() {}
