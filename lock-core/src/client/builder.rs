//! Building a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;

use super::LockClient;
use crate::error::ConfigError;
use crate::options::LockOptions;
use crate::state::ClientState;
use crate::store::Store;

/// Builds a [`LockClient`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LockClientBuilder {
    store: Arc<dyn Store>,
    namespace: String,
    defaults: LockOptions,
    runtime: Option<Handle>,
}

/// Namespaces stay short, so that the 512 bytes of a name are the key's.
const MAX_NAMESPACE_LEN: usize = 64;

impl LockClientBuilder {
    fn new(store: Arc<dyn Store>) -> Self {
        Self { store, namespace: "lock".to_owned(), defaults: LockOptions::new(), runtime: None }
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

    /// Runs the client's background tasks there.
    ///
    /// Default: on the runtime of the first use. Give one of its own if bodies may block their
    /// runtime for long: a `current_thread` runtime that is blocked renews nothing.
    pub fn with_runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Builds the client. No I/O.
    ///
    /// # Errors
    ///
    /// If the namespace or a default is out of its bounds.
    pub fn build(self) -> Result<LockClient, ConfigError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let Self { store, namespace, defaults, runtime } = self;
        check_namespace(&namespace)?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let state = ClientState::new(id, store, namespace.into(), defaults, runtime)?;
        Ok(LockClient(Arc::new(state)))
    }
}

impl LockClient {
    /// Starts to build a client on `store`.
    pub fn builder(store: impl Store) -> LockClientBuilder {
        LockClientBuilder::new(Arc::new(store))
    }
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
