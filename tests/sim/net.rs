//! A network between clients and one server: streams of bytes that take time, are held up, break or fall silent.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use lock_core::store::{BoxFuture, Connector, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::dice::Dice;
use crate::fake::Fake;

/// The network, with a server in it.
#[derive(Clone)]
pub(crate) struct Net {
    state: Arc<Mutex<State>>,
    server: Fake,
}

struct State {
    dice: Dice,
    latency: Latency,
    hosts: Vec<Host>,
    conns: BTreeMap<u64, Link>,
    next_conn: u64,
    server_up: bool,
}

/// How long a packet takes, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) usual: u64,
    pub(crate) longest: u64,
    /// How many of 100 take longer than usual.
    pub(crate) slow: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Host {
    dead: bool,
    /// By direction.
    held: [bool; 2],
}

/// A direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    /// From client to server.
    Up,
    /// From server to client.
    Down,
}

/// The way of a stream between two ends.
#[derive(Default)]
struct Link {
    host: usize,
    pipes: [Pipe; 2],
    /// Whether each end, by the direction in which it reads, is still there.
    open: [bool; 2],
}

#[derive(Default)]
struct Pipe {
    packets: VecDeque<Packet>,
    last_due: Option<Instant>,
    /// Nothing gets through any more, and nobody is told.
    dead: bool,
    held: bool,
    reader: Option<Waker>,
}

struct Packet {
    /// `None` while it is held up.
    due: Option<Instant>,
    what: What,
}

enum What {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// What the server reads.
pub(crate) enum Arrived {
    Bytes(Vec<u8>),
    End,
}

/// The server's end of a stream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Conn {
    state: Arc<Mutex<State>>,
    id: u64,
}

/// The client's end.
struct ClientEnd {
    state: Arc<Mutex<State>>,
    id: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

/// A machine on which clients run.
#[derive(Clone)]
pub(crate) struct Machine {
    net: Net,
    host: usize,
}

/// How often one who cannot connect tries again.
const CONNECT_AGAIN: Duration = Duration::from_millis(20);

impl Net {
    pub(crate) fn new(server: Fake, latency: Latency, dice: Dice) -> Self {
        let state = State {
            dice,
            latency,
            hosts: Vec::new(),
            conns: BTreeMap::new(),
            next_conn: 0,
            server_up: true,
        };
        Self { state: Arc::new(Mutex::new(state)), server }
    }

    /// A new machine.
    pub(crate) fn machine(&self) -> Machine {
        let mut state = self.lock();
        state.hosts.push(Host::default());
        Machine { net: self.clone(), host: state.hosts.len() - 1 }
    }

    /// The server is gone: its streams break, and nobody can connect until it is back.
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
    /// Packets in that direction wait until [`release`](Self::release); those who connect wait, too.
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

    /// The machine is gone for good, with what it had not sent. If `silently`, the server is not told.
    pub(crate) fn kill(&self, silently: bool) {
        let mut state = self.net.lock();
        state.hosts[self.host].dead = true;
        for id in state.conns_of(self.host) {
            let Some(link) = state.conns.get_mut(&id) else { continue };
            link.pipes[Way::Down as usize].packets =
                VecDeque::from([Packet { due: Some(Instant::now()), what: What::Reset }]);
            wake(&mut link.pipes[Way::Down as usize]);
            if silently {
                link.pipes[Way::Up as usize].dead = true;
            } else {
                state.send(id, Way::Up, What::End);
            }
            if let Some(link) = state.conns.get_mut(&id) {
                // Nor does what its tasks still do reach anybody.
                link.pipes[Way::Up as usize].dead = true;
            }
        }
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

impl State {
    fn some_latency(&mut self) -> Duration {
        let Latency { usual, longest, slow } = self.latency;
        if self.dice.chance(slow) { self.dice.ms(0..=longest) } else { self.dice.ms(0..=usual) }
    }

    fn conns_of(&self, host: usize) -> Vec<u64> {
        self.conns.iter().filter(|(_, link)| link.host == host).map(|(id, _)| *id).collect()
    }

    fn send(&mut self, id: u64, way: Way, what: What) {
        let latency = self.some_latency();
        let Some(link) = self.conns.get_mut(&id) else { return };
        let held = self.hosts[link.host].held[way as usize];
        let pipe = &mut link.pipes[way as usize];
        if pipe.dead {
            return;
        }
        let held =
            held || pipe.held || pipe.packets.back().is_some_and(|packet| packet.due.is_none());
        let due = Instant::now() + latency;
        let due = pipe.last_due.map_or(due, |last| due.max(last));
        if !held {
            pipe.last_due = Some(due);
        }
        pipe.packets.push_back(Packet { due: (!held).then_some(due), what });
        wake(pipe);
    }

    fn reset(&mut self, id: u64, deliver: bool) {
        let Some(link) = self.conns.get_mut(&id) else { return };
        for way in [Way::Up, Way::Down] {
            let pipe = &mut link.pipes[way as usize];
            let now = Instant::now();
            if way == Way::Down || !deliver {
                pipe.packets.clear();
            } else {
                for packet in &mut pipe.packets {
                    packet.due.get_or_insert(now);
                }
            }
            let due = pipe.packets.back().and_then(|packet| packet.due).unwrap_or(now);
            pipe.packets.push_back(Packet { due: Some(due), what: What::Reset });
            pipe.last_due = Some(due);
            wake(pipe);
        }
    }

    /// What has arrived in that direction, or when something will.
    fn arrived(&mut self, id: u64, way: Way, cx: &Context<'_>) -> Result<What, Option<Instant>> {
        let Some(link) = self.conns.get_mut(&id) else { return Ok(What::Reset) };
        let pipe = &mut link.pipes[way as usize];
        match pipe.packets.front().map(|packet| packet.due) {
            Some(Some(due)) if due <= Instant::now() => {
                let what = pipe.packets.pop_front().map(|packet| packet.what);
                let what = what.expect("it is there");
                if !matches!(what, What::Bytes(_)) {
                    // It stays that way.
                    let again = if let What::End = what { What::End } else { What::Reset };
                    pipe.packets.push_front(Packet { due: Some(Instant::now()), what: again });
                }
                Ok(what)
            }
            due => {
                pipe.reader = Some(cx.waker().clone());
                Err(due.flatten())
            }
        }
    }

    fn is_reset(&self, id: u64) -> bool {
        let Some(link) = self.conns.get(&id) else { return true };
        let pipe = &link.pipes[Way::Down as usize];
        pipe.packets.iter().any(|packet| matches!(packet.what, What::Reset))
    }

    fn close(&mut self, id: u64, reads: Way) {
        let writes = if reads == Way::Up { Way::Down } else { Way::Up };
        self.send(id, writes, What::End);
        if let Some(link) = self.conns.get_mut(&id) {
            link.open[reads as usize] = false;
            if link.open == [false; 2] {
                self.conns.remove(&id);
            }
        }
    }
}

fn wake(pipe: &mut Pipe) {
    if let Some(reader) = pipe.reader.take() {
        reader.wake();
    }
}

impl Conn {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The next bytes from the client.
    pub(crate) async fn next_request(&self) -> Arrived {
        loop {
            let next = poll_fn(|cx| {
                let arrived = self.state.lock().unwrap().arrived(self.id, Way::Up, cx);
                match arrived {
                    Err(None) => Poll::Pending,
                    ready => Poll::Ready(ready),
                }
            });
            match next.await {
                Ok(What::Bytes(bytes)) => return Arrived::Bytes(bytes),
                Ok(What::End | What::Reset) => return Arrived::End,
                Err(due) => {
                    if let Some(due) = due {
                        sleep_until(due).await;
                    }
                }
            }
        }
    }

    pub(crate) fn answer(&self, bytes: Vec<u8>) {
        self.state.lock().unwrap().send(self.id, Way::Down, What::Bytes(bytes));
    }

    /// Whether the server itself has ended it.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock().unwrap();
        !state.server_up || !state.conns.contains_key(&self.id)
    }

    pub(crate) fn close(&self) {
        self.state.lock().unwrap().close(self.id, Way::Up);
    }
}

impl AsyncRead for ClientEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let end = self.get_mut();
        loop {
            let arrived = end.state.lock().unwrap().arrived(end.id, Way::Down, cx);
            match arrived {
                Ok(What::Bytes(bytes)) => {
                    let room = buffer.remaining().min(bytes.len());
                    buffer.put_slice(&bytes[..room]);
                    if room < bytes.len() {
                        let mut state = end.state.lock().unwrap();
                        if let Some(link) = state.conns.get_mut(&end.id) {
                            let rest = What::Bytes(bytes[room..].to_vec());
                            let packet = Packet { due: Some(Instant::now()), what: rest };
                            link.pipes[Way::Down as usize].packets.push_front(packet);
                        }
                    }
                    return Poll::Ready(Ok(()));
                }
                Ok(What::End) => return Poll::Ready(Ok(())),
                Ok(What::Reset) => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Err(None) => return Poll::Pending,
                Err(Some(due)) => {
                    let timer = end.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
                    if timer.deadline() != due {
                        timer.as_mut().reset(due);
                    }
                    ready!(timer.as_mut().poll(cx));
                    end.timer = None;
                }
            }
        }
    }
}

impl AsyncWrite for ClientEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock().unwrap();
        if state.is_reset(self.id) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        state.send(self.id, Way::Up, What::Bytes(bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.state.lock().unwrap().close(self.id, Way::Down);
    }
}
