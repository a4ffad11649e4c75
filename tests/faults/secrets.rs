//! Secrets are searched for in all output: errors with their sources, `Debug`, logs at every level,
//! and HTTP answers (experiment 36).

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::error::Error as _;
use std::fmt::Write as _;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use lock_core::store::RedisStore;
use lock_core::{Error, Key, LockClient, LockOptions, key};
use lock_testkit::{Action, Experiment, LogCapture, Op, Proxy, RedisServer, ms};
use lock_tower::{LockLayer, LockRejection};
use tower::{Layer as _, ServiceExt as _, service_fn};

const PASSWORD: &str = "canary-of-a-password";
const USER: &str = "canary-of-a-user";
const VALUE: &str = "canary-of-a-value";

/// The output so far.
#[derive(Default)]
struct Said {
    text: String,
    errors: usize,
    answers: usize,
    statuses: BTreeSet<u16>,
}

impl Said {
    /// Everything an error can print, in every form.
    fn error(&mut self, error: &Error) {
        self.errors += 1;
        write!(self.text, "{error} {error:?} {error:#?} ").unwrap();
        let mut source = error.source();
        while let Some(inner) = source {
            write!(self.text, "{inner} {inner:?} ").unwrap();
            source = inner.source();
        }
    }
}

/// Sends requests that have secrets as keys through the layer, as a browser and as a gRPC client
/// would, and reads the answers.
async fn request(said: &mut Said, client: &LockClient) {
    let to_key =
        |parts: &http::request::Parts| parts.headers["key"].to_str().ok().map(str::to_owned);
    let layer = LockLayer::from_fn(client.clone(), to_key);
    write!(said.text, "{layer:?} ").unwrap();
    let service = layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let keys = ["order", "held", "list"].map(|kind| format!("{kind}-{VALUE}"));
    for key in keys.into_iter().chain([VALUE.repeat(100)]) {
        for content_type in ["application/json", "application/grpc"] {
            let request =
                Request::post("/").header("key", &key).header("content-type", content_type);
            let request = request.body(String::new()).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            let (head, body) = response.into_parts();
            let body = body.collect().await.unwrap();
            write!(said.text, "{head:?} {:?} ", body.trailers()).unwrap();
            write!(said.text, "{:?} ", body.to_bytes()).unwrap();
            said.statuses.insert(head.status.as_u16());
            if let Some(rejection) = head.extensions.get::<LockRejection>() {
                said.answers += 1;
                write!(said.text, "{rejection} {rejection:?} ").unwrap();
            }
        }
    }
}

/// Makes another client hold the lock that [`talk`] waits for, and puts another type at a second
/// key. It does not use `SET`, which one of the servers does not know.
fn hold(server: &RedisServer) {
    let () = server.cli(&format!("PSETEX lock:held-{VALUE} 600000 foreign"));
    let _items: u64 = server.cli(&format!("RPUSH lock:list-{VALUE} item"));
}

/// Clients of the server at `url` do whatever can fail, and their output is collected.
async fn talk(said: &mut Said, url: String) {
    let store = RedisStore::builder(url).with_request_timeout(ms(100));
    write!(said.text, "{store:?} ").unwrap();
    let store = store.connect_lazy().unwrap();
    write!(said.text, "{store:?} {store} ").unwrap();
    let defaults = LockOptions::new().with_wait(ms(150)).with_ttl(ms(2_000));
    let client = LockClient::builder(store).with_defaults(defaults).build().unwrap();
    for mutex in [
        client.mutex(key!("order:<VALUE>")),
        client.mutex(format!("order-{VALUE}")),
        client.mutex(key!("order:<VALUE>")).without_fencing(),
        client.mutex(format!("held-{VALUE}")),
    ] {
        write!(said.text, "{client:?} {mutex:?} ").unwrap();
        for attempt in [mutex.try_lock().await.map(|_| ()), mutex.lock().await.map(|_| ())] {
            if let Err(error) = attempt {
                said.error(&error);
            }
        }
        // As one of two clients.
        let outcomes = tokio::join!(mutex.lock(), mutex.lock());
        for outcome in [outcomes.0, outcomes.1] {
            match outcome {
                Ok(guard) => {
                    write!(said.text, "{guard:?} {:?} ", guard.lease()).unwrap();
                    if let Err(error) = guard.extend(ms(3_000)).await {
                        said.error(&error);
                    }
                    if let Err(error) = guard.release().await {
                        said.error(&error);
                    }
                }
                Err(error) => said.error(&error),
            }
        }
    }
    request(said, &client).await;
}

/// Servers repeat requests in their errors: the start of an unknown command, and the user name.
#[tokio::test]
async fn no_secret_of_a_server_error_is_in_any_output() {
    let mut experiment = Experiment::new(
        36,
        "no secret in errors, Debug, logs and HTTP answers",
        "canaries: user, password, token, key values",
        &["errors", "lines of log", "refused requests", "texts of the server with a secret"],
    );
    let log = LogCapture::start();
    let mut said = Said::default();

    // Commands that a real server does not have.
    for renamed in ["EVALSHA", "SUBSCRIBE", "PUBLISH", "AUTH"] {
        let mut config = vec![format!("rename-command {renamed} NO{renamed}")];
        if renamed == "AUTH" {
            // Otherwise user name and password would travel with it.
            config.push("rename-command HELLO NOHELLO".to_owned());
        }
        let config: Vec<_> = config.iter().map(String::as_str).collect();
        let server = RedisServer::start_with(&config);
        let command = ["ACL", "SETUSER", USER, "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"];
        let () = server.connect().command(&command).unwrap();
        hold(&server);
        talk(&mut said, server.url_for(USER, PASSWORD)).await;
        // The client reports a rejected user in its own words.
        let words = match renamed {
            "AUTH" => "refused the user name or password".to_owned(),
            _ => format!("unknown command '{renamed}'"),
        };
        // Redis 6.2 quotes otherwise.
        let output = [&said.text, &log.text()].map(|text| text.replace('`', "'"));
        assert!(output.iter().any(|text| text.contains(&words)), "{words}: not in the output");
        experiment.ran(1);
    }

    // The wording of other servers.
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let answers = [
        (
            Op::Acquire,
            "NOPERM User canary-of-a-user has no permissions to run the 'evalsha' command",
        ),
        (
            Op::Acquire,
            "ERR unknown command 'EVALSHA', with args beginning with: '0a1b' '3' 'lock:canary-of-a-value' ",
        ),
        (
            Op::Acquire,
            "ERR unknown command `EVALSHA`, with args beginning with: `0a1b`, `3`, `lock:canary-of-a-value`, ",
        ),
        (
            Op::Release,
            "NOPERM User canary-of-a-user has no permissions to access the 'lock:canary-of-a-value' key",
        ),
        (
            Op::Renew,
            "ERR unknown command 'EVALSHA', with args beginning with: 'lock:canary-of-a-value' ",
        ),
        (
            Op::Subscribe,
            "NOPERM User canary-of-a-user has no permissions to access the 'lock:canary-of-a-value' channel",
        ),
        (
            Op::Hello,
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'canary-of-a-user' 'canary-of-a-password' ",
        ),
        (
            Op::Other,
            "ERR unknown command 'AUTH', with args beginning with: 'canary-of-a-user' 'canary-of-a-password' ",
        ),
        (Op::Time, "NOPERM User canary-of-a-user has no permissions to run the 'time' command"),
    ];
    let () = server
        .connect()
        .command(&["ACL", "SETUSER", USER, "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"])
        .unwrap();
    hold(&server);
    for (op, text) in answers {
        let rule = proxy.rule(op, Action::Refuse(text)).always();
        // In the older protocol, a user name and a password travel in a command of their own.
        let old =
            (op == Op::Other).then(|| proxy.rule(Op::Hello, Action::Refuse("ERR no")).always());
        let url = proxy.url().replace("redis://", &format!("redis://{USER}:{PASSWORD}@"));
        talk(&mut said, url.clone()).await;
        if let Err(error) = RedisStore::builder(url).connect().await {
            said.error(&error);
        }
        assert!(rule.hits() > 0, "{text}");
        experiment.saw("texts of the server with a secret", rule.hits());
        experiment.ran(1);
        drop(old);
        proxy.reset();
    }

    // Invalid URLs.
    for url in [
        format!("redis://{USER}:{PASSWORD}@127.0.0.1:none/"),
        format!("redis://{USER}:{PASSWORD}@127.0.0.1:70000/"),
        format!("redis://{USER}:{PASSWORD}@127.0.0.1/none"),
        format!("redis://{USER}:{PASSWORD}@[127.0.0.1/"),
        format!("redis://{USER}:{PASSWORD}@/"),
        format!("redis://{USER}:{PASSWORD}@127.0.0.1/?protocol={PASSWORD}"),
        format!("rediss://{USER}:{PASSWORD}@127.0.0.1/#insecure"),
        format!("http://{USER}:{PASSWORD}@127.0.0.1/"),
        format!("{USER}:{PASSWORD}@127.0.0.1"),
        format!("redis+unix:///tmp/none?user={USER}&pass={PASSWORD}"),
        format!("redis://{USER}%zz:{PASSWORD}%ff@127.0.0.1/"),
    ] {
        let builder = RedisStore::builder(url);
        write!(said.text, "{builder:?} ").unwrap();
        match builder.with_connect_timeout(ms(200)).connect().await {
            Ok(_) => panic!("there is no such server"),
            Err(error) => said.error(&error),
        }
        experiment.ran(1);
    }
    said.error(&Key::new(format!("{{{VALUE}")).unwrap_err());
    said.error(&Key::new(VALUE.repeat(100)).unwrap_err());

    let log = log.text();
    experiment.saw("errors", said.errors);
    experiment.saw("refused requests", said.answers);
    // gRPC has its status in a trailer.
    assert_eq!(said.statuses, BTreeSet::from([200, 400, 409, 500, 503]));
    experiment.saw("lines of log", log.lines().count());
    for (kind, text) in [("said", &said.text), ("logged", &log)] {
        for canary in [PASSWORD, USER, VALUE] {
            if let Some(at) = text.find(canary) {
                let (from, to) = (at.saturating_sub(200), (at + 80).min(text.len()));
                panic!(
                    "{canary} is {kind}: {}",
                    String::from_utf8_lossy(&text.as_bytes()[from..to])
                );
            }
        }
        // A token is a version-4 UUID.
        let token = text.split(|c: char| !c.is_ascii_hexdigit() && c != '-').find(|word| {
            word.len() == 36 && word.as_bytes()[14] == b'4' && word.matches('-').count() == 4
        });
        assert_eq!(token, None, "a token is {kind}");
    }
    experiment.finish();
}
