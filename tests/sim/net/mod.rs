//! A network between clients and one server: streams of bytes that take time, are held up, break or
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

/// The network, with a server in it.
#[derive(Clone)]
pub(crate) struct Net {
    state: Arc<Mutex<State>>,
    server: Fake,
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
    /// Clients wait for an answer for as long as `patience`.
    pub(crate) fn new(server: Fake, latency: Latency, patience: Duration, rng: Rng) -> Self {
        let state = State {
            rng,
            latency,
            hosts: Vec::new(),
            conns: BTreeMap::new(),
            next_conn: 0,
            server_up: true,
            patience,
            ambiguous: 0,
            lost: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), server }
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

    /// The server is gone: its streams break, and no client can connect until it is back.
    pub(crate) fn take_server_down(&self) {
        let mut state = self.lock();
        state.server_up = false;
        let conns: Vec<_> = state.conns.keys().copied().collect();
        for id in conns {
            state.reset(id, false);
        }
    }

    pub(crate) fn bring_server_up(&self) {
        self.lock().server_up = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn connect(&self, host: usize) -> io::Result<ClientEnd> {
        let refused = || Err(io::ErrorKind::ConnectionRefused.into());
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
            if !state.server_up || state.hosts[host].dead {
                return refused();
            }
            let id = state.next_conn;
            state.next_conn += 1;
            state.conns.insert(id, Link { host, open: [true; 2], ..Link::default() });
            id
        };
        let conn = Conn { state: Arc::clone(&self.state), id };
        tokio::spawn(self.server.clone().serve(conn));
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
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn Socket>>> {
        Box::pin(async move {
            let end = self.net.connect(self.host).await?;
            Ok(Box::new(end) as Box<dyn Socket>)
        })
    }
}
