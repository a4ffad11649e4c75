//! A proxy between a client and a Redis server that does to commands what networks and servers do.
//!
//! TCP neither loses nor repeats single messages of a connection. A request or reply that is *lost*
//! therefore takes all that follow on its connection along; new connections work, unless a rule
//! says otherwise.

mod link;
mod resp;
mod rule;
mod traffic;

use std::fmt;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use self::link::Link;
pub use self::rule::{Action, Gate, Rule, RuleBuilder};
pub use self::traffic::Message;
use self::traffic::Traffic;
use crate::op::Op;
use crate::redis::RedisServer;

/// A proxy in front of a server. Closes all connections on drop.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
}

/// What the proxy's threads share.
struct Shared {
    /// Where new connections lead.
    target: Mutex<SocketAddr>,
    traffic: Arc<Traffic>,
    accepted: AtomicUsize,
    turns_away: AtomicBool,
    ignores: AtomicBool,
    closed: AtomicBool,
    links: Mutex<Vec<Weak<Link>>>,
}

impl Proxy {
    /// Starts a proxy in front of `server`. Loads the lock scripts, so that each operation is one
    /// command.
    #[must_use]
    pub fn to(server: &RedisServer) -> Self {
        server.load_scripts();
        Self::to_port(server.port())
    }

    /// Starts a proxy in front of what listens on a port of 127.0.0.1.
    #[must_use]
    pub fn to_port(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target: Mutex::new(address(target)),
            traffic: Arc::default(),
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

    /// The port on which it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL for `RedisStore`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Starts a rule: what happens to commands of this kind. The first rule that applies counts.
    pub fn rule(&self, op: Op, action: Action) -> RuleBuilder<'_> {
        RuleBuilder::new(&self.shared.traffic.rules, op, action)
    }

    /// How many commands of this kind came from clients, including those that a rule hit.
    #[must_use]
    pub fn seen(&self, op: Op) -> usize {
        self.shared.traffic.seen(op)
    }

    /// The length in bytes of the last reply to a command of this kind.
    #[must_use]
    pub fn reply_len(&self, op: Op) -> usize {
        self.shared.traffic.reply_len(op)
    }

    /// Ends all rules and faults, and closes the connections that are open now.
    pub fn reset(&self) {
        self.shared.traffic.rules.clear();
        self.heal();
        self.turn_away(false);
        self.close_all();
    }

    /// The messages that came for clients, in the order in which they came.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        self.shared.traffic.messages()
    }

    /// How many connections clients have opened, including those that were turned away.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// Leads new connections to `server`, as a name whose address changed. Open ones stay.
    pub fn lead_to(&self, server: &RedisServer) {
        server.load_scripts();
        *self.shared.target.lock().unwrap() = address(server.port());
    }

    /// Lets nothing through on the connections that are open now, as when a firewall forgets them.
    /// They stay open. Gives their number.
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

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
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
            let target = *self.target.lock().unwrap();
            let Ok(server) = TcpStream::connect(target) else { continue };
            let link = Link::start(client, server, target);
            // In this order: a concurrent `cut` finds the link in the list, or is noticed here.
            self.links.lock().unwrap().push(Arc::downgrade(&link));
            if self.ignores.load(Ordering::Acquire) {
                link.go_dark();
            }
            link.run(&self.traffic);
        }
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
