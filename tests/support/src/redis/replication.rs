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
        let () = self.cli("CONFIG SET masterauth wrong masteruser unknown");
        eventually("the replica is cut off", BOUND, || {
            // It may connect once more before it has the wrong password.
            let _count: usize = master.cli("CLIENT KILL TYPE replica");
            self.cli::<String>("INFO replication").contains("master_link_status:down")
        })
        .await;
    }

    /// Ends [`cut_off_from`](Self::cut_off_from).
    pub fn mend(&self) {
        let set = ["CONFIG", "SET", "masterauth", "", "masteruser", ""];
        let () = self.connect().command(&set).unwrap();
    }
}
