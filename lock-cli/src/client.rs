//! The client of one call of `lockctl`.

use std::time::Duration;

use lock_core::LockClient;
use lock_core::store::connect_lazy;

use crate::args::Global;
use crate::failure::Failure;

/// How long the releases of a command that ends may take.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// A client on the store of the command line.
pub(crate) async fn connect(global: &Global) -> Result<LockClient, Failure> {
    connect_to(&global.store, global.namespace()).await
}

/// A client on the store at `url`.
pub(crate) async fn connect_to(url: &str, namespace: Option<&str>) -> Result<LockClient, Failure> {
    let client = LockClient::builder(connect_lazy(url)?).with_name("lockctl");
    let client = match namespace {
        Some(namespace) => client.with_namespace(namespace),
        None => client.without_namespace(),
    };
    let client = client.build()?;
    // Says at once that the store cannot be reached; a service would wait for it.
    client.health().await?;
    Ok(client)
}
