//! The console: what it shows and what it hides, what it changes, and when it ends.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use futures_util::{StreamExt as _, future::join_all};
use http::{Request, StatusCode, header};
use lock_core::store::RedisStore;
use lock_core::{Key, LockClient, LockOptions, LostReason, key};
use lock_testkit::{RedisServer, eventually};
use lock_tower::{Console, console};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tower::ServiceExt as _;

use super::support::{BrokenStore, World, on_every_store, soon, text};

/// Part of every secret here, and of nothing else.
const SECRET: &str = "s3cret";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A page that is open: the events that reach it.
struct Viewer {
    stream: BodyDataStream,
    /// All that has arrived.
    text: String,
    read: usize,
}

impl Viewer {
    async fn open(app: &Router) -> Self {
        let request = Request::get("/locks/events").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
        let stream = response.into_body().into_data_stream();
        Self { stream, text: String::new(), read: 0 }
    }

    /// The next event with this name; `None` at the end.
    async fn next(&mut self, name: &str) -> Option<Value> {
        loop {
            while let Some(end) = self.text[self.read..].find("\n\n") {
                let event = &self.text[self.read..self.read + end];
                self.read += end + 2;
                let field = |name: &str| {
                    event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                };
                if field("event") == Some(name) {
                    return Some(serde_json::from_str(field("data").unwrap()).unwrap());
                }
            }
            let bytes = soon(self.stream.next()).await?.unwrap();
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    /// The first event with this name that shows it.
    async fn until<F>(&mut self, name: &str, shows: F) -> Value
    where
        F: Fn(&Value) -> bool + Send + Sync,
    {
        soon(async {
            loop {
                let event = self.next(name).await.expect("the events go on");
                if shows(&event) {
                    return event;
                }
            }
        })
        .await
    }

    /// The row of the store about the lock of `client`.
    async fn lock_of(&mut self, client: &LockClient) -> Value {
        let id = client.id().to_string();
        let of_client = |event: &Value| {
            let rows = event["locks"]["rows"].as_array()?;
            rows.iter().find(|row| row["client"] == *id).cloned()
        };
        of_client(&self.until("store", |event| of_client(event).is_some()).await).unwrap()
    }
}

fn mount(console: Console) -> Router {
    Router::new().nest_service("/locks", Router::<()>::from(console))
}

fn release(owner: &Value, key: Option<&str>) -> Request<Body> {
    let body = json!({ "owner": owner, "key": key }).to_string();
    Request::post("/locks/release")
        .header("content-type", "application/json")
        .header("sec-fetch-site", "same-origin")
        .header("x-lock-console", TOKEN)
        .header("cookie", format!("lock-console={TOKEN}"))
        .body(Body::from(body))
        .unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> (StatusCode, Value) {
    let response = soon(app.clone().oneshot(request)).await.unwrap();
    let status = response.status();
    (status, serde_json::from_str(&text(response).await).unwrap())
}

async fn with_ttl(server: &RedisServer, ttl: Duration) -> LockClient {
    let store = RedisStore::connect(server.url()).await.unwrap();
    let options = LockOptions::new().with_ttl(ttl);
    LockClient::builder(store).with_namespace("test").with_defaults(options).build().unwrap()
}

async fn is_waited_for(client: &LockClient, tasks: usize) {
    eventually("the tasks wait", Duration::from_secs(10), || {
        client.activity().waiting.iter().map(|row| row.tasks).sum::<usize>() == tasks
    })
    .await;
}

on_every_store! {
    async fn locks_and_waiters_of_this_process_and_of_others_are_shown(world: World) {
        let (here, there) = (world.process().await, world.process().await);
        let app = mount(console(here.clone()));
        let mut viewer = Viewer::open(&app).await;
        viewer.until("process", |event| event["held"]["total"] == 0).await;
        viewer.until("store", |event| event["locks"]["rows"] == json!([])).await;

        let (mine, other) = (7, 8);
        let guard = here.mutex(key!("order:<mine>")).lock().await.unwrap();
        let _guard = there.mutex(key!("order:<other>")).lock().await.unwrap();
        let waits_here = tokio::spawn(here.mutex(key!("order:<mine>")).wait_forever().lock());
        let waits_there = tokio::spawn(there.mutex(key!("order:<mine>")).wait_forever().lock());
        is_waited_for(&here, 1).await;
        is_waited_for(&there, 1).await;

        let process = viewer.until("process", |event| event["waiting"]["total"] == 1).await;
        assert_eq!(process["client"], here.id().to_string());
        assert_eq!(process["namespace"], "test");
        let held = &process["held"]["rows"][0];
        assert_eq!(held["label"], "order:<mine>");
        assert_eq!(held["fence"], guard.fencing_token().to_string());
        assert_eq!(process["waiting"]["rows"], json!([{ "label": "order:<mine>", "tasks": 1 }]));
        let row = viewer.lock_of(&here).await;
        assert_eq!((&row["label"], &row["here"]), (&json!("order:<mine>"), &json!(true)));
        // The label of another process is not known here, but its key fits a template that is.
        let row = viewer.lock_of(&there).await;
        assert_eq!((&row["label"], &row["here"]), (&json!("order:<mine>"), &json!(false)));
        assert_eq!(row["guessed"], true);
        assert!(row["leftMs"].as_u64().unwrap() > 30_000, "{row}");
        viewer.until("store", |event| {
            let rows = event["locks"]["rows"].as_array().unwrap();
            rows.iter().any(|row| row["waiting"] == 1)
        }).await;

        for task in [waits_here, waits_there] {
            task.abort();
            drop(task.await);
        }
        drop(guard);
        viewer.until("process", |event| event["held"]["total"] == 0).await;
    }

    async fn no_key_reaches_the_viewer_unless_keys_are_shown(world: World) {
        let (here, there) = (world.process().await, world.process().await);
        let user = SECRET;
        let plain = format!("plain-{SECRET}");
        let guards = [
            here.mutex(key!("order:<user>")).lock().await.unwrap(),
            here.mutex(plain.clone()).lock().await.unwrap(),
            there.mutex(format!("other-{SECRET}")).lock().await.unwrap(),
        ];
        let waits = tokio::spawn(here.mutex(plain).wait_forever().lock());
        is_waited_for(&here, 1).await;

        let app = mount(console(here.clone()).allow_force_release());
        let mut viewer = Viewer::open(&app).await;
        viewer.until("process", |event| event["held"]["total"] == 2).await;
        let row = viewer.lock_of(&there).await;
        assert_eq!(row["label"], Value::Null, "of another process, and no template fits");
        let no_owner = json!("0000000000000000");
        let (status, gone) = send(&app, release(&no_owner, Some(SECRET))).await;
        assert_eq!((status, &gone["outcome"]), (StatusCode::CONFLICT, &json!("nothing")));
        let (status, done) = send(&app, release(&row["owner"], Some(SECRET))).await;
        assert_eq!((status, &done["outcome"]), (StatusCode::OK, &json!("done")));
        // The loss of this process is shown, too.
        let mine = viewer.lock_of(&here).await;
        let (status, taken) = send(&app, release(&mine["owner"], None)).await;
        assert_eq!(status, StatusCode::OK, "{taken}");
        viewer.until("process", |event| event["losses"][0]["reason"].is_string()).await;
        let request = Request::get("/locks").body(Body::empty()).unwrap();
        let page = text(app.clone().oneshot(request).await.unwrap()).await;
        for text in [&viewer.text, &page, &gone.to_string(), &done.to_string(), &taken.to_string()] {
            assert!(!text.contains(SECRET), "{text}");
        }

        let mut viewer = Viewer::open(&mount(console(here).show_keys())).await;
        let found = viewer.until("process", |event| event["held"]["total"] == 1).await;
        assert!(found["held"]["rows"][0]["key"].as_str().unwrap().ends_with(SECRET), "{found}");
        waits.abort();
        drop(guards);
    }

    async fn a_lock_is_taken_from_the_owner_that_was_seen_and_goes_to_the_next(world: World) {
        let [here, there, elsewhere] =
            [world.process().await, world.process().await, world.process().await];
        let guard = there.mutex("k").lock().await.unwrap();
        let next = tokio::spawn(elsewhere.mutex("k").wait_forever().lock());
        is_waited_for(&elsewhere, 1).await;
        let app = mount(console(here.clone()).allow_force_release());
        let seen = Viewer::open(&app).await.lock_of(&there).await;

        // The page may be of another instance than the one that gets the request.
        let other_instance = mount(console(elsewhere.clone()).allow_force_release());
        let (status, answer) = send(&other_instance, release(&seen["owner"], None)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert!(answer["text"].as_str().unwrap().contains(&there.id().to_string()), "{answer}");
        let next = soon(next).await.unwrap().unwrap();
        // The same click once more meets another owner.
        let (status, answer) = send(&app, release(&seen["owner"], None)).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(answer["detail"].as_str().unwrap().contains("nothing was done"), "{answer}");
        assert!(next.is_valid());
        let shown = mount(console(here).show_keys().allow_force_release());
        let (status, _) = send(&shown, release(&seen["owner"], Some("k"))).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(next.is_valid());
        drop((guard, next));
    }
}

#[tokio::test]
async fn force_release_is_off_by_default_and_refused_to_other_sites() {
    let world = World::memory();
    let here = world.process().await;
    let guard = here.mutex("k").lock().await.unwrap();
    let app = mount(console(here.clone()));
    let seen = Viewer::open(&app).await.lock_of(&here).await;
    let (status, answer) = send(&app, release(&seen["owner"], None)).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(answer["detail"].as_str().unwrap().contains("allow_force_release"), "{answer}");

    let app = mount(console(here).allow_force_release());
    type Forge = fn(&mut Request<Body>);
    let forged: [Forge; 6] = [
        |request| {
            request.headers_mut().insert("sec-fetch-site", "cross-site".parse().unwrap());
        },
        |request| {
            request.headers_mut().remove("sec-fetch-site");
            request.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
        },
        |request| {
            request.headers_mut().remove("x-lock-console");
        },
        |request| {
            request.headers_mut().remove("cookie");
        },
        |request| {
            request.headers_mut().insert("x-lock-console", "x".repeat(32).parse().unwrap());
        },
        |request| {
            let other = TOKEN.replace('0', "1");
            request
                .headers_mut()
                .insert("cookie", format!("lock-console={other}").parse().unwrap());
        },
    ];
    for forge in forged {
        let mut request = release(&seen["owner"], None);
        forge(&mut request);
        let (status, answer) = send(&app, request).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
        assert!(guard.is_valid());
    }
    for body in ["", "{}", "[]", "\"", r#"{"owner":"k"}"#, r#"{"owner":"+000000000000001"}"#] {
        let mut request = release(&Value::Null, None);
        *request.body_mut() = Body::from(body);
        let (status, answer) = send(&app, request).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {answer}");
    }
    let mut form = release(&seen["owner"], None);
    form.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    assert_eq!(send(&app, form).await.0, StatusCode::BAD_REQUEST);
    assert!(guard.is_valid());
    let get = Request::get("/locks/release").body(Body::empty()).unwrap();
    assert_eq!(app.clone().oneshot(get).await.unwrap().status(), StatusCode::METHOD_NOT_ALLOWED);
    let (status, answer) = send(&app, release(&seen["owner"], None)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(guard.lost().await, LostReason::ForceReleased);
}

#[tokio::test]
async fn a_lost_lock_is_shown_with_its_reason() {
    let server = RedisServer::start();
    let here = with_ttl(&server, Duration::from_secs(6)).await;
    let user = 7;
    let guard = here.mutex(key!("order:<user>")).lock().await.unwrap();
    let mut viewer = Viewer::open(&mount(console(here))).await;
    viewer.until("process", |event| event["held"]["total"] == 1).await;
    let _: i64 = server.cli("DEL test:order:7");
    let process =
        viewer.until("process", |event| event["losses"].as_array().unwrap().len() == 1).await;
    assert_eq!(guard.lost().await, LostReason::Gone);
    let loss = &process["losses"][0];
    assert_eq!((&loss["label"], &loss["number"]), (&json!("order:<user>"), &json!(1)));
    assert_eq!(loss["reason"], LostReason::Gone.to_string());
    assert_eq!(loss["fence"], guard.fencing_token().to_string());
}

/// The script of the page writes text, never markup; here the events must carry it whole.
#[tokio::test]
async fn a_key_of_markup_and_a_foreign_value_arrive_as_they_are() {
    let server = RedisServer::start();
    let here = with_ttl(&server, Duration::from_secs(60)).await;
    let markup = "</script><img src=x onerror=alert(1)>\n\ndata: {}\u{2028}\"";
    let guard = here.mutex(Key::new(markup.to_owned()).unwrap()).lock().await.unwrap();
    drop::<String>(server.cli("SET test:by-hand maintenance"));
    let app = mount(console(here.clone()).show_keys().allow_force_release());
    let mut viewer = Viewer::open(&app).await;
    let process = viewer.until("process", |event| event["held"]["total"] == 1).await;
    assert_eq!(process["held"]["rows"][0]["key"], markup);
    let row = viewer.lock_of(&here).await;
    assert_eq!(row["key"], markup);
    let (status, answer) = send(&app, release(&row["owner"], Some(markup))).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(guard.lost().await, LostReason::ForceReleased);

    let event = viewer.until("store", |event| event["locks"]["rows"][0]["client"].is_null()).await;
    let row = &event["locks"]["rows"][0];
    assert_eq!((&row["key"], &row["leftMs"]), (&json!("by-hand"), &Value::Null));
    assert!(!viewer.text.contains("maintenance"));
    let (status, answer) = send(&app, release(&row["owner"], Some("by-hand"))).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

/// Two locks may have the same value, and a value of few letters can be found from its hash.
#[tokio::test]
async fn a_foreign_value_cannot_be_taken_while_keys_are_hidden() {
    let server = RedisServer::start();
    let here = with_ttl(&server, Duration::from_secs(60)).await;
    drop::<String>(server.cli("SET test:a 1"));
    let shown = mount(console(here.clone()).show_keys().allow_force_release());
    let seen = Viewer::open(&shown).await;
    let row = { seen }.until("store", |event| event["locks"]["rows"][0].is_object()).await;
    let owner = row["locks"]["rows"][0]["owner"].clone();
    assert!(owner.is_string());
    let hidden = mount(console(here).allow_force_release());
    let mut viewer = Viewer::open(&hidden).await;
    let event = viewer.until("store", |event| event["locks"]["rows"][0].is_object()).await;
    assert_eq!(event["locks"]["rows"][0]["owner"], Value::Null);
    // The viewer saw this lock, and meanwhile another one has its value.
    drop::<String>(server.cli("RENAME test:a test:b"));
    for (app, key) in [(&hidden, None), (&hidden, Some("b")), (&shown, None), (&shown, Some("a"))] {
        let (status, answer) = send(app, release(&owner, key)).await;
        assert_eq!((status, &answer["outcome"]), (StatusCode::CONFLICT, &json!("nothing")));
    }
    assert_eq!(server.get("test:b").as_deref(), Some("1"));
}

/// Names that are no locks, and locks that end meanwhile, are not shown, but count as found.
#[tokio::test]
async fn a_list_that_is_cut_says_so() {
    let server = RedisServer::start();
    let here = with_ttl(&server, Duration::from_secs(60)).await;
    let _guards = [here.mutex("a").lock().await.unwrap(), here.mutex("b").lock().await.unwrap()];
    for (most, is_cut) in [(1, true), (3, false)] {
        let mut viewer = Viewer::open(&mount(console(here.clone()).max_locks(most))).await;
        let event = viewer.next("store").await.unwrap();
        assert_eq!(event["locks"]["cut"], is_cut, "{event}");
        assert!(event["listAgeMs"].is_u64() && event["ageMs"].is_u64(), "{event}");
    }
}

#[tokio::test]
async fn a_store_that_is_down_is_named_with_its_error_until_it_is_back() {
    let mut server = RedisServer::start();
    let here = with_ttl(&server, Duration::from_secs(60)).await;
    let app = mount(console(here.clone()).allow_force_release());
    let mut viewer = Viewer::open(&app).await;
    let up = viewer.until("store", |event| event["answers"] == true).await;
    assert!(up["server"].as_str().unwrap().contains("redis"), "{up}");
    let guard = here.mutex(format!("k-{SECRET}")).lock().await.unwrap();
    let row = viewer.lock_of(&here).await;
    server.kill();
    let down = viewer.until("store", |event| event["answers"] == false).await;
    assert!(!down["error"].as_str().unwrap().is_empty(), "{down}");
    let later = viewer.until("store", |event| event["answers"] == false).await;
    assert!(later["silentMs"].as_u64() > down["silentMs"].as_u64(), "{later}");
    // The process can still be looked at.
    viewer.until("process", |event| event["held"]["total"] == 1).await;
    let (status, answer) = send(&app, release(&row["owner"], None)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    assert!(!answer.to_string().contains(SECRET) && !viewer.text.contains(SECRET));
    server.boot();
    viewer.until("store", |event| event["answers"] == true).await;
    drop(guard);
}

/// A viewer must not wait for the store to see what the process does.
#[tokio::test]
async fn a_store_that_hangs_holds_up_nothing_but_its_own_news() {
    let server = RedisServer::start();
    let here = with_ttl(&server, Duration::from_secs(60)).await;
    let app = mount(console(here.clone()));
    let mut viewer = Viewer::open(&app).await;
    viewer.until("store", |event| event["answers"] == true).await;
    server.pause();
    let waits = tokio::spawn(here.mutex("k").wait_forever().lock());
    viewer.until("process", |event| event["waiting"]["total"] == 1).await;
    viewer.until("store", |event| event["answers"] == false).await;
    server.resume();
    viewer.until("store", |event| event["answers"] == true).await;
    viewer.until("process", |event| event["held"]["total"] == 1).await;
    drop(soon(waits).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_missing_permission_is_named_and_the_rest_is_shown() {
    let server = RedisServer::start();
    let here = with_ttl(&server, Duration::from_secs(60)).await;
    let _guard = here.mutex("k").lock().await.unwrap();
    let () = server.cli("ACL SETUSER default -scan");
    let mut viewer = Viewer::open(&mount(console(here))).await;
    let store = viewer.next("store").await.unwrap();
    assert!(store["answers"] == true && store["server"].is_string(), "{store}");
    assert!(store["listError"].as_str().unwrap().contains("scan"), "{store}");
    viewer.until("process", |event| event["held"]["total"] == 1).await;
}

#[tokio::test]
async fn a_store_that_cannot_tell_and_a_missing_client_say_what_to_do() {
    let here = BrokenStore::Down.client();
    let mut viewer = Viewer::open(&mount(console(here).allow_force_release())).await;
    let store = viewer.next("store").await.unwrap();
    let why = store["listError"].as_str().unwrap();
    assert!(why.contains("cannot tell who holds a lock"), "{why}");

    let missing = LockClient::installed().map(console).unwrap_err().to_string();
    assert!(missing.contains("install"), "{missing}");
}

/// A laptop that goes to sleep, a terminal that is stopped: its connection takes no more events.
#[tokio::test]
async fn a_viewer_that_stops_reading_holds_up_no_other() {
    let world = World::memory();
    let here = world.process().await;
    let app = mount(console(here));
    let mut viewers = join_all((0..4).map(|_| Viewer::open(&app))).await;
    let mut other = viewers.pop().unwrap();
    // They stop at different places, and stay.
    for (stuck, events) in viewers.iter_mut().zip(0..) {
        for _ in 0..events {
            stuck.next("process").await.unwrap();
        }
    }
    for name in ["process", "store", "process", "store", "process"] {
        let news = other.next(name).await.unwrap();
        assert!(news["ageMs"].as_u64().unwrap() < 5_000, "{news}");
    }
    drop(viewers);
}

/// Each page costs a connection, and no more than one of them the store.
#[tokio::test]
async fn many_viewers_ask_the_store_once_and_none_does_not_ask() {
    let server = RedisServer::start();
    let here = with_ttl(&server, Duration::from_secs(60)).await;
    let scans = || {
        let stats: String = server.cli("INFO commandstats");
        let of_scan = stats.lines().find_map(|line| line.strip_prefix("cmdstat_scan:calls="));
        of_scan.map_or(0, |calls| calls.split(',').next().unwrap().parse::<u32>().unwrap())
    };
    let app = mount(console(here));
    let page = Request::get("/locks").body(Body::empty()).unwrap();
    assert_eq!(app.clone().oneshot(page).await.unwrap().status(), StatusCode::OK);
    assert_eq!(scans(), 0);
    let mut viewers = join_all((0..20).map(|_| Viewer::open(&app))).await;
    for _ in 0..2 {
        join_all(viewers.iter_mut().map(|viewer| viewer.next("store"))).await;
    }
    assert!((1..=3).contains(&scans()), "{} scans", scans());
}

#[tokio::test]
async fn open_pages_do_not_hold_up_a_shutdown() {
    let world = World::memory();
    let here = world.process().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (terminate, terminated) = oneshot::channel::<()>();
    let limit = Duration::from_secs(15);
    let shutdown = here.shutdown_on(async { drop(terminated.await) }, limit).unwrap();
    let server = axum::serve(listener, mount(console(here.clone())));
    let server = server.with_graceful_shutdown(shutdown.started());
    let server = tokio::spawn(async move { shutdown.finish(server).await });

    let mut page = TcpStream::connect(address).await.unwrap();
    page.write_all(b"GET /locks/events HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&received).contains("event: process") {
        let length = soon(page.read(&mut part)).await.unwrap();
        assert!(length > 0, "it ended: {}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&part[..length]);
    }
    terminate.send(()).unwrap();
    soon(page.read_to_end(&mut received)).await.unwrap();
    assert!(String::from_utf8_lossy(&received).contains("event: draining"));
    let (served, drained) =
        tokio::time::timeout(limit / 3, server).await.expect("long before the limit").unwrap();
    assert!(served.is_some() && drained.is_clean(), "{drained:?}");
    // A page that comes back meets the end at once.
    let mut late = Viewer::open(&mount(console(here))).await;
    late.next("draining").await.unwrap();
    assert!(late.next("process").await.is_none());
}

#[tokio::test]
async fn the_page_works_under_any_path_and_lets_nothing_else_in() {
    let world = World::memory();
    let here = world.process().await;
    let app = Router::new()
        .nest("/admin/locks", console(here.clone()).into())
        .nest_service("/ops", Router::<()>::from(console(here.clone())))
        .merge(console(here).into_router());
    let mut tokens = Vec::new();
    for path in ["/admin/locks", "/ops", "/ops/", "/"] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let headers = response.headers().clone();
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        assert_eq!(header("cache-control"), "no-store");
        assert_eq!(header("x-frame-options"), "DENY");
        assert_eq!(header("x-content-type-options"), "nosniff");
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"));
        assert!(policy.contains("frame-ancestors 'none'") && policy.contains("base-uri 'none'"));
        let nonce = policy.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        let cookie = header("set-cookie");
        assert!(cookie.ends_with("; SameSite=Lax; HttpOnly"), "{cookie}");
        let page = text(response).await;
        assert!(page.contains(&format!("<script nonce=\"{nonce}\">")));
        assert!(!page.contains("{nonce}") && !page.contains("{token}"));
        for outside in ["http://", "https://", "src=", "url(", "innerHTML", "eval("] {
            assert!(!page.contains(outside), "the page contains {outside}");
        }
        tokens.push((nonce.to_owned(), cookie));
    }
    tokens.sort();
    tokens.dedup_by(|one, two| one.0 == two.0 || one.1 == two.1);
    assert_eq!(tokens.len(), 4, "each page has a nonce and a token of its own");
}
