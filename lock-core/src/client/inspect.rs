//! For the person on call: who holds a lock, and to take it from its holder.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sha2::{Digest as _, Sha256};

use super::LockClient;
use crate::driver::Renewable;
use crate::error::{Error, ErrorKind, LostReason};
use crate::fencing::FencingToken;
use crate::key::IntoKey;
use crate::state::ClientState;
use crate::store::{
    ClientId, DEFAULT_NAMESPACE, ForceReleaseListener, Inspect, LockRecord, MissingPermissions,
    Name, Owner, StoreHealth, Token,
};

/// What the store knew of a lock when [`LockClient::inspect`] asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockInfo {
    /// Who has it; `None`: it is free.
    pub owner: Option<OwnerInfo>,
    /// How many processes wait for it in the store; `None` if the store may not tell. The tasks of
    /// one process wait behind one claim.
    pub waiting: Option<u64>,
    /// No lease so far has a larger fencing token than this. On Redis it counts the whole
    /// namespace.
    pub latest_fencing_token: FencingToken,
}

/// Who has a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OwnerInfo {
    /// The client, as its log and its [`id`](LockClient::id) name it. `None` if the value was set
    /// by another library or by hand.
    pub client: Option<ClientId>,
    /// For how long the store keeps the lock if it is not renewed; `None`: for ever.
    pub remaining: Option<Duration>,
    /// The holder has released it, and it stays taken for the rest of its `min_hold`.
    pub is_released: bool,
    /// The number of the lease, if it is one of the client that asked.
    pub fencing_token: Option<FencingToken>,
    owner: Owner,
}

impl OwnerInfo {
    /// A number for this owner, the same in every process, by which a page or a form can tell
    /// whether another owner has the lock meanwhile. It differs for each grant of the store, and
    /// after a release that `min_hold` outlasts. It stays the same while a process hands its lease
    /// from one of its tasks to the next.
    ///
    /// The token does not follow from it. That of a foreign value, without a
    /// [`client`](Self::client), depends on the value alone: it is the same for two locks that have
    /// the same value, and a value that can be guessed can be found from it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let guard = client.mutex("import").lock().await?;
    /// let shown = client.inspect("import").await?.owner.expect("it is held").fingerprint();
    /// guard.release().await?;
    /// let _next = client.mutex("import").lock().await?;
    /// let now = client.inspect("import").await?.owner.expect("it is held").fingerprint();
    /// assert_ne!(now, shown, "the owner that was shown has it no more");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut digest = Sha256::new();
        match self.owner.token {
            Some(token) => {
                digest.update([u8::from(self.is_released)]);
                digest.update(token.encode(&mut [0; Token::TEXT_LEN]));
            }
            None => {
                digest.update([FOREIGN]);
                digest.update(self.owner.foreign_value());
            }
        }
        let digest: [u8; 32] = digest.finalize().into();
        digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// A lock that is taken, and what the store knew of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockEntry {
    /// The key, without the namespace.
    pub key: String,
    /// Who has it.
    pub info: LockInfo,
}

/// The locks of a namespace that are taken, as [`LockClient::list`] found them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockList {
    /// In the order of their keys.
    pub entries: Vec<LockEntry>,
    /// The search ended at the limit of the call, so there may be more.
    pub is_cut: bool,
}

impl IntoIterator for LockList {
    type Item = LockEntry;
    type IntoIter = std::vec::IntoIter<LockEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// In the place where a token's fingerprint has whether it is released: 0 or 1.
const FOREIGN: u8 = 2;
/// How many locks a list reads at a time.
const MAX_READS: usize = 64;

impl LockInfo {
    fn new(held: &Held, record: LockRecord) -> Self {
        Self {
            owner: record.owner.map(|owner| held.owner(owner)),
            waiting: record.waiting,
            latest_fencing_token: FencingToken::last_of(record.latest_number),
        }
    }
}

impl LockClient {
    /// Asks the store who has a lock, for how long, and how many wait. One round trip; nothing
    /// changes.
    ///
    /// What it tells may be outdated when it arrives. To decide whether to do something, take the
    /// lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) or [`Unknown`](crate::ErrorKind::Unknown) if
    /// the store did not answer, [`WrongType`](crate::ErrorKind::WrongType) if the name is not a
    /// lock's, [`Unsupported`](crate::ErrorKind::Unsupported) if the store cannot tell.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::{LockClient, store::MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let guard = client.mutex("import").lock().await?;
    ///
    /// let info = client.inspect("import").await?;
    /// let owner = info.owner.expect("it is held");
    /// assert_eq!(owner.client, Some(client.id()));
    /// assert_eq!(owner.fencing_token, Some(guard.fencing_token()));
    /// assert!(client.inspect("export").await?.owner.is_none());
    /// # Ok(()) }
    /// ```
    pub fn inspect<K: IntoKey>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<LockInfo, Error>> + Send + use<K> {
        let (state, name) = self.operation(key);
        async move {
            let name = name?;
            let record = inspector(&state)?.inspect(&name).await?;
            Ok(LockInfo::new(&Held::of(&state), record))
        }
    }

    /// Takes a lock from its owner: the first waiter gets it, or it becomes free. Returns the owner
    /// that lost it. `None`: the lock was free, or its owner let it go meanwhile, and nothing was
    /// done. Two round trips.
    ///
    /// For a person who knows that the holder is gone or must not go on. The holder is not asked,
    /// and may still be in its section when the next one begins: only fencing tokens checked at the
    /// resource, or a database constraint, keep the two apart.
    ///
    /// A lease of this client ends at once, and its body is dropped with [`Lost`](ErrorKind::Lost).
    /// So does that of another client on the same Redis server if it was renewed before: clients
    /// begin to listen for forced releases with their first renewal. Where there is no message (on
    /// a cluster and a quorum, with RESP2, before the first renewal, without the permission to
    /// publish, for 10 s to an hour after subscriptions that the server did not confirm) a lease
    /// ends when it is renewed next, at a third of what remains of it: after 3.3 s with the default
    /// ttl. One that is not renewed goes on until its deadline.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not have been taken from its holder.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect). After `Unknown` the lock may have been taken from its holder:
    /// inspect it before a repeat, which could meet the next one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let stuck = client.mutex("import").lock().await?;
    /// let former = client.force_release("import").await?.expect("it was held");
    /// assert_eq!(former.client, Some(client.id()));
    /// assert!(!stuck.is_valid(), "the lease of a holder in this process ends at once");
    /// assert!(client.force_release("import").await?.is_none(), "it is free");
    /// # Ok(()) }
    /// ```
    pub fn force_release<K: IntoKey>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<Option<OwnerInfo>, Error>> + Send + use<K> {
        let (state, name) = self.operation(key);
        async move {
            let name = name?;
            let Some(owner) = inspector(&state)?.inspect(&name).await?.owner else {
                return Ok(None);
            };
            let info = Held::of(&state).owner(owner);
            Ok(take(&state, &name, &info).await?.then_some(info))
        }
    }

    /// Takes a lock from the `owner` that [`inspect`](Self::inspect) found, so that what was
    /// decided about one owner is not done to the next. `false`: that owner has it no more, and
    /// nothing was done. One round trip; the rest is as for
    /// [`force_release`](Self::force_release).
    ///
    /// # Cancel safety
    ///
    /// As [`force_release`](Self::force_release).
    ///
    /// # Errors
    ///
    /// As [`force_release`](Self::force_release).
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let stuck = client.mutex("import").lock().await?;
    /// let owner = client.inspect("import").await?.owner.expect("it is held");
    /// // A person decides about this owner, and meanwhile another one gets the lock.
    /// drop(stuck);
    /// let next = client.mutex("import").lock().await?;
    /// assert!(!client.force_release_from("import", &owner).await?);
    /// assert!(next.is_valid());
    /// # Ok(()) }
    /// ```
    pub fn force_release_from<K: IntoKey>(
        &self,
        key: K,
        owner: &OwnerInfo,
    ) -> impl Future<Output = Result<bool, Error>> + Send + use<K> {
        let ((state, name), owner) = (self.operation(key), owner.clone());
        async move { take(&state, &name?, &owner).await }
    }

    /// The locks of this client's namespace that are taken, `most` at most, in the order of their
    /// keys. Some of what it tells is outdated when it arrives.
    ///
    /// On Redis it scans all keys of the server, with one short call for each thousand of them, and
    /// needs the permission `+scan` besides those of a service.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect); [`Unsupported`](ErrorKind::Unsupported) also for a client
    /// [without a namespace](super::LockClientBuilder::without_namespace), as any key may be a lock
    /// of it. A list that would lack a part is an error as well: on a cluster, if a node with slots
    /// cannot be read, which the error names. Locks on the others can be inspected by their keys
    /// meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let guards = [client.mutex("a").lock().await?, client.mutex("b").lock().await?];
    /// for entry in client.list(1_000).await? {
    ///     let owner = entry.info.owner.expect("those that are taken");
    ///     println!("{}: {:?}, {:?} left", entry.key, owner.client, owner.remaining);
    /// }
    /// # drop(guards);
    /// # Ok(()) }
    /// ```
    pub fn list(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<LockList, Error>> + Send + use<> {
        let state = Arc::clone(&self.0);
        async move {
            let inspector = inspector(&state)?;
            let namespace = state.namespace.as_deref().ok_or_else(|| {
                Error::unsupported(
                    "the locks of a client without a namespace cannot be listed, since any key of \
                     the store may be one: inspect each by its name",
                )
            })?;
            let mut names = inspector.list(namespace, most).await?;
            let is_cut = names.len() >= most;
            names.sort_unstable_by(|one, two| one.as_str().cmp(two.as_str()));
            let mut entries = Vec::with_capacity(names.len());
            for some in names.chunks(MAX_READS) {
                let records = join_all(some.iter().map(|name| inspector.inspect(name))).await;
                let held = Held::of(&state);
                for (name, record) in some.iter().zip(records) {
                    let info = match record {
                        Ok(record) => LockInfo::new(&held, record),
                        // Not a lock, but another value under the same prefix.
                        Err(error) if error.kind() == ErrorKind::WrongType => continue,
                        Err(error) => return Err(error),
                    };
                    if info.owner.is_some() {
                        entries.push(LockEntry { key: name.key().to_owned(), info });
                    }
                }
            }
            Ok(LockList { entries, is_cut })
        }
    }

    /// Asks the store how it is. One round trip, and a dial if there is no connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Unknown`](ErrorKind::Unknown) if the store does
    /// not answer, [`Unsupported`](ErrorKind::Unsupported) if it cannot tell.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let health = client.health().await?;
    /// assert_eq!(health.server, "memory");
    /// assert!(health.problems.is_empty(), "{health:?}");
    /// # Ok(()) }
    /// ```
    pub fn health(&self) -> impl Future<Output = Result<StoreHealth, Error>> + Send + use<> {
        let state = Arc::clone(&self.0);
        async move { inspector(&state)?.health().await }
    }

    /// What the store's user may not do of what locks of this client's namespace need. On Redis the
    /// rules are such as `+zadd`, `~shop:*` or `&shop:*`, to be given by `ACL SETUSER`. If it is
    /// empty, nothing is missing, or nothing is known to be.
    ///
    /// For checks of a set-up: the error of a lock says that a permission is missing, and some
    /// servers do not tell which. On Redis it sends each command by itself, some twenty at the same
    /// time, in a form that changes nothing; the server's `ACL LOG` then names those that it
    /// refused. Whether messages can be received is not tried. Of a client without a namespace it
    /// tells what the records beside its locks need, under `lock`, and nothing of the locks' names.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// As [`health`](Self::health).
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let missing = client.missing_permissions().await?;
    /// assert!(missing.is_empty(), "ACL SETUSER locker {}", missing.rules.join(" "));
    /// # Ok(()) }
    /// ```
    pub fn missing_permissions(
        &self,
    ) -> impl Future<Output = Result<MissingPermissions, Error>> + Send + use<> {
        let state = Arc::clone(&self.0);
        async move {
            let namespace = state.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
            inspector(&state)?.missing_permissions(namespace).await
        }
    }

    fn operation(&self, key: impl IntoKey) -> (Arc<ClientState>, Result<Name, Error>) {
        let name = key.into_key().and_then(|key| Name::new(self.0.namespace.as_deref(), &key));
        (Arc::clone(&self.0), name)
    }
}

fn inspector(state: &ClientState) -> Result<&dyn Inspect, Error> {
    state.ensure_running()?;
    state
        .store
        .inspector()
        .ok_or_else(|| Error::unsupported(format!("{} cannot tell who holds a lock", state.store)))
}

/// Takes the lock from `owner`, and ends its lease if it is one of this client.
async fn take(state: &ClientState, name: &Name, owner: &OwnerInfo) -> Result<bool, Error> {
    if !inspector(state)?.force_release(name, &owner.owner).await? {
        return Ok(false);
    }
    tracing::warn!(
        target: "lock_core", client = %state.client_id,
        owner = owner.client.map(tracing::field::display), "lock released by force"
    );
    if let (Some(token), false) = (owner.owner.token, owner.is_released) {
        state.force_released(token);
    }
    Ok(true)
}

impl ForceReleaseListener for ClientState {
    fn force_released(&self, token: Token) {
        for lease in self.renewer.leases() {
            if lease.holds(token).is_some() {
                lease.lose(LostReason::ForceReleased);
            }
        }
    }
}

/// The leases of this client.
struct Held(Vec<Arc<dyn Renewable>>);

impl Held {
    fn of(state: &ClientState) -> Self {
        Self(state.renewer.leases())
    }

    /// What this client knows of an owner.
    fn owner(&self, owner: Owner) -> OwnerInfo {
        let token = owner.token.filter(|_| !owner.is_released);
        OwnerInfo {
            client: owner.token.map(|token| token.client()),
            remaining: owner.left,
            is_released: owner.is_released,
            fencing_token: token
                .and_then(|token| self.0.iter().find_map(|lease| lease.holds(token))),
            owner,
        }
    }
}
