//! Replication that is cut and mended.

use std::time::Duration;

use super::server::RedisServer;
use crate::wait::eventually;

/// A loaded machine takes its time.
const BOUND: Duration = Duration::from_secs(30);

impl RedisServer {
    /// Ends the replication from `master` to this server, which goes on as before otherwise, until
    /// [`mend`](Self::mend).
    pub async fn cut_off_from(&self, master: &Self) {
        self.log_in_as("unknown", "wrong");
        eventually("the replica is cut off", BOUND, || {
            // It may connect once more before it has the wrong password.
            let _count: usize = master.cli("CLIENT KILL TYPE replica");
            self.cli::<String>("INFO replication").contains("master_link_status:down")
        })
        .await;
    }

    /// Ends [`cut_off_from`](Self::cut_off_from).
    pub fn mend(&self) {
        self.log_in_as("", "");
    }

    /// Sets how a replica introduces itself to its master. Redis 6.2 sets one at a time.
    fn log_in_as(&self, user: &str, password: &str) {
        for (name, value) in [("masteruser", user), ("masterauth", password)] {
            let () = self.connect().command(&["CONFIG", "SET", name, value]).unwrap();
        }
    }
}
