//! Packets on their way, and what becomes of them.

use std::collections::{BTreeMap, VecDeque};
use std::task::{Context, Waker};
use std::time::Duration;

use lock_testkit::Rng;
use tokio::time::Instant;

/// How long a packet takes, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) usual: u64,
    pub(crate) longest: u64,
    /// How many of 100 take longer than usual.
    pub(crate) slow: u64,
}

/// A direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    /// From client to server.
    Up,
    /// From server to client.
    Down,
}

pub(super) struct State {
    pub(super) rng: Rng,
    pub(super) latency: Latency,
    pub(super) hosts: Vec<Host>,
    pub(super) conns: BTreeMap<u64, Link>,
    pub(super) next_conn: u64,
    /// Whether each server can be reached.
    pub(super) up: Vec<bool>,
    /// How long a client waits for an answer.
    pub(super) patience: Duration,
    /// Commands that were executed, and whose answers came later than that or not at all.
    pub(super) ambiguous: usize,
    /// Answers that the test made the network lose.
    pub(super) lost: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Host {
    pub(super) dead: bool,
    /// By direction.
    pub(super) held: [bool; 2],
    /// What happens to the stream instead of the next answer that matters.
    pub(super) instead: Option<Instead>,
}

/// How an answer is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instead {
    Break,
    FallSilent,
}

/// The way of a stream between two ends.
#[derive(Default)]
pub(super) struct Link {
    pub(super) host: usize,
    pub(super) server: usize,
    pub(super) pipes: [Pipe; 2],
    /// Whether each end, by the direction in which it reads, is still there.
    pub(super) open: [bool; 2],
}

#[derive(Default)]
pub(super) struct Pipe {
    pub(super) packets: VecDeque<Packet>,
    pub(super) last_due: Option<Instant>,
    /// Nothing gets through any more, and neither end is notified.
    pub(super) dead: bool,
    pub(super) held: bool,
    pub(super) reader: Option<Waker>,
}

pub(super) struct Packet {
    /// `None` while it is held up.
    pub(super) due: Option<Instant>,
    /// When the request was sent that this packet answers, or that it carries.
    pub(super) asked: Option<Instant>,
    pub(super) what: What,
}

pub(super) enum What {
    Bytes(Vec<u8>),
    End,
    Reset,
}

impl Packet {
    pub(super) const fn of(due: Instant, what: What) -> Self {
        Self { due: Some(due), asked: None, what }
    }
}

/// What arrived, and when the request was sent that it answers or carries.
pub(super) type Arrival = (What, Option<Instant>);

impl State {
    pub(super) fn some_latency(&mut self) -> Duration {
        let Latency { usual, longest, slow } = self.latency;
        if self.rng.chance(slow) { self.rng.ms(0..=longest) } else { self.rng.ms(0..=usual) }
    }

    pub(super) fn conns_of(&self, host: usize) -> Vec<u64> {
        self.conns.iter().filter(|(_, link)| link.host == host).map(|(id, _)| *id).collect()
    }

    pub(super) fn conns_to(&self, server: usize) -> impl Iterator<Item = u64> {
        let links = self.conns.iter().filter(move |(_, link)| link.server == server);
        links.map(|(id, _)| *id)
    }

    pub(super) fn send(&mut self, id: u64, way: Way, asked: Option<Instant>, what: What) {
        let latency = self.some_latency();
        let Some(link) = self.conns.get_mut(&id) else { return };
        let host = &mut self.hosts[link.host];
        let (held, dead) = (host.held[way as usize], host.dead);
        if way == Way::Down
            && asked.is_some()
            && let Some(instead) = host.instead.take()
        {
            self.ambiguous += usize::from(!dead);
            self.lost += usize::from(!dead);
            match instead {
                Instead::Break => return self.reset(id, true),
                Instead::FallSilent => link.pipes[Way::Down as usize].dead = true,
            }
            return;
        }
        let pipe = &mut link.pipes[way as usize];
        if pipe.dead {
            self.ambiguous += usize::from(way == Way::Down && asked.is_some() && !dead);
            return;
        }
        let held =
            held || pipe.held || pipe.packets.back().is_some_and(|packet| packet.due.is_none());
        let due = Instant::now() + latency;
        let due = pipe.last_due.map_or(due, |last| due.max(last));
        if !held {
            pipe.last_due = Some(due);
        }
        pipe.packets.push_back(Packet { due: (!held).then_some(due), asked, what });
        wake(pipe);
    }

    pub(super) fn reset(&mut self, id: u64, deliver: bool) {
        let Some(link) = self.conns.get_mut(&id) else { return };
        for way in [Way::Up, Way::Down] {
            let pipe = &mut link.pipes[way as usize];
            let now = Instant::now();
            if way == Way::Down || !deliver {
                if way == Way::Down {
                    self.ambiguous += unheard(pipe);
                }
                pipe.packets.clear();
            } else {
                for packet in &mut pipe.packets {
                    packet.due.get_or_insert(now);
                }
            }
            let due = pipe.packets.back().and_then(|packet| packet.due).unwrap_or(now);
            pipe.packets.push_back(Packet::of(due, What::Reset));
            pipe.last_due = Some(due);
            wake(pipe);
        }
    }

    /// What has arrived in that direction, or when something will.
    pub(super) fn arrived(
        &mut self,
        id: u64,
        way: Way,
        cx: &Context<'_>,
    ) -> Result<Arrival, Option<Instant>> {
        let Some(link) = self.conns.get_mut(&id) else { return Ok((What::Reset, None)) };
        let pipe = &mut link.pipes[way as usize];
        match pipe.packets.front().map(|packet| packet.due) {
            Some(Some(due)) if due <= Instant::now() => {
                let Packet { asked, what, .. } = pipe.packets.pop_front().expect("it is there");
                let late = asked.is_some_and(|asked| asked.elapsed() > self.patience);
                self.ambiguous += usize::from(way == Way::Down && late);
                if !matches!(what, What::Bytes(_)) {
                    // It stays that way.
                    let again = if let What::End = what { What::End } else { What::Reset };
                    pipe.packets.push_front(Packet::of(Instant::now(), again));
                }
                Ok((what, asked))
            }
            due => {
                pipe.reader = Some(cx.waker().clone());
                Err(due.flatten())
            }
        }
    }

    pub(super) fn is_reset(&self, id: u64) -> bool {
        let Some(link) = self.conns.get(&id) else { return true };
        let pipe = &link.pipes[Way::Down as usize];
        pipe.packets.iter().any(|packet| matches!(packet.what, What::Reset))
    }

    pub(super) fn close(&mut self, id: u64, reads: Way) {
        let writes = if reads == Way::Up { Way::Down } else { Way::Up };
        self.send(id, writes, None, What::End);
        if let Some(link) = self.conns.get_mut(&id) {
            link.open[reads as usize] = false;
            if link.open == [false; 2] {
                if !self.hosts[link.host].dead {
                    self.ambiguous += unheard(&link.pipes[Way::Down as usize]);
                }
                self.conns.remove(&id);
            }
        }
    }
}

pub(super) fn wake(pipe: &mut Pipe) {
    if let Some(reader) = pipe.reader.take() {
        reader.wake();
    }
}

/// How many answers in the pipe will never be read.
fn unheard(pipe: &Pipe) -> usize {
    pipe.packets.iter().filter(|packet| packet.asked.is_some()).count()
}
