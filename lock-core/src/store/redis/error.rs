//! What Redis and redis-rs report, in this crate's terms.

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
        Self::Refused(without_place(error.into()))
    }

    /// The connection is gone.
    pub(super) fn gone() -> Self {
        Self::Broken(Error::plain(ErrorKind::Unknown, BROKEN))
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
            Self::Broken(_) | Self::Silent(_) | Self::Garbled => {
                Self::NotSent(Error::from(self).before_the_call())
            }
            Self::NotSent(_) | Self::Refused(_) => self,
        }
    }

    /// Whether no part of the command's effect took place, though something else may have changed:
    /// without memory the scripts get no further than their first write.
    pub(super) fn is_undone(&self) -> bool {
        self.is_without_effect()
            || matches!(self, Self::Refused(error) if code(error) == Some("OOM"))
    }

    /// Whether the reply shows that this is not, or not yet, the server that has the locks: a
    /// primary that was demoted, for instance. The command had no effect. Its name may lead
    /// elsewhere by now.
    pub(super) fn is_by_wrong_server(&self) -> bool {
        const CODES: [&str; 5] = ["READONLY", "MASTERDOWN", "LOADING", "MOVED", "CLUSTERDOWN"];
        matches!(self, Self::Refused(error) if code(error).is_some_and(|it| CODES.contains(&it)))
    }

    /// Whether the server refused the call because of one of its keys, before it did anything.
    pub(super) fn is_about_one_key(&self) -> bool {
        matches!(self, Self::Refused(error) if is_about_the_call(error) && is_about_a_key(error))
    }

    /// Whether a retry cannot help until an operator changes the configuration.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Self::Refused(error) => {
                is_forbidden(error) || matches!(code(error), Some("MOVED" | "WRONGTYPE"))
            }
            Self::NotSent(error) if error.kind() == ErrorKind::NoRuntime => true,
            Self::NotSent(error) => error.cause().is_some_and(|cause| {
                cause.is::<UnusableServer>() || cause.downcast_ref().is_some_and(is_forbidden)
            }),
            Self::Broken(_) | Self::Silent(_) | Self::Garbled => false,
        }
    }

    /// Whether the command certainly changed nothing.
    pub(super) fn is_without_effect(&self) -> bool {
        match self {
            Self::NotSent(_) => true,
            Self::Refused(error) if is_about_the_call(error) => true,
            Self::Refused(error) => matches!(
                code(error),
                Some(
                    "ASK"
                        | "BUSY"
                        | "CLUSTERDOWN"
                        | "CROSSSLOT"
                        | "LOADING"
                        | "LOCK"
                        | "MASTERDOWN"
                        | "MISCONF"
                        | "MOVED"
                        | "NOAUTH"
                        | "NOREPLICAS"
                        | "NOSCRIPT"
                        | "READONLY"
                        | "TRYAGAIN"
                        | "WRONGPASS"
                        | "WRONGTYPE"
                )
            ),
            Self::Broken(_) | Self::Silent(_) | Self::Garbled => false,
        }
    }
}

/// A claim uses the queue as well, and the server does not say which of the two it was.
const FOREIGN: &str = "the lock, or the queue of its waiters, holds a value of another type";
const BROKEN: &str = "the connection to redis broke before the reply came";

/// How servers begin the error about a command of a script that is not permitted.
const IN_A_SCRIPT: [&str; 2] = ["The user executing the script can't", "ACL failure in script"];

/// The error of a command in a script, as Redis 7.0 words it. Redis 6.2 puts the line of the script
/// before the code, as in `@user_script: 15: -OOM command not allowed`, and does so again, after
/// `ERR Error running script (call to f_59ee): `, if the script did not catch the error.
fn without_place(error: RedisError) -> RedisError {
    let (Some(code), Some(detail)) = (error.code(), error.detail()) else { return error };
    let text = format!("{code} {detail}");
    let told = match text.strip_prefix("ERR Error running script ") {
        Some(uncaught) => uncaught.split_once("): ").map_or(uncaught, |(_, told)| told),
        None => &text,
    };
    let inner = successors(behind_place(told), |rest| behind_place(rest)).last();
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

/// What follows a place in a script, such as `@user_script:15: `, at the start of `text`.
fn behind_place(text: &str) -> Option<&str> {
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
    const CODES: [&str; 4] = ["CROSSSLOT", "NOAUTH", "NOPERM", "WRONGPASS"];
    code(error).is_some_and(|it| CODES.contains(&it))
        || is_about_password(error)
        || is_unknown_command(error)
        || is_exhausted(error)
}

/// Whether the server does not know a command, perhaps because it was renamed.
fn is_unknown_command(error: &RedisError) -> bool {
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

/// Whether a permission is missing for a key rather than for a command.
pub(super) fn is_about_a_key(error: &RedisError) -> bool {
    code(error) == Some("NOPERM") && error.detail().is_some_and(|detail| detail.contains("key"))
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let undone = fault.is_undone();
        match fault {
            Fault::NotSent(error) | Fault::Broken(error) | Fault::Silent(error) => error,
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
                let error = redis::make_extension_error("WRONGTYPE".into(), Some(FOREIGN.into()));
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
            Some("CROSSSLOT" | "MOVED" | "CLUSTERDOWN") => {
                "this redis server is a node of a cluster: connect to a single server"
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
    fn text_that_only_resembles_a_place_is_left_as_it_is() {
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
