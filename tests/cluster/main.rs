//! A cluster: locks while a node is replaced and while slots move, and what is refused. Each test
//! cites the cases of `ha.md`.
// Some print what they went through.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

mod failover;
mod locks;
mod metrics;
mod migration;
mod part_away;
mod redirections;
mod refusals;
mod replaced;
mod tls;

use std::sync::{Arc, LazyLock, Weak};

use lock_core::store::RedisStore;
use lock_testkit::RedisCluster;
use tokio::sync::Mutex;

/// A cluster that serves the slots of the nodes that are there, whatever is with the others.
async fn partial() -> RedisCluster {
    RedisCluster::start_with(&["cluster-require-full-coverage no"]).await
}

/// A cluster that tests share which leave it as it was. It ends with the last of them that run at
/// the same time.
async fn shared() -> Arc<RedisCluster> {
    static SHARED: LazyLock<Mutex<Weak<RedisCluster>>> = LazyLock::new(Mutex::default);
    let mut shared = SHARED.lock().await;
    if let Some(cluster) = shared.upgrade() {
        return cluster;
    }
    let cluster = Arc::new(RedisCluster::start().await);
    *shared = Arc::downgrade(&cluster);
    cluster
}

mod conformance {
    use super::*;

    async fn store() -> (RedisStore, Arc<RedisCluster>) {
        let cluster = shared().await;
        let store = RedisStore::connect(cluster.url()).await.unwrap();
        (store, cluster)
    }

    lock_core::conformance_tests!(
        #[tokio::test]
        store
    );
}
