//! Errors name what is wrong in a URL, or with the servers behind it.

use lock_core::ErrorKind;
use lock_core::store::RedisStore;
use lock_testkit::{
    LogCapture, RedisServer, Sentinels, alone, client, documented_sentinel_user, eventually, ms,
    refusal,
};

/// H11: the sentinels watch no master of this name, which no wait will change.
#[tokio::test]
async fn unknown_master_is_named_at_once_by_connect_and_by_a_lazy_store() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let url = group.url().replace("/shop", "/shpo");
    for error in [RedisStore::connect(url.clone()).await.unwrap_err(), refusal(&url).await] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!error.is_retryable(), "{error:?}");
        assert!(error.to_string().contains("no master `shpo`"), "{error}");
    }
}

/// H11: passwords of the servers and of the sentinels are apart, an error says which of them is
/// wrong, and neither is shown.
#[tokio::test]
async fn error_says_whose_password_is_wrong_and_does_not_show_it() {
    let _alone = alone().await;
    let group =
        Sentinels::builder(1).password("hunter2").sentinel_password("hunter3").start().await;
    let log = LogCapture::start();
    let client = client(&group.url()).await;
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    let of_sentinels = "`sentinel_password`";
    for (url, part) in [
        (group.url().replace("hunter2", "hunter4"), "redis refused the user name or password"),
        (group.url().replace("hunter3", "hunter4"), of_sentinels),
        (group.url().replace("?sentinel_password=hunter3", ""), of_sentinels),
    ] {
        for error in [RedisStore::connect(url.clone()).await.unwrap_err(), refusal(&url).await] {
            assert!(error.to_string().contains(part), "{url}: {error}");
            let all = format!("{error:?} {error:#?} {}", log.text());
            assert!(!all.contains("hunter"), "{all}");
        }
    }
    let store = RedisStore::connect(group.url()).await.unwrap();
    assert!(!format!("{store} {store:?}").contains("hunter"), "{store}");
    assert!(
        store
            .to_string()
            .ends_with(&format!("/shop (now redis://127.0.0.1:{})", group.server(0).port()))
    );
}

/// The port of a sentinel given as that of a server, and the other way round.
#[tokio::test]
async fn sentinel_and_server_are_not_taken_for_each_other() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let url = format!("redis://127.0.0.1:{}/", group.proxy(0).port());
    let error = refusal(&url).await;
    assert!(error.to_string().contains("is a sentinel: write `redis+sentinel://"), "{error}");
    let server = RedisServer::start();
    let url = format!("redis+sentinel://127.0.0.1:{}/shop", server.port());
    let error = refusal(&url).await;
    assert!(error.to_string().contains("are no sentinels"), "{error}");
}

/// A user with the documented permissions finds the master, subscribes for another one, and leaves
/// nothing in the `ACL LOG`; one without a permission gets an error at once that says so.
#[tokio::test]
async fn documented_permissions_on_sentinels_are_enough() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let user = documented_sentinel_user();
    let each = |command: &str| {
        for sentinel in 0..3 {
            let () = group.ask(sentinel, command).unwrap();
        }
    };
    each(&format!("ACL SETUSER {}", user.join(" ")));
    let login = format!("sentinel_username={}&sentinel_password=password", user[0]);
    let url = format!("{}?{login}", group.url());
    let client = client(&url).await;
    let subscribed = |sentinel| {
        let list: String = group.ask(sentinel, "CLIENT LIST").unwrap();
        list.lines()
            .any(|line| line.contains("sub=1") && line.contains(&format!("user={}", user[0])))
    };
    eventually("it is subscribed", ms(5_000), || (0..3).all(subscribed)).await;
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    for sentinel in 0..3 {
        let log: Vec<redis::Value> = group.ask(sentinel, "ACL LOG").unwrap();
        assert!(log.is_empty(), "{log:?}");
    }
    // Redis 6.2 takes away no part of a command.
    each(&format!("ACL SETUSER {} -sentinel", user[0]));
    let error = refusal(&url).await;
    assert!(error.to_string().contains("lacks a permission on the sentinels"), "{error}");
    assert!(!error.is_retryable());
}

/// A URL that is no use is refused before anything is sent, without a part of it.
#[tokio::test]
async fn mistake_in_a_url_is_an_error_that_names_the_form() {
    for url in [
        "redis+sentinel://:hunter2@a,b",
        "redis+sentinel://:hunter2@/shop",
        "redis+sentinel://:hunter2@a/shop?hunter2=1",
        "redis+sentinel://a/shop?sentinel_password=hunter2%",
        "redis://:hunter2@a/?master_name=shop",
        "sentinel://:hunter2@a",
    ] {
        let error = RedisStore::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{url}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("`url`") && text.contains("redis+sentinel://["), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
