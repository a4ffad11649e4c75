//! One connection through the proxy: a thread for each direction.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::resp::{self, Kind};
use super::rule::{Action, Gate};
use super::traffic::Traffic;
use crate::op::Op;
use crate::redis::scripts;

/// A client's connection and the one to the server that belongs to it.
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    target: SocketAddr,
    /// Requests vanish.
    mute: AtomicBool,
    /// Replies vanish.
    deaf: AtomicBool,
    /// The client's side ends by a reset.
    resets: AtomicBool,
    /// The replies that the client waits for, in order. Locked while writing to the client.
    owed: Mutex<VecDeque<(Op, Owed)>>,
}

/// A reply that the client waits for.
#[derive(Clone)]
enum Owed {
    /// The server's.
    Reply,
    /// The server's, after this time.
    Later(Duration),
    /// The server's, once the gate opens.
    Held(Gate),
    /// The server's, which is lost like all after it.
    Lost,
    /// The end of the connection, once the server has replied.
    Closed,
    /// A reset, once the server has replied.
    Reset,
    /// The beginning of the server's, of this many bytes, and the end of the connection.
    Cut(usize),
    /// The server's, byte by byte.
    Sliced,
    /// This instead of the server's.
    Instead(Arc<[u8]>),
    /// Nothing, though the server replies.
    Nothing,
    /// This, without a reply of the server.
    Own(Arc<[u8]>),
}

/// Long enough for a byte to travel alone.
const SLICE_PAUSE: Duration = Duration::from_micros(100);

impl Link {
    pub(super) fn start(client: TcpStream, server: TcpStream, target: SocketAddr) -> Arc<Self> {
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        Arc::new(Self {
            client,
            server,
            target,
            mute: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            resets: AtomicBool::new(false),
            owed: Mutex::default(),
        })
    }

    pub(super) fn run(self: Arc<Self>, traffic: &Arc<Traffic>) {
        let (up, shared) = (Arc::clone(&self), Arc::clone(traffic));
        std::thread::spawn(move || {
            up.requests(&shared);
            up.close();
        });
        let shared = Arc::clone(traffic);
        std::thread::spawn(move || {
            self.replies(&shared);
            self.close();
        });
    }

    /// Lets nothing through from now on.
    pub(super) fn go_dark(&self) {
        self.mute.store(true, Ordering::Release);
        self.deaf.store(true, Ordering::Release);
    }

    /// Closes both sides.
    pub(super) fn close(&self) {
        // Fails if it is closed already.
        let _ = self.server.shutdown(Shutdown::Both);
        // Without a lingering end, the reset goes out when the last thread drops the socket.
        let how = if self.resets.load(Ordering::Acquire) { Shutdown::Read } else { Shutdown::Both };
        let _ = self.client.shutdown(how);
    }

    /// Ends the client's side by a reset instead of an orderly end.
    fn reset(&self) {
        set_socket_linger(&self.client, Some(Duration::ZERO)).unwrap();
        self.resets.store(true, Ordering::Release);
    }

    fn requests(&self, traffic: &Traffic) {
        let mut from = BufReader::new(&self.client);
        while let Ok(command) = resp::frame(&mut from) {
            if self.mute.load(Ordering::Acquire) {
                continue;
            }
            let args = resp::arguments(&command);
            let op = op_of(&args);
            traffic.see(op);
            let forward = |owed| self.forward(op, &command, owed);
            match traffic.rules.action(op, locks(op, &args)) {
                None => forward(Owed::Reply),
                Some(Action::LoseRequest) => self.go_dark(),
                Some(Action::LoseReply) => forward(Owed::Lost),
                Some(Action::CloseBefore) => return,
                Some(Action::CloseAfter) => forward(Owed::Closed),
                Some(Action::ResetBefore) => return self.reset(),
                Some(Action::ResetAfter) => forward(Owed::Reset),
                Some(Action::Truncate(bytes)) => forward(Owed::Cut(bytes)),
                Some(Action::Slice) => forward(Owed::Sliced),
                Some(Action::Replace(reply)) => forward(Owed::Instead(reply)),
                Some(Action::Answer(reply)) => self.answer(op, reply),
                Some(Action::DelayRequest(delay)) => {
                    std::thread::sleep(delay);
                    forward(Owed::Reply);
                }
                Some(Action::DelayReply(delay)) => forward(Owed::Later(delay)),
                Some(Action::HoldRequest(gate)) => {
                    gate.wait();
                    forward(Owed::Reply);
                }
                Some(Action::HoldReply(gate)) => forward(Owed::Held(gate)),
                Some(Action::HoldBoth(request, reply)) => {
                    request.wait();
                    forward(Owed::Held(reply));
                }
                Some(Action::Stray(gate)) => {
                    self.go_dark();
                    self.stray(command, gate);
                }
                Some(Action::Duplicate) => {
                    forward(Owed::Reply);
                    forward(Owed::Nothing);
                }
                Some(Action::Refuse(error)) => {
                    self.answer(op, format!("-{error}\r\n").into_bytes().into());
                }
                Some(Action::Vanish) => forward(Owed::Nothing),
                Some(Action::Scatter(_)) => panic!("only messages are scattered"),
            }
        }
    }

    fn forward(&self, op: Op, command: &[u8], owed: Owed) {
        let answers = answers(&resp::arguments(command));
        self.owed.lock().unwrap().extend(std::iter::repeat_n((op, owed), answers));
        // If the server is gone, the other thread finds out.
        let _ = (&self.server).write_all(command);
    }

    /// Sends a command over a connection of its own.
    fn stray(&self, command: Vec<u8>, gate: Gate) {
        let target = self.target;
        std::thread::spawn(move || {
            gate.wait();
            if let Ok(mut late) = TcpStream::connect(target) {
                let _ = late.write_all(&command);
                let _ = late.shutdown(Shutdown::Write);
                let _ = late.read_to_end(&mut Vec::new());
            }
        });
    }

    /// Replies in place of the server, in order.
    fn answer(&self, op: Op, reply: Arc<[u8]>) {
        let mut owed = self.owed.lock().unwrap();
        owed.push_back((op, Owed::Own(reply)));
        self.pay(&mut owed);
    }

    /// Writes the proxy's own replies that are due.
    fn pay(&self, owed: &mut VecDeque<(Op, Owed)>) {
        while let Some((_, Owed::Own(reply))) = owed.front() {
            self.write(reply);
            owed.pop_front();
        }
    }

    fn write(&self, reply: &[u8]) {
        if !self.deaf.load(Ordering::Acquire) {
            let _ = (&self.client).write_all(reply);
        }
    }

    fn replies(self: &Arc<Self>, traffic: &Arc<Traffic>) {
        let mut from = BufReader::new(&self.server);
        while let Ok(reply) = resp::frame(&mut from) {
            match resp::kind(&reply) {
                Kind::Reply => {}
                Kind::Message => {
                    if self.message(traffic, reply) {
                        continue;
                    }
                    return;
                }
                Kind::Notice => {
                    self.pass(&reply);
                    continue;
                }
            }
            let due = self.owed.lock().unwrap().front().cloned();
            if let Some((op, due)) = due {
                traffic.replied(op, reply.len());
                match due {
                    Owed::Reply
                    | Owed::Nothing
                    | Owed::Own(_)
                    | Owed::Sliced
                    | Owed::Instead(_) => {}
                    Owed::Later(delay) => std::thread::sleep(delay),
                    Owed::Held(gate) => gate.wait(),
                    Owed::Lost => self.deaf.store(true, Ordering::Release),
                    Owed::Closed => return,
                    Owed::Reset => return self.reset(),
                    Owed::Cut(bytes) => return self.write(&reply[..bytes.min(reply.len())]),
                }
            }
            let mut owed = self.owed.lock().unwrap();
            match owed.pop_front() {
                Some((_, Owed::Nothing)) => {}
                Some((_, Owed::Instead(instead))) => self.write(&instead),
                Some((_, Owed::Sliced)) => {
                    // Many follow one another without a pause, or the whole would be late.
                    let pause = if reply.len() > 500 { Duration::ZERO } else { SLICE_PAUSE };
                    for byte in reply.chunks(1) {
                        self.write(byte);
                        std::thread::sleep(pause);
                    }
                }
                _ => self.write(&reply),
            }
            self.pay(&mut owed);
        }
    }

    /// Applies the rules to a message. Gives whether the connection stays open.
    fn message(self: &Arc<Self>, traffic: &Arc<Traffic>, frame: Vec<u8>) -> bool {
        let text = resp::arguments(&frame).pop().unwrap_or_default();
        if text.is_empty() {
            // The server sends an empty message only to write replies in another order.
            self.pass(&frame);
            return true;
        }
        traffic.see(Op::Message);
        let index = traffic.message_came(String::from_utf8_lossy(&text).into_owned());
        let mut wait: Option<Box<dyn FnOnce() + Send>> = None;
        match traffic.rules.action(Op::Message, 1) {
            None => {}
            Some(Action::Vanish) => return true,
            Some(Action::CloseBefore) => return false,
            Some(Action::Duplicate) => self.pass(&frame),
            Some(Action::DelayReply(delay)) => {
                wait = Some(Box::new(move || std::thread::sleep(delay)));
            }
            Some(Action::HoldReply(gate)) => wait = Some(Box::new(move || gate.wait())),
            // Golden-ratio steps cover the range evenly.
            Some(Action::Scatter(most)) => {
                let delay = most.mul_f64((index as f64 * 0.618_033_988_75).fract());
                wait = Some(Box::new(move || std::thread::sleep(delay)));
            }
            Some(other) => panic!("{other:?} does not happen to messages"),
        }
        let (this, traffic) = (Arc::clone(self), Arc::clone(traffic));
        let pass = move || {
            traffic.message_passed(index);
            this.pass(&frame);
        };
        let Some(wait) = wait else {
            pass();
            return true;
        };
        std::thread::spawn(move || {
            wait();
            pass();
        });
        true
    }

    /// Writes a frame that is not a reply.
    fn pass(&self, frame: &[u8]) {
        let _turn = self.owed.lock().unwrap();
        self.write(frame);
    }
}

/// What a command does for a lock.
fn op_of(args: &[Vec<u8>]) -> Op {
    match (scripts::classify(args), name(args).as_slice()) {
        (Op::Other, b"hello") => Op::Hello,
        (Op::Other, b"time") => Op::Time,
        (Op::Other, b"info") => Op::Info,
        (Op::Other, b"client") => Op::Client,
        (Op::Other, b"subscribe" | b"ssubscribe" | b"psubscribe") => Op::Subscribe,
        (op, _) => op,
    }
}

/// How many answers a command gets: subscriptions get one for each channel.
fn answers(args: &[Vec<u8>]) -> usize {
    if name(args).ends_with(b"subscribe") { (args.len() - 1).max(1) } else { 1 }
}

/// How many locks a command concerns: its keys are the counter, and for each a lock, a queue and
/// the expiries of the queue.
fn locks(op: Op, args: &[Vec<u8>]) -> usize {
    let keys = || String::from_utf8_lossy(args.get(2)?).parse::<usize>().ok();
    match op {
        Op::Acquire | Op::Release => keys().map_or(1, |keys| keys.saturating_sub(1) / 3),
        Op::Renew => keys().unwrap_or(1),
        _ => 1,
    }
}

fn name(args: &[Vec<u8>]) -> Vec<u8> {
    args.first().map_or(&[][..], Vec::as_slice).to_ascii_lowercase()
}
