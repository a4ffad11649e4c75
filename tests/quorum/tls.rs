//! Members by TLS, with certificates that are given in code.

use std::time::Duration;

use lock_core::Error;
use lock_core::store::{QuorumStore, QuorumStoreBuilder};
use lock_core::testing::wait_idle;
use lock_testkit::{Certificates, Quorum, RedisServer, eventually, ms, with_causes};

use crate::{BOUND, LONG_TTL, TIMEOUT, on, other_lock, renewed};

/// A handshake takes its time on a loaded machine. A refusal by it is no matter of this limit.
const PATIENCE: Duration = ms(10_000);
const PASSWORDS: [&str; 3] = ["canary1", "canary2", "canary3"];

/// Members with certificates of one authority, which clients need as well, and with passwords that
/// differ.
fn start(certificates: &Certificates) -> Quorum {
    let server = |password| certificates.server("yes").password(password).start();
    let quorum = Quorum::of(PASSWORDS.map(server));
    quorum.vouch_for_all("lock");
    quorum
}

fn store(quorum: &Quorum) -> QuorumStoreBuilder {
    QuorumStore::builder(quorum.servers().map(RedisServer::tls_url))
        .with_request_timeout(TIMEOUT)
        .with_connect_timeout(PATIENCE)
}

/// Checks that an error tells of each member that its certificate, or the client's, was refused.
fn names_all(quorum: &Quorum, error: &Error, why: &str) {
    assert!(error.is_unavailable(), "{error:?}");
    let says = with_causes(error);
    assert!(says.starts_with("no majority: 0 of 3 lock servers answered: "), "{says}");
    for server in quorum.servers() {
        let member = format!("rediss://127.0.0.1:{}: ", server.tls_port());
        let (_, reason) = says.split_once(&member).unwrap_or_else(|| panic!("{member}{says}"));
        let reason = reason.split("; ").next().unwrap().to_lowercase();
        assert!(reason.contains(why), "{member}{reason}");
    }
    assert!(!says.contains("canary"), "{says}");
}

/// N8: the whole life of a lock, over a redial of each member.
#[tokio::test]
async fn certificates_given_in_code_are_used_for_each_member() {
    let certificates = Certificates::make("127.0.0.1", Certificates::YEAR);
    let quorum = start(&certificates);
    let root = certificates.read("authority.pem");
    let (shown, key) = (certificates.read("client.pem"), certificates.read("client.key"));
    let store = store(&quorum).with_root_certificates(root).with_client_certificate(shown, key);
    let text = format!("{store:?}");
    let store = store.connect().await.unwrap();
    let text = format!("{text} {store:?} {store}");
    assert!(!text.contains("canary") && !text.contains("-----"), "{text}");
    let client = on(store);
    let guard = client.mutex("k").with_ttl(LONG_TTL).lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    for server in quorum.servers() {
        assert!(server.kill_connections() >= 1);
    }
    other_lock(&client).await;
    let id = client.id().to_string();
    eventually("all are dialled anew, by TLS", BOUND, || {
        quorum.servers().all(|server| {
            let own = format!("laddr=127.0.0.1:{} ", server.tls_port());
            let clients: String = server.cli("CLIENT LIST");
            clients.lines().any(|line| line.contains(&id) && line.contains(&own))
        })
    })
    .await;
    renewed(&guard).await;
    guard.release().await.unwrap();
    wait_idle(&client).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// Without the root, without the client's certificate, and with the root of another authority.
#[tokio::test]
async fn quorum_without_the_right_certificates_is_refused_and_says_why() {
    let certificates = Certificates::make("127.0.0.1", Certificates::YEAR);
    let quorum = start(&certificates);
    let shown = || (certificates.read("client.pem"), certificates.read("client.key"));
    let (pem, key) = shown();
    let untrusted = store(&quorum).with_client_certificate(pem, key);
    names_all(&quorum, &untrusted.connect().await.unwrap_err(), "certificate");
    let nameless = store(&quorum).with_root_certificates(certificates.read("authority.pem"));
    names_all(&quorum, &nameless.connect().await.unwrap_err(), "certificate");
    let other = Certificates::make("127.0.0.1", Certificates::YEAR);
    let ((pem, key), root) = (shown(), other.read("authority.pem"));
    let wrong = || {
        let store = store(&quorum).with_root_certificates(root.clone());
        store.with_client_certificate(pem.clone(), key.clone())
    };
    names_all(&quorum, &wrong().connect().await.unwrap_err(), "certificate");
    // What was not checked at the start is refused at the first lock.
    let client = on(wrong().connect_lazy().unwrap());
    names_all(&quorum, &client.mutex("k").try_lock().await.unwrap_err(), "certificate");
    assert_eq!(quorum.having("lock:k"), 0);
}

/// As for a single server: refused before anything is dialled, also if one member is without TLS.
#[test]
fn certificate_that_members_cannot_use_is_a_clear_error() {
    let certificates = Certificates::make("127.0.0.1", Certificates::YEAR);
    let (root, key) = (certificates.read("authority.pem"), certificates.read("client.key"));
    let on = |last| QuorumStore::builder(["rediss://a/", "rediss://b/", last]);
    for store in [
        on("rediss://c/").with_root_certificates("no certificate"),
        on("rediss://c/").with_client_certificate(root.clone(), "no key"),
        on("rediss://c/").with_client_certificate("no certificate", key),
        on("redis://c/").with_root_certificates(root.clone()),
    ] {
        let error = store.connect_lazy().unwrap_err();
        assert_eq!(error.field(), "certificates", "{error}");
        assert!(!error.to_string().contains("-----"), "{error}");
    }
    drop(on("rediss://c/").with_root_certificates(root).connect_lazy().unwrap());
}
