use lock_core::key;

pub fn keys(user_id: u64, order: std::time::SystemTime) {
    let _ = key!();
    let _ = key!(user_id);
    let _ = key!("order:<userid>");
    let _ = key!("order:<order>");
    let _ = key!("order:{}", user_id);
    let _ = key!("order:<user_id");
}

fn main() {}
