//! A master with replicas, and three sentinels that watch it.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult};
use tempfile::TempDir;

use super::commands::Cli;
use super::server::{RedisServer, redis_server};
use crate::proxy::Proxy;
use crate::wait::eventually;
use crate::{free_port, temp_dir};

/// A master with replicas under the name [`Sentinels::NAME`], and three sentinels, each behind a
/// proxy of its own. All are killed and removed on drop.
#[derive(Debug)]
pub struct Sentinels {
    // Before the servers: none of them is missed.
    sentinels: Vec<Sentinel>,
    servers: Vec<RedisServer>,
    settings: SentinelsBuilder,
}

/// How [`Sentinels`] are started.
#[derive(Clone, Debug)]
pub struct SentinelsBuilder {
    replicas: usize,
    hasty: bool,
    password: Option<String>,
    sentinel_password: Option<String>,
}

#[derive(Debug)]
struct Sentinel {
    port: u16,
    process: Child,
    proxy: Proxy,
    _dir: TempDir,
}

const COUNT: usize = 3;
/// A server that is silent for so long counts as down.
const DOWN_AFTER: Duration = Duration::from_millis(500);
/// What a sentinel waits for before it makes an old master a replica.
const HASTE: &str = "SENTINEL DEBUG info-period 500 publish-period 700";
/// A loaded machine takes its time.
const BOUND: Duration = Duration::from_secs(30);
/// Longer than a failover takes, or sentinels try it.
const AGAIN: Duration = Duration::from_secs(15);

impl SentinelsBuilder {
    /// Requires a password of the default user of the servers.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Requires a password of the default user of the sentinels.
    #[must_use]
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// Sentinels replace a master a few seconds after they have replaced another, and make an old
    /// master a replica after 3 s instead of 10 s.
    #[must_use]
    pub fn hasty(mut self) -> Self {
        self.hasty = true;
        self
    }

    /// Starts all, and waits until the sentinels could replace the master.
    pub async fn start(self) -> Sentinels {
        let master = self.server(None);
        let replicas = (0..self.replicas).map(|_| self.server(Some(master.port())));
        let replicas: Vec<_> = replicas.collect();
        let online = format!("connected_slaves:{}", self.replicas);
        eventually("the replicas have the master's data", BOUND, || {
            let info = master.cli::<String>("INFO replication");
            info.contains(&online) && info.matches("state=online").count() == self.replicas
        })
        .await;
        let ports: Vec<_> = (0..COUNT).map(|_| free_port()).collect();
        let mut servers = vec![master];
        servers.extend(replicas);
        let mut sentinels = Vec::new();
        for index in 0..COUNT {
            sentinels.push(self.sentinel(&servers, &ports, index).await);
        }
        let group = Sentinels { sentinels, servers, settings: self };
        if group.settings.hasty {
            for index in 0..COUNT {
                let () = group.ask(index, HASTE).unwrap();
            }
        }
        group.settled().await;
        group
    }

    fn server(&self, master: Option<u16>) -> RedisServer {
        // By default a master waits 5 s for more replicas before it sends its data.
        let mut builder = RedisServer::builder().config("repl-diskless-sync-delay 0");
        if let Some(password) = &self.password {
            builder = builder.password(password).config(&format!("masterauth {password}"));
        }
        if let Some(port) = master {
            builder = builder.config(&format!("replicaof 127.0.0.1 {port}"));
        }
        builder.start()
    }

    async fn sentinel(&self, servers: &[RedisServer], ports: &[u16], index: usize) -> Sentinel {
        let (dir, port, name) = (temp_dir("sentinel"), ports[index], Sentinels::NAME);
        let mut config = format!(
            "bind 127.0.0.1\nport {port}\ndir {}\nlogfile {}\nsentinel myid {}\n\
             sentinel monitor {name} 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds {name} {}\nsentinel failover-timeout {name} {}\n",
            dir.path().display(),
            dir.path().join("log").display(),
            id(index),
            servers[0].port(),
            DOWN_AFTER.as_millis(),
            if self.hasty { 3_000 } else { 10_000 },
        );
        // What they would find out within some seconds.
        for replica in &servers[1..] {
            writeln!(config, "sentinel known-replica {name} 127.0.0.1 {}", replica.port()).unwrap();
        }
        for other in (0..COUNT).filter(|other| *other != index) {
            let (port, id) = (ports[other], id(other));
            writeln!(config, "sentinel known-sentinel {name} 127.0.0.1 {port} {id}").unwrap();
        }
        if let Some(password) = &self.password {
            writeln!(config, "sentinel auth-pass {name} {password}").unwrap();
        }
        if let Some(password) = &self.sentinel_password {
            writeln!(config, "requirepass {password}\nsentinel sentinel-pass {password}").unwrap();
        }
        let file = dir.path().join("sentinel.conf");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(redis_server());
        let process = command.arg(&file).arg("--sentinel").stdin(Stdio::null()).spawn().unwrap();
        eventually("a sentinel listens", BOUND, || TcpStream::connect(("127.0.0.1", port)).is_ok())
            .await;
        Sentinel { port, process, proxy: Proxy::to_port(port), _dir: dir }
    }
}

/// Any that differ.
fn id(index: usize) -> String {
    format!("{:040x}", index + 1)
}

impl Sentinels {
    /// The name under which the sentinels know the master.
    pub const NAME: &str = "shop";

    /// Sentinels with a master that has so many replicas, to be configured further.
    #[must_use]
    pub fn builder(replicas: usize) -> SentinelsBuilder {
        SentinelsBuilder { replicas, hasty: false, password: None, sentinel_password: None }
    }

    /// Starts a master, so many replicas, and three sentinels.
    pub async fn start(replicas: usize) -> Self {
        Self::builder(replicas).start().await
    }

    /// The URL for `RedisStore`, with the passwords if there are any.
    #[must_use]
    pub fn url(&self) -> String {
        let SentinelsBuilder { password, sentinel_password, .. } = &self.settings;
        let login = password.as_ref().map_or(String::new(), |it| format!(":{it}@"));
        let query = sentinel_password
            .as_ref()
            .map_or(String::new(), |it| format!("?sentinel_password={it}"));
        format!("redis+sentinel://{login}{}/{}{query}", self.hosts(), Self::NAME)
    }

    /// The addresses of the sentinels, as in a URL.
    #[must_use]
    pub fn hosts(&self) -> String {
        let ports = self.sentinels.iter().map(|it| format!("127.0.0.1:{}", it.proxy.port()));
        ports.collect::<Vec<_>>().join(",")
    }

    /// The servers; the first one was the master at the start.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.servers[index]
    }

    /// The same, to kill it or to start it again.
    pub fn server_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.servers[index]
    }

    /// The proxy between clients and a sentinel.
    #[must_use]
    pub fn proxy(&self, index: usize) -> &Proxy {
        &self.sentinels[index].proxy
    }

    /// Runs a command on a sentinel, given as words that hold no spaces.
    pub fn ask<T: FromRedisValue>(&self, index: usize, command: &str) -> RedisResult<T> {
        let login = self.settings.sentinel_password.as_ref();
        let login = login.map_or(String::new(), |it| format!(":{it}@"));
        let port = self.sentinels[index].port;
        Cli::to(&format!("redis://{login}127.0.0.1:{port}/"))?.run(command)
    }

    /// Waits until each sentinel knows the others and the master, and that all else replicates.
    pub async fn settled(&self) {
        for index in 0..COUNT {
            eventually("each sentinel knows the others and the replicas", BOUND, || {
                let replicas: Vec<Vec<String>> = self.ask(index, "SENTINEL REPLICAS shop").unwrap();
                let is_ok = |replica: &Vec<String>| {
                    replica.iter().any(|it| it == "ok") && replica.iter().any(|it| it == "slave")
                };
                self.field(index, "flags") == "master"
                    && self.field(index, "num-other-sentinels") == "2"
                    && replicas.len() == self.servers.len() - 1
                    && replicas.iter().all(is_ok)
            })
            .await;
        }
    }

    /// The master by one sentinel: the index of its server.
    #[must_use]
    pub fn master_by(&self, index: usize) -> usize {
        let port: u16 = self.field(index, "port").parse().unwrap();
        self.servers.iter().position(|server| server.port() == port).unwrap()
    }

    /// What one sentinel says of the master.
    fn field(&self, index: usize, name: &str) -> String {
        let fields: Vec<String> = self.ask(index, "SENTINEL MASTER shop").unwrap();
        let at = fields.iter().position(|field| field == name).unwrap();
        fields[at + 1].clone()
    }

    /// How many sentinels name another master than the server `index`.
    #[must_use]
    pub fn left(&self, index: usize) -> usize {
        (0..COUNT).filter(|sentinel| self.master_by(*sentinel) != index).count()
    }

    /// Orders a failover, as an operator does. The old master lives on. Returns when it has begun.
    pub async fn fail_over(&self) {
        eventually("a sentinel begins a failover", BOUND, || {
            self.ask::<()>(0, "SENTINEL FAILOVER shop").is_ok()
        })
        .await;
    }

    /// Orders failovers until a sentinel names another master than the server `index`: a failover
    /// ends without one if the new master is slow.
    pub async fn fail_over_from(&self, index: usize) {
        let mut ordered = None::<Instant>;
        eventually("a sentinel names another master", BOUND, || {
            if ordered.is_none_or(|ordered| ordered.elapsed() > AGAIN)
                && self.ask::<()>(0, "SENTINEL FAILOVER shop").is_ok()
            {
                ordered = Some(Instant::now());
            }
            self.left(index) > 0
        })
        .await;
    }

    /// Waits until all sentinels name another master than the server `index`.
    pub async fn switched_from(&self, index: usize) -> &RedisServer {
        eventually("the sentinels name another master", BOUND, || self.left(index) == COUNT).await;
        &self.servers[self.master_by(0)]
    }

    /// The servers.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Waits until the replicas of `master` have all that it wrote.
    pub async fn replicated(&self, master: usize) {
        let mut cli = self.servers[master].connect();
        let replicas = self.servers.len() - 1;
        // `WAIT` is about what this connection wrote.
        let () = cli.run("SET replicated 1").unwrap();
        eventually("the replicas have it", BOUND, || {
            cli.run::<usize>(&format!("WAIT {replicas} 100")).unwrap() == replicas
        })
        .await;
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
