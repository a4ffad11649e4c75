//! What Redis and redis-rs report, in this crate's terms.
//!
//! After a command without a usable reply two questions count: may the server have executed it, or
//! do so later? And can another attempt help? A [`Fault`] answers both:
//!
//! - [`Fault::of`] tells errors of the server from those of the connection. A command that was
//!   [not sent](Fault::NotSent) did nothing. Without a reply, or with one that no script sends, it
//!   may have been executed.
//! - A [refusal](Fault::Refused) is judged by its code. Most codes say that the command [had no
//!   effect](Fault::is_without_effect), and `OOM` says [nearly that](Fault::is_undone). One that is
//!   not listed may be that of a script that stopped half-way, so its outcome is unknown.
//! - Some codes say how to go on: with [another server](Fault::is_by_wrong_server), with [each
//!   command alone](Fault::is_about_one_key), or [not at all](Fault::is_permanent).
//! - As the [`Error`] of a user, a fault is unavailable if nothing was done that counts, else
//!   unknown; never busy. It repeats [nothing secret](discreet) of what the server said.
//!
//! The same refusal is worded differently by Redis 6.2, by later versions and by other servers.
//! [`Fault::refused`] and [`code`] bring it into one form first.

use std::iter::successors;

use redis::{RedisError, Value};
use tokio::task::JoinError;

use crate::error::{Error, ErrorKind};

/// How a command ended without a usable reply.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// No connection, so nothing was sent.
    NotSent(Error),
    /// The connection broke before the reply came: the command may have been executed.
    Broken(Error),
    /// No reply in time: the command may have been executed, or may be executed later.
    Silent(Error),
    /// The server replied with an error.
    Refused(RedisError),
    /// The server replied something that none of the scripts does.
    Garbled,
    /// The command was executed, and too few replicas confirmed it.
    Unconfirmed(Error),
}

/// Why a server does not execute a command that another one would, or that it would itself later.
/// The command had no effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Elsewhere {
    /// `MOVED`: another node of the cluster has the slot from now on.
    Moved,
    /// `ASK`: the slot is on its way to another node, and this one has none of the keys. The other
    /// node is to execute this command alone.
    Moving,
    /// `TRYAGAIN`: the slot is on its way, and only some of the keys are here.
    Split,
    /// `CLUSTERDOWN`, `LOADING`, `MASTERDOWN`, `READONLY`: this is not, or not yet, the server that
    /// has the locks. Its name may lead elsewhere by now.
    WrongServer,
    /// `NOREPLICAS`: it has too few replicas for a write.
    NotNow,
    /// `CROSSSLOT`: the keys are in several slots, which is a mistake of this crate.
    Never,
}

/// What each of these codes says.
const ELSEWHERE: [(&str, Elsewhere); 9] = [
    ("ASK", Elsewhere::Moving),
    ("CLUSTERDOWN", Elsewhere::WrongServer),
    ("CROSSSLOT", Elsewhere::Never),
    ("LOADING", Elsewhere::WrongServer),
    ("MASTERDOWN", Elsewhere::WrongServer),
    ("MOVED", Elsewhere::Moved),
    ("NOREPLICAS", Elsewhere::NotNow),
    ("READONLY", Elsewhere::WrongServer),
    ("TRYAGAIN", Elsewhere::Split),
];

impl Elsewhere {
    fn of(error: &RedisError) -> Option<Self> {
        let code = code(error)?;
        ELSEWHERE.iter().find(|(known, _)| *known == code).map(|(_, elsewhere)| *elsewhere)
    }
}

impl Fault {
    /// What an error of redis-rs means for the command.
    pub(super) fn of(error: RedisError) -> Self {
        // The error came from the server rather than from the socket or the client.
        if error.code().is_some() && !error.is_io_error() {
            return Self::refused(error);
        }
        Self::Broken(Error::unknown(BROKEN, error))
    }

    /// The server replied with `error`.
    pub(super) fn refused(error: impl Into<RedisError>) -> Self {
        Self::Refused(without_line(error.into()))
    }

    /// The connection is gone.
    pub(super) fn gone() -> Self {
        Self::Broken(Error::plain(ErrorKind::Unknown, BROKEN))
    }

    /// The server that replied does not have the lock any more.
    pub(super) fn replaced() -> Self {
        Self::Broken(Error::plain(ErrorKind::Unknown, REPLACED))
    }

    /// No reply from `server` in time.
    pub(super) fn silent(server: &str) -> Self {
        let what = format!("{server} did not answer in time");
        Self::Silent(Error::plain(ErrorKind::Unknown, what))
    }

    /// Whether the server does not know the script.
    pub(super) fn is_unknown_script(&self) -> bool {
        matches!(self, Self::Refused(error) if error.code() == Some("NOSCRIPT"))
    }

    /// Whether the key holds something that is not a lock, so certainly not the caller's lock.
    pub(super) fn is_wrong_type(&self) -> bool {
        matches!(self, Self::Refused(error) if code(error) == Some("WRONGTYPE"))
    }

    /// What this means for a command that was to follow, and was not sent.
    pub(super) fn before_the_call(self) -> Self {
        match self {
            Self::Broken(_) | Self::Silent(_) | Self::Garbled | Self::Unconfirmed(_) => {
                Self::NotSent(Error::from(self).before_the_call())
            }
            Self::NotSent(_) | Self::Refused(_) => self,
        }
    }

    /// Whether no part of the command's effect counts, though something may have changed: without
    /// memory the scripts get no further than their first write, and a grant that replicas do not
    /// confirm is none.
    pub(super) fn is_undone(&self) -> bool {
        self.is_without_effect()
            || matches!(self, Self::Unconfirmed(_))
            || matches!(self, Self::Refused(error) if code(error) == Some("OOM"))
    }

    /// Whether the reply shows that this is not, or not yet, the server that has the locks: a
    /// primary that was demoted, for instance. The command had no effect. Its name may lead
    /// elsewhere by now.
    pub(super) fn is_by_wrong_server(&self) -> bool {
        matches!(self.elsewhere(), Some(Elsewhere::WrongServer | Elsewhere::Moved))
    }

    /// Why the server does not execute the command, if another one would, or it would later.
    pub(super) fn elsewhere(&self) -> Option<Elsewhere> {
        match self {
            Self::Refused(error) => Elsewhere::of(error),
            _ => None,
        }
    }

    /// Whether the server said it, rather than that there is none.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn is_by_the_server(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Unconfirmed(_))
    }

    /// What the server said behind the code.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn words(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => error.detail(),
            _ => None,
        }
    }

    /// Whether the slot of the command has left, or is about to leave, this node of a cluster.
    pub(super) fn is_in_another_place(&self) -> bool {
        self.is_on_its_way() || self.elsewhere() == Some(Elsewhere::Moved)
    }

    /// Whether the slot of the command is on its way to another node of a cluster.
    pub(super) fn is_on_its_way(&self) -> bool {
        matches!(self.elsewhere(), Some(Elsewhere::Moving | Elsewhere::Split))
    }

    /// Whether the keys of the command are on two nodes.
    pub(super) fn is_split(&self) -> bool {
        self.elsewhere() == Some(Elsewhere::Split)
    }

    /// Whether the server refused the call because of one of its keys, before it did anything.
    pub(super) fn is_about_one_key(&self) -> bool {
        // Of several keys in a slot that is on its way, each is on one of the nodes.
        self.is_on_its_way()
            || matches!(self, Self::Refused(error)
                if is_about_the_call(error) && is_about_a_key(error))
    }

    /// Whether a retry cannot help until an operator changes the configuration.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Self::Refused(error) => {
                is_forbidden(error) || matches!(code(error), Some("MOVED" | "WRONGTYPE"))
            }
            Self::NotSent(error) if error.kind() == ErrorKind::NoRuntime => true,
            Self::NotSent(error) => error.cause().is_some_and(|cause| {
                cause.is::<UnusableServer>()
                    || cause.is::<UnknownMaster>()
                    || cause.downcast_ref().is_some_and(is_forbidden)
            }),
            Self::Unconfirmed(error) => error.is_permanent(),
            Self::Broken(_) | Self::Silent(_) | Self::Garbled => false,
        }
    }

    /// Whether the command certainly changed nothing.
    pub(super) fn is_without_effect(&self) -> bool {
        match self {
            Self::NotSent(_) => true,
            Self::Refused(error) if is_about_the_call(error) => true,
            Self::Refused(error) if Elsewhere::of(error).is_some() => true,
            Self::Refused(error) => matches!(
                code(error),
                Some(
                    "BUSY" | "LOCK" | "MISCONF" | "NOAUTH" | "NOSCRIPT" | "WRONGPASS" | "WRONGTYPE"
                )
            ),
            Self::Broken(_) | Self::Silent(_) | Self::Garbled | Self::Unconfirmed(_) => false,
        }
    }
}

/// A claim uses the queue as well, and the server does not say which of the two it was.
const ANOTHER_TYPE: &str = "the lock, or the queue of its waiters, holds a value of another type";
const BROKEN: &str = "the connection to redis broke before the reply came";
const REPLACED: &str = "another node of the cluster has the lock than the one that replied";

/// How servers begin the error about a command of a script that is not permitted.
const IN_A_SCRIPT: [&str; 2] = ["The user executing the script can't", "ACL failure in script"];

/// The error of a command in a script, as Redis 7.0 words it. Redis 6.2 puts the line of the script
/// before the code, as in `@user_script: 15: -OOM command not allowed`, and does so again, after
/// `ERR Error running script (call to f_59ee): `, if the script did not catch the error.
fn without_line(error: RedisError) -> RedisError {
    let (Some(code), Some(detail)) = (error.code(), error.detail()) else { return error };
    let text = format!("{code} {detail}");
    let told = match text.strip_prefix("ERR Error running script ") {
        Some(uncaught) => uncaught.split_once("): ").map_or(uncaught, |(_, told)| told),
        None => &text,
    };
    let inner = successors(behind_line(told), |rest| behind_line(rest)).last();
    let Some(inner) = inner.map(|inner| inner.strip_prefix('-').unwrap_or(inner)) else {
        return error;
    };
    let word = inner.split(' ').next().unwrap_or_default();
    let code = if word.bytes().all(|byte| byte.is_ascii_uppercase()) { "" } else { "ERR " };
    match redis::parse_redis_value(format!("-{code}{inner}\r\n").as_bytes()) {
        Ok(Value::ServerError(plain)) => plain.into(),
        _ => error,
    }
}

/// What follows a line of a script, such as `@user_script:15: `, at the start of `text`.
fn behind_line(text: &str) -> Option<&str> {
    let (line, rest) = text.strip_prefix("@user_script:")?.split_once(": ")?;
    line.trim_start().parse::<u32>().ok().map(|_| rest)
}

/// The code of a refusal. When a command of a script is not permitted, some servers say so under
/// the code `ERR`.
pub(super) fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let detail = error.detail().unwrap_or_default();
    if matches!(code, "ERR" | "LOCK") && IN_A_SCRIPT.iter().any(|it| detail.contains(it)) {
        return Some("NOPERM");
    }
    Some(code)
}

/// Whether the call itself was refused, because it is not permitted or not known, rather than a
/// command of its script.
fn is_about_the_call(error: &RedisError) -> bool {
    let detail = error.detail();
    match error.code() {
        Some("NOPERM") => {
            detail.is_some_and(|detail| !IN_A_SCRIPT.iter().any(|it| detail.starts_with(it)))
        }
        _ => is_unknown_command(error),
    }
}

/// Whether the server refuses this user, or this use of it, whatever the key.
fn is_forbidden(error: &RedisError) -> bool {
    const CODES: [&str; 3] = ["NOAUTH", "NOPERM", "WRONGPASS"];
    code(error).is_some_and(|it| CODES.contains(&it))
        || Elsewhere::of(error) == Some(Elsewhere::Never)
        || is_about_password(error)
        || is_unknown_command(error)
        || is_exhausted(error)
}

/// Whether the server does not know a command, perhaps because it was renamed.
pub(super) fn is_unknown_command(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("ERR") && detail.starts_with("unknown command")
}

/// Whether the counter has no more numbers.
fn is_exhausted(error: &RedisError) -> bool {
    code(error) == Some("LOCK") && error.detail().is_some_and(|it| it.contains("exhausted"))
}

/// The server is of a kind that can never keep locks for this store.
#[derive(Debug)]
pub(super) struct UnusableServer(pub(super) &'static str);

impl std::fmt::Display for UnusableServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "its INFO says that it is {}", self.0)
    }
}

impl std::error::Error for UnusableServer {}

/// The sentinels watch no master of the name in the URL.
#[derive(Debug)]
pub(super) struct UnknownMaster;

impl std::fmt::Display for UnknownMaster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("their reply is: no such master with that name")
    }
}

impl std::error::Error for UnknownMaster {}

/// The error without secrets. Some servers repeat the beginning of an unknown command, which may
/// hold keys, tokens or a password, and the names of users, keys and channels that lack a
/// permission.
pub(super) fn discreet(error: RedisError) -> RedisError {
    const ARGUMENTS: &str = ", with args beginning with";
    let (Some(code), Some(detail)) = (error.code(), error.detail()) else { return error };
    let mut told = detail.split(ARGUMENTS).next().unwrap_or_default().to_owned();
    if let Some((before, after)) = detail.split_once("User ")
        && let Some((_, what)) = after.split_once(" has no permissions to ")
    {
        let what = what.split_once("access the ").map_or(what, |(_, name)| {
            if name.ends_with("channel") { "access a channel" } else { "access a key" }
        });
        told = format!("{before}the user has no permissions to {what}");
    }
    if told == detail {
        return error;
    }
    redis::make_extension_error(code.to_owned(), Some(told))
}

/// The error for a task that was to connect and did not finish.
pub(super) fn task_is_gone(gone: JoinError) -> Error {
    let what = if gone.is_panic() {
        "the task that was to connect panicked"
    } else {
        "the runtime shut down while a connection was opened"
    };
    Error::unavailable(what, gone)
}

/// Whether the server refused the user name or password. The handshake reports every such refusal
/// as the first of these.
pub(super) fn is_about_password(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
}

/// Whether a permission is missing.
pub(super) fn is_about_permission(error: &RedisError) -> bool {
    code(error) == Some("NOPERM")
}

/// Whether a permission is missing for a key rather than for a command.
pub(super) fn is_about_a_key(error: &RedisError) -> bool {
    code(error) == Some("NOPERM") && error.detail().is_some_and(|detail| detail.contains("key"))
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let undone = fault.is_undone();
        match fault {
            Fault::NotSent(error)
            | Fault::Broken(error)
            | Fault::Silent(error)
            | Fault::Unconfirmed(error) => error,
            Fault::Garbled => Self::plain(
                ErrorKind::Unknown,
                "redis sent a reply that no lock script sends: is there a proxy in between?",
            ),
            Fault::Refused(error) => Self::refused(error, undone),
        }
    }
}

impl Error {
    /// The error for a refusal of the server; `undone` if the command certainly had no effect.
    pub(super) fn refused(error: RedisError, undone: bool) -> Self {
        // Passwords are rotated.
        let is_permanent = is_forbidden(&error) && !is_about_password(&error);
        let error = discreet(error);
        let what = match code(&error) {
            Some("WRONGTYPE") => {
                let error =
                    redis::make_extension_error("WRONGTYPE".into(), Some(ANOTHER_TYPE.into()));
                return Self::wrong_type(error);
            }
            Some("LOCK") => "cannot mint a fencing token: check the fence counter key",
            Some("NOPERM") => {
                "the redis user lacks a permission that locks need: see the ACL line in the \
                 documentation of `RedisStore`"
            }
            Some("NOAUTH" | "WRONGPASS") => "redis refused the user name or password",
            Some("READONLY") => "this redis server is a replica: connect to the primary",
            Some("NOREPLICAS") => "redis has too few replicas to accept writes",
            Some("OOM") => "redis is out of memory",
            Some("LOADING") => "redis is loading its data",
            Some("MASTERDOWN") => "this redis server is a replica that lost its primary",
            Some("CLUSTERDOWN") => "the redis cluster does not serve the slot of this lock now",
            Some("CROSSSLOT" | "MOVED" | "ASK") => {
                "this redis server is a node of a cluster: write `redis+cluster://` in the URL"
            }
            Some("TRYAGAIN") => {
                "the slot of this lock is on its way to another node of the cluster"
            }
            Some("ERR") if is_unknown_command(&error) => {
                "redis does not know a command that locks need: was it renamed, or are scripts \
                 switched off?"
            }
            Some("BUSY") => "redis is busy with a long-running script",
            _ => "redis refused the command",
        };
        let refused =
            if undone { Self::unavailable(what, error) } else { Self::unknown(what, error) };
        if is_permanent { refused.permanent() } else { refused }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn refused(code: &str, detail: &str) -> Fault {
        Fault::Refused(redis::make_extension_error(code.to_owned(), Some(detail.to_owned())))
    }

    #[test]
    fn refused_call_did_nothing_and_refused_command_of_a_script_may_have() {
        let by_key = refused("NOPERM", "No permissions to access a key");
        assert!(by_key.is_about_one_key() && !Error::from(by_key).is_retryable());
        for detail in [
            "this user has no permissions to run the 'evalsha' command or its subcommand",
            "User script has no permissions to run the 'evalsha' command",
            "User u has no permissions to access the 'lock:subscription:7' key",
            "No permissions to access a key",
        ] {
            let fault = refused("NOPERM", detail);
            assert!(fault.is_without_effect() && fault.is_permanent(), "{detail}");
        }
        for (code, detail) in [
            ("ERR", "The user executing the script can't run this command or subcommand"),
            ("NOPERM", "The user executing the script can't access at least one of the keys"),
            ("ERR", "ACL failure in script: User u has no permissions to run the 'set' command"),
            ("NOPERM", "ACL failure in script: User u has no permissions to run the 'set' command"),
        ] {
            let fault = refused(code, detail);
            assert!(!fault.is_without_effect() && fault.is_permanent(), "{code} {detail}");
        }
    }

    #[test]
    fn command_that_belongs_elsewhere_had_no_effect() {
        for (code, elsewhere) in ELSEWHERE {
            let fault = refused(code, "3999 127.0.0.1:6381");
            assert_eq!(fault.elsewhere(), Some(elsewhere));
            assert!(fault.is_without_effect() && fault.is_undone(), "{code}");
            assert!(!Error::from(fault).is_unknown(), "{code}");
        }
        let wrong = ["CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY"];
        for (code, _) in ELSEWHERE {
            let fault = refused(code, "");
            assert_eq!(fault.is_by_wrong_server(), wrong.contains(&code), "{code}");
        }
        assert!(refused("TRYAGAIN", "").is_split() && refused("TRYAGAIN", "").is_on_its_way());
        assert!(!refused("ASK", "").is_split() && refused("ASK", "").is_on_its_way());
        assert_eq!(refused("OOM", "").elsewhere(), None);
    }

    #[test]
    fn error_that_leaves_the_effect_open_is_unknown() {
        for (code, detail) in [
            ("ERR", "upstream failure"),
            (
                "ERR",
                "Error running script: user_script:1: Unknown Redis command called from script",
            ),
            ("EXECABORT", "Transaction discarded because of previous errors."),
            ("NOPERM", "ACL failure in script: User u has no permissions to run the 'set' command"),
        ] {
            assert!(Error::from(refused(code, detail)).is_unknown(), "{code} {detail}");
        }
        for (code, detail) in [
            ("ERR", "unknown command 'EVALSHA', with args beginning with: "),
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("MOVED", "3999 127.0.0.1:1"),
        ] {
            let error = Error::from(refused(code, detail));
            assert!(error.is_store_failure() && !error.is_unknown(), "{code} {detail}");
        }
    }

    /// Each pair is what Redis 6.2 and 7.0 reply to the same script in the same state.
    #[test]
    fn redis_6_2_gives_the_same_errors_as_7_0() {
        const UNCAUGHT: &str = "ERR Error running script (call to f_59eeafb2): @user_script:8: ";
        let read = |text: &str| match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => Fault::refused(error),
            other => panic!("{other:?}"),
        };
        let told = |fault: Fault| {
            let judged = [
                fault.is_undone(),
                fault.is_by_wrong_server(),
                fault.is_permanent(),
                fault.is_without_effect(),
                fault.is_wrong_type(),
            ];
            let error = Error::from(fault);
            (judged, error.kind(), error.to_string(), error.source().unwrap().to_string())
        };
        for (code, detail) in [
            ("READONLY", "You can't write against a read only replica."),
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("MISCONF", "Redis is configured to save RDB snapshots, but it's currently unable"),
            ("NOREPLICAS", "Not enough good replicas to write."),
        ] {
            let new = told(read(&format!("{code} {detail}")));
            assert_ne!(new.1, ErrorKind::Unknown, "{code}");
            let old = format!("@user_script: 15: -{code} {detail}");
            assert_eq!(told(read(&old)), new);
            assert_eq!(told(read(&format!("{UNCAUGHT}{old}"))), new);
        }
        let forbidden = "The user executing the script can't run this command or subcommand";
        let new = told(read(&format!("ERR {forbidden}")));
        assert!(new.2.contains("permission"), "{new:?}");
        let old = format!("@user_script: 142: {forbidden}");
        assert_eq!(told(read(&old)), new);
        assert_eq!(told(read(&format!("{UNCAUGHT}{old}"))), new);
        let list = "WRONGTYPE Operation against a key holding the wrong kind of value";
        assert_eq!(told(read(&format!("{UNCAUGHT}{list}"))), told(read(list)));
    }

    #[test]
    fn text_that_only_resembles_a_line_is_left_as_it_is() {
        for (code, detail) in [
            ("ERR", "Error running script (call to f_59eeafb2): out of stack"),
            ("ERR", "upstream @user_script: 1: -OOM"),
            ("@user_script:", "x: -OOM no number"),
            ("@user_script:", "15"),
        ] {
            let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
            let Fault::Refused(kept) = Fault::refused(error.clone()) else { panic!("{error}") };
            assert_eq!(kept.to_string(), error.to_string());
        }
    }

    #[test]
    fn last_attempt_does_not_settle_an_earlier_one() {
        let silent = Error::from(Fault::silent("redis"));
        let loading = || refused("LOADING", "");
        assert!(Error::from(loading()).is_store_failure() && !Error::from(loading()).is_unknown());
        let after = Error::from(loading()).after(&silent);
        assert!(after.is_unknown(), "{after:?}");
        // The message keeps the reason of the last attempt.
        assert!(after.to_string().contains("earlier attempt"), "{after}");
        assert!(after.to_string().starts_with(&Error::from(loading()).to_string()), "{after}");
        assert_eq!(
            after.source().unwrap().to_string(),
            Error::from(loading()).source().unwrap().to_string()
        );
        assert!(!Error::from(loading()).after(&Error::from(loading())).is_unknown());
        let taken = Error::from(refused("WRONGTYPE", ""));
        assert_eq!(taken.after(&silent).kind(), ErrorKind::WrongType);
    }

    #[test]
    fn failed_subscription_means_that_nothing_was_sent() {
        let silent = Fault::silent("redis").before_the_call();
        assert!(silent.is_without_effect());
        let error = Error::from(silent);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.to_string(), Error::from(Fault::silent("redis")).to_string());
    }
}
