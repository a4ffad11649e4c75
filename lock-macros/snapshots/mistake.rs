async fn order(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}
::core::compile_error! {
    "`#[distributed_lock]` is here twice; taking two locks one after the other deadlocks when another function takes them in the other order: lock one key that covers both"
}
::core::compile_error! {
    "the key names `userid`, which is not an argument of this function; did you mean `<user_id>`?"
}
