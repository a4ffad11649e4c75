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
