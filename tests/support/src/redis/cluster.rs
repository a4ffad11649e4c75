//! A cluster of three masters, each with a replica.

use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult, Value};

use super::commands::Cli;
use super::server::{RedisBuilder, RedisServer};
use crate::free_port;
use crate::wait::{eventually, eventually_some};

/// Six servers that are a cluster, on free ports of 127.0.0.1. Killed and removed on drop.
///
/// Servers have an index: the first three were the masters at the start, and the others, in the
/// same order, their replicas.
#[derive(Debug)]
pub struct RedisCluster {
    servers: Vec<RedisServer>,
    ids: Vec<String>,
    /// Whether clients, and the nodes among themselves, connect by TLS.
    tls: bool,
}

/// How a replica takes over from its master.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailOver {
    /// The master waits until its replica has everything, so nothing is lost.
    Graceful,
    /// The other masters agree, the master does not take part.
    Force,
    /// The replica asks no other node.
    Takeover,
}

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
/// A master that is silent for so long is replaced.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// Nodes give up a failover that takes longer, which is refused at times.
const MANUAL_TIMEOUT: Duration = Duration::from_secs(6);
/// A loaded machine takes its time.
const BOUND: Duration = Duration::from_secs(30);

impl RedisCluster {
    /// For how long a master may be silent before it is replaced.
    pub const NODE_TIMEOUT: Duration = NODE_TIMEOUT;

    /// Starts the servers, and waits until each could serve its part of the slots and replace its
    /// master.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// As [`start`](Self::start), with more lines of configuration.
    pub async fn start_with(config: &[&str]) -> Self {
        Self::of((0..2 * MASTERS).map(|_| server(config).start()).collect(), false).await
    }

    /// As [`start_with`](Self::start_with), by TLS: clients connect by it, and so do the nodes to
    /// each other. The certificate is in the configuration. What the test itself asks of a node, it
    /// asks without TLS.
    pub async fn start_by_tls(config: &[&str]) -> Self {
        let by_tls = ["tls-cluster yes", "tls-replication yes"];
        let config = [&by_tls[..], config].concat();
        let servers = (0..2 * MASTERS).map(|_| server(&config).by_tls().start());
        Self::of(servers.collect(), true).await
    }

    async fn of(servers: Vec<RedisServer>, tls: bool) -> Self {
        let ids = servers.iter().map(|server| server.cli("CLUSTER MYID")).collect();
        let cluster = Self { servers, ids, tls };
        for index in 0..MASTERS {
            let (first, last) = (index * SLOTS / MASTERS, (index + 1) * SLOTS / MASTERS - 1);
            let server = &cluster.servers[index];
            let () = server.cli(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            let () = server.cli(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        }
        (1..2 * MASTERS).for_each(|index| cluster.meet(index));
        cluster.each("they know each other", |info| info.contains("cluster_known_nodes:6\r")).await;
        for index in MASTERS..2 * MASTERS {
            let replicate = format!("CLUSTER REPLICATE {}", cluster.ids[index - MASTERS]);
            eventually("a replica knows its master", BOUND, || {
                let mut cli = cluster.servers[index].connect();
                cli.run::<()>(&replicate).is_ok()
            })
            .await;
        }
        cluster
            .each("the cluster serves all slots", |info| {
                info.contains("cluster_state:ok\r") && info.contains("cluster_slots_ok:16384\r")
            })
            .await;
        eventually("each master has a replica with its data", BOUND, || {
            cluster.servers.iter().all(|server| {
                let info = server.cli::<String>("INFO replication");
                info.contains("master_link_status:up") || info.contains("state=online")
            })
        })
        .await;
        eventually("each node knows all replicas", BOUND, || {
            cluster.servers.iter().all(|server| {
                let nodes = server.cli::<String>("CLUSTER NODES");
                nodes.matches("slave").count() == MASTERS && !nodes.contains("fail")
            })
        })
        .await;
        cluster
    }

    /// Makes a node known to the first one.
    fn meet(&self, index: usize) {
        let bus: (String, u16) = self.servers[index].cli("CONFIG GET cluster-port");
        let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", self.node_port(index), bus.1);
        let () = self.servers[0].cli(&meet);
    }

    async fn each(&self, what: &str, check: fn(&str) -> bool) {
        eventually(what, BOUND, || {
            self.servers.iter().all(|server| check(&server.cli::<String>("CLUSTER INFO")))
        })
        .await;
    }

    /// The URL for `RedisStore`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(&[0, 1, 2])
    }

    /// The URL that names these servers.
    #[must_use]
    pub fn url_of(&self, servers: &[usize]) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let hosts = servers.iter().map(|index| format!("127.0.0.1:{}", self.node_port(*index)));
        format!("{scheme}+cluster://{}", hosts.collect::<Vec<_>>().join(","))
    }

    /// The port at which clients and other nodes find a server.
    #[must_use]
    pub fn node_port(&self, index: usize) -> u16 {
        let server = &self.servers[index];
        if self.tls { server.tls_port() } else { server.port() }
    }

    /// A server.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.servers[index]
    }

    /// A server, to kill it or to start it again.
    pub fn server_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.servers[index]
    }

    /// All servers.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The servers that are masters, by their own account.
    #[must_use]
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |index: &usize| {
            self.servers[*index].runs()
                && self
                    .try_on::<String>(*index, "INFO replication")
                    .is_ok_and(|info| info.contains("role:master\r"))
        };
        (0..self.servers.len()).filter(is_master).collect()
    }

    /// The id of a server, by which the others call it.
    #[must_use]
    pub fn id(&self, index: usize) -> &str {
        &self.ids[index]
    }

    /// The slot of a key, by the servers' own account.
    #[must_use]
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.any(|cli| cli.command(&["CLUSTER", "KEYSLOT", key]));
        slot.expect("a server answers")
    }

    /// The master of a key's slot, as the server `by` sees it.
    #[must_use]
    pub fn owner_by(&self, by: usize, key: &str) -> Option<usize> {
        let slot = i64::from(self.slot(key));
        let slots: Vec<Value> = self.servers[by].cli("CLUSTER SLOTS");
        slots.iter().find_map(|range| {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(node), ..] = range.as_slice()
            else {
                return None;
            };
            let Value::Int(port) = node.get(1)? else { return None };
            let is_its = (*first..=*last).contains(&slot);
            is_its.then(|| self.index_of(u16::try_from(*port).unwrap()))
        })
    }

    /// The master of a key's slot at the start.
    #[must_use]
    pub fn home(&self, key: &str) -> usize {
        (0..MASTERS)
            .find(|index| {
                let (first, last) = (index * SLOTS / MASTERS, (index + 1) * SLOTS / MASTERS - 1);
                (first..=last).contains(&usize::from(self.slot(key)))
            })
            .unwrap()
    }

    /// The master of a key's slot by its own account.
    #[must_use]
    pub fn owner(&self, key: &str) -> Option<usize> {
        (0..self.servers.len()).find(|index| {
            self.try_on(*index, "CLUSTER NODES").is_ok_and(|nodes: String| {
                let me = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
                let mut words = me.split(' ');
                let is_master = words.nth(2).is_some_and(|flags| flags.contains("master"));
                let slot = self.slot(key);
                is_master && words.skip(5).any(|range| holds(range, slot))
            })
        })
    }

    fn index_of(&self, port: u16) -> usize {
        self.servers.iter().position(|server| server.port() == port).unwrap()
    }

    /// The first name `<prefix><number>` whose lock is on the server `home` at the start.
    #[must_use]
    pub fn key_on(&self, home: usize, prefix: &str) -> String {
        let mut names = (0..).map(|number| format!("{prefix}{number}"));
        names.find(|name| self.home(&format!("lock:{name}")) == home).unwrap()
    }

    /// Runs a command on one server, which may not be there or refuse it.
    pub fn try_on<T: FromRedisValue>(&self, index: usize, command: &str) -> RedisResult<T> {
        self.servers[index].try_connect()?.run(command)
    }

    fn any<T>(&self, mut run: impl FnMut(&mut Cli) -> RedisResult<T>) -> Option<T> {
        // A server that is stopped accepts connections and says nothing.
        self.servers
            .iter()
            .filter(|server| server.runs())
            .find_map(|server| server.try_connect().and_then(|mut cli| run(&mut cli)).ok())
    }

    /// Makes the replica of the server `master` take over, and waits until it has, and until the
    /// master knows: until then it goes on as before, and what it does is lost.
    pub async fn fail_over(&self, master: usize, how: FailOver) -> usize {
        let replica = self.replica_of(master);
        let command = match how {
            FailOver::Graceful => "CLUSTER FAILOVER",
            FailOver::Force => "CLUSTER FAILOVER FORCE",
            FailOver::Takeover => "CLUSTER FAILOVER TAKEOVER",
        };
        let begun = Instant::now();
        // Where the nodes are busy, they give a failover up.
        while !self.is_master_soon(replica, command).await {
            assert!(begun.elapsed() < BOUND, "no failover within {BOUND:?}");
        }
        self.promoted(replica).await;
        eventually("the old master knows", BOUND, || {
            let info = self.try_on::<String>(master, "INFO replication");
            info.is_ok_and(|info| info.contains("role:slave\r"))
        })
        .await;
        replica
    }

    /// Sends a command that makes a replica take over. Whether it does in the time for that.
    async fn is_master_soon(&self, replica: usize, command: &str) -> bool {
        // It is refused while the nodes do not agree on the state of the cluster.
        let _begun = self.try_on::<()>(replica, command);
        let begun = Instant::now();
        while begun.elapsed() < MANUAL_TIMEOUT {
            let info = self.try_on::<String>(replica, "INFO replication");
            if info.is_ok_and(|info| info.contains("role:master\r")) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }

    /// The server that replicates the server `master`.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn replica_of(&self, master: usize) -> usize {
        let id = &self.ids[master];
        (0..self.servers.len())
            .find(|index| {
                self.servers[*index].runs()
                    && self.try_on(*index, "CLUSTER NODES").is_ok_and(|nodes: String| {
                        nodes.lines().any(|line| line.contains("myself,slave") && line.contains(id))
                    })
            })
            .expect("a replica")
    }

    /// Waits until the server is a master, and the cluster serves all slots.
    pub async fn promoted(&self, index: usize) {
        eventually("a replica is promoted", BOUND, || {
            self.try_on::<String>(index, "CLUSTER INFO")
                .is_ok_and(|info| info.contains("cluster_state:ok\r"))
                && self
                    .try_on::<String>(index, "INFO replication")
                    .is_ok_and(|info| info.contains("role:master\r"))
        })
        .await;
    }

    /// Starts a server again that was killed and replaced by the server `master`, and waits until
    /// it could take over again.
    pub async fn back(&mut self, index: usize, master: usize) {
        self.servers[index].boot();
        self.restored(index, master).await;
    }

    /// Waits until the server `replica` could take over from the server `master`, and all know.
    pub async fn restored(&self, replica: usize, master: usize) {
        let id = &self.ids[replica];
        eventually("the replica has the master's data", BOUND, || {
            self.servers[replica].cli::<String>("INFO replication").contains("link_status:up")
                && self.servers[master].cli::<String>("INFO replication").contains("state=online")
        })
        .await;
        eventually("each node knows it as a replica", BOUND, || {
            self.servers.iter().filter(|server| server.runs()).all(|server| {
                let nodes = server.cli::<String>("CLUSTER NODES");
                let mut lines = nodes.lines().filter(|line| line.starts_with(id));
                lines.any(|line| line.contains("slave ") && !nodes.contains("fail"))
            })
        })
        .await;
    }

    /// Waits until the replica of a master has all that it wrote.
    pub async fn replicated(&self, master: usize) {
        // `WAIT` is about what this connection wrote.
        let key = self.key_on(master, "replicated");
        let mut cli = self.servers[master].connect();
        let () = cli.run(&format!("SET lock:{key} 1 PX 1000")).unwrap();
        eventually("the replica has it", BOUND, || cli.run::<usize>("WAIT 1 100").unwrap() == 1)
            .await;
        let () = cli.run(&format!("DEL lock:{key}")).unwrap();
    }

    /// Makes a replica a master without slots.
    pub async fn empty(&self, replica: usize) {
        let server = &self.servers[replica];
        let () = server.cli("CLUSTER RESET SOFT");
        self.meet(replica);
        eventually("all know each other", BOUND, || {
            self.servers.iter().all(|server| {
                let nodes = server.cli::<String>("CLUSTER NODES");
                let line = nodes.lines().find(|line| line.starts_with(&self.ids[replica]));
                nodes.lines().count() == self.servers.len()
                    && !nodes.contains("handshake")
                    && line.is_some_and(|line| line.contains("master"))
            })
        })
        .await;
        self.each("the cluster serves", |info| info.contains("cluster_state:ok\r")).await;
    }

    /// The keys of locks and queues on the masters, without the counters of tokens, which stay.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let masters = self.servers.iter().filter(|server| {
            server.runs() && server.cli::<String>("INFO replication").contains("role:master\r")
        });
        masters.flat_map(RedisServer::leftovers).collect()
    }

    /// How many claims are in the queue of a lock.
    #[must_use]
    pub fn queued(&self, key: &str) -> usize {
        self.queues(key).iter().map(|(_, _, count)| count).sum()
    }

    /// Where the queues of a lock are: the server, the key, and the number of claims.
    fn queues(&self, key: &str) -> Vec<(usize, String, usize)> {
        let mut found = Vec::new();
        for (index, server) in self.servers.iter().enumerate() {
            if !server.runs() || !server.cli::<String>("INFO replication").contains("role:master\r")
            {
                continue;
            }
            let names: Vec<String> = server.cli(&format!("KEYS lock:{{*}}:q:{key}"));
            found.extend(names.into_iter().map(|name| {
                let count = server.cli(&format!("ZCARD {name}"));
                (index, name, count)
            }));
        }
        found
    }

    /// Waits until the queue of a lock has so many claims.
    pub async fn queue_of(&self, key: &str, count: usize) {
        eventually_some("the claims are queued", BOUND, || {
            (self.queued(key) == count).then_some(())
        })
        .await;
    }
}

/// Whether a range of slots, `7` or `0-5460`, holds the slot.
fn holds(range: &str, slot: u16) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
}

fn server(config: &[&str]) -> RedisBuilder {
    let builder = RedisServer::builder()
        .config("cluster-enabled yes")
        .config("cluster-config-file nodes.conf")
        .config(&format!("cluster-port {}", free_port()))
        .config(&format!("cluster-node-timeout {}", NODE_TIMEOUT.as_millis()))
        // By default a master waits 5 s for more replicas before it sends its data.
        .config("repl-diskless-sync-delay 0");
    config.iter().fold(builder, |builder, line| builder.config(line))
}
