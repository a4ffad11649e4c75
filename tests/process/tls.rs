//! `rediss://`: which servers are trusted, and how the others are reported.
//!
//! The roots of the platform are read from where `SSL_CERT_FILE` points, so a process that trusts
//! an authority of the test's own is another one than the test.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{ErrorKind, LockClient};
use lock_testkit::{
    Certificates, Experiment, Quorum, RedisServer, eventually, free_port, ms, redis_server,
    temp_dir, with_causes, within,
};

use crate::support::worker::Worker;

/// A server with a certificate.
struct Tls {
    server: RedisServer,
    port: u16,
    certificates: Certificates,
}

impl Tls {
    /// A server whose certificate is for `name`.
    fn start(name: &str) -> Self {
        Self::start_until(name, Certificates::YEAR)
    }

    /// The same, with a certificate that is good until that year.
    fn start_until(name: &str, year: i32) -> Self {
        Self::start_with(name, year, "no")
    }

    /// The same. `asks`: whether clients need a certificate of the authority, as `client.pem` is.
    fn start_with(name: &str, year: i32, asks: &str) -> Self {
        let certificates = Certificates::make(name, year);
        let server = certificates.server(asks).start();
        Self { port: server.tls_port(), server, certificates }
    }

    fn url(&self) -> String {
        self.server.tls_url()
    }

    fn authority(&self) -> PathBuf {
        self.certificates.path("authority.pem")
    }

    fn read(&self, file: &str) -> Vec<u8> {
        self.certificates.read(file)
    }
}

/// A process that holds the lock `k`, and trusts no authority but one.
fn holder(url: &str, authority: &Path) -> Command {
    let mut command = Worker::command("hold", url);
    command.args(["ttl=600", "key=k"]).env("SSL_CERT_FILE", authority).env_remove("SSL_CERT_DIR");
    command
}

/// The whole life of a lock over TLS: connected, granted, renewed, released.
#[tokio::test]
async fn server_with_a_trusted_certificate_is_used() {
    let tls = Tls::start("127.0.0.1");
    let mut worker = Worker::run(&mut holder(&tls.url(), &tls.authority()));
    let (_, event) = worker.next();
    assert!(event.starts_with("held"), "{event}");
    assert!(tls.server.has("lock:k"));
    let clients: String = tls.server.cli("CLIENT LIST");
    assert!(clients.contains(&format!("laddr=127.0.0.1:{} ", tls.port)), "{clients}");
    assert!(worker.is_silent(ms(1_300)), "it is renewed");
    worker.tell("stop");
    let (_, event) = worker.next();
    assert!(event.contains("Ok(InTime)"), "{event}");
    assert!(!tls.server.has("lock:k"));
    assert!(worker.ends_well());
}

/// N8: three members with certificates and passwords of their own, all in one setting. The roots
/// are the platform's.
#[tokio::test]
async fn quorum_with_trusted_certificates_and_passwords_is_used() {
    let certificates = Certificates::make("127.0.0.1", Certificates::YEAR);
    let server = |password| certificates.server("no").password(password).start();
    let quorum = Quorum::of(["one", "two", "three"].map(server));
    quorum.vouch_for_all("lock");
    let urls: Vec<String> = quorum.servers().map(RedisServer::tls_url).collect();
    let authority = certificates.path("authority.pem");
    let mut worker = Worker::run(&mut holder(&urls.join(" "), &authority));
    let (_, event) = worker.next();
    assert!(event.starts_with("held"), "{event}");
    assert!(quorum.having("lock:k") >= 2);
    assert!(worker.is_silent(ms(1_300)), "it is renewed");
    worker.tell("stop");
    let (_, event) = worker.next();
    assert!(event.contains("Ok(InTime)"), "{event}");
    assert!(quorum.having("lock:k") < 2);
}

/// A process that trusts the authority, and not this certificate, ends at once and says why.
fn refuses(tls: &Tls, fault: &'static str, why: &str) {
    let name = "a clean error, no lock";
    let mut experiment = Experiment::new(40, name, fault, &["certificates refused"]);
    let output = holder(&tls.url(), &tls.authority()).stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(says.contains("Unavailable") && says.contains("certificate"), "{says}");
    assert!(says.to_lowercase().contains(why), "{says}");
    assert!(!says.contains("CryptoProvider"), "{says}");
    assert!(!tls.server.has("lock:k"));
    experiment.ran(1);
    experiment.saw("certificates refused", 1);
    experiment.finish();
}

/// The certificate names another host.
#[test]
fn certificate_for_another_host_is_rejected() {
    let tls = Tls::start("redis.example");
    refuses(&tls, "TLS: a certificate for another host", "not valid for name");
}

/// The certificate has expired.
#[test]
fn expired_certificate_is_rejected() {
    let tls = Tls::start_until("127.0.0.1", 2_001);
    refuses(&tls, "TLS: a certificate that has expired", "expired");
}

/// This process does not know the authority.
#[tokio::test]
async fn unknown_authority_is_rejected_and_not_reported_as_busy() {
    let mut experiment = Experiment::new(
        40,
        "a clean error that is not called busy, no lock",
        "TLS: an unknown authority",
        &["certificates refused"],
    );
    let tls = Tls::start("127.0.0.1");
    let (outcome, _) = within("an answer", ms(10_000), RedisStore::connect(tls.url())).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let says = with_causes(&error);
    assert!(says.contains(&format!("rediss://127.0.0.1:{}", tls.port)), "{says}");
    assert!(says.to_lowercase().contains("certificate"), "{says}");

    let store = RedisStore::builder(tls.url()).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let mutex = client.mutex("k").with_wait(ms(300));
    let body = mutex.run(async |_| panic!("the body must not run"));
    let (outcome, _): (Result<(), _>, _) = within("an answer", ms(5_000), body).await;
    let error = outcome.unwrap_err();
    assert!(error.is_store_failure() && !error.is_busy(), "{error:?}");
    wait_idle(&client).await;
    assert!(ClientStats::of(&client).is_idle());
    assert!(!tls.server.has("lock:k"));
    experiment.ran(1);
    experiment.saw("certificates refused", 1);
    experiment.finish();
}

/// TLS to a port without, and the other way round.
#[tokio::test]
async fn wrong_scheme_fails_in_bounded_time() {
    let mut experiment = Experiment::new(
        40,
        "a clean error in bounded time",
        "TLS to a plain port, and the other way round",
        &["connections refused"],
    );
    let tls = Tls::start("127.0.0.1");
    let plain = tls.server.url();
    for url in [plain.replace("redis:", "rediss:"), tls.url().replace("rediss:", "redis:")] {
        let (outcome, _) = within("an answer", ms(10_000), RedisStore::connect(&url)).await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable, "{url}");
        experiment.ran(1);
        experiment.saw("connections refused", 1);
    }
    experiment.finish();
}

/// The URL turns off the check of certificates.
#[test]
fn insecure_url_is_rejected() {
    let error = RedisStore::builder("rediss://127.0.0.1/#insecure").connect_lazy().unwrap_err();
    assert_eq!(error.field(), "url");
    assert!(error.to_string().contains("insecure"), "{error}");
}

/// Roots and client certificates are given in code, not by the platform.
#[tokio::test]
async fn certificates_given_in_code_are_used() {
    let tls = Tls::start_with("127.0.0.1", Certificates::YEAR, "yes");
    let trusting =
        || RedisStore::builder(tls.url()).with_root_certificates(tls.read("authority.pem"));
    let error = trusting().connect().await.unwrap_err();
    assert!(error.is_unavailable(), "without a certificate of its own: {}", with_causes(&error));
    let shown = trusting().with_client_certificate(tls.read("client.pem"), tls.read("client.key"));
    let client = LockClient::builder(shown.connect().await.unwrap()).build().unwrap();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    // Another authority is not trusted.
    let other = Tls::start("127.0.0.1");
    let wrong = RedisStore::builder(tls.url())
        .with_root_certificates(other.read("authority.pem"))
        .with_client_certificate(tls.read("client.pem"), tls.read("client.key"));
    let error = wrong.connect().await.unwrap_err();
    assert!(with_causes(&error).contains("certificate"), "{}", with_causes(&error));
}

/// What is no certificate is refused before anything is dialled, and so is one without TLS.
#[test]
fn certificate_that_cannot_be_used_is_a_clear_error() {
    let tls = Tls::start("127.0.0.1");
    let pem = tls.read("authority.pem");
    let key = tls.read("client.key");
    let url = tls.url();
    let plain = tls.server.url();
    for store in [
        RedisStore::builder(&url).with_root_certificates("no certificate"),
        RedisStore::builder(&url).with_client_certificate(pem, "no key"),
        RedisStore::builder(&url).with_client_certificate("no certificate", key),
        RedisStore::builder(&plain).with_root_certificates(tls.read("authority.pem")),
    ] {
        let error = store.connect_lazy().unwrap_err();
        assert_eq!(error.field(), "certificates", "{error}");
    }
}

/// `rediss+sentinel://`: the sentinel and the master that it names, both by TLS.
#[tokio::test]
async fn master_is_found_and_used_by_tls() {
    let tls = Tls::start("127.0.0.1");
    let (dir, port, plain) = (temp_dir("sentinel"), free_port(), free_port());
    let config = format!(
        "bind 127.0.0.1\nport {plain}\ntls-port {port}\ntls-replication yes\n{}\n\
         dir {}\nlogfile {}/log\nsentinel monitor shop 127.0.0.1 {} 1\n",
        tls.certificates.config("no").join("\n"),
        dir.path().display(),
        dir.path().display(),
        tls.port,
    );
    std::fs::write(dir.path().join("sentinel.conf"), config).unwrap();
    let sentinel = Command::new(redis_server())
        .arg(dir.path().join("sentinel.conf"))
        .arg("--sentinel")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let _sentinel = Killed(sentinel);
    eventually("it listens", ms(10_000), || TcpStream::connect(("127.0.0.1", port)).is_ok()).await;

    let url = format!("rediss+sentinel://127.0.0.1:{port}/shop");
    let store = RedisStore::builder(url.as_str()).with_root_certificates(tls.read("authority.pem"));
    let store = store.connect().await.unwrap();
    let shown = format!("{url} (now rediss://127.0.0.1:{})", tls.port);
    assert_eq!(store.to_string(), shown);
    let client = LockClient::builder(store).build().unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(tls.server.has("lock:k"));
    guard.release().await.unwrap();

    let error = RedisStore::builder(url).with_connect_timeout(ms(5_000)).connect().await;
    assert!(error.unwrap_err().is_unavailable(), "a certificate of no known authority");
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
