//! Leases on a majority of independent Redis servers.
//!
//! From top to bottom; a file uses its own floor and those below:
//!
//! - this file and `builder`, `inspect`: the store, as users and operators see it
//! - `waiting`: waiting for a turn at one member, the conductor
//! - `rounds`: a ballot to each member, second rounds, renewals; `failure`: why a round failed
//! - `tokens`: what is known of each token; `flights`: ballots that are under way; `ending`:
//!   releases
//! - `standing`: how the members fare; `servers`: whether they are as many servers; `tally`:
//!   counting votes, without I/O

mod builder;
mod ending;
mod failure;
mod flights;
mod inspect;
mod rounds;
mod servers;
mod standing;
mod tally;
mod tokens;
mod votes;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;

pub use self::builder::QuorumStoreBuilder;
#[cfg(feature = "serde")]
pub(crate) use self::builder::{check_members, check_restart_delay};
use self::ending::{ASK_AGAIN, Ending, Outcome};
use self::failure::{no_majority, reasons, unavailable};
use self::rounds::Quorum;
use self::waiting::{Waits, give_up};
use super::{
    AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, Grant, Inspect, Release,
    ReleaseReply, Released, Renewal, Renewed, Store, Survives,
};
use crate::error::{ConfigError, Error};
use crate::time::Instant;

/// Leases on a majority of independent Redis servers, so that locks outlive the loss of any
/// minority of them (feature `redis-quorum`). Tested on Redis 6.2, 7.0 and 8.2, and on Valkey 9.1.
///
/// Give it three servers or five that have nothing in common: neither a machine, nor replication,
/// nor a clock that one mistake moves on all of them. A lease needs more than half of the
/// *members*, as many as were configured, whether or not they answer. While so many answer, locking
/// goes on without a gap.
///
/// # When to use it
///
/// A [`RedisStore`](super::RedisStore) is enough, costs a third, and serves waiters in order, if a
/// lock saves work that may be done twice once in a while. A quorum is for locks that must hold
/// while a server dies or comes back without its data, where no database that loses nothing can
/// keep them. In both cases what must not happen twice checks the
/// [fencing token](crate::FencingToken) at the resource.
///
/// # What holds
///
/// The algorithm is Redlock, of the Redis documentation ("Distributed locks with Redis"), with four
/// changes that answer its critics: fencing tokens, repair, members that notice that they have
/// forgotten, and tokens that are not used again after a release.
///
/// - **Exclusion** needs that clocks run alike, within 1 %, and that no more than a minority of the
///   members is lost or forgetful at once. A lease ends for its holder before the first moment at
///   which fewer than a majority hold it.
/// - **A member whose clock jumps ahead** drops its locks early, and does not notice, unlike one
///   that restarts. Locks that all members hold are safe from a minority of such clocks. A lock
///   that was granted by a bare majority with such a member in it, as happens under contention, can
///   be granted again until its next renewal, a third of the ttl: it then ends as lost, and its
///   fencing token is the smaller one.
/// - **A client that stalls** after its lease was confirmed may act after it has ended: the
///   residual risk of every lock that expires. [`run`](crate::Mutex::run) starts no poll after the
///   deadline, and the fencing token tells the resource.
/// - **Fencing tokens grow** across the members without an assumption about clocks or expiries: a
///   claim carries the number that it proposes, a member accepts it only if it is larger than all
///   that it accepted before, and a grant is a majority for one number. Over members that forget,
///   they grow as long as the clock of such a member does not go back.
/// - **A member that restarts without its data**, or whose keys were flushed, votes for no claim
///   until every lock that it may have forgotten is over: for the [restart
///   delay](QuorumStoreBuilder::with_restart_delay). So no ttl and no `min_hold` may be longer
///   ([`Capabilities::longest_ttl`]). It is found by a mark that each member keeps,
///   `<namespace>:{0}:born`, which names the process that it was written in. A member that evicts
///   single locks keeps its mark, and is not found: set `maxmemory-policy` to `noeviction`, of
///   which the check at the start warns.
/// - **A held lease repairs itself**: each renewal takes the lock again on members that lost it, if
///   it is free there. So members may restart one after the other under a long lease.
/// - **Nothing is left behind**: what a claim without a majority got is released on all members, in
///   the background, until each has confirmed it. A [drain](crate::LockClient::drain) waits until a
///   majority has confirmed each release, and a second at most for members that fail: what such a
///   member has ends with its ttl, and is no majority.
///
/// # Waiting
///
/// If a lock is taken, the client waits for its turn in the queue of one member, the same for all
/// clients while it answers. Its turn there is a hint: all members are asked, and their votes
/// decide. Waiters are served nearly in order, in two round trips. Of several `try_lock` at the
/// same moment it may be that none gets the lock.
///
/// # New installations
///
/// A member votes at once if it can tell that it has forgotten nothing: it has been up for longer
/// than the restart delay, has evicted no key, and was sent no `FLUSHALL`, `FLUSHDB`, `SWAPDB`,
/// `REPLICAOF`, `DEBUG` or `CONFIG RESETSTAT`. Else the first claim of a namespace begins its
/// restart delay. An operator who knows better writes the mark by hand, for each member:
///
/// ```text
/// SET <namespace>:{0}:born "0 <run_id of INFO server>"
/// ```
///
/// All clients of a namespace use the same members and the same restart delay. If delays differ,
/// the longest counts; a delay that was lowered counts once the marks are deleted.
///
/// # On the servers
///
/// A lock is the same plain key with the same value and expiry as that of a single server, on a
/// majority of them. So Redlock clients (redsync, node-redlock, rslock) on the same servers exclude
/// with this one. The [permissions](super::RedisStore#permissions) are those of a single server.
/// One more key per namespace is the mark, and `<namespace>:{0}:n:<0 – 16383>` keep the numbers.
///
/// Each member has its own URL, so passwords may differ, and with the feature `redis-tls` it is
/// reached by TLS if that is `rediss://`. Credentials that are rotated come from a
/// [provider](QuorumStoreBuilder::with_credentials_provider), and certificates from the platform or
/// from the builder.
///
/// A lock that was [taken by force](crate::LockClient::force_release) stays taken for the rest of
/// its ttl, so that no renewal of its former owner takes it again on a member that lost it.
///
/// # Examples
///
/// ```no_run
/// use lock_core::{LockClient, store::QuorumStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let members = ["redis://10.0.1.5/", "redis://10.0.2.5/", "redis://10.0.3.5/"];
/// let client = LockClient::builder(QuorumStore::connect(members).await?).build()?;
/// let guard = client.mutex("payouts").lock().await?;
/// # drop(guard); Ok(()) }
/// ```
pub struct QuorumStore {
    quorum: Arc<Quorum>,
    waits: Waits,
}

impl QuorumStore {
    fn new(quorum: Arc<Quorum>) -> Self {
        let waits = Waits::new(quorum.members.len());
        Self { quorum, waits }
    }

    /// A lock that is forgotten must be over when its member votes again.
    fn check_ttl(&self, claim: &Claim) -> Result<(), AcquireError> {
        let most = self.quorum.terms.restart_delay;
        if claim.ttl <= most {
            return Ok(());
        }
        Err(AcquireError::definite(ConfigError::too_long("ttl", claim.ttl, most).into()))
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Grant, AcquireError> {
        self.check_ttl(claim)?;
        let quorum = &self.quorum;
        let (inner, _) = quorum.tokens.begin(claim.token).map_err(AcquireError::definite)?;
        let limit = Instant::now().saturating_add(quorum.longest_call());
        match quorum.claim(claim, inner, limit, 0).await {
            Ok(grant) => Ok(grant),
            Err(failure) => Err(give_up(quorum, &claim.name, claim.token, failure.into_error())),
        }
    }

    async fn release(&self, release: &Release) -> Result<ReleaseReply, Error> {
        let (quorum, token) = (&self.quorum, release.token);
        let mut endings = quorum.tokens.endings(token);
        let retired = quorum.tokens.retire(token, true);
        let next = match retired {
            Some(retired) if retired.touched.contains(&true) => {
                let release =
                    Release::new(release.name.clone(), retired.inner, release.min_hold_ends);
                Some(Ending::new(release, &retired.touched, retired.over))
            }
            // Nothing is left, or it is being released already.
            Some(_) if !endings.is_empty() => None,
            // Perhaps of another store on the same servers.
            _ => {
                let asked = vec![true; quorum.members.len()];
                Some(Ending::new(release.clone(), &asked, quorum.unknown_is_over()))
            }
        };
        let is_repeated = next.is_none();
        if let Some(next) = next {
            quorum.tokens.ending(token, &next, release.min_hold_ends);
            quorum.start(token, &next);
            endings.push(next);
        }
        for ending in endings.iter().filter(|ending| ending.is_left() && !ending.is_over()) {
            quorum.start(token, ending);
        }
        let Some(last) = endings.last() else { return Err(quorum.released_nowhere(&[])) };
        let until = Instant::now().saturating_add(quorum.longest_call());
        let outcome = last.outcome(until).await;
        let is_under_control = endings.iter().all(|ending| ending.is_under_control());
        let released = match outcome {
            Outcome::Found(released) => released,
            // What the members that fail may keep is no majority, and ends with its ttl.
            Outcome::Undecided(_) if is_repeated && is_under_control => Released::Expired,
            Outcome::Undecided(failed) => return Err(quorum.released_nowhere(&failed)),
            Outcome::Open => return Err(quorum.released_nowhere(&[])),
        };
        if is_under_control {
            quorum.tokens.forget(token);
            return Ok(ReleaseReply::definite(released));
        }
        let again = Instant::now().saturating_add(ASK_AGAIN);
        Ok(ReleaseReply::retry_at(released, again))
    }
}

impl Quorum {
    /// The longest time that a call takes which waits for nothing but the servers.
    fn longest_call(&self) -> Duration {
        self.request_timeout.max(self.connect_timeout)
    }

    /// The error of a release after which it is not known what became of the lock.
    fn released_nowhere(&self, failed: &[(usize, Error)]) -> Error {
        let answered = self.members.len() - failed.len();
        let what = no_majority(answered, self.members.len());
        let error = unavailable(what, reasons(&self.members, failed));
        if failed.iter().any(|(_, error)| error.is_unknown()) {
            return error.in_doubt("the others may have released the lock");
        }
        let is_permanent = |(_, error): &(usize, Error)| error.is_permanent();
        if !failed.is_empty() && failed.iter().all(is_permanent) {
            return error.permanent();
        }
        error
    }
}

impl Store for QuorumStore {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(self.try_acquire(claim))
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        context: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(async move {
            self.check_ttl(claim)?;
            self.waits.acquire(&self.quorum, claim, context).await
        })
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        // Each member's batcher writes what is ready at the same time in one go.
        Box::pin(join_all(renewals.iter().map(|renewal| self.quorum.renew(renewal))))
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        Box::pin(self.release(release))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
            .with_fencing()
            .with_survives(Survives::Minority)
            .with_longest_ttl(self.quorum.terms.restart_delay)
    }

    fn inspector(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    fn run_on(&self, runtime: &Handle) {
        self.quorum.run_on(runtime);
    }

    fn set_connection_name(&self, name: &str) {
        for member in &*self.quorum.members {
            member.set_connection_name(name);
        }
    }
}

impl fmt::Display for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "quorum of {}:", self.quorum.members.len())?;
        for (index, member) in self.quorum.members.iter().enumerate() {
            write!(f, "{} {member}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the tokens.
        f.debug_struct("QuorumStore").field("members", &self.quorum.members).finish_non_exhaustive()
    }
}
