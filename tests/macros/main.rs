//! x
use lock_core::distributed_lock;

#[distributed_lock(key = "order:<user_id>", ttl = "10s", wait = "2s")]
async fn create_order(
    user_id: u64,
    name: String,
    _: Vec<u8>,
    (a, _): (u8, String),
) -> Result<u64, lock_core::Error> {
    println!("{name} {a}");
    Ok(user_id)
}

#[tokio::test]
async fn works() {
    let client =
        lock_core::LockClient::builder(lock_core::store::MemoryStore::new()).build().unwrap();
    assert_eq!(
        client.scope(create_order(3, "x".to_owned(), vec![], (1, String::new()))).await.unwrap(),
        3
    );
}
