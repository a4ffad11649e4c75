//! What locks leave on a server while somebody waits, and what must not remain.

use super::server::RedisServer;

/// The clients of tests use this namespace, and without a cluster this tag.
const COMPANIONS: &str = "lock:{0}";

impl RedisServer {
    /// How many claims stand in the queue of a lock.
    #[must_use]
    pub fn queued(&self, key: &str) -> usize {
        self.cli(&format!("ZCARD {COMPANIONS}:q:{key}"))
    }

    /// The claims in the queue of a lock, first come first.
    #[must_use]
    pub fn queue(&self, key: &str) -> Vec<String> {
        self.cli(&format!("ZRANGE {COMPANIONS}:q:{key} 0 -1"))
    }

    /// The inboxes that clients have subscribed.
    #[must_use]
    pub fn inboxes(&self) -> Vec<String> {
        self.cli("PUBSUB CHANNELS lock:*")
    }

    /// The keys of locks and queues. The counter, of which there is one for ever, does not count.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let keys: Vec<String> = self.cli("KEYS lock:*");
        keys.into_iter().filter(|key| !key.ends_with(":fence")).collect()
    }

    /// How many clients are connected, without the one that asks.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.cli::<String>("CLIENT LIST").lines().count() - 1
    }

    /// Breaks all connections but the one that asks; how many there were.
    pub fn kill_connections(&self) -> usize {
        let mut cli = self.connect();
        // Those that have an inbox are of the other type.
        let mut kill =
            |kind: &str| cli.run::<usize>(&format!("CLIENT KILL TYPE {kind} SKIPME yes")).unwrap();
        kill("normal") + kill("pubsub")
    }

    /// Bytes that the server has allocated for data and clients.
    #[must_use]
    pub fn used_memory(&self) -> u64 {
        let info: String = self.cli("INFO memory");
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.unwrap().trim().parse().unwrap()
    }
}
