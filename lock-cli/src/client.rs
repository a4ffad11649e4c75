//! The client of one call of `lockctl`.

use std::time::Duration;

use lock_core::LockClient;
use lock_core::store::{Store, Survives, connect_lazy};

use crate::args::Global;
use crate::failure::{Failure, STORE, USAGE};
use crate::log;

/// How long the releases of a command that ends may take.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// A client on the store of the command line.
pub(crate) async fn connect(global: &Global) -> Result<LockClient, Failure> {
    let client = connect_to(&global.store, global.namespace())
        .await
        .map_err(|failure| failure.with_advice(STORE, "--store or `LOCK_URL` names the store"))?;
    log::under_way();
    Ok(client)
}

/// A client on the store at `url`.
pub(crate) async fn connect_to(url: &str, namespace: Option<&str>) -> Result<LockClient, Failure> {
    let store = connect_lazy(url)?;
    check_is_shared(&*store)?;
    let client = LockClient::builder(store).with_name("lockctl");
    let client = match namespace {
        Some(namespace) => client.with_namespace(namespace),
        None => client.without_namespace(),
    };
    let client = client.build()?;
    // Says at once that the store cannot be reached; a service would wait for it.
    client.health().await?;
    Ok(client)
}

/// Refuses locks in memory. A command that took one would believe that it excludes others.
pub(crate) fn check_is_shared(store: &dyn Store) -> Result<(), Failure> {
    if store.capabilities().survives > Survives::Nothing {
        return Ok(());
    }
    let problem = format!(
        "{store} has the locks of one process only: name a server by --store or `LOCK_URL`"
    );
    Err(Failure::new(USAGE, problem))
}
