// Borrowed text is the label of its key, so only text of the program may be borrowed.

use lock_core::{Error, LockClient, distributed_lock};

#[distributed_lock(key = name)]
async fn by_an_argument(name: &str) -> Result<(), Error> {
    Ok(())
}

pub async fn by_a_parameter(client: &LockClient, name: &str) -> Result<(), Error> {
    client.mutex(name).run(async |_| ()).await
}

pub async fn by_a_local(client: &LockClient, id: u64) -> Result<(), Error> {
    let name = format!("order:{id}");
    client.mutex(name.as_str()).run(async |_| ()).await
}

fn main() {}
