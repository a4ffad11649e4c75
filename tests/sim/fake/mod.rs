//! A Redis server in memory. It runs by the simulated clock, and executes the scripts as they are
//! shipped.

mod caller;
mod channels;
mod in_cluster;
mod keys;
mod lua;
mod node;
mod replica;
mod resp;
mod serve;

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use lock_testkit::{Op, Rng, classify};
use tokio::time::Instant;

use self::caller::Caller;
use self::channels::{Channels, Kind, Told};
use self::keys::Keys;
use self::lua::Scripts;
use self::node::Node;
pub(crate) use self::node::{Refusals, View, slot};
pub(crate) use self::replica::{Feed, MASTER_NAME, Named, Role};
pub(crate) use self::resp::Reply;
use crate::log::Log;

/// The server.
#[derive(Clone)]
pub(crate) struct Fake(Arc<Shared>);

struct Shared {
    core: Arc<Mutex<Core>>,
    scripts: Mutex<Scripts>,
    log: Log,
}

/// How the server behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    pub(crate) resp3: bool,
    /// How fast its clock is, in parts of a million.
    pub(crate) clock_rate: u64,
}

struct Core {
    keys: Keys,
    role: Role,
    /// What takes the changes to a replica.
    feed: Option<Feed>,
    /// How many commands changed something, and what the keys had counted then.
    changes: u64,
    seen: u64,
    traits: Traits,
    origin: Instant,
    /// What was added to the clock by steps.
    stepped_us: i64,
    /// When it started, by its clock, and how often it did; `None`: it does not tell.
    process: Option<(u64, u64)>,
    /// Tells servers apart.
    number: u64,
    /// The clock does not move while a command is executed.
    now_us: u64,
    channels: Channels,
    /// Messages that the command being executed publishes.
    told: Vec<Told>,
    /// What it publishes, and the other server is to know.
    published: Vec<(Kind, Vec<u8>, Vec<u8>)>,
    /// The numbers of the grants that it publishes.
    granted: Vec<u64>,
    /// Its place in a cluster, if it has one.
    node: Option<Node>,
    /// The server that it replicates to, or from: the other node of its shard.
    peer: Option<Peer>,
    /// Whether the node was asked to execute the command although the slot is not its own.
    is_asking: bool,
    stalled_until: Option<Instant>,
    deaf_until: Option<Instant>,
    counts: Counts,
}

struct Peer {
    server: Weak<Shared>,
    /// How long messages take.
    rng: Rng,
}

/// What happened on the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) published: usize,
    /// Messages that were reported as received but never arrived.
    pub(crate) unheard: usize,
    pub(crate) commands: usize,
    /// Times that a command had to wait because the server stalled.
    pub(crate) stalled: usize,
    pub(crate) renewals: usize,
    pub(crate) releases: usize,
    pub(crate) acquires: usize,
    /// Claims that were void when they came.
    pub(crate) voids: usize,
    /// Claims that were queued.
    pub(crate) queued: usize,
    /// Of a node of a cluster.
    pub(crate) refusals: Refusals,
    /// Messages that the master published, for clients that listen here, at its replica.
    pub(crate) by_replica: usize,
}

/// When the clock of the server starts, in microseconds since 1970.
const EPOCH_US: u64 = 1_800_000_000_000_000;

impl Fake {
    pub(crate) fn new(traits: Traits, log: Log) -> Self {
        let core = Core {
            keys: Keys::default(),
            role: Role::Master,
            feed: None,
            changes: 0,
            seen: 0,
            traits,
            origin: Instant::now(),
            stepped_us: 0,
            process: None,
            number: 0,
            now_us: EPOCH_US,
            channels: Channels::default(),
            told: Vec::new(),
            published: Vec::new(),
            granted: Vec::new(),
            node: None,
            peer: None,
            is_asking: false,
            stalled_until: None,
            deaf_until: None,
            counts: Counts::default(),
        };
        let core = Arc::new(Mutex::new(core));
        let called = Arc::clone(&core);
        let call = move |args: Vec<Vec<u8>>| called.lock().unwrap().run_in_script(&args);
        let scripts = Mutex::new(Scripts::new(Box::new(call)));
        Self(Arc::new(Shared { core, scripts, log }))
    }

    /// What its clock shows, in microseconds.
    pub(crate) fn clock_us(&self) -> u64 {
        self.core().clock_us()
    }

    /// The keys on the server, without the counters, which stay for ever.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut core = self.core();
        core.catch_up();
        let now_ms = core.clock_us() / 1_000;
        let names = core.keys.names(now_ms);
        let stays = |name: &String| {
            name.ends_with(":fence") || name.ends_with(":born") || name.contains(":{0}:n:")
        };
        names.into_iter().filter(|name| !stays(name)).collect()
    }

    /// In how many microseconds of the server's clock a key expires.
    pub(crate) fn left_us(&self, key: &str) -> u64 {
        let core = self.core();
        // It is still there in its last millisecond.
        let end = core.keys.expires_at(key).map_or(0, |at| (at + 1) * 1_000);
        end.saturating_sub(core.clock_us())
    }

    /// Whether a stream can carry messages only, because it has subscribed by RESP2.
    pub(crate) fn only_listens(&self, stream: u64) -> bool {
        self.core().channels.only_listens(stream)
    }

    pub(crate) fn counts(&self) -> Counts {
        self.core().counts
    }

    /// Executes nothing for a while; what arrives waits.
    pub(crate) fn stall(&self, span: Duration) {
        self.core().stalled_until = Some(Instant::now() + span);
    }

    /// Loses what is published for a while, although it reports receivers.
    pub(crate) fn lose_messages(&self, span: Duration) {
        self.core().deaf_until = Some(Instant::now() + span);
    }

    /// Forgets everything, as a server that starts again without a snapshot does.
    pub(crate) fn forget_all(&self) {
        {
            let mut core = self.core();
            (core.keys, core.seen) = (Keys::default(), 0);
            core.channels.clear();
            let now_us = core.clock_us();
            core.process = core.process.map(|(_, starts)| (now_us, starts + 1));
        }
        self.0.scripts.lock().unwrap().forget_all();
    }

    /// Tells its clients of its process, which started so long ago on server `number`.
    pub(crate) fn tell_process(&self, number: u64, age: Duration) {
        let mut core = self.core();
        let started_us = core.clock_us() - age.as_micros() as u64;
        (core.process, core.number) = (Some((started_us, 1)), number);
    }

    /// Forgets the scripts, as `SCRIPT FLUSH` makes it.
    pub(crate) fn forget_scripts(&self) {
        self.0.scripts.lock().unwrap().forget_all();
    }

    /// Shows this time on the clock, whatever it was.
    pub(crate) fn set_clock(&self, us: u64) {
        let mut core = self.core();
        core.stepped_us = 0;
        let unstepped = core.clock_us();
        core.stepped_us = us as i64 - unstepped as i64;
    }

    /// From now on it is this to its clients. A replica that becomes a master has what has arrived.
    pub(crate) fn become_a(&self, role: Role) {
        let mut core = self.core();
        core.catch_up();
        core.role = role;
        core.feed = None;
    }

    /// Sends its changes to a replica from now on. Returns what takes them there: first a copy of
    /// all keys, which takes so long, then each change within `longest` milliseconds.
    pub(crate) fn feed(&self, copy: Duration, longest: u64, rng: Rng) -> Feed {
        let mut core = self.core();
        let feed = Feed::new(core.keys.clone(), core.changes, copy, longest, rng);
        core.feed = Some(feed.clone());
        feed
    }

    /// Tells all subscribers of the channel.
    pub(crate) fn tell(&self, channel: &str, message: &str) {
        self.tell_all(Kind::Plain, channel.as_bytes(), message.as_bytes());
    }

    /// Returns how many there are.
    fn tell_all(&self, kind: Kind, channel: &[u8], message: &[u8]) -> i64 {
        let mut core = self.core();
        let heard = core.tell(kind, channel, message);
        for (to, message) in std::mem::take(&mut core.told) {
            to.answer(message, None);
        }
        heard
    }

    /// Executes a command that a connection sent, or that the test sends without one.
    pub(crate) fn execute(&self, args: &[Vec<u8>], mut from: Option<&mut Caller>) -> Reply {
        let refusal = {
            let mut core = self.core();
            core.now_us = core.clock_us();
            core.catch_up();
            core.counts.commands += 1;
            match classify(args) {
                Op::Renew => core.counts.renewals += 1,
                Op::Release => core.counts.releases += 1,
                _ => {}
            }
            core.is_asking = from.as_mut().is_some_and(|it| std::mem::take(&mut it.is_asking));
            let refusal = core.refusal(args, core.is_asking);
            refusal.inspect(|refusal| core.counts.refusals.count(refusal))
        };
        let name = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
        let reply = match (refusal, name.as_str(), from) {
            (Some(refusal), ..) => refusal.reply(),
            (None, "EVAL" | "EVALSHA", _) => {
                let reply = self.0.scripts.lock().unwrap().eval(args);
                self.core().count_script(&reply, args);
                reply
            }
            (None, _, Some(caller)) => self.core().run_for(args, caller),
            (None, ..) => self.core().run(args),
        };
        self.core().tell_replica();
        let granted = std::mem::take(&mut self.core().granted);
        assert!(
            granted.is_sorted_by(|one, next| one < next),
            "one number, two grants: {granted:?}"
        );
        self.pass_on();
        self.0.log.note(|| {
            let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let args: Vec<_> = args.iter().skip(1).map(|arg| of(arg)).collect();
            // The text of a script is long, and the same each time.
            let args = args.iter().map(|arg| if arg.len() > 400 { ".." } else { arg });
            let server =
                self.core().node.as_ref().map_or_else(|| "redis".to_owned(), Node::to_string);
            format!("{server} {name} {} -> {reply:?}", args.collect::<Vec<_>>().join(" "))
        });
        reply
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.0.core.lock().unwrap()
    }
}

impl Core {
    fn clock_us(&self) -> u64 {
        let elapsed = u64::try_from(self.origin.elapsed().as_micros()).unwrap();
        let shown = EPOCH_US + elapsed * self.traits.clock_rate / 1_000_000;
        shown.checked_add_signed(self.stepped_us).unwrap()
    }

    /// Runs a command of a script. A node has to have its keys as well.
    fn run_in_script(&mut self, args: &[Vec<u8>]) -> Reply {
        if self.refusal(args, self.is_asking).is_some() {
            return Reply::error(
                "ERR Script attempted to access a non local key in a cluster node",
            );
        }
        self.run(args)
    }

    fn run(&mut self, args: &[Vec<u8>]) -> Reply {
        let name = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
        match name.as_str() {
            "TIME" => {
                let (seconds, micros) = (self.now_us / 1_000_000, self.now_us % 1_000_000);
                Reply::Array(vec![
                    Reply::bulk(seconds.to_string()),
                    Reply::bulk(micros.to_string()),
                ])
            }
            "PING" => Reply::Status("PONG"),
            // The connection waits.
            "WAIT" => Reply::Nil,
            "SENTINEL" if let Role::Sentinel(named) = &self.role => named.reply(&args[2]),
            "INFO" => Reply::bulk(self.info()),
            "PUBLISH-HERE" => Reply::Int(self.tell(Kind::Plain, &args[1], &args[2])),
            "PUBLISH" | "SPUBLISH" => {
                let kind = if name == "PUBLISH" { Kind::Plain } else { Kind::Sharded };
                self.published.push((kind, args[1].clone(), args[2].clone()));
                Reply::Int(self.tell(kind, &args[1], &args[2]))
            }
            "CLUSTER" if let Some(node) = &self.node => node.tell(&args[1]),
            "SET" | "DEL" | "PEXPIRE" | "ZADD" | "ZREM" | "ZPOPMIN" if !self.is_master() => {
                Reply::error("READONLY You can't write against a read only replica.")
            }
            _ => self.keys.run(args, self.now_us / 1_000).unwrap_or_else(|| {
                let name = String::from_utf8_lossy(&args[0]);
                let args =
                    args[1..].iter().map(|arg| format!("'{}' ", String::from_utf8_lossy(arg)));
                let args: String = args.collect();
                Reply::error(format!(
                    "ERR unknown command '{name}', with args beginning with: {args}"
                ))
            }),
        }
    }

    fn is_master(&self) -> bool {
        matches!(self.role, Role::Master)
    }

    /// Takes what has arrived from the master.
    fn catch_up(&mut self) {
        if let Role::Replica(feed) = &self.role
            && let Some(keys) = feed.take_arrived()
        {
            self.keys = keys;
            self.seen = self.keys.changes();
        }
    }

    /// A command was executed: sends what it changed to the replica.
    fn tell_replica(&mut self) {
        if self.keys.changes() == self.seen {
            return;
        }
        self.seen = self.keys.changes();
        self.changes += 1;
        if let Some(feed) = &self.feed {
            feed.send(self.keys.clone(), self.changes);
        }
    }

    fn info(&self) -> String {
        let role = match &self.role {
            Role::Sentinel(_) => return "redis_mode:sentinel\r\n".to_owned(),
            Role::Master => "master",
            Role::Replica(_) => "slave",
        };
        let mode =
            if self.node.is_some() { "redis_version:7.0.15\r\nredis_mode:cluster\r\n" } else { "" };
        let mut info =
            format!("{mode}role:{role}\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n");
        if let Some((started_us, starts)) = self.process {
            let up = (self.now_us / 1_000_000).saturating_sub(started_us / 1_000_000);
            info += &format!(
                "run_id:{:032x}{starts:08x}\r\nuptime_in_seconds:{up}\r\nevicted_keys:0\r\n",
                self.number
            );
        }
        info
    }

    /// Publishes a message. Returns how many connections receive it.
    fn tell(&mut self, kind: Kind, channel: &[u8], message: &[u8]) -> i64 {
        // `token ticket number us hand_off_ms name`
        let words: Vec<_> = message.splitn(6, |byte| *byte == b' ').collect();
        if let [_token, _ticket, number, _us, _ttl, _name] = words[..] {
            self.granted.push(std::str::from_utf8(number).unwrap().parse().unwrap());
        }
        let told = self.channels.publish(kind, channel, message);
        let heard = told.len();
        if self.deaf_until.is_some_and(|until| until > Instant::now()) {
            self.counts.unheard += heard;
        } else {
            self.told.extend(told);
        }
        self.counts.published += usize::from(heard > 0);
        heard as i64
    }

    /// Counts what the acquire script did. It is the only script that begins its answer with the
    /// time.
    fn count_script(&mut self, reply: &Reply, args: &[Vec<u8>]) {
        let Reply::Array(items) = reply else { return };
        if items.first() != Some(&Reply::Int(self.now_us as i64)) || args.len() < 8 {
            return;
        }
        self.counts.acquires += 1;
        self.counts.voids += items.iter().filter(|item| **item == Reply::Int(-1)).count();
        let queued = |item: &&Reply| matches!(item, Reply::Array(items) if items.first() == Some(&Reply::Int(2)));
        self.counts.queued += items.iter().filter(queued).count();
    }
}
