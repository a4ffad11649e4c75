use lock_core::{distributed_lock, key};

#[distributed_lock(key = "order:<shop>-<user>")]
async fn order(shop: &str, user: &str) -> Result<(), lock_core::Error> {
    Ok(())
}

fn main() {
    let (one, two) = (1, 2);
    drop(key!("<one><two>"));
}
