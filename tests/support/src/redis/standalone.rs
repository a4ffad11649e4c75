//! Servers for programs that cannot hold a [`RedisServer`](super::RedisServer): scripts in other
//! languages, and processes that may be killed.

use std::error::Error;
use std::io::{self, Write};
use std::time::Instant;

use flume::Receiver;

use super::cluster::RedisCluster;
use super::quorum::Quorum;
use super::sentinels::Sentinels;
use super::server::{RedisBuilder, RedisServer};
use crate::process::{stdin_lines, stop_signal};

type BoxError = Box<dyn Error + Send + Sync>;

/// A line with this word on standard input orders [damage](run_sentinels).
pub const DAMAGE: &str = "damage";
/// What a line on standard output begins with that tells of it.
pub const DAMAGED: &str = "damaged: ";
/// One for each time that the master is killed, and one that survives.
const REPLICAS: usize = 2;
/// One for each time that one is killed, and a majority that survives.
const MEMBERS: usize = 5;

/// Starts a server, prints its URL, and stops the server when standard input closes or a signal
/// asks this process to end.
///
/// # Errors
///
/// If the server does not start, or standard output is closed.
pub async fn run_standalone(settings: RedisBuilder) -> Result<(), BoxError> {
    let server = settings.try_start()?;
    run(&server.url(), async || Err("nothing would be left of a single server".into())).await
}

/// The same for a master with two replicas under three sentinels. Each line [`DAMAGE`] kills the
/// master of the moment, twice at most, and is answered by a line that begins with [`DAMAGED`]. The
/// servers are stopped at once also while they recover from it.
///
/// # Errors
///
/// If standard output is closed.
pub async fn run_sentinels() -> Result<(), BoxError> {
    let mut group = Sentinels::start(REPLICAS).await;
    let url = group.url();
    run(&url, async move || {
        let (master, start) = (group.master_by(0), Instant::now());
        let port = group.server(master).port();
        group.server_mut(master).kill();
        let next = group.switched_from(master).await.port();
        let took = start.elapsed().as_secs_f64();
        Ok(format!("killed the master on port {port}; {next} took its place after {took:.1} s"))
    })
    .await
}

/// The same for a cluster of three masters with a replica each. The damage is a slot with keys that
/// moves from one master to another, key by key, and then a third master that is killed; twice at
/// most.
///
/// # Errors
///
/// If standard output is closed, or no slot has keys.
pub async fn run_cluster() -> Result<(), BoxError> {
    let mut cluster = RedisCluster::start().await;
    let url = cluster.url();
    run(&url, async move || {
        let [master, from, to] = cluster.masters()[..] else {
            return Err("the cluster has not three masters".into());
        };
        let port = |index: usize| cluster.server(index).port();
        let key: Option<String> = cluster.server(from).cli("RANDOMKEY");
        let key = key.ok_or("no slot is used")?;
        cluster.migration(&key, to).finish();
        let (slot, from, to) = (cluster.slot(&key), port(from), port(to));

        let (replica, start) = (cluster.replica_of(master), Instant::now());
        let (old, new) = (port(master), port(replica));
        cluster.server_mut(master).kill();
        cluster.promoted(replica).await;
        let took = start.elapsed().as_secs_f64();
        Ok(format!(
            "moved slot {slot} from port {from} to {to}; killed the master on port {old}; {new} \
             took its place after {took:.1} s"
        ))
    })
    .await
}

/// The same for a quorum of five servers, which vote for clients of `namespace` at once. The damage
/// is a member that is killed; twice at most.
///
/// # Errors
///
/// If standard output is closed.
pub async fn run_quorum(namespace: &str) -> Result<(), BoxError> {
    let mut quorum = Quorum::of_age(MEMBERS, namespace);
    let urls: Vec<String> = quorum.servers().map(RedisServer::url).collect();
    run(&urls.join(" "), async move || {
        let alive = |quorum: &Quorum| quorum.servers().filter(|server| server.runs()).count();
        let next = quorum.len() - alive(&quorum);
        let port = quorum.server(next).port();
        quorum.server_mut(next).kill();
        let left = alive(&quorum);
        Ok(format!("killed the member on port {port}; {left} of {MEMBERS} are left"))
    })
    .await
}

async fn run(
    url: &str,
    damage: impl AsyncFnMut() -> Result<String, BoxError>,
) -> Result<(), BoxError> {
    let stop = stop_signal()?;
    say(url)?;
    let (lines, closed) = stdin_lines();
    tokio::select! {
        obeyed = obey(&lines, damage) => obeyed,
        _ = closed.recv_async() => Ok(()),
        () = stop => Ok(()),
    }
}

/// Does what the lines order. The damage takes a while, and may be dropped meanwhile.
async fn obey(
    lines: &Receiver<String>,
    mut damage: impl AsyncFnMut() -> Result<String, BoxError>,
) -> Result<(), BoxError> {
    while let Ok(line) = lines.recv_async().await {
        if line == DAMAGE {
            say(&format!("{DAMAGED}{}", damage().await?))?;
        }
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
