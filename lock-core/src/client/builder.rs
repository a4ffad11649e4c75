//! Building a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;

use super::LockClient;
use crate::error::ConfigError;
use crate::options::LockOptions;
use crate::probe;
use crate::state::ClientState;
use crate::store::{ClientId, Store};

/// Builds a [`LockClient`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LockClientBuilder {
    store: Arc<dyn Store>,
    namespace: String,
    defaults: LockOptions,
    runtime: Option<Handle>,
    name: Option<String>,
}

/// Longer names would not fit into a list of connections.
const MAX_NAME_LEN: usize = 64;
/// Namespaces stay short, so that the 512 bytes of a name are the key's.
const MAX_NAMESPACE_LEN: usize = 64;

impl LockClientBuilder {
    fn new(store: Arc<dyn Store>) -> Self {
        let (namespace, defaults) = ("lock".to_owned(), LockOptions::new());
        Self { store, namespace, defaults, runtime: None, name: None }
    }

    /// Puts `namespace` and a colon before each key. Services that share a store and must exclude
    /// each other share the namespace; others must not.
    ///
    /// Default: `lock`.
    pub fn with_namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
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

    /// Names the client in its log, such as `orders-api`: 1 to 64 characters of visible ASCII.
    ///
    /// Default: the name of the program's file.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Builds the client. No I/O, but one line in the log, which tells host, process and name of
    /// the [`ClientId`] that its locks show.
    ///
    /// # Errors
    ///
    /// If the namespace, the name or a default is out of its bounds, if the given runtime has no
    /// timers, or if the operating system gives no randomness.
    pub fn build(self) -> Result<LockClient, ConfigError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let Self { store, namespace, defaults, runtime, name } = self;
        check_namespace(&namespace)?;
        let name = match name {
            Some(name) => check_name(name)?,
            None => program(),
        };
        let client_id = ClientId::fresh().map_err(|_| {
            ConfigError::new("client", "cannot be named: the operating system gives no randomness")
        })?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        runtime.as_ref().map_or(Ok(()), probe::given)?;
        let given = runtime.clone();
        let state = ClientState::new(id, client_id, store, namespace.into(), defaults, runtime)?;
        if let Some(runtime) = &given {
            state.store.run_on(runtime);
        }
        tracing::info!(
            target: "lock_core", client = %client_id, name,
            host = %gethostname::gethostname().to_string_lossy(), process = std::process::id(),
            store = %state.store, namespace = &*state.namespace,
            "lock client started: the values of its locks begin with its id"
        );
        Ok(LockClient(Arc::new(state)))
    }
}

impl LockClient {
    /// Starts to build a client on `store`.
    pub fn builder(store: impl Store) -> LockClientBuilder {
        LockClientBuilder::new(Arc::new(store))
    }
}

fn check_name(name: String) -> Result<String, ConfigError> {
    if (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Ok(name);
    }
    Err(ConfigError::new("name", "is not 1 to 64 characters of visible ASCII without spaces"))
}

/// The name of the program's file, as far as it can be a client's name.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name: String = file.chars().filter(char::is_ascii_graphic).take(MAX_NAME_LEN).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

fn check_namespace(namespace: &str) -> Result<(), ConfigError> {
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
        let program = program();
        assert_eq!(check_name(program.clone()), Ok(program));
    }
}
