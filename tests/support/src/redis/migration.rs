//! A slot that moves in a cluster.

use redis::{RedisResult, Value};

use super::cluster::RedisCluster;

/// A slot on its way from one master to another.
#[derive(Debug)]
pub struct Migration<'c> {
    cluster: &'c RedisCluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl RedisCluster {
    /// Begins to move a key's slot to the server `to`.
    #[must_use]
    pub fn migration(&self, key: &str, to: usize) -> Migration<'_> {
        let (slot, from) = (self.slot(key), self.owner(key).expect("an owner"));
        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.id(from));
        let () = self.server(to).cli(&importing);
        let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.id(to));
        let () = self.server(from).cli(&migrating);
        Migration { cluster: self, slot, from, to }
    }
}

impl Migration<'_> {
    /// The keys that are still where the slot leaves.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let keys = format!("CLUSTER GETKEYSINSLOT {} 100", self.slot);
        self.cluster.server(self.from).cli(&keys)
    }

    /// Moves one key, if it is still there.
    pub fn step(&self, key: &str) {
        let port = self.cluster.node_port(self.to).to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", key];
        // `NOKEY` if it has expired meanwhile.
        let _: String = self.cluster.server(self.from).connect().command(&migrate).unwrap();
    }

    /// Moves the keys that are left, and then the slot.
    pub fn finish(self) {
        loop {
            let keys = self.keys();
            if keys.is_empty() {
                break;
            }
            keys.iter().for_each(|key| self.step(key));
        }
        let Self { cluster, slot, from, to } = self;
        let command = format!("CLUSTER SETSLOT {slot} NODE {}", cluster.id(to));
        let () = cluster.server(to).cli(&command);
        // A key may have been made since the last look: then the slot is not given away.
        while cluster.try_on::<()>(from, &command).is_err() {
            let keys = format!("CLUSTER GETKEYSINSLOT {slot} 100");
            for key in cluster.server(from).cli::<Vec<String>>(&keys) {
                let port = cluster.node_port(to).to_string();
                let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", &key];
                let _: RedisResult<Value> = cluster.server(from).connect().command(&migrate);
            }
        }
    }

    /// Leaves the slot where it was, with all its keys.
    pub fn cancel(self) {
        let Self { cluster, slot, from, to } = self;
        let stable = format!("CLUSTER SETSLOT {slot} STABLE");
        let () = cluster.server(from).cli(&stable);
        let () = cluster.server(to).cli(&stable);
    }
}
