//! What a client sends to a store, and what the store replies.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use super::token::Token;
use crate::error::Error;
use crate::key::{Key, MAX_NAME_LEN};
use crate::lease::Released;
use crate::time::Instant;

/// The full name of a lock: `<namespace>:<key>`, or the key alone.
///
/// Carries its hash, so that a lock's name is hashed once.
#[derive(Clone)]
pub struct Name {
    full: Arc<str>,
    /// `None`: the key alone.
    namespace_len: Option<u16>,
    hash: u64,
}

/// The namespace of clients that choose none. Stores keep their own records of locks without a
/// namespace under it.
pub(crate) const DEFAULT_NAMESPACE: &str = "lock";

/// What stores keep beside locks, and the channels of Redis: none may be the name of a lock.
const RECORD_KINDS: [&str; 9] =
    ["a", "born", "check", "fence", "forced", "inbox", "n", "probe", "q"];

/// Keys may come from users, so each process hashes them with its own seed.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Name {
    /// The name of `key` in a namespace, or without one.
    pub(crate) fn new(namespace: Option<&str>, key: &Key) -> Result<Self, Error> {
        let key = key.as_str();
        let Some(namespace) = namespace else { return Self::plain(key) };
        match len_of(namespace) {
            Some(len) if namespace.len() + 1 + key.len() <= MAX_NAME_LEN => {
                Ok(Self::of(format!("{namespace}:{key}").into(), Some(len)))
            }
            _ => Err(Error::invalid_key(
                "a lock key and its namespace have at most 512 bytes: put long values into holes of \
                 a template, which shortens them",
            )),
        }
    }

    /// A name without a namespace. One such as `lock:order:42` is the lock `order:42` of the
    /// namespace `lock`, in the same queue.
    fn plain(key: &str) -> Result<Self, Error> {
        if is_companion(key) {
            return Err(Error::invalid_key(
                "a lock without a namespace cannot have the name of a record beside a lock, \
                 such as `<namespace>:{<number>}:fence`",
            ));
        }
        let rest = key.strip_prefix(DEFAULT_NAMESPACE).and_then(|rest| rest.strip_prefix(':'));
        let is_of_default = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('{'));
        let namespace = is_of_default.then_some(DEFAULT_NAMESPACE);
        Ok(Self::of(key.into(), namespace.and_then(len_of)))
    }

    /// A name that was read from a store.
    pub(crate) fn from_store(full: &str) -> Option<Self> {
        let (namespace, _) = full.split_once(':')?;
        Some(Self::of(full.into(), Some(len_of(namespace)?)))
    }

    /// A name of the store's own, under a namespace that users cannot choose.
    #[cfg(feature = "redis")]
    pub(crate) fn internal(namespace: &str, key: &str) -> Self {
        Self::of(format!("{namespace}:{key}").into(), len_of(namespace))
    }

    fn of(full: Arc<str>, namespace_len: Option<u16>) -> Self {
        let hash = HASHER.hash_one(&full);
        Self { full, namespace_len, hash }
    }

    /// The hash that the name carries.
    pub(crate) fn hash_value(&self) -> u64 {
        self.hash
    }

    /// The whole name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.full
    }

    /// The part before the first colon, or `lock` for a name
    /// [without a namespace](Self::has_namespace). A store may keep its own records under it.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace_len.map_or(DEFAULT_NAMESPACE, |len| &self.full[..usize::from(len)])
    }

    /// The part after the first colon, or the whole name if it has no namespace.
    #[must_use]
    pub fn key(&self) -> &str {
        self.namespace_len.map_or(&*self.full, |len| &self.full[usize::from(len) + 1..])
    }

    /// Whether the name begins with a namespace. If not, it may have the same
    /// [`key`](Self::key) as a lock of the namespace `lock`, and is another lock.
    #[must_use]
    pub fn has_namespace(&self) -> bool {
        self.namespace_len.is_some()
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.full == other.full
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Shows the namespace only: keys often contain personal data.
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = if self.has_namespace() { self.namespace() } else { "" };
        write!(f, "Name({namespace}:..)")
    }
}

/// The length of a namespace; `None` if it is longer than any.
fn len_of(namespace: &str) -> Option<u16> {
    u16::try_from(namespace.len()).ok()
}

/// Whether `name` is that of a record beside the locks of a namespace, by its form
/// `<namespace>:{<tag>}:<kind>..`.
fn is_companion(name: &str) -> bool {
    let rest = name.split_once(":{").filter(|(namespace, _)| !namespace.contains(':'));
    let Some((tag, kind)) = rest.and_then(|(_, rest)| rest.split_once("}:")) else { return false };
    let is_tag = !tag.is_empty() && tag.bytes().all(|byte| byte.is_ascii_digit());
    let is_kind = |known: &str| {
        let after = kind.strip_prefix(known);
        after.is_some_and(|after| after.is_empty() || after.starts_with(':'))
    };
    is_tag && RECORD_KINDS.iter().any(|known| is_kind(known))
}

/// A request for a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Which lock.
    pub name: Name,
    /// The value to store. Every attempt of one acquisition uses the same.
    pub token: Token,
    /// How long the store keeps the lock without a renewal.
    pub ttl: Duration,
    /// Whether the grant needs a number. If not, a store may use a cheaper way to grant.
    pub fencing: bool,
    /// Whether clients of other libraries take turns with this one. They hand nothing on, and may
    /// take the lock again at once, so a store looks often for the end of their turns.
    pub beside_others: bool,
}

impl Claim {
    /// A claim of `name` with a fencing token.
    #[must_use]
    pub fn new(name: Name, token: Token, ttl: Duration) -> Self {
        Self { name, token, ttl, fencing: true, beside_others: false }
    }

    /// The same claim without a fencing token.
    #[must_use]
    pub fn without_fencing(mut self) -> Self {
        self.fencing = false;
        self
    }

    /// The same claim beside clients of other libraries.
    #[must_use]
    pub fn beside_others(mut self) -> Self {
        self.beside_others = true;
        self
    }
}

/// A lease that was granted.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The grant number: larger than that of every grant that completed before this one began.
    pub number: u64,
    /// When the lease starts: the clock, read *before* the command was sent.
    pub since: Instant,
    /// How long the store keeps the lock, counted from a moment not earlier than `since`.
    pub ttl: Duration,
    /// Whether the release of another client handed the lock on.
    pub is_from_hand_off: bool,
    /// For how long the wait met holders that are not clients of this library, as far as its store
    /// can tell them.
    pub behind_others: Duration,
}

impl Grant {
    /// A grant of `ttl` that counts from `since`.
    #[must_use]
    pub fn new(number: u64, since: Instant, ttl: Duration) -> Self {
        Self { number, since, ttl, is_from_hand_off: false, behind_others: Duration::ZERO }
    }

    /// The same for a lock that the release of another client handed on.
    #[must_use]
    pub fn handed_on(mut self) -> Self {
        self.is_from_hand_off = true;
        self
    }
}

/// A claim that was not granted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireError {
    /// Why.
    pub error: Error,
    /// Whether it is certain that no claim of this token has taken effect or will. If not, another
    /// task of the client that waits for the lock claims with the same token, or, if none waits,
    /// the client releases the token in the background.
    pub definite: bool,
}

impl AcquireError {
    /// An error after which the token certainly holds nothing.
    #[must_use]
    pub fn definite(error: Error) -> Self {
        Self { error, definite: true }
    }

    /// An error after which the token may hold the lock, now or soon.
    #[must_use]
    pub fn in_doubt(error: Error) -> Self {
        Self { error, definite: false }
    }
}

/// A waiter reports its last answer only if it is newer than this, and treats a store as
/// unresponsive only after this long.
pub(crate) const RECENTLY: Duration = Duration::from_millis(250);

/// What a waiting claim learns from the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WaitEvent {
    /// Another owner holds the lock for up to this long.
    Busy(Duration),
    /// The store could not be reached, or did not reply; the claim is sent again.
    Failed(Error),
}

impl From<WaitEvent> for Error {
    /// The error of a claim that gives up after this event.
    fn from(event: WaitEvent) -> Self {
        match event {
            WaitEvent::Busy(left) => Self::busy(left),
            WaitEvent::Failed(error) => error,
        }
    }
}

/// How long a claim may wait, and where it reports what it learns.
#[derive(Clone, Copy)]
pub struct AcquireContext<'a> {
    until: Option<Instant>,
    listener: &'a (dyn Fn(WaitEvent) + Send + Sync),
}

impl<'a> AcquireContext<'a> {
    /// The claim waits until `until`, for ever if `None`, and reports to `listener`.
    #[must_use]
    pub fn new(until: Option<Instant>, listener: &'a (dyn Fn(WaitEvent) + Send + Sync)) -> Self {
        Self { until, listener }
    }

    /// When to give up; `None`: never.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the time is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    /// Reports `event` to the tasks that wait behind the claim.
    pub fn report(&self, event: WaitEvent) {
        (self.listener)(event);
    }
}

impl fmt::Debug for AcquireContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireContext").field("until", &self.until).finish_non_exhaustive()
    }
}

/// What the lease that a renewal is for counts on.
pub(crate) trait LeaseNeeds: Send + Sync {
    /// See [`Renewal::needs`].
    fn needs(&self, sent: Instant) -> Option<Duration>;
}

/// A request to keep a lease longer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// Which lock.
    pub name: Name,
    /// Of which acquisition.
    pub token: Token,
    /// How long the store keeps the lock from now, at least.
    pub ttl: Duration,
    /// When the reply is of no more use.
    pub until: Instant,
    lease: Option<Weak<dyn LeaseNeeds>>,
}

impl Renewal {
    /// A renewal of `token`'s lease for `ttl`, given up at `until`.
    #[must_use]
    pub fn new(name: Name, token: Token, ttl: Duration, until: Instant) -> Self {
        Self { name, token, ttl, until, lease: None }
    }

    /// The same for `lease`, which tells what it needs.
    #[must_use]
    pub(crate) fn with_lease(self, lease: Weak<dyn LeaseNeeds>) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// For how long a command sent at `sent` must leave the lock to its holder: its ttl, or what
    /// the holder counts on if that is more. For a store whose clock went back, so that its expiry
    /// is later than any client asked.
    ///
    /// `None`: the expiry must not be shortened now. An extension may be about to bring more, or
    /// the lease has ended.
    #[must_use]
    pub fn needs(&self, sent: Instant) -> Option<Duration> {
        self.lease.as_ref()?.upgrade()?.needs(sent)
    }
}

/// The definite replies to a renewal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Renewed {
    /// The lock is kept for at least the ttl.
    Kept {
        /// When the ttl starts: the clock, read *before* the command was sent.
        since: Instant,
    },
    /// No token holds the lock: it expired or was deleted.
    Gone,
    /// Another token holds it.
    TakenByOther,
}

/// The end of a token: it no longer holds the lock or a place in a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Release {
    /// Which lock.
    pub name: Name,
    /// Of which acquisition.
    pub token: Token,
    /// Under `min_hold`: keep the name taken until then, under a value other than the token, so
    /// that late renewals, claims and releases do not match it.
    pub min_hold_ends: Option<Instant>,
}

impl Release {
    /// A release that frees the name at once, or at `min_hold_ends`.
    #[must_use]
    pub fn new(name: Name, token: Token, min_hold_ends: Option<Instant>) -> Self {
        Self { name, token, min_hold_ends }
    }
}

/// The definite reply to a release.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReleaseReply {
    /// What the store found.
    pub released: Released,
    /// A claim of this token may still be under way until then: release again at that time.
    pub retry_at: Option<Instant>,
}

impl ReleaseReply {
    /// A reply after which no claim of the token can take effect.
    #[must_use]
    pub fn definite(released: Released) -> Self {
        Self { released, retry_at: None }
    }

    /// A reply after which a claim of the token may still arrive until `at`.
    #[must_use]
    pub fn retry_at(released: Released, at: Instant) -> Self {
        Self { released, retry_at: Some(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_without_a_namespace_is_the_key_itself() {
        let plain = |text: &str| Name::new(None, &Key::new(text.to_owned()).unwrap());
        for text in ["mylock", "order:42", "lock:", "lock:{a}", "order:{42}:lock", "a:b:{0}:q"] {
            let name = plain(text).unwrap();
            assert_eq!((name.as_str(), name.key(), name.namespace()), (text, text, "lock"));
            assert!(!name.has_namespace() && format!("{name:?}") == "Name(:..)", "{text}");
        }
        let (same, other) = (plain("lock:k").unwrap(), plain("k").unwrap());
        let usual = Name::new(Some("lock"), &Key::new("k").unwrap()).unwrap();
        assert!(same == usual && same.has_namespace() && same.key() == "k");
        assert!(other != usual && other.key() == "k");
        for taken in ["lock:{0}:fence", "shop:{5405}:q:k", ":{0}:inbox:x"] {
            assert!(plain(taken).unwrap_err().to_string().contains("record"), "{taken}");
        }
    }
}
