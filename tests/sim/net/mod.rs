//! A network between clients and servers: streams of bytes that take time, are held up, break or
//! fall silent.

mod ends;
mod link;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lock_core::store::BoxFuture;
use lock_core::testing::{Connector, Socket};
use lock_testkit::Rng;
use tokio::time::{Instant, sleep};

use self::ends::ClientEnd;
pub(crate) use self::ends::{Arrived, Conn};
use self::link::{Host, Link, Packet, State, What, wake};
pub(crate) use self::link::{Instead, Latency, Way};
use crate::fake::Fake;

/// The network, with servers in it. They are counted from 0.
#[derive(Clone)]
pub(crate) struct Net {
    state: Arc<Mutex<State>>,
    servers: Arc<Mutex<Vec<(String, Fake)>>>,
}

/// A machine on which clients run.
#[derive(Clone)]
pub(crate) struct Machine {
    net: Net,
    host: usize,
}

/// How long a client that cannot connect waits before the next attempt.
const CONNECT_AGAIN: Duration = Duration::from_millis(20);

impl Net {
    /// A network with a server that has each name that no other one has. Clients wait for an answer
    /// for as long as `patience`.
    pub(crate) fn new(server: Fake, latency: Latency, patience: Duration, rng: Rng) -> Self {
        let state = State {
            rng,
            latency,
            hosts: Vec::new(),
            conns: BTreeMap::new(),
            next_conn: 0,
            up: vec![true],
            patience,
            ambiguous: 0,
            lost: 0,
        };
        let servers = vec![(String::new(), server)];
        Self { state: Arc::new(Mutex::new(state)), servers: Arc::new(Mutex::new(servers)) }
    }

    /// Adds a server that clients reach by `name`. Returns its number.
    pub(crate) fn add(&self, name: impl Into<String>, server: Fake) -> usize {
        let mut servers = self.servers.lock().unwrap();
        servers.push((name.into(), server));
        self.lock().up.push(true);
        servers.len() - 1
    }

    /// A new machine.
    pub(crate) fn machine(&self) -> Machine {
        let mut state = self.lock();
        state.hosts.push(Host::default());
        Machine { net: self.clone(), host: state.hosts.len() - 1 }
    }

    /// How many commands were executed whose answers did not arrive in time.
    pub(crate) fn ambiguous(&self) -> usize {
        self.lock().ambiguous
    }

    /// How many answers were [lost](Machine::lose_next_answer).
    pub(crate) fn answers_lost(&self) -> usize {
        self.lock().lost
    }

    /// A server is gone: its streams break, and no client can connect until it is back.
    pub(crate) fn take_server_down(&self, server: usize) {
        self.lock().up[server] = false;
        self.break_streams(server);
    }

    /// The same without a word: its streams fall silent.
    pub(crate) fn cut_server_off(&self, server: usize) {
        let mut state = self.lock();
        state.up[server] = false;
        for link in state.conns.values_mut().filter(|link| link.server == server) {
            link.pipes.iter_mut().for_each(|pipe| pipe.dead = true);
        }
    }

    pub(crate) fn bring_server_up(&self, server: usize) {
        self.lock().up[server] = true;
    }

    /// A server ends all its streams.
    pub(crate) fn break_streams(&self, server: usize) {
        let mut state = self.lock();
        let conns: Vec<_> = state.conns_to(server).collect();
        for id in conns {
            state.reset(id, false);
        }
    }

    /// The streams to a server that clients have not closed, and that have not fallen silent for
    /// good.
    pub(crate) fn streams_to(&self, server: usize) -> Vec<u64> {
        let state = self.lock();
        let links = state.conns.iter().filter(|(_, link)| link.server == server);
        let links = links.filter(|(_, link)| !link.pipes.iter().all(|pipe| pipe.dead));
        links.filter(|(_, link)| link.open[Way::Down as usize]).map(|(id, _)| *id).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn connect(&self, host: usize, name: String) -> io::Result<ClientEnd> {
        let refused = || Err(io::ErrorKind::ConnectionRefused.into());
        let (number, server) = {
            let servers = self.servers.lock().unwrap();
            let number = servers.iter().position(|(other, _)| *other == name).unwrap_or(0);
            (number, servers[number].1.clone())
        };
        loop {
            {
                let state = self.lock();
                if state.hosts[host].dead {
                    return refused();
                }
                if state.hosts[host].held == [false; 2] {
                    break;
                }
            }
            sleep(CONNECT_AGAIN).await;
        }
        let round_trip = {
            let mut state = self.lock();
            state.some_latency() + state.some_latency()
        };
        sleep(round_trip).await;
        let id = {
            let mut state = self.lock();
            if !state.up[number] || state.hosts[host].dead {
                return refused();
            }
            let id = state.next_conn;
            state.next_conn += 1;
            let link = Link { host, server: number, open: [true; 2], ..Link::default() };
            state.conns.insert(id, link);
            id
        };
        let conn = Conn { state: Arc::clone(&self.state), id };
        tokio::spawn(server.serve(conn));
        Ok(ClientEnd { state: Arc::clone(&self.state), id, timer: None })
    }
}

impl Machine {
    /// Packets in that direction wait until [`release`](Self::release), and so do new connections.
    pub(crate) fn hold(&self, way: Way) {
        self.net.lock().hosts[self.host].held[way as usize] = true;
    }

    /// The same on the streams that are open now; others pass them.
    pub(crate) fn hold_open_streams(&self, way: Way) {
        let mut state = self.net.lock();
        for id in state.conns_of(self.host) {
            if let Some(link) = state.conns.get_mut(&id) {
                link.pipes[way as usize].held = true;
            }
        }
    }

    /// What was held up arrives.
    pub(crate) fn release(&self, way: Way) {
        let mut state = self.net.lock();
        state.hosts[self.host].held[way as usize] = false;
        for id in state.conns_of(self.host) {
            let mut delay = state.some_latency();
            let Some(link) = state.conns.get_mut(&id) else { continue };
            let pipe = &mut link.pipes[way as usize];
            pipe.held = false;
            if pipe.dead {
                continue;
            }
            let mut due = Instant::now();
            for packet in &mut pipe.packets {
                // In order, and behind what is on its way.
                due = packet.due.unwrap_or(due + delay).max(due);
                if packet.due.is_none() {
                    delay = Duration::ZERO;
                    packet.due = Some(due);
                }
            }
            pipe.last_due = Some(due);
            wake(pipe);
        }
    }

    /// The open streams break. What was sent to the server is delivered before, or not.
    pub(crate) fn reset(&self, deliver: bool) {
        let mut state = self.net.lock();
        for id in state.conns_of(self.host) {
            state.reset(id, deliver);
        }
    }

    /// On the streams that are open now nothing gets through any more in that direction.
    pub(crate) fn silence(&self, way: Way) {
        let mut state = self.net.lock();
        for id in state.conns_of(self.host) {
            if let Some(link) = state.conns.get_mut(&id) {
                link.pipes[way as usize].dead = true;
            }
        }
    }

    /// The next answer to a claim, a renewal or a release is lost.
    pub(crate) fn lose_next_answer(&self, instead: Instead) {
        self.net.lock().hosts[self.host].instead = Some(instead);
    }

    /// The machine is gone for good, with what it had not sent. If `silently`, the server is not
    /// notified.
    pub(crate) fn kill(&self, silently: bool) {
        let mut state = self.net.lock();
        state.hosts[self.host].dead = true;
        for id in state.conns_of(self.host) {
            let Some(link) = state.conns.get_mut(&id) else { continue };
            link.pipes[Way::Down as usize].packets =
                VecDeque::from([Packet::of(Instant::now(), What::Reset)]);
            wake(&mut link.pipes[Way::Down as usize]);
            if silently {
                link.pipes[Way::Up as usize].dead = true;
            } else {
                state.send(id, Way::Up, None, What::End);
            }
            if let Some(link) = state.conns.get_mut(&id) {
                // What its tasks still send is lost, too.
                link.pipes[Way::Up as usize].dead = true;
            }
        }
    }

    /// How many streams are open.
    pub(crate) fn streams(&self) -> usize {
        self.net.lock().conns_of(self.host).len()
    }

    /// How many packets in that direction are held up.
    pub(crate) fn held_up(&self, way: Way) -> usize {
        let state = self.net.lock();
        let links = state.conns_of(self.host).into_iter().filter_map(|id| state.conns.get(&id));
        let pipes = links.map(|link| &link.pipes[way as usize]).filter(|pipe| !pipe.dead);
        pipes.flat_map(|pipe| &pipe.packets).filter(|packet| packet.due.is_none()).count()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.net.lock().hosts[self.host].dead
    }
}

impl Connector for Machine {
    fn connect(&self, host: &str, _port: u16) -> BoxFuture<'_, io::Result<Box<dyn Socket>>> {
        let name = host.to_owned();
        Box::pin(async move {
            let end = self.net.connect(self.host, name).await?;
            Ok(Box::new(end) as Box<dyn Socket>)
        })
    }
}
