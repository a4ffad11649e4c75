//! Faults of a command, and the class of outcome that each leads to.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_testkit::{Action, Gate, Rule, eventually, ms};

/// How long a client of these tests waits for an answer. This is short, since many commands here
/// get none.
pub(super) const REQUEST_TIMEOUT: Duration = ms(250);
/// How long a client waits for a connection.
pub(super) const CONNECT_TIMEOUT: Duration = ms(500);
/// More than either.
const TOO_LATE: Duration = ms(600);
/// Longer than the wait and every timeout.
pub(super) const LONGEST: Duration = ms(20_000);

/// How often the fault happens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Times {
    Once,
    /// Until the operation has ended.
    Always,
}

/// An active fault.
pub(super) struct Injected {
    pub(super) rule: Option<Rule>,
    pub(super) cut: Cell<bool>,
    pub(super) times: Times,
}

impl Injected {
    /// Waits until the fault has happened.
    pub(super) async fn hit(&self) {
        let hit = || self.cut.get() || self.rule.as_ref().is_some_and(|rule| rule.hits() > 0);
        eventually("the fault hits", LONGEST, hit).await;
    }
}

/// What happens to a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The command is lost, and so is all that follows on its connection.
    LoseRequest,
    /// The reply is lost, and so is all that follows.
    LoseReply,
    /// The command arrives after its sender has given it up.
    DelayRequest,
    /// The reply arrives after the sender has given the command up.
    DelayReply,
    /// The command arrives on another connection, when all is over.
    Stray,
    /// No connection carries anything any more, new ones included.
    BlackHole,
    Double,
    Slice,
    CloseBefore,
    CloseAfter,
    ResetBefore,
    ResetAfter,
    /// The connection is closed after this many bytes of the reply.
    Truncate(usize),
    /// The command is not executed, and gets this error.
    Refuse(&'static str),
    /// The command is executed, and gets an answer that no server gives.
    Odd(Odd),
}

/// Bytes that replace a reply.
#[derive(Clone, Copy)]
pub(super) struct Odd {
    name: &'static str,
    make: fn() -> Vec<u8>,
    class: Class,
}

/// What a fault means for the client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Class {
    /// It gets the answer.
    Harmless,
    /// It gets no answer, and the connection stays open.
    Silence,
    /// It gets no answer, and cannot open another connection.
    Darkness,
    /// The connection ends before the answer.
    Break,
    /// The answer breaks the protocol.
    Nonsense,
    /// The server says that it did nothing. The same command may succeed later.
    NotNow,
    /// The server says that it is not the one that has the locks. Its name may lead elsewhere.
    Misplaced,
    /// The server says that the lock and its companions are not together, as on a cluster while
    /// their slot is on its way.
    Split,
    /// The server says that it did nothing, although it did something.
    HalfDone,
    /// The server does not say whether it executed the command.
    Vague,
    /// Nothing was done, and nothing will be until an operator changes the configuration.
    Forbidden,
    /// This user may not do it.
    NoSuchUser,
    /// The key holds something that is no lock.
    WrongType,
    /// The server does not know the script.
    UnknownScript,
    /// An answer without meaning.
    Garbage,
}

const TRANSPORT: [Fault; 12] = [
    Fault::LoseRequest,
    Fault::LoseReply,
    Fault::DelayRequest,
    Fault::DelayReply,
    Fault::Stray,
    Fault::BlackHole,
    Fault::Double,
    Fault::Slice,
    Fault::CloseBefore,
    Fault::CloseAfter,
    Fault::ResetBefore,
    Fault::ResetAfter,
];

/// The errors in the words of real servers.
const ERRORS: [&str; 25] = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "MOVED 3999 127.0.0.1:1",
    "ASK 3999 127.0.0.1:1",
    "CROSSSLOT Keys in request don't hash to the same slot",
    "NOSCRIPT No matching script. Please use EVAL.",
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "EXECABORT Transaction discarded because of previous errors.",
    "NOREPLICAS Not enough good replicas to write.",
    "UNKILLABLE Sorry the script already executed write commands against the dataset.",
    "NOPROTO unsupported protocol version",
    "ERR unknown command 'EVALSHA', with args beginning with: ",
    "ERR max number of clients reached",
    "ERR",
    "",
    "lower case, and no code",
];

/// Answers that neither our scripts nor any other command of the client can get.
const ODD: [Odd; 39] = [
    Odd::garbage("no bulk string", || b"$-1\r\n".into()),
    Odd::garbage("no array", || b"*-1\r\n".into()),
    Odd::garbage("null", || b"_\r\n".into()),
    Odd::garbage("empty array", || b"*0\r\n".into()),
    Odd::garbage("empty bulk string", || b"$0\r\n\r\n".into()),
    Odd::garbage("empty line", || b"+\r\n".into()),
    Odd::garbage("OK", || b"+OK\r\n".into()),
    Odd::garbage("QUEUED", || b"+QUEUED\r\n".into()),
    Odd::garbage("bulk string", || b"$5\r\nhello\r\n".into()),
    Odd::garbage("not UTF-8", || b"$2\r\n\xff\xfe\r\n".into()),
    Odd::garbage("zero", || b":0\r\n".into()),
    Odd::garbage("negative", || b":-1\r\n".into()),
    Odd::garbage("largest", || b":9223372036854775807\r\n".into()),
    Odd::garbage("true", || b"#t\r\n".into()),
    Odd::garbage("float", || b",1.5\r\n".into()),
    Odd::garbage("not a number", || b",nan\r\n".into()),
    Odd::garbage("big number", || b"(3492890328409238509324850943850943825024385\r\n".into()),
    Odd::garbage("verbatim", || b"=8\r\ntxt:text\r\n".into()),
    Odd::garbage("map", || b"%1\r\n+a\r\n:1\r\n".into()),
    Odd::garbage("set", || b"~2\r\n:1\r\n:2\r\n".into()),
    Odd::garbage("time before 1970", || b"*2\r\n:-5\r\n:1\r\n".into()),
    Odd::garbage("negative number", || b"*2\r\n:1700000000000000\r\n:-2\r\n".into()),
    Odd::garbage("largest number", || {
        b"*2\r\n:1700000000000000\r\n:9223372036854775807\r\n".into()
    }),
    Odd::garbage("number beyond 2^53", || {
        b"*2\r\n:1700000000000000\r\n:9007199254740993\r\n".into()
    }),
    Odd::garbage("strings for numbers", || b"*2\r\n$16\r\n1700000000000000\r\n$1\r\n1\r\n".into()),
    Odd::garbage("negative ticket", || {
        b"*2\r\n:1700000000000000\r\n*5\r\n:2\r\n:9\r\n:1\r\n:-7\r\n:0\r\n".into()
    }),
    Odd::garbage("an answer too many", || b"*4\r\n:1700000000000000\r\n:1\r\n:1\r\n:1\r\n".into()),
    Odd::garbage("nested", || {
        let mut bytes = b"*1\r\n".repeat(6);
        bytes.extend(b":1\r\n");
        bytes
    }),
    Odd::garbage("ten thousand numbers", || {
        let mut bytes = b"*10000\r\n".to_vec();
        bytes.extend(b":1\r\n".repeat(10_000));
        bytes
    }),
    Odd::garbage("a megabyte", || {
        let mut bytes = b"$1000000\r\n".to_vec();
        bytes.resize(bytes.len() + 1_000_000, b'x');
        bytes.extend(b"\r\n");
        bytes
    }),
    Odd::of(Class::Vague, "an error behind the deed", || b"-ERR in the middle\r\n".into()),
    Odd::of(Class::HalfDone, "no memory behind the deed", || b"-OOM in the middle\r\n".into()),
    Odd::of(Class::Vague, "a bulk error", || b"!13\r\nERR no matter\r\n".into()),
    Odd::of(Class::Silence, "a bulk string that does not end", || b"$1000000\r\nno more".into()),
    Odd::of(Class::Silence, "an array that does not end", || b"*9\r\n:1\r\n".into()),
    Odd::of(Class::Silence, "a line that does not end", || b"+OK".into()),
    Odd::of(Class::Nonsense, "no type", || b"?what\r\n".into()),
    Odd::of(Class::Nonsense, "no length", || b"$x\r\n".into()),
    Odd::of(Class::Nonsense, "HTTP", || b"HTTP/1.1 400 Bad Request\r\n\r\n".into()),
];

impl Odd {
    const fn garbage(name: &'static str, make: fn() -> Vec<u8>) -> Self {
        Self::of(Class::Garbage, name, make)
    }

    const fn of(class: Class, name: &'static str, make: fn() -> Vec<u8>) -> Self {
        Self { name, make, class }
    }
}

impl fmt::Debug for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Fault {
    /// Faults of networks.
    pub(super) fn transport() -> impl Iterator<Item = Self> {
        TRANSPORT.into_iter()
    }

    /// Errors and garbage from servers.
    pub(super) fn replies() -> impl Iterator<Item = Self> {
        ERRORS.into_iter().map(Self::Refuse).chain(ODD.into_iter().map(Self::Odd))
    }

    /// The proxy's action for this fault, or `None` if it is applied at once. Opening the gate ends
    /// the actions that wait for it.
    pub(super) fn action(self, gate: &Gate) -> Option<Action> {
        Some(match self {
            Self::LoseRequest => Action::LoseRequest,
            Self::LoseReply => Action::LoseReply,
            Self::DelayRequest => Action::DelayRequest(TOO_LATE),
            Self::DelayReply => Action::DelayReply(TOO_LATE),
            Self::Stray => Action::Stray(gate.clone()),
            Self::BlackHole => return None,
            Self::Double => Action::Duplicate,
            Self::Slice => Action::Slice,
            Self::CloseBefore => Action::CloseBefore,
            Self::CloseAfter => Action::CloseAfter,
            Self::ResetBefore => Action::ResetBefore,
            Self::ResetAfter => Action::ResetAfter,
            Self::Truncate(bytes) => Action::Truncate(bytes),
            Self::Refuse(error) => Action::Refuse(error),
            Self::Odd(odd) => Action::Replace(Arc::from((odd.make)())),
        })
    }

    pub(super) fn class(self) -> Class {
        match self {
            Self::LoseRequest
            | Self::LoseReply
            | Self::DelayRequest
            | Self::DelayReply
            | Self::Stray => Class::Silence,
            Self::BlackHole => Class::Darkness,
            Self::Double | Self::Slice => Class::Harmless,
            Self::CloseBefore
            | Self::CloseAfter
            | Self::ResetBefore
            | Self::ResetAfter
            | Self::Truncate(_) => Class::Break,
            Self::Refuse(error) => match error.split(' ').next() {
                Some("NOAUTH" | "WRONGPASS") => Class::NoSuchUser,
                Some("NOPERM" | "CROSSSLOT") => Class::Forbidden,
                Some("WRONGTYPE") => Class::WrongType,
                Some("TRYAGAIN") => Class::Split,
                Some("NOSCRIPT") => Class::UnknownScript,
                Some("ERR") if error.contains("unknown command") => Class::Forbidden,
                Some("READONLY" | "MASTERDOWN" | "LOADING" | "MOVED" | "CLUSTERDOWN") => {
                    Class::Misplaced
                }
                Some("ERR" | "EXECABORT" | "NOPROTO" | "UNKILLABLE" | "" | "lower") => Class::Vague,
                _ => Class::NotNow,
            },
            Self::Odd(odd) => odd.class,
        }
    }
}
