//! Independent servers of a quorum, each behind a proxy.

use super::server::RedisServer;
use crate::proxy::Proxy;

/// Servers that know nothing of each other, each with a proxy between it and the clients.
#[derive(Debug)]
pub struct Quorum {
    members: Vec<(RedisServer, Proxy)>,
}

impl Quorum {
    /// Starts so many servers.
    #[must_use]
    pub fn start(members: usize) -> Self {
        Self::of((0..members).map(|_| RedisServer::start()))
    }

    /// Makes a quorum of these servers.
    #[must_use]
    pub fn of(servers: impl IntoIterator<Item = RedisServer>) -> Self {
        let behind_a_proxy = |server| {
            let proxy = Proxy::to(&server);
            (server, proxy)
        };
        Self { members: servers.into_iter().map(behind_a_proxy).collect() }
    }

    /// The same, whose members vote for clients of this namespace at once.
    #[must_use]
    pub fn of_age(members: usize, namespace: &str) -> Self {
        let quorum = Self::start(members);
        quorum.vouch_for_all(namespace);
        quorum
    }

    /// Says for all members what [`vouch`](Self::vouch) says for one.
    pub fn vouch_for_all(&self, namespace: &str) {
        for index in 0..self.len() {
            self.vouch(index, namespace);
        }
    }

    /// The URLs of the members, through their proxies.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.members.iter().map(|(_, proxy)| proxy.url()).collect()
    }

    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A member.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.members[index].0
    }

    /// The same, to kill it or to start it again.
    pub fn server_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.members[index].0
    }

    /// The proxy in front of a member.
    #[must_use]
    pub fn proxy(&self, index: usize) -> &Proxy {
        &self.members[index].1
    }

    /// The members.
    pub fn servers(&self) -> impl Iterator<Item = &RedisServer> {
        self.members.iter().map(|(server, _)| server)
    }

    /// Kills a member, which is back at once and has forgotten everything.
    pub fn restart_empty(&mut self, index: usize) {
        let server = self.server_mut(index);
        server.kill();
        server.boot();
        server.load_scripts();
    }

    /// Says for a member, as an operator does for a new installation, that it has forgotten no lock
    /// of the namespace.
    pub fn vouch(&self, index: usize, namespace: &str) {
        self.server(index).vouch(namespace);
    }

    /// How many members have this key.
    #[must_use]
    pub fn having(&self, key: &str) -> usize {
        self.servers().filter(|server| server.has(key)).count()
    }

    /// What locks have left on the members.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        self.servers().flat_map(RedisServer::leftovers).collect()
    }
}

impl RedisServer {
    /// Says, as an operator does for a new installation of a quorum, that this server has forgotten
    /// no lock of the namespace.
    pub fn vouch(&self, namespace: &str) {
        let info: String = self.cli("INFO server");
        let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().trim();
        let key = format!("{namespace}:{{0}}:born");
        let () = self.connect().command(&["SET", &key, &format!("0 {run_id}")]).unwrap();
    }
}
