//! What locks store on a server while clients wait, and what must not remain.

use super::server::RedisServer;

/// The namespace of the tests' clients, and the slot tag without a cluster.
const COMPANIONS: &str = "lock:{0}";

impl RedisServer {
    /// How many claims are in the queue of a lock.
    #[must_use]
    pub fn queued(&self, key: &str) -> usize {
        self.cli(&format!("ZCARD {COMPANIONS}:q:{key}"))
    }

    /// The claims in the queue of a lock, the oldest first.
    #[must_use]
    pub fn queue(&self, key: &str) -> Vec<String> {
        self.cli(&format!("ZRANGE {COMPANIONS}:q:{key} 0 -1"))
    }

    /// The inboxes that clients have subscribed.
    #[must_use]
    pub fn inboxes(&self) -> Vec<String> {
        self.cli("PUBSUB CHANNELS lock:{*}:inbox:*")
    }

    /// The keys of locks and queues, without the counter of tokens and what a member of a quorum
    /// keeps, which stay.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let keys: Vec<String> = self.cli("KEYS lock:*");
        // On a cluster the tag is that of a slot.
        let stays = |key: &String| {
            let companion = key.strip_prefix("lock:{").and_then(|rest| rest.split_once("}:"));
            companion.is_some_and(|(_, kind)| {
                kind == "fence" || kind == "born" || kind.starts_with("n:")
            })
        };
        keys.into_iter().filter(|key| !stays(key)).collect()
    }

    /// How many clients are connected, without this call's own.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.cli::<String>("CLIENT LIST").lines().count() - 1
    }

    /// Breaks all connections except its own, and gives their number.
    pub fn kill_connections(&self) -> usize {
        let mut cli = self.connect();
        // Connections with a subscription are of the second type.
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
