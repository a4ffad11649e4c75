//! Which server is the master, by what the sentinels say.
//!
//! All sentinels of the URL are asked at once, at each dial and while a connection is watched:
//!
//! - A majority of them has to answer, so that a sentinel that is cut off from the others decides
//!   nothing. The rest has a moment more.
//! - The answer with the highest configuration epoch counts, not the first one: a sentinel that
//!   missed a failover still names the old master.
//! - During a failover the sentinel that leads it has the new epoch and still names the old master.
//!   Of equal epochs the answer without a failover in progress counts.
//! - A minority counts only if it names the server of the last connection: then nothing is known
//!   to have changed.
//!
//! Only the sentinels of the URL are asked, because all clients have to agree on what a majority
//! is.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::{ConnectionLike as _, PubSub};
use redis::{AsyncConnectionConfig, RedisError, RedisResult, Value};

use super::connector::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::store::redis::error::{
    UnknownMaster, discreet, is_about_password, is_about_permission, is_unknown_command,
};
use crate::time::{Instant, Late, timeout_at};

/// The sentinels of a URL, and the name of the master that they watch.
pub(crate) struct Sentinels {
    sentinels: Vec<Endpoint>,
    name: String,
    /// Of the last connection.
    last: Mutex<Option<Master>>,
}

/// The master, as a sentinel names it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Master {
    pub(super) host: String,
    pub(super) port: u16,
    /// Counts failovers.
    epoch: u64,
    /// Whether the sentinel is leading a failover, and so about to name another master.
    is_moving: bool,
}

/// What a sentinel said.
enum Answer {
    Master(Master),
    /// It watches no master of this name.
    UnknownName,
    Refused(RedisError),
    Silent(RedisError),
}

/// What the sentinels said.
struct Tally<'a> {
    name: &'a str,
    configured: usize,
    masters: Vec<Master>,
    unknown: usize,
    refused: Vec<RedisError>,
    silent: Option<RedisError>,
}

/// How long the other sentinels may take when a majority has answered.
const STRAGGLERS: Duration = Duration::from_millis(200);

/// The channel on which a sentinel tells of a new master.
const SWITCH_MASTER: &str = "+switch-master";

impl Sentinels {
    pub(crate) fn new(sentinels: Vec<Endpoint>, name: String) -> Self {
        Self { sentinels, name, last: Mutex::default() }
    }

    /// The master's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Each of the sentinels.
    pub(super) fn each(&self) -> impl Iterator<Item = &Endpoint> {
        self.sentinels.iter()
    }

    /// Asks all sentinels until `limit`.
    pub(super) async fn resolve(&self, limit: Instant) -> Result<Master, Error> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.ask_all(limit).await.decide(last.as_ref())
    }

    /// The same for a connection that is open: only a majority counts.
    pub(super) async fn confirm(&self, limit: Instant) -> Result<Master, Error> {
        self.ask_all(limit).await.decide(None)
    }

    /// A connection to `master` is open.
    pub(super) fn connected(&self, master: Master) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(master);
    }

    /// What is wrong with the sentinels, each with what to do about it.
    pub(super) async fn problems(&self, limit: Instant) -> Vec<String> {
        let mut problems = Vec::new();
        let tally = self.ask_all(limit).await;
        let known = tally.masters.len();
        if known < tally.configured {
            let what = format!("is named by {known} of {} sentinels only", tally.configured);
            problems.push(format!("{what}: see why the others do not answer"));
        }
        let mut masters = tally.masters.iter();
        if let Some(first) = masters.next()
            && !masters.all(|other| other.is_at(first))
        {
            problems.push("is not the master of all sentinels: is a failover under way?".into());
        }
        problems
    }

    async fn ask_all(&self, limit: Instant) -> Tally<'_> {
        let mut asked: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.ask(sentinel, limit)).collect();
        let mut tally = Tally::new(&self.name, self.sentinels.len());
        let (mut until, stragglers) = (limit, STRAGGLERS.min(limit.remaining() / 4));
        while let Ok(Some(answer)) = timeout_at(until, asked.next()).await {
            tally.count(answer);
            if until == limit && tally.has_majority() {
                until = limit.min(Instant::now().saturating_add(stragglers));
            }
        }
        tally
    }

    async fn ask(&self, sentinel: &Endpoint, limit: Instant) -> Answer {
        let asked = async {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let mut wire = sentinel.connect(false, None, None, config).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("MASTER").arg(&self.name);
            wire.req_packed_command(&command).await.and_then(Value::extract_error)
        };
        match timeout_at(limit, asked).await {
            Ok(reply) => Answer::read(reply),
            Err(Late) => Answer::Silent(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }
}

/// Opens a connection on which a sentinel tells of new masters.
pub(super) async fn listen(sentinel: &Endpoint) -> RedisResult<PubSub> {
    let mut pubsub = sentinel.pubsub(None, None).await?;
    pubsub.subscribe(SWITCH_MASTER).await?;
    Ok(pubsub)
}

impl Master {
    /// Whether it is the same server.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    /// How many failovers there had been.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether it took the place of `before`.
    pub(super) fn replaces(&self, before: &Self) -> bool {
        !self.is_at(before) && self.epoch >= before.epoch
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Answer {
    fn read(reply: RedisResult<Value>) -> Self {
        let fields = match reply {
            Ok(fields) => fields,
            Err(error) if error.is_io_error() || error.code().is_none() => {
                // The handshake reports a refused password without a code.
                return if is_about_password(&error) {
                    Self::Refused(error)
                } else {
                    Self::Silent(error)
                };
            }
            Err(error) if is_unknown_name(&error) => return Self::UnknownName,
            Err(error) => return Self::Refused(error),
        };
        match read_master(fields) {
            Some(master) => Self::Master(master),
            None => Self::Silent(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }
}

fn read_master(fields: Value) -> Option<Master> {
    let fields: HashMap<String, String> = redis::from_redis_value(fields).ok()?;
    let host = fields.get("ip").filter(|host| !host.is_empty())?.clone();
    let port = fields.get("port")?.parse().ok()?;
    let epoch = fields.get("config-epoch")?.parse().ok()?;
    let is_moving = fields.get("flags").is_some_and(|it| it.contains("failover_in_progress"));
    Some(Master { host, port, epoch, is_moving })
}

fn is_unknown_name(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("No such master"))
}

impl<'a> Tally<'a> {
    fn new(name: &'a str, configured: usize) -> Self {
        let (masters, refused) = (Vec::new(), Vec::new());
        Self { name, configured, masters, unknown: 0, refused, silent: None }
    }

    fn count(&mut self, answer: Answer) {
        match answer {
            Answer::Master(master) => self.masters.push(master),
            Answer::UnknownName => self.unknown += 1,
            Answer::Refused(error) => self.refused.push(error),
            Answer::Silent(error) => self.silent = Some(error),
        }
    }

    fn majority(&self) -> usize {
        self.configured / 2 + 1
    }

    fn has_majority(&self) -> bool {
        self.masters.len() >= self.majority()
    }

    /// The master, if the sentinels name one, and the server of the last connection was `last`.
    fn decide(mut self, last: Option<&Master>) -> Result<Master, Error> {
        let has_majority = self.has_majority();
        let best = self.masters.iter().max_by_key(|master| (master.epoch, !master.is_moving));
        if let Some(best) = best
            && (has_majority || last.is_some_and(|last| last.is_at(best)))
        {
            return Ok(best.clone());
        }
        if self.masters.is_empty() && self.unknown >= self.majority() {
            let what =
                format!("the sentinels watch no master `{}`: check the name in the URL", self.name);
            return Err(Error::unavailable(what, UnknownMaster).permanent());
        }
        // So many refusals that no majority is left.
        if self.refused.len() > self.configured - self.majority()
            && let Some(error) = self.refused.pop()
        {
            return Err(refused(error));
        }
        Err(self.without_majority())
    }

    fn without_majority(self) -> Error {
        let (known, refused) = (self.masters.len(), self.refused.len());
        let silent = self.configured - known - self.unknown - refused;
        let of = |count: usize| format!("{count} of {} sentinels", self.configured);
        let mut told = Vec::new();
        if silent > 0 {
            told.push(format!("{} do not answer", of(silent)));
        }
        if refused > 0 {
            told.push(format!("{} refuse this client", of(refused)));
        }
        if self.unknown > 0 {
            told.push(format!("{} watch no master `{}`", of(self.unknown), self.name));
        }
        let what = told.join(", ");
        match self.silent.or_else(|| self.refused.into_iter().next_back()) {
            Some(error) => Error::unavailable(what, discreet(error)),
            None => Error::plain(ErrorKind::Unavailable, what),
        }
    }
}

/// The error for a refusal of the sentinels.
fn refused(error: RedisError) -> Error {
    let error = discreet(error);
    if is_about_password(&error) {
        let what = "the sentinels refused the user name or password: give them in the URL as \
                    `sentinel_username` and `sentinel_password`";
        return Error::unavailable(what, error);
    }
    let what = if is_unknown_command(&error) {
        "the servers in the URL are no sentinels: for a single server write `redis://`"
    } else if is_about_permission(&error) {
        "the user lacks a permission on the sentinels: see the ACL line in the documentation of \
         `RedisStore`"
    } else {
        return Error::unavailable("the sentinels refused to name the master", error);
    };
    Error::unavailable(what, error).permanent()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(port: u16, epoch: u64) -> Master {
        Master { host: "10.0.0.1".into(), port, epoch, is_moving: false }
    }

    fn decide(
        configured: usize,
        answers: impl IntoIterator<Item = Answer>,
        last: Option<&Master>,
    ) -> Result<Master, String> {
        let mut tally = Tally::new("shop", configured);
        answers.into_iter().for_each(|answer| tally.count(answer));
        tally.decide(last).map_err(|error| error.to_string())
    }

    fn error(code: &str, detail: &str) -> RedisError {
        redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))
    }

    #[test]
    fn highest_epoch_of_a_majority_counts() {
        let (old, new) = (master(1, 3), master(2, 4));
        let named = |masters: &[&Master]| {
            decide(3, masters.iter().map(|it| Answer::Master((*it).clone())), None)
        };
        assert_eq!(named(&[&old, &new]), Ok(new.clone()));
        assert_eq!(named(&[&old, &new, &old]), Ok(new.clone()));
        assert_eq!(named(&[&new, &old]), Ok(new.clone()));
        let leader = Master { is_moving: true, ..master(1, 4) };
        assert_eq!(named(&[&leader, &new]), Ok(new.clone()));
        assert_eq!(named(&[&new, &leader]), Ok(new));
    }

    #[test]
    fn minority_counts_only_for_the_server_of_the_last_connection() {
        let (one, two) = (master(1, 3), master(2, 4));
        let answer = || [Answer::Master(one.clone())];
        assert_eq!(decide(1, answer(), None), Ok(one.clone()));
        for configured in [2, 3] {
            let alone = decide(configured, answer(), None).unwrap_err();
            assert!(alone.contains(&format!("of {configured} sentinels do not answer")), "{alone}");
            decide(configured, answer(), Some(&two)).unwrap_err();
            assert_eq!(decide(configured, answer(), Some(&one)), Ok(one.clone()));
        }
        let none = decide(3, [], Some(&one)).unwrap_err();
        assert!(none.contains("3 of 3 sentinels do not answer"), "{none}");
    }

    #[test]
    fn errors_name_refusals_and_unknown_names() {
        let unknown = |count| (0..count).map(|_| Answer::UnknownName);
        let told = decide(3, unknown(2), None).unwrap_err();
        assert!(told.contains("no master `shop`"), "{told}");
        let told = decide(3, unknown(1), None).unwrap_err();
        assert!(told.contains("2 of 3 sentinels do not answer, 1 of 3"), "{told}");
        let with_one = unknown(2).chain([Answer::Master(master(1, 1))]);
        let told = decide(3, with_one, None).unwrap_err();
        assert!(told.contains("2 of 3 sentinels watch no master"), "{told}");
        for (code, detail, part) in [
            ("NOAUTH", "Authentication required.", "`sentinel_password`"),
            ("NOPERM", "this user has no permissions to run the 'sentinel'", "ACL line"),
            ("ERR", "unknown command 'SENTINEL'", "are no sentinels"),
            ("ERR", "something else", "refused to name"),
        ] {
            let refusal = || Answer::read(Err(error(code, detail)));
            let told = decide(3, [refusal(), refusal()], None).unwrap_err();
            assert!(told.contains(part), "{told}");
            let told = decide(3, [refusal()], None).unwrap_err();
            assert!(told.contains("2 of 3 sentinels do not answer"), "{told}");
        }
        assert!(matches!(
            Answer::read(Err(error("ERR", "No such master with that name"))),
            Answer::UnknownName
        ));
    }

    #[test]
    fn master_is_read_and_garbage_is_no_answer() {
        let reply = |fields: &[&str]| {
            let bulk = |field: &&str| Value::BulkString(field.as_bytes().into());
            Answer::read(Ok(Value::Array(fields.iter().map(bulk).collect())))
        };
        let fields = ["ip", "10.0.0.1", "port", "6379", "flags", "master", "config-epoch", "7"];
        assert!(matches!(reply(&fields), Answer::Master(it) if it == master(6379, 7)));
        for garbage in [&fields[..6], &["ip"], &["ip", "", "port", "1", "config-epoch", "1"]] {
            assert!(matches!(reply(garbage), Answer::Silent(_)));
        }
    }

    #[test]
    fn older_epoch_replaces_no_master() {
        assert!(master(2, 4).replaces(&master(1, 3)) && master(2, 3).replaces(&master(1, 3)));
        assert!(!master(2, 2).replaces(&master(1, 3)) && !master(1, 4).replaces(&master(1, 3)));
    }
}
