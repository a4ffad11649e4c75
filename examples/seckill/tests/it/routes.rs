//! The routes of one instance, without a network.

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode};

use lock_core::key;
use lock_tower::Console;
use seckill::routes::{INSTANCE_HEADER, USER_HEADER, router};
use tower::ServiceExt;

use crate::support::{Shop, VOUCHER};

async fn send(shop: &Shop, request: Request<Body>) -> Response<Body> {
    send_with(shop, None, request).await
}

async fn send_with(
    shop: &Shop,
    console: Option<Console>,
    request: Request<Body>,
) -> Response<Body> {
    let name = HeaderValue::from_static("here");
    router(shop.service.clone(), shop.db.clone(), shop.locks.clone(), name, Vec::new(), console)
        .oneshot(request)
        .await
        .unwrap()
}

fn order(mode: &str, users: &[&str]) -> Request<Body> {
    let mut request = Request::post(format!("/{mode}/vouchers/{VOUCHER}/orders"));
    for user in users {
        request = request.header(USER_HEADER, *user);
    }
    request.body(Body::empty()).unwrap()
}

// LabsCrypt/remitlend#1624, Truxify#4696
#[tokio::test]
async fn a_stranger_gets_401_and_does_not_touch_the_key() {
    let shop = Shop::with_stock(5).await;
    let (voucher, user) = (VOUCHER, 7);
    // While the key is held, a request for it gets 409.
    let held = shop.locks.mutex(key!("order:<voucher>:<user>")).lock().await.unwrap();
    let busy = send(&shop, order("layer", &["7"])).await;
    assert_eq!(busy.status(), StatusCode::CONFLICT);

    for strangers in [&[][..], &[""], &["seven"], &["-7"], &["7", "7"]] {
        for mode in ["none", "macro", "layer"] {
            let response = send(&shop, order(mode, strangers)).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{mode}: {strangers:?}");
        }
    }
    assert_eq!(shop.audit().await.orders, 0);
    held.release().await.unwrap();
}

#[tokio::test]
async fn macro_and_layer_exclude_each_other() {
    let shop = Shop::with_stock(5).await;
    let (by_macro, by_layer) =
        tokio::join!(send(&shop, order("macro", &["7"])), send(&shop, order("layer", &["7"])));
    assert_eq!(by_macro.status(), StatusCode::CREATED);
    assert_eq!(by_layer.status(), StatusCode::CONFLICT);
    assert!(by_layer.headers().contains_key("retry-after"));
    assert_eq!(shop.audit().await.orders, 1);
}

#[tokio::test]
async fn every_answer_names_its_instance() {
    let shop = Shop::with_stock(0).await;
    for (request, status) in [
        (order("macro", &["7"]), StatusCode::GONE),
        (order("macro", &[]), StatusCode::UNAUTHORIZED),
        (Request::get("/").body(Body::empty()).unwrap(), StatusCode::OK),
        // Without a console.
        (Request::get("/locks").body(Body::empty()).unwrap(), StatusCode::NOT_FOUND),
        (Request::get("/vouchers/nothing").body(Body::empty()).unwrap(), StatusCode::NOT_FOUND),
    ] {
        let response = send(&shop, request).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()[INSTANCE_HEADER], "here");
    }
}

/// A name of another site may resolve to the loopback address, and its pages would then be of the
/// console's origin.
#[tokio::test]
async fn console_answers_only_to_names_of_this_machine() {
    let shop = Shop::with_stock(0).await;
    for (host, status) in [
        (Some("127.0.0.1:3001"), StatusCode::OK),
        (Some("localhost"), StatusCode::OK),
        (Some("[::1]:3001"), StatusCode::OK),
        (Some("evil.example:3001"), StatusCode::NOT_FOUND),
        (Some("127.0.0.1.evil.example"), StatusCode::NOT_FOUND),
        (None, StatusCode::NOT_FOUND),
    ] {
        for path in ["/locks", "/locks/", "/locks/release"] {
            let mut request = Request::get(path).body(Body::empty()).unwrap();
            if let Some(host) = host {
                request.headers_mut().insert("host", HeaderValue::from_static(host));
            }
            let console = lock_tower::console(shop.locks.clone()).allow_force_release();
            let found = send_with(&shop, Some(console), request).await.status();
            let of_get = if path.ends_with("release") && status == StatusCode::OK {
                StatusCode::METHOD_NOT_ALLOWED
            } else {
                status
            };
            assert_eq!(found, of_get, "{host:?} {path}");
        }
    }
}
