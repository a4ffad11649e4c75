//! What the database refuses when the lock did not hold.

use seckill::db::NewOrder;
use seckill::service::OrderError;

use crate::support::{Shop, VOUCHER};

const NEW: NewOrder<'static> = NewOrder { voucher: VOUCHER, user: 7, instance: "test" };

/// Two leases on one key: the first holder still believes in its own.
async fn two_leases(shop: &Shop) -> [lock_core::Lease; 2] {
    let lock = shop.locks.mutex("order:spring:7");
    let mut leases = Vec::new();
    for _ in 0..2 {
        let guard = lock.lock().await.unwrap();
        leases.push((*guard).clone());
        guard.release().await.unwrap();
    }
    assert!(leases[0].fencing_token() < leases[1].fencing_token());
    leases.try_into().unwrap()
}

#[tokio::test]
async fn a_holder_that_comes_after_the_next_one_is_refused_and_writes_nothing() {
    let shop = Shop::with_stock(5).await;
    let [stale, fresh] = two_leases(&shop).await;

    let mut tx = shop.db.begin_fenced(&fresh).await.unwrap();
    tx.take_one(VOUCHER).await.unwrap();
    let order = tx.insert(NEW).await.unwrap();
    tx.commit().await.unwrap();

    let refused = shop.db.begin_fenced(&stale).await.unwrap_err();
    assert!(matches!(refused, OrderError::Overtaken), "{refused:?}");
    let audit = shop.audit().await;
    assert_eq!((audit.orders, audit.stock_left), (1, 4));
    assert_eq!(order.fence, Some(fresh.fencing_token().as_i64()));
}

#[tokio::test]
async fn one_lease_writes_once() {
    let shop = Shop::with_stock(5).await;
    let [lease, _] = two_leases(&shop).await;
    shop.db.begin_fenced(&lease).await.unwrap().commit().await.unwrap();
    let refused = shop.db.begin_fenced(&lease).await.unwrap_err();
    assert!(matches!(refused, OrderError::Overtaken), "{refused:?}");
}

#[tokio::test]
async fn a_holder_that_commits_late_but_before_the_next_one_is_seen_behind_the_fence() {
    let shop = Shop::with_stock(5).await;
    let [stale, fresh] = two_leases(&shop).await;

    // The next holder looks, and there is no order; only then does the late one commit.
    assert_eq!(shop.db.find_order(VOUCHER, 7).await.unwrap(), None);
    let mut late = shop.db.begin_fenced(&stale).await.unwrap();
    late.insert(NEW).await.unwrap();
    late.commit().await.unwrap();

    let mut tx = shop.db.begin_fenced(&fresh).await.unwrap();
    let refused = tx.expect_no_order(VOUCHER, 7).await.unwrap_err();
    assert!(matches!(refused, OrderError::Overtaken), "{refused:?}");
}

#[tokio::test]
async fn a_transaction_that_is_dropped_gives_everything_back() {
    let shop = Shop::with_stock(5).await;
    let [lease, _] = two_leases(&shop).await;
    let mut tx = shop.db.begin_fenced(&lease).await.unwrap();
    tx.take_one(VOUCHER).await.unwrap();
    tx.insert(NEW).await.unwrap();
    drop(tx);

    let audit = shop.audit().await;
    assert_eq!((audit.orders, audit.stock_left), (0, 5));
    // The fence too: this lease has not written.
    shop.db.begin_fenced(&lease).await.unwrap();
}
