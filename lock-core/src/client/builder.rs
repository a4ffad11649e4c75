//! Building a client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::LockClient;
use crate::error::ConfigError;
use crate::options::{LockOptions, check_span};
use crate::probe;
use crate::state::{ClientState, Slow};
use crate::store::{ClientId, DEFAULT_NAMESPACE, Store};

/// Builds a [`LockClient`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{LockClient, LockOptions, store::MemoryStore};
///
/// # fn main() -> Result<(), lock_core::ConfigError> {
/// let client = LockClient::builder(MemoryStore::new())
///     .with_namespace("shop") // keys become `shop:order:42`
///     .with_name("orders-api") // in its log
///     .with_defaults(LockOptions::new().with_ttl(Duration::from_secs(15)))
///     .build()?;
/// assert_eq!(client.namespace(), "shop");
///
/// let refused = LockClient::builder(MemoryStore::new()).with_namespace("a:b").build();
/// assert_eq!(refused.unwrap_err().field(), "namespace");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LockClientBuilder {
    store: Arc<dyn Store>,
    /// `None`: without one.
    namespace: Option<String>,
    defaults: LockOptions,
    runtime: Option<Handle>,
    name: Option<String>,
    slow: Slow,
}

/// A connection is named after the client and the machine. With longer parts its name would not fit
/// into a list of connections.
const MAX_NAME_PART_LEN: usize = 64;
/// Namespaces stay short, so that the 512 bytes of a name are the key's.
const MAX_NAMESPACE_LEN: usize = 64;

impl LockClientBuilder {
    fn new(store: Arc<dyn Store>) -> Self {
        let (namespace, defaults) = (Some(DEFAULT_NAMESPACE.to_owned()), LockOptions::new());
        Self { store, namespace, defaults, runtime: None, name: None, slow: Slow::default() }
    }

    /// Puts `namespace` and a colon before each key. Services that share a store and must exclude
    /// each other share the namespace; others must not.
    ///
    /// Default: `lock`.
    pub fn with_namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Puts nothing before the keys: the name of a lock in the store is its key. For a lock that
    /// another library has under a name such as `mylock` or `order:42`, while services
    /// [migrate](crate::guide::migrating).
    ///
    /// - The records beside the locks, such as queues, are under `lock:`. A user of Redis needs the
    ///   permissions for that namespace and for the names of the locks.
    /// - A key such as `lock:order:42` is the lock `order:42` of a client with the namespace
    ///   `lock`. One such as `shop:order:42` is the same key in Redis as the lock `order:42` of a
    ///   client with the namespace `shop`, and the two exclude each other, but each has a queue and
    ///   fencing tokens of its own: give all clients of a lock the same namespace.
    /// - The locks cannot be [listed](LockClient::list).
    /// - Keys begin with no `{` here either, and none has the name of such a record, which is
    ///   `<namespace>:{<number>}:` and its kind, `fence` or `q` for example.
    /// - An operator who takes a lock by force names it as its clients do: under another spelling,
    ///   with the namespace as a part of the key, its holder and waiters learn of it later.
    ///
    /// ```
    /// use lock_core::{LockClient, store::MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder(MemoryStore::new()).without_namespace().build()?;
    /// let guard = client.mutex("mylock").lock().await?; // in Redis the key `mylock`
    /// assert_eq!(client.namespace(), "");
    /// # drop(guard); Ok(()) }
    /// ```
    pub fn without_namespace(mut self) -> Self {
        self.namespace = None;
        self
    }

    /// Sets what locks of this client inherit.
    pub fn with_defaults(mut self, defaults: LockOptions) -> Self {
        self.defaults = defaults;
        self
    }

    /// Runs there what outlives a call: renewals, releases of dropped guards, and the connection of
    /// the store, which is dialled anew if it was made elsewhere. A store that several clients
    /// share follows the last of them that was given a runtime. If that runtime shuts down, locks
    /// cannot be taken any more ([`NoRuntime`](crate::ErrorKind::NoRuntime)).
    ///
    /// Default: renewals and releases on the runtime of the client's first use, the connection on
    /// that of the caller that dials, or on the `multi_thread` runtime of the connection before.
    /// Give the client a runtime of its own
    ///
    /// - if bodies may block the thread of a `current_thread` runtime: while it is blocked, nothing
    ///   is renewed, and leases are lost;
    /// - if several `current_thread` runtimes share the client, as the workers of actix-web do: the
    ///   tasks and the connection are on one of them, and when that one is blocked, the others lose
    ///   their leases as well;
    /// - if it is first used in a `current_thread` runtime, and in others later.
    ///
    /// Nothing else may block that runtime. One worker thread is enough:
    ///
    /// ```
    /// use lock_core::{LockClient, store::MemoryStore};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Kept for as long as the client is used.
    /// let runtime = tokio::runtime::Builder::new_multi_thread()
    ///     .worker_threads(1)
    ///     .enable_all()
    ///     .build()?;
    /// let client = LockClient::builder(MemoryStore::new())
    ///     .with_runtime(runtime.handle().clone())
    ///     .build()?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn with_runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Names the client in its log and its connection, such as `orders-api`: 1 to 64 characters of
    /// visible ASCII.
    ///
    /// Default: the name of the program's file.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Logs a warning for each acquisition that took longer than `limit`, whatever its outcome:
    /// `cancelled` if its future was dropped. 1 ms – 24 h.
    ///
    /// Default: none.
    pub fn with_wait_warning(mut self, limit: Duration) -> Self {
        self.slow.wait = Some(limit);
        self
    }

    /// Logs a warning for each lock that is held longer than `limit`: at the renewal that follows,
    /// or at the latest when the lock is released. 1 ms – 24 h.
    ///
    /// Default: none. [`LockOptions::with_max_hold`] ends such leases instead.
    pub fn with_hold_warning(mut self, limit: Duration) -> Self {
        self.slow.hold = Some(limit);
        self
    }

    /// Builds the client. Waits for no I/O. One line in the log tells host, process and name of the
    /// [`ClientId`] that its locks show; a connection that is open is named after them, too.
    ///
    /// # Errors
    ///
    /// If the namespace, the name, a warning or a default is out of its bounds, if the given
    /// runtime has no timers, or if the operating system gives no randomness.
    pub fn build(self) -> Result<LockClient, ConfigError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let Self { store, namespace, defaults, runtime, name, slow } = self;
        namespace.as_deref().map_or(Ok(()), check_namespace)?;
        slow.wait.map_or(Ok(()), |limit| check_warning("wait_warning", limit))?;
        slow.hold.map_or(Ok(()), |limit| check_warning("hold_warning", limit))?;
        let name = match name {
            Some(name) => check_name(&name).map(|()| name)?,
            None => program(),
        };
        let client_id = ClientId::fresh().map_err(|_| {
            ConfigError::new("client", "cannot be named: the operating system gives no randomness")
        })?;
        let ids = (NEXT_ID.fetch_add(1, Ordering::Relaxed), client_id);
        runtime.as_ref().map_or(Ok(()), probe::given)?;
        let given = runtime.clone();
        let state =
            ClientState::new(ids, store, namespace.map(Into::into), defaults, slow, runtime)?;
        if let Some(runtime) = &given {
            state.store.run_on(runtime);
        }
        let (host, process) = (host(), std::process::id());
        state.store.set_connection_name(&format!("lock:{name}@{host}:{process}:{client_id}"));
        tracing::info!(
            target: "lock_core", client = %client_id, name, host, process,
            store = %state.store, namespace = state.namespace.as_deref().unwrap_or_default(),
            "lock client started: the values of its locks begin with its id"
        );
        let state = Arc::new(state);
        if let Some(inspector) = state.store.inspector() {
            let listener: Weak<ClientState> = Arc::downgrade(&state);
            inspector.report_forced_releases(listener);
        }
        Ok(LockClient(state))
    }
}

impl LockClient {
    /// Starts to build a client on `store`.
    pub fn builder(store: impl Store) -> LockClientBuilder {
        LockClientBuilder::new(Arc::new(store))
    }
}

/// Checks the limit of the warning `field`.
pub(crate) fn check_warning(field: &'static str, limit: Duration) -> Result<(), ConfigError> {
    check_span(field, limit, "or leave it out")
}

/// Checks the name of a client.
pub(crate) fn check_name(name: &str) -> Result<(), ConfigError> {
    if (1..=MAX_NAME_PART_LEN).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Ok(());
    }
    Err(ConfigError::new("name", "is not 1 to 64 characters of visible ASCII without spaces"))
}

/// The name of this machine, as far as it can be a part of a connection's name.
fn host() -> String {
    let host = gethostname::gethostname();
    host.to_string_lossy().chars().filter(char::is_ascii_graphic).take(MAX_NAME_PART_LEN).collect()
}

/// The name of the program's file, as far as it can be a client's name.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name: String =
        file.chars().filter(char::is_ascii_graphic).take(MAX_NAME_PART_LEN).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Checks a namespace.
pub(crate) fn check_namespace(namespace: &str) -> Result<(), ConfigError> {
    let problem = if namespace.is_empty() {
        "is empty: name the application, such as `shop`"
    } else if namespace.len() > MAX_NAMESPACE_LEN {
        "is longer than 64 bytes"
    } else if namespace.contains(['{', '}']) {
        "holds a brace: on a cluster that would move its keys to other slots"
    } else if namespace.contains(':') {
        "holds a colon: `a` with the key `b:c` would be `a:b` with the key `c`; write a dash"
    } else {
        return Ok(());
    };
    Err(ConfigError::new("namespace", problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn name_with_spaces_is_refused_and_the_program_is_the_default() {
        let build = |name: &str| LockClient::builder(MemoryStore::new()).with_name(name).build();
        for bad in ["", "orders api", "kauf\u{e4}uflich", "a\n", &"x".repeat(65)] {
            assert_eq!(build(bad).unwrap_err().field(), "name", "{bad:?}");
        }
        build("orders-api/3").unwrap();
        assert_eq!(check_name(&program()), Ok(()));
    }
}
