//! `#[instrument]` and the lock: the order of the attributes decides what the span covers.

use lock_core::{Error, distributed_lock};
use tracing::instrument;

use crate::support::{held_by_another, store_and_client};

/// The name of the span that encloses this code.
fn span() -> Option<&'static str> {
    tracing::Span::current().metadata().map(tracing::Metadata::name)
}

/// A key that records the span in which it was made, before the wait.
fn key(noted: &mut Option<&'static str>) -> &'static str {
    *noted = span();
    "a"
}

#[distributed_lock(key = key(noted))]
#[instrument(skip_all)]
async fn below(noted: &mut Option<&'static str>) -> Result<Option<&'static str>, Error> {
    Ok(span())
}

#[instrument(skip_all)]
#[distributed_lock(key = key(noted))]
async fn above(noted: &mut Option<&'static str>) -> Result<Option<&'static str>, Error> {
    Ok(span())
}

#[tokio::test]
async fn attribute_order_decides_what_the_span_covers() {
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry());
    let (_, client) = store_and_client();
    let mut waiting = None;
    assert_eq!(client.scope(below(&mut waiting)).await.unwrap(), Some("below"));
    assert_eq!(waiting, Some("below"), "below the lock the span covers the waiting");
    assert_eq!(client.scope(above(&mut waiting)).await.unwrap(), Some("above"));
    assert_eq!(waiting, None, "above the lock it covers the body only");
}

struct NotDebug;

struct State {
    db: NotDebug,
    name: u64,
    _more: NotDebug,
}

// `#[instrument]` reads the patterns of the signature, and requires `Debug` of the names in them.
#[distributed_lock(key = "order:<name>", wait = none)]
#[instrument(skip(db), err)]
async fn patterns(
    State { db, name, .. }: State,
    _: NotDebug,
    _unused: u64,
    mut id: u64,
) -> Result<u64, Error> {
    let NotDebug = db;
    id += name;
    Ok(id)
}

#[tokio::test]
async fn instrument_accepts_patterns() {
    let state = || State { db: NotDebug, name: 7, _more: NotDebug };
    let (client, guard) = held_by_another("order:7").await;
    assert!(client.scope(patterns(state(), NotDebug, 1, 2)).await.unwrap_err().is_busy());
    guard.release().await.unwrap();
    assert_eq!(client.scope(patterns(state(), NotDebug, 1, 2)).await.unwrap(), 9);
}
