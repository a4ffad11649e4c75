//! The conformance suite on every store that needs a server.

mod redis {
    use lock_core::store::RedisStore;
    use lock_testkit::RedisServer;

    async fn store() -> (RedisStore, RedisServer) {
        let server = RedisServer::start();
        let store = RedisStore::connect(server.url()).await.expect("the server is there");
        (store, server)
    }

    lock_core::conformance_tests!(
        #[tokio::test]
        store
    );
}

mod quorum {
    use lock_core::store::QuorumStore;
    use lock_testkit::Quorum;

    async fn store() -> (QuorumStore, Quorum) {
        let servers = Quorum::of_age(3, "conformance");
        let store = QuorumStore::connect(servers.urls()).await.expect("the servers are there");
        (store, servers)
    }

    lock_core::conformance_tests!(
        #[tokio::test]
        store
    );
}
