// Both guards are dropped in their own statement.
#![deny(let_underscore_drop, unused_must_use)]

use lock_core::{Error, Mutex};

pub async fn unused(mutex: Mutex) -> Result<(), Error> {
    mutex.lock().await?;
    Ok(())
}

pub async fn as_the_compiler_suggests(mutex: Mutex) -> Result<(), Error> {
    let _ = mutex.lock().await?;
    Ok(())
}

fn main() {}
