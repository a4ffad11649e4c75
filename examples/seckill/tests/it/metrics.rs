//! What an instance tells Prometheus.

use axum::http::StatusCode;
use futures_util::future::join_all;
use lock_testkit::RedisServer;

use crate::support::{Browser, instance, sqlite_url};

/// A number that is no part of any other.
const FIRST_USER: u32 = 481_516_230;
const USERS: u32 = 8;

/// Users show in no label: the template names their locks.
#[tokio::test]
async fn metrics_of_a_loaded_instance_name_the_template_and_no_user() {
    let (redis, directory) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let (_instance, address) = instance("one", &redis.url(), &sqlite_url(&directory), &[]).await;
    let browser = Browser::new();
    for mode in ["macro", "layer"] {
        let voucher = format!("page-{mode}");
        let users = (FIRST_USER..FIRST_USER + USERS).flat_map(|user| [user; 10]);
        let presses = users.map(|user| browser.order(&address, mode, &voucher, user));
        let answers = join_all(presses).await;
        let ordered = answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).count();
        assert_eq!(ordered, USERS as usize, "{mode}: {answers:?}");
    }

    let text = browser.metrics(&address).await;
    let value = |series: &str| -> f64 {
        let mut samples = text.lines().filter_map(|line| line.rsplit_once(' '));
        let found = samples.find(|(name, _)| *name == series);
        found.unwrap_or_else(|| panic!("no {series} in {text}")).1.parse().unwrap()
    };
    let key = r#"key="order:<voucher>:<user>""#;
    let acquired = value(&format!(r#"lock_acquisitions_total{{{key},outcome="acquired"}}"#));
    // Each press with the macro has the lock for a moment, and with the layer one of each user.
    assert!(acquired >= f64::from(USERS * 11), "{text}");
    assert!(value(&format!("lock_wait_seconds_count{{{key}}}")) >= acquired, "{text}");
    assert!(value(&format!("lock_wait_seconds_sum{{{key}}}")) > 0.0, "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (labels, _) = line.rsplit_once(' ').unwrap_or((line, ""));
        assert!(!labels.contains("4815162"), "{line}");
    }
}
