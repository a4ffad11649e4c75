//! One connection through the proxy: a thread for each direction.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Action, Gate, Op, Shared};
use crate::resp::Kind;
use crate::{resp, scripts};

/// A client's connection and the one to the server that belongs to it.
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    target: SocketAddr,
    /// Requests vanish.
    mute: AtomicBool,
    /// Replies vanish.
    deaf: AtomicBool,
    /// What the client is owed, in order. Whoever writes to the client holds this.
    owed: Mutex<VecDeque<Owed>>,
}

/// A reply that the client waits for.
#[derive(Clone)]
enum Owed {
    /// The server's.
    Reply,
    /// The server's, after this time.
    Later(Duration),
    /// The server's, when the gate is opened.
    Held(Gate),
    /// The server's, which is lost like all after it.
    Lost,
    /// The end of the connection, once the server has replied.
    Closed,
    /// Nothing, though the server replies.
    Nothing,
    /// This, though the server does not reply.
    Ours(String),
}

impl Link {
    pub(super) fn start(shared: &Shared, client: TcpStream, server: TcpStream) -> Arc<Self> {
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        Arc::new(Self {
            client,
            server,
            target: *shared.target.lock().unwrap(),
            mute: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            owed: Mutex::default(),
        })
    }

    pub(super) fn run(self: Arc<Self>, shared: &Arc<Shared>) {
        let (up, sharing) = (Arc::clone(&self), Arc::clone(shared));
        std::thread::spawn(move || {
            up.requests(&sharing);
            up.close();
        });
        let sharing = Arc::clone(shared);
        std::thread::spawn(move || {
            self.replies(&sharing);
            self.close();
        });
    }

    /// Lets nothing through any more.
    pub(super) fn go_dark(&self) {
        self.mute.store(true, Ordering::Release);
        self.deaf.store(true, Ordering::Release);
    }

    /// Closes both sides.
    pub(super) fn close(&self) {
        // Already closed is as good.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    fn requests(&self, shared: &Shared) {
        let mut from = BufReader::new(&self.client);
        while let Ok(command) = resp::frame(&mut from) {
            if self.mute.load(Ordering::Acquire) {
                continue;
            }
            let op = op_of(&resp::arguments(&command));
            shared.see(op);
            match shared.rules.action(op) {
                None => self.forward(&command, Owed::Reply),
                Some(Action::LoseRequest) => self.go_dark(),
                Some(Action::LoseReply) => self.forward(&command, Owed::Lost),
                Some(Action::CloseBefore) => return,
                Some(Action::CloseAfter) => self.forward(&command, Owed::Closed),
                Some(Action::DelayRequest(delay)) => {
                    std::thread::sleep(delay);
                    self.forward(&command, Owed::Reply);
                }
                Some(Action::DelayReply(delay)) => self.forward(&command, Owed::Later(delay)),
                Some(Action::HoldRequest(gate)) => {
                    gate.wait();
                    self.forward(&command, Owed::Reply);
                }
                Some(Action::HoldReply(gate)) => self.forward(&command, Owed::Held(gate)),
                Some(Action::Stray(gate)) => {
                    self.go_dark();
                    self.stray(command, gate);
                }
                Some(Action::Duplicate) => {
                    self.forward(&command, Owed::Reply);
                    self.forward(&command, Owed::Nothing);
                }
                Some(Action::Refuse(error)) => self.answer(format!("-{error}\r\n")),
                Some(Action::Vanish) => self.forward(&command, Owed::Nothing),
                Some(Action::Scatter(_)) => panic!("only messages are scattered"),
            }
        }
    }

    fn forward(&self, command: &[u8], owed: Owed) {
        let answers = answers(&resp::arguments(command));
        self.owed.lock().unwrap().extend(std::iter::repeat_n(owed, answers));
        // If the server is gone, the other thread finds out.
        let _ = (&self.server).write_all(command);
    }

    /// Delivers a command over a connection of its own.
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

    /// Replies in the server's stead, in its turn.
    fn answer(&self, reply: String) {
        let mut owed = self.owed.lock().unwrap();
        owed.push_back(Owed::Ours(reply));
        self.pay(&mut owed);
    }

    /// Writes the replies of our own whose turn it is.
    fn pay(&self, owed: &mut VecDeque<Owed>) {
        while let Some(Owed::Ours(reply)) = owed.front() {
            self.write(reply.as_bytes());
            owed.pop_front();
        }
    }

    fn write(&self, reply: &[u8]) {
        if !self.deaf.load(Ordering::Acquire) {
            let _ = (&self.client).write_all(reply);
        }
    }

    fn replies(self: &Arc<Self>, shared: &Arc<Shared>) {
        let mut from = BufReader::new(&self.server);
        while let Ok(reply) = resp::frame(&mut from) {
            match resp::kind(&reply) {
                Kind::Reply => {}
                Kind::Message => {
                    if self.message(shared, reply) {
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
            match due {
                None | Some(Owed::Reply | Owed::Nothing | Owed::Ours(_)) => {}
                Some(Owed::Later(delay)) => std::thread::sleep(delay),
                Some(Owed::Held(gate)) => gate.wait(),
                Some(Owed::Lost) => self.deaf.store(true, Ordering::Release),
                Some(Owed::Closed) => return,
            }
            let mut owed = self.owed.lock().unwrap();
            if !matches!(owed.pop_front(), Some(Owed::Nothing)) {
                self.write(&reply);
            }
            self.pay(&mut owed);
        }
    }

    /// Does to a message what the rules say. Whether the connection stays open.
    fn message(self: &Arc<Self>, shared: &Arc<Shared>, frame: Vec<u8>) -> bool {
        shared.see(Op::Message);
        let text = resp::arguments(&frame).pop().unwrap_or_default();
        let place = shared.note(String::from_utf8_lossy(&text).into_owned());
        let mut wait: Option<Box<dyn FnOnce() + Send>> = None;
        match shared.rules.action(Op::Message) {
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
                let delay = most.mul_f64((place as f64 * 0.618_033_988_75).fract());
                wait = Some(Box::new(move || std::thread::sleep(delay)));
            }
            Some(other) => panic!("{other:?} does not happen to messages"),
        }
        let (this, shared) = (Arc::clone(self), Arc::clone(shared));
        let pass = move || {
            shared.note_passed(place);
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

    /// Writes what is nobody's reply.
    fn pass(&self, frame: &[u8]) {
        let _turn = self.owed.lock().unwrap();
        self.write(frame);
    }
}

/// What a command is to the locks.
fn op_of(args: &[Vec<u8>]) -> Op {
    match (scripts::classify(args), name(args).as_slice()) {
        (Op::Other, b"hello") => Op::Hello,
        (Op::Other, b"subscribe" | b"ssubscribe" | b"psubscribe") => Op::Subscribe,
        (op, _) => op,
    }
}

/// How many answers a command gets: subscriptions get one for each channel.
fn answers(args: &[Vec<u8>]) -> usize {
    if name(args).ends_with(b"subscribe") { (args.len() - 1).max(1) } else { 1 }
}

fn name(args: &[Vec<u8>]) -> Vec<u8> {
    args.first().map_or(&[][..], Vec::as_slice).to_ascii_lowercase()
}
