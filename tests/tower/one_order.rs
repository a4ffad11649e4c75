//! One order per user, over two servers that share nothing but the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Router};
use futures_util::future::join_all;
use lock_core::KeyPart;
use lock_tower::{ExtensionKey, HeaderKey, LockLayer};

use lock_testkit::Experiment;

use super::support::{Desk, Server, World, on_every_store, post as send_post};

#[derive(Clone, Debug, Eq, Hash, KeyPart, PartialEq)]
struct User(String);

/// What the servers share: orders per user, read and written in two steps with a pause in between.
#[derive(Clone, Default)]
struct Orders(Arc<Mutex<HashMap<User, usize>>>);

impl Orders {
    fn of(&self, user: &User) -> usize {
        self.0.lock().unwrap().get(user).copied().unwrap_or(0)
    }

    async fn order_once(&self, user: User) -> StatusCode {
        if self.of(&user) > 0 {
            return StatusCode::GONE; // "you have ordered already"
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        *self.0.lock().unwrap().entry(user).or_default() += 1;
        StatusCode::CREATED
    }
}

/// Admits a request with the right secret, and adds its user as an extension.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let Some(user) = who(request.headers()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(user);
    next.run(request).await
}

fn who(headers: &HeaderMap) -> Option<User> {
    let user = headers.get("x-user")?.to_str().ok()?;
    let secret = headers.get("x-secret")?.to_str().ok()?;
    (secret == format!("secret of {user}")).then(|| User(user.to_owned()))
}

async fn serve(world: &World, orders: &Orders, wait: Option<Duration>) -> Server {
    let orders = orders.clone();
    let mut lock = LockLayer::new(world.process().await, ExtensionKey::<User>::new("user"));
    if let Some(wait) = wait {
        lock = lock.with_wait(wait);
    }
    let app = Router::new()
        .route(
            "/orders",
            post(async move |Extension(user): Extension<User>| orders.order_once(user).await),
        )
        .route_layer(lock)
        .route_layer(from_fn(authenticate));
    Server::start(app).await
}

fn credentials(user: &str) -> [(&'static str, String); 2] {
    [("x-user", user.to_owned()), ("x-secret", format!("secret of {user}"))]
}

async fn order(server: &Server, headers: &[(&str, String)]) -> u16 {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    send_post(server, "/orders", &headers).await.status
}

on_every_store! {
    /// Sources: remitlend#1624, mastodon#37879, laravel-idempotency#1 (U19).
    async fn a_hundred_clicks_of_one_user_make_one_order(world: World) {
        let orders = Orders::default();
        let servers = [serve(&world, &orders, None).await, serve(&world, &orders, None).await];
        let user = credentials("ann");
        let statuses = join_all((0..100).map(|n| order(&servers[n % 2], &user))).await;
        assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1);
        assert!(statuses.iter().all(|status| [201, 409, 410].contains(status)), "{statuses:?}");
        assert_eq!(orders.of(&User("ann".into())), 1);
        // Sent as soon as the last is answered: no stale lock refuses it.
        assert_eq!(order(&servers[0], &user).await, 410);
        assert_eq!(order(&servers[1], &user).await, 410);
    }

    /// Sources: as above, and Truxify#4696. The queued requests see that the order exists.
    async fn a_hundred_clicks_that_queue_make_one_order(world: World) {
        let orders = Orders::default();
        let wait = Some(Duration::from_secs(20));
        let servers = [serve(&world, &orders, wait).await, serve(&world, &orders, wait).await];
        let user = credentials("ann");
        let statuses = join_all((0..100).map(|n| order(&servers[n % 2], &user))).await;
        assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1);
        assert_eq!(statuses.iter().filter(|status| **status == 410).count(), 99, "{statuses:?}");
        assert_eq!(orders.of(&User("ann".into())), 1);
    }

    /// Sources: status-list-server#216 and #540 (U19). A forged id is refused before it can touch
    /// the victim's key.
    async fn a_forged_id_does_not_touch_the_victims_key_with_authentication_outside(world: World) {
        let mut experiment = Experiment::new(37, "the victim is not held up", "spoofed keys", &["forged requests"]);
        let orders = Orders::default();
        let server = serve(&world, &orders, None).await;
        let forged = [("x-user", "ann".to_owned()), ("x-secret", "guess".to_owned())];
        let victim = credentials("ann");

        // The victim's key is held: a forger who reached it would see 409 in place of 401.
        let guard = world.process().await.mutex("user:ann").lock().await.unwrap();
        assert_eq!(order(&server, &forged).await, 401);
        experiment.saw("forged requests", 1);
        assert_eq!(order(&server, &victim).await, 409);
        guard.release().await.unwrap();

        let forgers = join_all((0..50).map(|_| order(&server, &forged)));
        let (forgers, victim) = tokio::join!(forgers, order(&server, &victim));
        let refused = forgers.iter().filter(|status| **status == 401).count();
        assert_eq!(refused, forgers.len());
        assert_eq!(victim, 201, "never refused because of a forger");
        experiment.ran(1);
        experiment.saw("forged requests", refused);
        experiment.finish();
    }

    /// The reverse order, to show why it matters: here the forger holds the victim's key.
    async fn a_forged_id_holds_the_victims_key_with_authentication_inside(world: World) {
        let desk = Desk::closed();
        let slow_check = desk.clone();
        let app = Router::new()
            .route("/orders", post(async || StatusCode::CREATED))
            .route_layer(from_fn(authenticate))
            .route_layer(from_fn(move |request: Request, next: Next| {
                let desk = slow_check.clone();
                async move {
                    if request.headers()["x-secret"] == "guess" {
                        desk.work().await;
                    }
                    next.run(request).await
                }
            }))
            .route_layer(LockLayer::new(world.process().await, HeaderKey::new("user", "x-user")));
        let server = Server::start(app).await;
        let forged = [("x-user", "ann".to_owned()), ("x-secret", "guess".to_owned())];
        let forger = order(&server, &forged);
        let victim = async {
            desk.until(|counts| counts.entered == 1).await;
            let status = order(&server, &credentials("ann")).await;
            desk.let_through(1);
            status
        };
        assert_eq!(tokio::join!(forger, victim), (401, 409));
    }
}
