//! Locks by a configuration: `config` and `figment` read it, and what is wrong in it is refused
//! where it stands.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use config::{Config, Environment, File, FileFormat};
use figment::Figment;
use figment::providers::{Format as _, Serialized, Toml};
use lock_core::{ErrorKind, LockConfig, LockOptions, Wait};
use lock_testkit::{LogCapture, RedisServer};
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
    ];
    for (line, message, place) in refused {
        let text = format!("lock.url = 'memory:'\n{line}");
        let error = Figment::from(Toml::string(&text)).extract::<Settings>().unwrap_err();
        let error = error.to_string();
        assert!(error.contains(message), "{line}: {error}");
        assert!(error.contains(place), "{line}: {error}");
    }
    let nothing = Figment::from(Toml::string("[lock]")).extract::<Settings>().unwrap_err();
    assert!(nothing.to_string().contains("missing field `url`"), "{nothing}");
}

/// What depends on other settings is checked where it is used, as without a configuration.
#[tokio::test]
async fn the_rest_is_refused_by_name_when_the_client_is_made() {
    let read = |text: &str| -> LockConfig { Figment::from(Toml::string(text)).extract().unwrap() };
    for (text, field) in [
        ("url = 'http://127.0.0.1/'", "url"),
        ("url = ''", "url"),
        ("url = 'redis://127.0.0.1/'\nrequest_timeout = '1ms'", "request_timeout"),
        ("url = 'redis://127.0.0.1/'\nconnect_timeout = '1h'", "connect_timeout"),
    ] {
        assert_eq!(read(text).connect_lazy().unwrap_err().field(), field, "{text}");
        let error = read(text).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions);
        assert_eq!(error.config_error().unwrap().field(), field, "{text}");
    }
    for (text, field) in [
        ("url = 'memory:'\nnamespace = 'a:b'", "namespace"),
        ("url = 'memory:'\noptions = { min_hold = '2s', max_hold = '1s' }", "min_hold"),
        ("url = 'memory:'\noptions = { min_hold = '20s', renewal = false }", "min_hold"),
    ] {
        assert_eq!(
            read(text).connect_lazy().unwrap().build().unwrap_err().field(),
            field,
            "{text}"
        );
    }
    let nowhere = read("url = 'redis://user:secret@127.0.0.1:1/'");
    assert!(!format!("{nowhere:?}").contains("secret"), "{nowhere:?}");
    assert!(nowhere.connect().await.unwrap_err().is_unavailable());
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
            .with_fencing(),
        LockOptions::new().without_wait().without_renewal().without_max_hold(),
        LockOptions::new().wait_forever().without_min_hold().without_fencing(),
    ];
    for options in all {
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(serde_json::from_str::<LockOptions>(&text).unwrap(), options, "{text}");
    }
}
