//! Locks by a configuration: `config` and `figment` read it, and what is wrong in it is refused
//! where it stands.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use config::{Config, Environment, File, FileFormat};
use figment::Figment;
use figment::providers::{Format as _, Serialized, Toml};
use lock_core::store::{MemoryStore, Survives};
use lock_core::{ErrorKind, LockClient, LockClientBuilder, LockConfig, LockOptions, Wait};
use lock_testkit::{LogCapture, Quorum, RedisServer, Sentinels};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Settings {
    lock: LockConfig,
    #[serde(default)]
    import: LockOptions,
}

const SECOND: Duration = Duration::from_secs(1);

fn toml(url: &str) -> String {
    format!(
        r#"
        [lock]
        url = "{url}"
        namespace = "shop"
        name = "orders"
        request_timeout = "250ms"
        connect_timeout = "2s"

        [lock.options]
        ttl = "1m 30s"
        wait = "2s"
        renewal = true
        max_hold = "2h"
        min_hold = "none"

        [import]
        wait = "forever"
        max_hold = "none"
        fencing = false
        "#
    )
}

/// Locks with the settings and looks at the server.
async fn lock(settings: Settings, server: &RedisServer) {
    let expected = LockOptions::new().wait_forever().without_max_hold().without_fencing();
    assert_eq!(settings.import, expected);
    assert!(format!("{:?}", settings.lock).contains("orders"));
    let log = LogCapture::start();
    let client = settings.lock.connect().await.unwrap().build().unwrap();
    assert_eq!(client.namespace(), "shop");
    assert!(log.contains("INFO", "orders"), "{}", log.text());
    let guard = client.mutex("report").lock().await.unwrap();
    let pttl = server.pttl("shop:report");
    assert!((85_000..=90_000).contains(&pttl), "{pttl}");
    assert!(guard.fencing_token().get() > 0);
    guard.release().await.unwrap();
    let guard = client.mutex("import").with_options(settings.import).lock().await.unwrap();
    assert_eq!(guard.fencing_token().get(), 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn figment_reads_url_and_options() {
    let server = RedisServer::start();
    // An application's defaults, then its file.
    let defaults = LockOptions::new().with_wait(9 * SECOND).with_ttl(9 * SECOND).with_fencing();
    let figment = Figment::from(Serialized::default("lock.options", defaults))
        .merge(Toml::string(&toml(&server.url())));
    let options: LockOptions = figment.extract_inner("lock.options").unwrap();
    assert_eq!((options.wait(), options.fencing()), (Some(Wait::UpTo(2 * SECOND)), Some(true)));
    lock(figment.extract().unwrap(), &server).await;
}

#[tokio::test]
async fn config_reads_url_and_options_and_the_environment_overrides_them() {
    let server = RedisServer::start();
    let file = || File::from_str(&toml("redis://127.0.0.1:1/"), FileFormat::Toml);
    let url = || [("SHOP__LOCK__URL".to_owned(), server.url())].into();
    let environment = |more: &[(&str, &str)]| {
        let mut variables: std::collections::HashMap<_, _> = url();
        variables
            .extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Environment::with_prefix("SHOP").separator("__").source(Some(variables))
    };
    let read = |environment| {
        let config = Config::builder().add_source(file()).add_source(environment);
        config.build().unwrap().try_deserialize::<Settings>()
    };
    lock(read(environment(&[])).unwrap(), &server).await;

    // Everything in the environment is text.
    let overridden = environment(&[
        ("SHOP__IMPORT__FENCING", "true"),
        ("SHOP__IMPORT__RENEWAL", "false"),
        ("SHOP__IMPORT__WAIT", "none"),
    ]);
    let import = read(overridden).unwrap().import;
    let expected =
        LockOptions::new().without_wait().without_renewal().without_max_hold().with_fencing();
    assert_eq!(import, expected);
    let error = read(environment(&[("SHOP__IMPORT__TTL", "10")])).unwrap_err().to_string();
    assert!(error.contains("duration with its unit") && error.contains("import.ttl"), "{error}");
}

/// A list in a file, and text in the environment; with passwords that differ.
#[tokio::test]
async fn several_urls_are_a_quorum_with_its_restart_delay() {
    let server = |password| RedisServer::builder().password(password).start();
    let quorum = Quorum::of(["one", "two", "three"].map(server));
    quorum.vouch_for_all("shop");
    let urls: Vec<String> = quorum.servers().map(RedisServer::url).collect();
    let file = format!("[lock]\nurl = {urls:?}\nnamespace = 'shop'\nrestart_delay = '20s'");
    let of_file: Settings = Figment::from(Toml::string(&file)).extract().unwrap();
    let variables = [
        ("SHOP__LOCK__URL", urls.join(" ")),
        ("SHOP__LOCK__NAMESPACE", "shop".to_owned()),
        ("SHOP__LOCK__RESTART_DELAY", "20s".to_owned()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value)).into();
    let variables = Environment::with_prefix("SHOP").separator("__").source(Some(variables));
    let of_text = Config::builder().add_source(variables).build().unwrap();
    for settings in [of_file, of_text.try_deserialize().unwrap()] {
        let client = settings.lock.connect().await.unwrap().build().unwrap();
        assert_eq!(client.capabilities().survives, Survives::Minority);
        assert_eq!(client.capabilities().longest_ttl, Some(20 * SECOND));
        let guard = client.mutex("report").lock().await.unwrap();
        assert!(quorum.having("shop:report") >= 2);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn sentinels_and_replica_acks_are_read_as_well() {
    let group = Sentinels::start(1).await;
    let file = |acks| format!("lock.url = '{}'\nlock.replica_acks = {acks}", group.url());
    let read = |acks| Figment::from(Toml::string(&file(acks))).extract::<Settings>().unwrap();
    let client = read(1).lock.connect().await.unwrap().build().unwrap();
    assert_eq!(client.capabilities().survives, Survives::FailoverAcknowledged);
    client.mutex("report").lock().await.unwrap().release().await.unwrap();
    assert!(read(2).lock.connect().await.unwrap_err().is_unavailable(), "there is one replica");
}

#[test]
fn what_is_misspelt_or_out_of_bounds_is_refused_where_it_stands() {
    let refused = [
        ("lock.urll = 'x'", "unknown field: found `urll`", "lock.urll"),
        ("lock.options.tll = '1s'", "unknown field: found `tll`", "lock.options.tll"),
        ("lock.options.ttl = 10", "expected a duration with its unit", "lock.options.ttl"),
        ("lock.options.ttl = '10'", "time unit needed", "lock.options.ttl"),
        ("lock.options.ttl = ''", "\"\" is not a duration", "lock.options.ttl"),
        ("lock.options.ttl = 'soon'", "\"soon\" is not a duration", "lock.options.ttl"),
        ("lock.options.ttl = '-1s'", "is not a duration", "lock.options.ttl"),
        ("lock.options.ttl = '1ms'", "`ttl` is 1ms: choose 100ms to 24h", "lock.options.ttl"),
        ("lock.options.ttl = '999 years'", "choose 100ms to 24h", "lock.options.ttl"),
        ("lock.options.ttl = '99999999999999 years'", "is not a duration", "lock.options.ttl"),
        ("lock.options.wait = '0s'", "or write \"none\" or \"forever\"", "lock.options.wait"),
        ("lock.options.wait = '25h'", "`wait` is 90000s: choose 1ms to 24h", "lock.options.wait"),
        ("lock.options.wait = 'never'", "or \"none\", or \"forever\"", "lock.options.wait"),
        ("lock.options.wait = false", "or \"none\", or \"forever\"", "lock.options.wait"),
        ("lock.options.max_hold = '2d'", "`max_hold` is 172800s", "lock.options.max_hold"),
        ("lock.options.min_hold = 'forever'", "or \"none\"", "lock.options.min_hold"),
        (
            "lock.options.renewal = 'no'",
            "found string \"no\", expected a boolean",
            "lock.options.renewal",
        ),
        ("lock.options = 'fast'", "expected a table of lock options", "lock.options"),
        ("lock.request_timeout = 500", "expected a duration with its unit", "lock.request_timeout"),
        ("lock.request_timeout = '1ms'", "choose 10ms to 30s", "lock.request_timeout"),
        ("lock.connect_timeout = '1h'", "choose 10ms to 30s", "lock.connect_timeout"),
        ("lock.wait_warning = '0s'", "`wait_warning` is 0ns: choose 1ms", "lock.wait_warning"),
        ("lock.hold_warning = '2d'", "`hold_warning` is 172800s", "lock.hold_warning"),
        ("lock.name = 'orders api'", "visible ASCII without spaces", "lock.name"),
        ("lock.name = ''", "visible ASCII without spaces", "lock.name"),
        ("lock.namespace = 'a:b'", "holds a colon", "lock.namespace"),
        ("lock.namespace = ''", "is empty", "lock.namespace"),
        ("lock.without_namespace = 1", "expected a boolean", "lock.without_namespace"),
        ("lock.url = ''", "is not a redis URL", "lock.url"),
        ("lock.url = 'http://127.0.0.1/'", "is not a redis URL", "lock.url"),
        ("lock.url = 'redis+sentinel://a,b,c'", "names no master", "lock.url"),
        ("lock.url = 'rediss://a/#insecure'", "remove `#insecure`", "lock.url"),
        ("lock.url = 'redis://redis_1.internal/locks'", "is not a redis URL", "lock.url"),
        ("lock.url = 7", "expected a URL, or a list of the URLs of a quorum", "lock.url"),
        ("lock.url = []", "is not a redis URL", "lock.url"),
        ("lock.url = ['redis://a', 7]", "expected a string", "lock.url"),
        ("lock.url = ['redis://a/', 'redis://b/']", "`members` are two servers", "lock.url"),
        ("lock.url = 'redis://a/ redis://b/'", "`members` are two servers", "lock.url"),
        ("lock.url = 'redis://a/ redis://b/ redis://a/'", "a server twice", "lock.url"),
        ("lock.url = ['redis://a', 'http://b', 'redis://c']", "is not a redis URL", "lock.url"),
        ("lock.url = 'redis://a redis://b redis+cluster://c'", "must be single", "lock.url"),
        ("lock.replica_acks = 0", "`replica_acks` is 0", "lock.replica_acks"),
        ("lock.replica_acks = -1", "expected u32", "lock.replica_acks"),
        ("lock.restart_delay = '2s'", "choose 3s to 24h", "lock.restart_delay"),
        ("lock.restart_delay = 30", "expected a duration with its unit", "lock.restart_delay"),
        ("lock.durable_members = 'yes'", "expected a boolean", "lock.durable_members"),
    ];
    for (line, message, place) in refused {
        let url = if line.contains(".url =") { "" } else { "lock.url = 'memory:'" };
        let text = format!("{url}\n{line}");
        let error = Figment::from(Toml::string(&text)).extract::<Settings>().unwrap_err();
        let error = error.to_string();
        assert!(error.contains(message), "{line}: {error}");
        assert!(error.contains(place), "{line}: {error}");
    }
    let nothing = Figment::from(Toml::string("[lock]")).extract::<Settings>().unwrap_err();
    assert!(nothing.to_string().contains("missing field `url`"), "{nothing}");
}

/// What depends on other settings is checked where it is used, as without a configuration. So is a
/// URL in which a password may stand: `toml` prints the line that it refuses.
#[tokio::test]
async fn the_rest_is_refused_by_name_when_the_client_is_made() {
    let read = |text: &str| -> LockConfig { toml::from_str(text).unwrap() };
    for text in [
        "url = 'http://user:hunter2@127.0.0.1/'",
        "url = 'redis://user:hunter/2@127.0.0.1/'",
        "url = 'redis+sentinel://u:hunter2@/shop'",
        "url = 'redis+sentinel://a,b,c?sentinel_password=hunter2'",
        "url = 'redis+sentinel://a,b,c/shop?Sentinel_Password=hunter2'",
        "url = 'redis+sentinel://a,b,c/shop?sentinel_pass=hunter2'",
        "url = 'redis+sentinel://a,b,c&PASSWORD=hunter2'",
        "url = 'redis://user:hunter2127.0.0.1/'",
        "url = 'redis://:hunter2127.0.0.1/'",
        // A password of digits looks like a port.
        "url = 'redis://user:123456/hunter'",
        "url = 'redis://user:1/hunter2'",
        "url = 'user:hunter2@127.0.0.1'",
        "url = 'redis:user:hunter2127.0.0.1'",
    ] {
        let error = read(text).connect_lazy().unwrap_err();
        assert_eq!(error.field(), "url", "{text}");
        assert!(!error.to_string().contains("hunter"), "{error}");
        let error = read(text).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions);
        assert_eq!(error.config_error().unwrap().field(), "url", "{text}");
    }
    for text in [
        "url = 'memory:'\noptions = { min_hold = '2s', max_hold = '1s' }",
        "url = 'memory:'\noptions = { min_hold = '20s', renewal = false }",
    ] {
        let error = read(text).connect_lazy().unwrap().build().unwrap_err();
        assert_eq!(error.field(), "min_hold", "{text}");
    }
    for (builder, field) in [
        (client().with_wait_warning(Duration::ZERO), "wait_warning"),
        (client().with_hold_warning(Duration::MAX), "hold_warning"),
        (client().with_name("orders api"), "name"),
    ] {
        assert_eq!(builder.build().unwrap_err().field(), field);
    }
    // What has no use with the URL, and lists in which a password may stand.
    let members = "url = ['redis://:hunter2@a/', 'redis://:hunter2@b/', 'redis://:hunter2@c/']";
    let listed = |list: &str| format!("url = ['redis://:hunter2@{list}']");
    for (text, field) in [
        ("url = 'redis://a/'\nrestart_delay = '30s'".to_owned(), "restart_delay"),
        (
            "url = 'redis+sentinel://a,b,c/shop'\ndurable_members = true".to_owned(),
            "durable_members",
        ),
        (format!("{members}\nreplica_acks = 1"), "replica_acks"),
        (
            "url = 'memory:'\nnamespace = 'shop'\nwithout_namespace = true".to_owned(),
            "without_namespace",
        ),
        (listed("a:7/ redis://b:7/"), "members"),
        (listed("a:7/', 'redis://b:7/', 'redis://:hunter2@a:7/"), "members"),
        (listed("a:7/', 'redis://b:7/', 'http://c:7/"), "url"),
    ] {
        let error = read(&text).connect_lazy().unwrap_err();
        assert_eq!(error.field(), field, "{text}: {error}");
        assert!(!error.to_string().contains("hunter"), "{error}");
        let error = read(&text).connect().await.unwrap_err();
        assert_eq!(error.config_error().unwrap().field(), field, "{text}");
    }
    let long = format!("{members}\nrestart_delay = '5s'\noptions.ttl = '6s'");
    assert_eq!(read(&long).connect_lazy().unwrap().build().unwrap_err().field(), "ttl");
    // Locks in memory need nothing of all that.
    let memory = "url = ' memory: '\nreplica_acks = 1\nrestart_delay = '30s'";
    drop(read(memory).connect().await.unwrap().build().unwrap());

    let plain = read("url = 'memory:'\nwithout_namespace = true").connect_lazy().unwrap();
    assert_eq!(plain.build().unwrap().namespace(), "");

    let nowhere = read("url = 'redis://user:secret@127.0.0.1:1/'");
    assert!(!format!("{nowhere:?}").contains("secret"), "{nowhere:?}");
    assert!(nowhere.connect().await.unwrap_err().is_unavailable());
}

fn client() -> LockClientBuilder {
    LockClient::builder(MemoryStore::new())
}

#[test]
fn options_are_written_as_they_are_read() {
    let all = [
        LockOptions::new(),
        LockOptions::new()
            .with_ttl(90 * SECOND)
            .with_wait(Duration::from_millis(1_500))
            .with_renewal()
            .with_max_hold(3_600 * SECOND)
            .with_min_hold(Duration::from_millis(1))
            .with_fencing()
            .with_turns_for_others(),
        LockOptions::new().without_wait().without_renewal().without_max_hold(),
        LockOptions::new().wait_forever().without_min_hold().without_fencing(),
        LockOptions::new().without_turns_for_others(),
    ];
    for options in all {
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(serde_json::from_str::<LockOptions>(&text).unwrap(), options, "{text}");
    }
}
