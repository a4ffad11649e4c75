//! The three ways to order, in one process.

use futures_util::future::join_all;
use seckill::db::Audit;
use seckill::service::{OrderError, Outcome};

use crate::support::{Shop, VOUCHER};

#[tokio::test]
async fn with_the_macro_presses_at_once_give_one_order_and_the_others_see_it() {
    let shop = Shop::with_stock(100).await;
    let outcomes = join_all((0..10).map(|_| shop.service.order(VOUCHER, 7))).await;

    let (ordered, seen): (Vec<_>, Vec<_>) = outcomes
        .into_iter()
        .map(Result::unwrap)
        .partition(|outcome| matches!(outcome, Outcome::Ordered(_)));
    let [Outcome::Ordered(order)] = &ordered[..] else { panic!("ordered: {ordered:?}") };
    assert_eq!(seen, vec![Outcome::AlreadyOrdered(order.clone()); 9]);
    let Audit { orders, users_with_duplicates, stock_left, .. } = shop.audit().await;
    assert_eq!((orders, users_with_duplicates, stock_left), (1, 0, 99));
}

#[tokio::test]
async fn without_a_lock_presses_at_once_give_duplicates() {
    let shop = Shop::with_stock(100).await;
    // The presses of a user may come one after another by chance.
    for user in 1..=10 {
        let presses = (0..10).map(|_| shop.service.order_unlocked(VOUCHER, user));
        for outcome in join_all(presses).await {
            outcome.unwrap();
        }
        let audit = shop.audit().await;
        if audit.users_with_duplicates > 0 {
            assert!(audit.orders > user.into(), "{audit:?}");
            return;
        }
    }
    panic!("no duplicates of ten users");
}

#[tokio::test]
async fn different_users_hold_different_locks_and_still_do_not_oversell() {
    let shop = Shop::with_stock(10).await;
    let outcomes = join_all((1..=40).map(|user| shop.service.order(VOUCHER, user))).await;
    let sold_out =
        outcomes.iter().filter(|outcome| matches!(outcome, Err(OrderError::SoldOut))).count();
    assert_eq!(sold_out, 30);
    let Audit { orders, users_with_orders, stock_left, oversold, .. } = shop.audit().await;
    assert_eq!((orders, users_with_orders, stock_left, oversold), (10, 10, 0, 0));
}

#[tokio::test]
async fn a_user_may_have_one_order_of_each_voucher() {
    let shop = Shop::with_stock(1).await;
    shop.db.offer("autumn", 1).await.unwrap();
    for voucher in [VOUCHER, "autumn"] {
        let outcome = shop.service.order(voucher, 7).await.unwrap();
        assert!(matches!(outcome, Outcome::Ordered(_)), "{outcome:?}");
    }
}

/// A lock guards what is committed while it is held, not what its caller commits later.
// redisson#2183, redisson#6881
#[tokio::test]
async fn an_order_that_is_committed_after_the_unlock_is_ordered_twice() {
    let shop = Shop::with_stock(100).await;
    let pool = sqlx::AnyPool::connect(&shop.url).await.unwrap();
    let lock = shop.locks.mutex("order:spring:7");
    const INSERT: &str =
        "INSERT INTO orders (voucher, user_id, instance, fence) VALUES ('spring', 7, 'test', 1)";

    // The first: all inside the lock, but for the commit.
    let guard = lock.lock().await.unwrap();
    assert_eq!(shop.db.find_order(VOUCHER, 7).await.unwrap(), None);
    let mut first = pool.begin().await.unwrap();
    sqlx::query(INSERT).execute(&mut *first).await.unwrap();
    guard.release().await.unwrap();

    // The second holds the lock now, and sees nothing.
    let guard = lock.lock().await.unwrap();
    assert_eq!(shop.db.find_order(VOUCHER, 7).await.unwrap(), None);
    first.commit().await.unwrap();
    sqlx::query(INSERT).execute(&pool).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(shop.audit().await.users_with_duplicates, 1);

    // The example's service commits inside.
    let (one, other) = tokio::join!(shop.service.order(VOUCHER, 8), shop.service.order(VOUCHER, 8));
    assert_ne!(one.unwrap(), other.unwrap());
    assert_eq!(shop.db.orders_of(VOUCHER, 8).await.unwrap(), 1);
}
