//! Where keys come from, and what is refused as a key.

use std::convert::Infallible;

use axum::extract::{Path, State};
use axum::routing::post;
use axum::{Extension, Router};
use http::{Request, Response, StatusCode};
use lock_core::{KeyPart, Lease, LockClient, key};
use lock_tower::{ExtensionKey, ExtractKey, HeaderKey, LockLayer, PartsKey, PathKey};
use tower::util::BoxCloneSyncService;
use tower::{Layer as _, ServiceExt as _, service_fn};

use lock_testkit::{Experiment, LogCapture};

use super::support::{CountingStore, Desk, Server, World, request, send, text};

/// A service under `layer` that answers with the key that it runs under.
fn echo<E: ExtractKey>(
    layer: &LockLayer<E>,
) -> BoxCloneSyncService<Request<String>, (StatusCode, String), Infallible> {
    let service = service_fn(async |request: Request<String>| {
        let lease = request.extensions().get::<Lease>();
        let key = lease.map_or("no lock", |lease| lease.key().as_str());
        Ok::<_, Infallible>(Response::new(key.to_owned()))
    });
    BoxCloneSyncService::new(
        layer
            .layer(service)
            .and_then(async |response: Response<_>| Ok((response.status(), text(response).await))),
    )
}

fn with_headers(values: &[&[u8]]) -> Request<String> {
    let mut request = request("/");
    for value in values {
        request.headers_mut().append("x-order", http::HeaderValue::from_bytes(value).unwrap());
    }
    request
}

#[tokio::test]
async fn a_missing_header_is_400_unless_unkeyed_requests_are_allowed() {
    let store = CountingStore::default();
    let layer = LockLayer::new(store.client(), HeaderKey::new("order", "x-order"));
    let (status, body) = echo(&layer).oneshot(with_headers(&[])).await.unwrap();
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");

    let layer = layer.allow_unkeyed();
    let (status, body) = echo(&layer).oneshot(with_headers(&[])).await.unwrap();
    assert_eq!((status, &*body), (StatusCode::OK, "no lock"));
    let (status, body) = echo(&layer).oneshot(with_headers(&[b"7"])).await.unwrap();
    assert_eq!((status, &*body), (StatusCode::OK, "order:7"));
    assert_eq!(store.claims(), 1);
}

/// Sources: baukit-http and api-bones (1 to 255 printable ASCII), and the warning of
/// `tower_governor` on headers.
#[tokio::test]
async fn an_unusable_header_is_400_even_if_unkeyed_requests_are_allowed() {
    let mut experiment = Experiment::new(
        37,
        "400, and the store is not asked",
        "doubled, huge and malformed headers",
        &["requests refused"],
    );
    let store = CountingStore::default();
    let layer = LockLayer::new(store.client(), HeaderKey::new("order", "x-order")).allow_unkeyed();
    let longest = [b'a'; 255];
    let too_long = [b'a'; 256];
    let huge = [b'a'; 10_000];
    let refused: [(&str, &[&[u8]]); 9] = [
        ("doubled", &[b"7", b"8"]),
        ("doubled with one value", &[b"7", b"7"]),
        ("empty", &[b""]),
        ("too long", &[&too_long]),
        ("huge", &[&huge]),
        ("tab", &[b"7\t8"]),
        ("not ASCII", &["\u{fc}".as_bytes()]),
        ("not UTF-8", &[b"\xff"]),
        ("doubled, one malformed", &[b"7", b"\xff"]),
    ];
    for (fault, values) in refused {
        let (status, body) = echo(&layer).oneshot(with_headers(values)).await.unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{fault}: {body}");
        experiment.saw("requests refused", 1);
    }
    assert_eq!(store.claims(), 0, "no claim reached the store");

    let (status, _) = echo(&layer).oneshot(with_headers(&[&longest])).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    experiment.ran(refused.len());
    experiment.finish();
}

#[tokio::test]
async fn different_values_never_share_a_key() {
    let mut experiment = Experiment::new(
        37,
        "each value has a key of its own",
        "separators, braces, escapes, long values",
        &["keys"],
    );
    let layer = LockLayer::new(World::memory().process().await, HeaderKey::new("order", "x-order"));
    let long = |last| format!("{}{last}", "a".repeat(200));
    let (long_a, long_b) = (long('a'), long('b'));
    let values = [
        "7", "7:8", "7%3A8", "{7}", "{7", "7 8", "7+8", "7/8", "*", "~", "%7E", &*long_a, &*long_b,
    ];
    let mut keys = Vec::new();
    for value in values {
        let (status, key) = echo(&layer).oneshot(with_headers(&[value.as_bytes()])).await.unwrap();
        assert_eq!(status, StatusCode::OK, "{value}");
        assert!(key.starts_with("order:"), "{key}");
        assert!(!key["order:".len()..].contains([':', '{', '}', ' ', '/', '*']), "{key}");
        assert!(!keys.contains(&key), "{value} shares {key}");
        keys.push(key);
    }
    experiment.ran(values.len());
    experiment.saw("keys", keys.len());
    experiment.finish();
}

/// Raw bytes, since an honest client would not send them.
#[tokio::test]
async fn control_bytes_and_huge_headers_on_the_wire_never_reach_the_handler() {
    let mut experiment = Experiment::new(
        37,
        "400, and no handler runs",
        "control bytes and 8 KiB on the wire",
        &["requests refused"],
    );
    let store = CountingStore::default();
    let desk = Desk::open();
    let handler = desk.clone();
    let app = Router::new()
        .route("/", post(async move || handler.work().await))
        .route_layer(LockLayer::new(store.client(), HeaderKey::new("order", "x-order")));
    let server = Server::start(app).await;

    let huge = format!("x-order: {}", "a".repeat(8 * 1024));
    let wires: [&[u8]; 6] = [
        b"x-order: 7\x008",
        b"x-order: 7\x018",
        b"x-order: 7\x7f8",
        b"x-order: \xc3\xbc",
        b"x-order: 7\r\nX-ORDER: 8",
        huge.as_bytes(),
    ];
    for wire in wires {
        let mut bytes =
            b"POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 0\r\n".to_vec();
        bytes.extend_from_slice(wire);
        bytes.extend_from_slice(b"\r\n\r\n");
        let reply = send(&server, &bytes).await;
        assert_eq!(reply.status, 400, "{}", String::from_utf8_lossy(wire));
        experiment.saw("requests refused", 1);
    }
    assert_eq!((store.claims(), desk.counts().entered), (0, 0));
    experiment.ran(wires.len());
    experiment.finish();
}

#[tokio::test]
async fn an_invalid_header_name_is_a_logged_500() {
    let log = LogCapture::start();
    let extractor = HeaderKey::new("order", "no header\n");
    let layer = LockLayer::new(World::memory().process().await, extractor).allow_unkeyed();
    let (status, body) = echo(&layer).oneshot(with_headers(&[b"7"])).await.unwrap();
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!body.contains("header"), "the client need not know: {body}");
    assert!(log.contains("ERROR", "no header\\n"), "{}", log.text());
}

/// O14: a prefix that no key can begin with is the program's mistake, and was answered as the
/// client's.
#[tokio::test]
async fn a_prefix_that_no_key_can_begin_with_is_a_logged_500() {
    const LONGEST: &str = match std::str::from_utf8(&[b'p'; 381]) {
        Ok(text) => text,
        Err(_) => panic!("not UTF-8"),
    };
    const TOO_LONG: &str = match std::str::from_utf8(&[b'p'; 382]) {
        Ok(text) => text,
        Err(_) => panic!("not UTF-8"),
    };
    let client = World::memory().process().await;
    let longest_value = [b'a'; 255];
    let answers = async |prefix| {
        let layer = LockLayer::new(client.clone(), HeaderKey::new(prefix, "x-order"));
        let mut request = with_headers(&[&longest_value]);
        request.extensions_mut().insert(UserId("7".to_owned()));
        let by_header = echo(&layer).oneshot(request.clone()).await.unwrap();
        let layer = LockLayer::new(client.clone(), ExtensionKey::<UserId>::new(prefix));
        let by_extension = echo(&layer).oneshot(request).await.unwrap();
        let lock = LockLayer::new(client.clone(), PathKey::new(prefix, "id"));
        let app = Router::new().route("/orders/{id}", post(lease_key)).route_layer(lock);
        let by_path = ask(&app, "/orders/7").await;
        [("HeaderKey", by_header), ("ExtensionKey", by_extension), ("PathKey", by_path)]
    };
    for prefix in ["", "{", "{order}", TOO_LONG] {
        let log = LogCapture::start();
        for (extractor, (status, body)) in answers(prefix).await {
            assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{extractor} {prefix}: {body}");
            assert!(!body.contains("prefix"), "the client need not know: {body}");
            assert!(log.contains("ERROR", extractor), "{extractor}: {}", log.text());
        }
    }
    for (extractor, (status, body)) in answers(LONGEST).await {
        assert_eq!(status, StatusCode::OK, "{extractor}: {body}");
    }
}

#[derive(Clone, KeyPart)]
struct UserId(String);

#[tokio::test]
async fn an_extension_is_the_key_and_an_empty_one_is_400() {
    let layer =
        LockLayer::new(World::memory().process().await, ExtensionKey::<UserId>::new("user"));
    let ask = async |user: &str| {
        let mut request = request("/");
        request.extensions_mut().insert(UserId(user.to_owned()));
        echo(&layer).oneshot(request).await.unwrap()
    };
    assert_eq!(ask("7").await, (StatusCode::OK, "user:7".to_owned()));
    assert_eq!(ask("").await.0, StatusCode::BAD_REQUEST);
}

/// O3: every request got 400 and nothing was logged.
#[tokio::test]
async fn layers_in_the_wrong_order_are_a_500_and_an_error_that_names_the_extension() {
    let client = World::memory().process().await;
    let authentication = || Extension(UserId("7".to_owned()));
    let by_extension = LockLayer::new(client.clone(), ExtensionKey::<UserId>::new("user"));
    let by_parts = LockLayer::new(
        client,
        PartsKey::new(|Extension(UserId(id)): Extension<UserId>| Some(key!("user:<id>"))),
    );
    let route = || Router::new().route("/", post(lease_key));
    // The layer that is added last runs first.
    for (right, wrong) in [
        (
            route().route_layer(by_extension.clone()).route_layer(authentication()),
            route().route_layer(authentication()).route_layer(by_extension.allow_unkeyed()),
        ),
        (
            route().route_layer(by_parts.clone()).route_layer(authentication()),
            route().route_layer(authentication()).route_layer(by_parts.allow_unkeyed()),
        ),
    ] {
        let log = LogCapture::start();
        assert_eq!(ask(&right, "/").await, (StatusCode::OK, "user:7".to_owned()));
        assert!(!log.text().contains("ERROR"), "{}", log.text());
        let (status, body) = ask(&wrong, "/").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
        let text = log.text();
        let errors: Vec<_> = text.lines().filter(|line| line.contains("ERROR")).collect();
        assert!(errors.len() == 1 && errors[0].contains("UserId"), "{text}");
    }
}

#[tokio::test]
async fn a_closure_that_returns_none_or_a_bad_key_is_400() {
    let client = World::memory().process().await;
    let nothing = LockLayer::from_fn(client.clone(), |_| None::<&str>);
    assert_eq!(echo(&nothing).oneshot(request("/")).await.unwrap().0, StatusCode::BAD_REQUEST);
    let empty = LockLayer::from_fn(client, |parts| {
        let query = parts.uri.query().unwrap_or_default();
        Some(key!("q:<query>"))
    });
    assert_eq!(echo(&empty).oneshot(request("/")).await.unwrap().0, StatusCode::BAD_REQUEST);
    let (_, key) = echo(&empty).oneshot(request("/?a:b")).await.unwrap();
    assert_eq!(key, "q:a%3ab");
}

async fn lease_key(Extension(lease): Extension<Lease>) -> String {
    lease.key().as_str().to_owned()
}

async fn ask(app: &Router, path: &str) -> (StatusCode, String) {
    let response = app.clone().oneshot(request(path)).await.unwrap();
    (response.status(), text(response).await)
}

#[tokio::test]
async fn a_path_parameter_is_the_key() {
    let client = World::memory().process().await;
    let app = Router::new()
        .route("/orders/{id}", post(lease_key))
        .route("/files/{*rest}", post(lease_key))
        .route_layer(LockLayer::new(client.clone(), PathKey::new("order", "id")))
        .route(
            "/rest/{*rest}",
            post(lease_key).layer(LockLayer::new(client, PathKey::new("file", "rest"))),
        );

    assert_eq!(ask(&app, "/orders/7").await, (StatusCode::OK, "order:7".to_owned()));
    assert_eq!(ask(&app, "/orders/a%3Ab").await, (StatusCode::OK, "order:a%3ab".to_owned()));
    assert_eq!(ask(&app, "/orders/%7B7%7D").await, (StatusCode::OK, "order:%7b7%7d".to_owned()));
    assert_eq!(ask(&app, "/orders/%00").await, (StatusCode::OK, "order:%00".to_owned()));
    assert_eq!(ask(&app, "/rest/a/b").await, (StatusCode::OK, "file:a%2fb".to_owned()));
    assert_eq!(ask(&app, "/orders/%FF").await.0, StatusCode::BAD_REQUEST, "not UTF-8");
    assert_eq!(
        ask(&app, "/files/a").await.0,
        StatusCode::INTERNAL_SERVER_ERROR,
        "the route has no such parameter"
    );
}

#[tokio::test]
async fn a_path_key_on_a_route_without_the_parameter_is_a_logged_500() {
    let log = LogCapture::start();
    let client = World::memory().process().await;
    let misplaced = || LockLayer::new(client.clone(), PathKey::new("order", "id")).allow_unkeyed();
    let on_another_route = Router::new().route("/orders", post(lease_key)).route_layer(misplaced());
    let (status, body) = ask(&on_another_route, "/orders").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!body.contains("PathKey"), "the client need not know: {body}");
    assert!(log.contains("ERROR", "no path parameter `id`"), "{}", log.text());

    // Around the whole router there are no parameters yet.
    let inner = Router::new().route("/orders/{id}", post(lease_key));
    let service = misplaced().layer(inner);
    let response = service.oneshot(request("/orders/7").map(axum::body::Body::from)).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[derive(Clone)]
struct Shop {
    name: &'static str,
}

#[tokio::test]
async fn any_axum_extractor_can_supply_the_key() {
    async fn handler(
        State(shop): State<Shop>,
        Path((user, id)): Path<(String, u64)>,
        Extension(lease): Extension<Lease>,
    ) -> String {
        format!("{} {user} {id} {}", shop.name, lease.key().as_str())
    }

    let shop = Shop { name: "north" };
    let extractor =
        PartsKey::new(|(State(shop), Path((user, id))): (State<Shop>, Path<(String, u64)>)| {
            (id > 0).then(|| key!("order:<shop.name>:<user>:<id>"))
        })
        .with_state(shop.clone());
    let client: LockClient = World::memory().process().await;
    let app = Router::new()
        .route("/users/{user}/orders/{id}", post(handler))
        .route_layer(LockLayer::new(client, extractor))
        .with_state(shop);

    let (status, body) = ask(&app, "/users/a/orders/7").await;
    assert_eq!((status, &*body), (StatusCode::OK, "north a 7 order:north:a:7"));
    assert_eq!(ask(&app, "/users/a/orders/0").await.0, StatusCode::BAD_REQUEST, "`None`");
    let (status, body) = ask(&app, "/users/a/orders/x").await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "axum's own rejection");
    assert!(body.contains("Cannot parse"), "{body}");
}
