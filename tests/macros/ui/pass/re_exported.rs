mod locks {
    pub use lock_core as inner;
    pub use lock_core::{KeyPart, distributed_lock, key};
}

#[derive(locks::KeyPart)]
#[key_part(crate = crate::locks::inner)]
pub struct UserId(u64);

#[locks::distributed_lock(crate = crate::locks::inner, key = "order:<user>")]
pub async fn order(user: UserId) -> Result<u64, locks::inner::Error> {
    Ok(user.0)
}

pub fn key(user: &UserId) -> Result<locks::inner::Key, locks::inner::Error> {
    locks::key!(crate = crate::locks::inner, "order:<user>")
}

fn main() {}
