//! A page for the person on call: who holds which lock, who waits, and what was lost.
//!
//! [`console`] makes an axum [`Router`] with one page, which stays live by server-sent events:
//!
//! - what *this process* holds and waits for, and its last losses with their reasons,
//! - the locks of the client's namespace that any process holds, with their owners, as the *store*
//!   tells them,
//! - whether the store answers, and what puts its locks at risk.
//!
//! # Authentication is yours
//!
//! The console has no passwords of its own. Mount it behind the authentication of your operators,
//! as any other part of an application. To listen on the loopback address only is no
//! authentication: any page that the machine's browser shows can send requests there, under a name
//! of its own that resolves to that address.
//!
//! ```
//! use axum::{Router, extract::Request, http::StatusCode};
//! use axum::{middleware::{Next, from_fn}, response::Response};
//! use lock_core::{LockClient, store::MemoryStore};
//!
//! async fn operators_only(request: Request, next: Next) -> Result<Response, StatusCode> {
//!     // Here: your session, your proxy's header, your client certificates.
//!     match request.headers().get("x-operator") {
//!         Some(_) => Ok(next.run(request).await),
//!         None => Err(StatusCode::UNAUTHORIZED),
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = LockClient::builder(MemoryStore::new()).build()?;
//! let console = lock_tower::console(client).allow_force_release().into_router();
//! let app: Router = Router::new()
//!     .route("/", axum::routing::get(async || "the service"))
//!     .nest_service("/admin/locks", console.route_layer(from_fn(operators_only)));
//! # Ok(())
//! # }
//! ```
//!
//! # The rules
//!
//! 1. **Keys stay hidden** unless [`show_keys`](Console::show_keys) is called: the page, the events
//!    and the messages then contain labels (`order:<user_id>`) and never a key. A lock of another
//!    process has no label here; it is shown under a template of this process that its key fits, if
//!    there is one, and marked as a guess. Tokens are never sent, only the client's part of them.
//! 2. **It only looks** unless [`allow_force_release`](Console::allow_force_release) is called.
//!    Then each lock of the store has a button, which shows what it means and, once confirmed,
//!    takes the lock from the owner that was shown and from no other. While keys are hidden, a lock
//!    whose value another library or a person set has none: another lock may have the same value.
//! 3. Such a request must come from the page itself: another site's is refused by `Sec-Fetch-Site`
//!    or `Origin`, and by a token that the page was given.
//! 4. It costs nothing while no page is open. All open pages share one look at the process and one
//!    at the store, at most once in one and in two seconds; the list of the locks is bounded in
//!    number and in time, and becomes rare where the server has so many keys that it is slow.
//! 5. Open pages do not hold up a shutdown: their events end when the client begins to
//!    [drain](LockClient::drain). Start the drain with the signal, by
//!    [`shutdown_on`](LockClient::shutdown_on), whose limit also ends connections that take nothing
//!    any more.
//! 6. A page says of when it is what it shows. Each five minutes it asks anew, and passes your
//!    authentication again.
//!
//! The page is one response without other files, and works under any path, in the dark, by keyboard
//! and on a phone. Its policy forbids everything from other hosts and being framed.

mod csrf;
mod feed;
mod page;
mod release;
mod routes;
mod settings;
mod template;
mod view;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use lock_core::LockClient;

use self::settings::Settings;

/// The console of `client`, to be mounted behind your own authentication: see the
/// [module documentation](self).
///
/// There is no console without a client. For the one that the macro uses, pass
/// [`LockClient::installed()?`](LockClient::installed): if none is installed, its error says what
/// to do.
pub fn console(client: LockClient) -> Console {
    Console { client, settings: Settings::default() }
}

/// A console that is being set up. [`into_router`](Self::into_router) ends it.
#[derive(Clone)]
#[must_use = "a console is served by `into_router`"]
pub struct Console {
    client: LockClient,
    settings: Settings,
}

impl Console {
    /// Shows keys, which often contain personal data, beside their labels, and sends a hash of a
    /// lock's value that another library or a person set. Every viewer sees them, and so does what
    /// stands between: proxies that keep responses, and screens that are shared.
    pub fn show_keys(mut self) -> Self {
        self.settings.keys = true;
        self
    }

    /// Lets viewers take a lock from its owner, after a confirmation, as
    /// [`LockClient::force_release_from`] does: the former holder goes on until it gets a message,
    /// or until its next renewal, and two sections may run at once until then.
    pub fn allow_force_release(mut self) -> Self {
        self.settings.force = true;
        self
    }

    /// Shows no more than `most` locks in each table of locks and of waiting tasks. Default: 200.
    ///
    /// Of the store's locks it is also how many are asked about at each look.
    pub fn max_locks(mut self, most: usize) -> Self {
        self.settings.max_locks = most.max(1);
        self
    }

    /// The routes: the page at `/`, and what it needs below. Give them a path of their own by
    /// [`nest_service`](Router::nest_service), which finds the page with and without a slash at the
    /// end; by [`nest`](Router::nest) it is found without.
    pub fn into_router<S>(self) -> Router<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        routes::router(Arc::new(view::Observer::new(self.client, self.settings)))
    }
}

impl<S> From<Console> for Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    fn from(console: Console) -> Self {
        console.into_router()
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("client", &self.client)
            .field("settings", &self.settings)
            .finish()
    }
}
