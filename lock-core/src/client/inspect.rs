//! For the person on call: who holds a lock, and to take it from its holder.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::LockClient;
use crate::driver::Renewable;
use crate::error::{Error, ErrorKind, LostReason};
use crate::fencing::FencingToken;
use crate::key::IntoKey;
use crate::state::ClientState;
use crate::store::{ClientId, Inspect, LockRecord, Name, Owner, StoreHealth};

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

/// A lock that is taken, and what the store knew of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockEntry {
    /// The key, without the namespace.
    pub key: String,
    /// Who has it.
    pub info: LockInfo,
}

/// How many locks are asked about at a time.
const TOGETHER: usize = 64;

impl LockInfo {
    fn new(held: &Held, record: LockRecord) -> Self {
        Self {
            owner: record.owner.map(|owner| held.owner(owner)),
            waiting: record.waiting,
            latest_fencing_token: FencingToken::last_of(record.latest_fence),
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
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) or [`Unknown`](crate::ErrorKind::Unknown) if
    /// the store did not answer, [`WrongType`](crate::ErrorKind::WrongType) if the name is not a
    /// lock's, [`Unsupported`](crate::ErrorKind::Unsupported) if the store cannot tell.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
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
    /// A lease of this client ends at once. One of another client ends when it is renewed next, at
    /// a third of what remains of it (after 3.3 s with the default ttl); its body is then dropped
    /// with [`Lost`](ErrorKind::Lost). A lease that is not renewed goes on until its deadline.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect). After `Unknown` the lock may have been taken from its holder:
    /// inspect it before a repeat, which could meet the next one.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not have been taken from its holder.
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
    /// # Errors
    ///
    /// As [`force_release`](Self::force_release).
    ///
    /// # Cancel safety
    ///
    /// As [`force_release`](Self::force_release).
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
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub fn list(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<Vec<LockEntry>, Error>> + Send + use<> {
        let state = Arc::clone(&self.0);
        async move {
            let inspector = inspector(&state)?;
            let mut names = inspector.list(&state.namespace, most).await?;
            names.sort_unstable_by(|one, two| one.as_str().cmp(two.as_str()));
            let mut entries = Vec::with_capacity(names.len());
            for some in names.chunks(TOGETHER) {
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
            Ok(entries)
        }
    }

    /// Asks the store how it is. One round trip, and a dial if there is no connection.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Unknown`](ErrorKind::Unknown) if the store does
    /// not answer, [`Unsupported`](ErrorKind::Unsupported) if it cannot tell.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub fn health(&self) -> impl Future<Output = Result<StoreHealth, Error>> + Send + use<> {
        let state = Arc::clone(&self.0);
        async move { inspector(&state)?.health().await }
    }

    fn operation(&self, key: impl IntoKey) -> (Arc<ClientState>, Result<Name, Error>) {
        let name = key.into_key().and_then(|key| Name::new(&self.0.namespace, &key));
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
        for lease in state.renewer.leases() {
            if lease.holds(token).is_some() {
                lease.lose(LostReason::ForceReleased);
            }
        }
    }
    Ok(true)
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
