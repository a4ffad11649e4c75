//! A proxy between a client and a Redis server that does to commands what networks and servers do.
//!
//! TCP neither loses nor repeats single messages of a connection, so a request or reply that is *lost* takes
//! all that follow on its connection along; new connections work, unless told otherwise.

mod link;
mod resp;
mod rule;

use std::fmt;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use self::link::Link;
use self::rule::Rules;
pub use self::rule::{Action, Gate, Rule, RuleBuilder};
use crate::RedisServer;

/// What a command is to the locks.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// A claim.
    Acquire,
    /// A renewal or extension.
    Renew,
    /// A release.
    Release,
    /// The question for RESP3, with which a handshake begins.
    Hello,
    /// The question for the server's clock, with which a handshake ends.
    Time,
    /// The question what kind of server it is, with which the check at the start begins.
    Info,
    /// The subscription of an inbox.
    Subscribe,
    /// A message on its way to the inbox of a client. No command: the one thing here that comes from the server.
    Message,
    /// Anything else: the rest of the handshake and of the check.
    Other,
}

/// A message that came for the inbox of a client.
#[derive(Clone, Debug)]
pub struct Message {
    /// What it says.
    pub text: String,
    /// When it came to the proxy.
    pub came: Instant,
    /// When it was passed on, for the first time.
    pub passed: Option<Instant>,
}

/// A proxy in front of a server. Closes all connections on drop.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
}

/// How many kinds of commands there are.
const OPS: usize = Op::Other as usize + 1;

/// What the proxy's threads share.
struct Shared {
    target: Mutex<SocketAddr>,
    rules: Rules,
    seen: [AtomicUsize; OPS],
    replied: [AtomicUsize; OPS],
    messages: Mutex<Vec<Message>>,
    accepted: AtomicUsize,
    turns_away: AtomicBool,
    ignores: AtomicBool,
    closed: AtomicBool,
    links: Mutex<Vec<Weak<Link>>>,
}

impl Proxy {
    /// Starts a proxy in front of `server`, which is taught the lock scripts, so that each operation is one command.
    #[must_use]
    pub fn to(server: &RedisServer) -> Self {
        server.load_scripts();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target: Mutex::new(SocketAddr::from(([127, 0, 0, 1], server.port()))),
            rules: Rules::default(),
            seen: Default::default(),
            replied: Default::default(),
            messages: Mutex::default(),
            accepted: AtomicUsize::new(0),
            turns_away: AtomicBool::new(false),
            ignores: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            links: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Self { shared, port }
    }

    /// The URL for `RedisStore`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Starts a rule: what happens to commands of this kind. The first rule that applies counts.
    pub fn rule(&self, op: Op, action: Action) -> RuleBuilder<'_> {
        RuleBuilder::new(&self.shared.rules, op, action)
    }

    /// How many commands of this kind came from clients, those that a rule hit included.
    #[must_use]
    pub fn seen(&self, op: Op) -> usize {
        self.shared.seen[op as usize].load(Ordering::Acquire)
    }

    /// The length in bytes of the last reply to a command of this kind.
    #[must_use]
    pub fn reply_len(&self, op: Op) -> usize {
        self.shared.replied[op as usize].load(Ordering::Acquire)
    }

    /// Ends all rules and whatever is wrong, and closes the connections that are open now.
    pub fn reset(&self) {
        self.shared.rules.clear();
        self.heal();
        self.turn_away(false);
        self.close_all();
    }

    /// The messages that came for clients, in the order in which they came.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        self.shared.messages.lock().unwrap().clone()
    }

    /// How many connections clients have opened, those that were turned away included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// Lets nothing through on the connections that are open now, as when a firewall forgets them. They stay open.
    /// Gives their number.
    pub fn black_hole(&self) -> usize {
        self.each_link(Link::go_dark)
    }

    /// Closes the connections that are open now, and gives their number.
    pub fn close_all(&self) -> usize {
        self.each_link(Link::close)
    }

    /// Whether new connections are closed at once.
    pub fn turn_away(&self, yes: bool) {
        self.shared.turns_away.store(yes, Ordering::Release);
    }

    /// Whether new connections are accepted and left without an answer.
    pub fn ignore_new(&self, yes: bool) {
        self.shared.ignores.store(yes, Ordering::Release);
    }

    /// Cuts the client off: open connections are black holes and new ones get no answer.
    pub fn cut(&self) {
        self.ignore_new(true);
        self.black_hole();
    }

    /// Ends [`cut`](Self::cut): new connections work.
    pub fn heal(&self) {
        self.ignore_new(false);
    }

    fn each_link(&self, act: impl Fn(&Link)) -> usize {
        let mut links = self.shared.links.lock().unwrap();
        links.retain(|link| link.strong_count() > 0);
        links.iter().filter_map(Weak::upgrade).map(|link| act(&link)).count()
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            let Ok(client) = client else { continue };
            self.accepted.fetch_add(1, Ordering::AcqRel);
            if self.turns_away.load(Ordering::Acquire) {
                continue;
            }
            let Ok(server) = TcpStream::connect(*self.target.lock().unwrap()) else { continue };
            let link = Link::start(self, client, server);
            // In this order: whoever cuts the client off meanwhile finds the link in the list, or else is found here.
            self.links.lock().unwrap().push(Arc::downgrade(&link));
            if self.ignores.load(Ordering::Acquire) {
                link.go_dark();
            }
            link.run(self);
        }
    }

    fn see(&self, op: Op) {
        self.seen[op as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// Takes down a message, and gives its place in the list.
    fn note(&self, text: String) -> usize {
        let mut messages = self.messages.lock().unwrap();
        messages.push(Message { text, came: Instant::now(), passed: None });
        messages.len() - 1
    }

    fn note_passed(&self, place: usize) {
        let passed = &mut self.messages.lock().unwrap()[place].passed;
        let _ = passed.get_or_insert_with(Instant::now);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.close_all();
        // Wakes the accepting thread.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("port", &self.port).finish_non_exhaustive()
    }
}
