//! The keys that values give.

use std::collections::HashSet;

use lock_core::{Error, ErrorKind, Key, KeyPart, distributed_lock, key};

use crate::support::{Counter, store_and_client};

#[distributed_lock(key = "order:<user_id>", lease = lease)]
async fn changing(mut user_id: String) -> Result<(String, String), Error> {
    user_id.push_str("-changed");
    Ok((lease.key().as_str().to_owned(), user_id))
}

#[distributed_lock(key = "order:<user_id>", lease = lease)]
async fn moving(user_id: String) -> Result<String, Error> {
    drop(user_id);
    tokio::task::yield_now().await;
    Ok(lease.key().as_str().to_owned())
}

/// ShedLock#1284, #1753; rhsm-subscriptions#6598 (U13): the key changes with an argument that the
/// body changes.
#[tokio::test]
async fn key_ignores_what_the_body_does_to_arguments() {
    let (_, client) = store_and_client();
    client
        .scope(async {
            let (key, value) = changing("7".to_owned()).await.unwrap();
            assert_eq!((key.as_str(), value.as_str()), ("order:7", "7-changed"));
            assert_eq!(moving("7".to_owned()).await.unwrap(), "order:7");
        })
        .await;
}

#[distributed_lock(key = "order:<a>:<b>", lease = lease)]
async fn two(a: &str, b: &str, ran: &Counter) -> Result<String, Error> {
    ran.count();
    Ok(lease.key().as_str().to_owned())
}

/// klock's `NullPointerException` and similar (U13); festabook#1028 (P13): all callers without a
/// value share one lock. `None` does not compile: `macros/ui/fail/hole_is_no_key_part.rs`.
#[tokio::test]
async fn empty_value_is_rejected() {
    let (store, client) = store_and_client();
    let ran = Counter::default();
    for (a, b) in [("", "x"), ("x", ""), ("", "")] {
        let error = client.scope(two(a, b, &ran)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
    }
    assert_eq!(ran.get(), 0);
    assert!(store.is_empty());
}

/// festabook#1028 (P13), and `a = "1:2", b = "3"` of U13: two pairs of values share a key.
#[tokio::test]
async fn different_values_give_different_keys() {
    let (_, client) = store_and_client();
    let ran = Counter::default();
    let long = "x".repeat(10_000);
    let longer = "x".repeat(10_001);
    let values = [
        "1", "2", "3", "1:2", "2:3", ":", "::", "{", "}", "{}", "{1}", "<1>", "%", "%3a", "~", " ",
        "é", "\0", "\n", "1\0", "1 ", "A", "a", "ä", "a\u{308}", &long, &longer,
    ];
    let mut keys = HashSet::new();
    for a in values {
        for b in values {
            let key = client.scope(two(a, b, &ran)).await.unwrap();
            let shown: String = a.chars().chain(b.chars()).take(20).collect();
            assert!(key.starts_with("order:"));
            assert!(!key.contains(['{', '}']), "a brace would move the hash tag: {shown:?}");
            assert_eq!(key.matches(':').count(), 2, "{shown:?}");
            assert!(key.len() <= 512, "{shown:?}");
            assert!(keys.insert(key), "{shown:?}");
        }
    }
    assert_eq!(ran.get(), values.len() * values.len());
}

#[derive(KeyPart)]
struct UserId(u64);

#[derive(KeyPart)]
struct Sku<'a> {
    code: &'a str,
}

struct Cart {
    user: UserId,
    items: Vec<String>,
}

impl Cart {
    fn first(&self) -> &str {
        &self.items[0]
    }
}

#[distributed_lock(key = "cart:<cart.user>:<cart.first()>:<cart.items[1]>:<cart.items.len()>", lease = l)]
async fn with_template(cart: &Cart) -> Result<String, Error> {
    Ok(l.key().as_str().to_owned())
}

#[tokio::test]
async fn key_macro_and_attribute_give_the_same_key() {
    let (_, client) = store_and_client();
    let cart = Cart { user: UserId(7), items: vec!["a:b".to_owned(), "c".to_owned()] };
    let of_attribute = client.scope(with_template(&cart)).await.unwrap();
    let of_macro: Result<Key, Error> =
        key!("cart:{cart.user}:{cart.first()}:{cart.items[1]}:{cart.items.len()}");
    assert_eq!(of_attribute, "cart:7:a%3ab:c:2");
    assert_eq!(of_macro.unwrap().as_str(), of_attribute);
    let sku = Sku { code: "x/y" };
    assert_eq!(key!("<<<sku>>>").unwrap().as_str(), "<x%2fy>");
    assert_eq!(key!("<(cart.items.len() > 1)>:{-1_i32}").unwrap().as_str(), "true:-1");
    assert_eq!(key!("<\"x>y\">:<'}'>:<1 + 1>").unwrap().as_str(), "x%3ey:%7d:2");
}

#[tokio::test]
async fn debug_output_of_a_key_hides_values() {
    let id = "secret";
    let shown = format!("{:?}", key!("order:<id>").unwrap());
    assert!(shown.contains("order:<id>") && !shown.contains("secret"), "{shown}");
}
