//! `ls`, `who` and `release`.

use std::io::{BufRead as _, BufReader};

use lock_testkit::{RedisServer, Signal, send_signal};
use serde_json::Value;

use super::{finished, lockctl, output, section, until};

#[test]
fn watched_list_outlives_an_outage_and_ends_with_its_reader() {
    let mut server = RedisServer::start();
    let () = server.cli("SET lock:k jo");
    let mut watch = lockctl(&server.url(), &["ls", "--watch", "1", "--json"]).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("\"k\""));
    server.kill();
    let mut errors = BufReader::new(watch.stderr.take().unwrap()).lines();
    assert!(errors.next().unwrap().unwrap().contains("error"));
    server.boot();
    let () = server.cli("SET lock:after jo");
    assert!(lines.any(|line| line.unwrap().contains("\"after\"")));
    drop((lines, errors));
    until("it ends", || watch.try_wait().unwrap().is_some());
}

/// Keys come from the users of services.
#[test]
fn control_characters_of_a_key_do_not_reach_the_terminal() {
    let server = RedisServer::start();
    let key = "evil\u{1b}[31m\nforged\u{202e}";
    let () = server.connect().command(&["SET", &format!("lock:{key}"), "jo"]).unwrap();
    for words in [&["ls"][..], &["who", key], &["release", key, "--force", "--yes"]] {
        let (status, told, errors) = output(&server.url(), words);
        assert_eq!(status, 0, "{errors}");
        assert!(told.contains("evil\\u{1b}[31m\\u{a}forged\\u{202e}"), "{told:?}");
        assert!(!told.contains(['\u{1b}', '\u{202e}']), "{told:?}");
    }
}

#[test]
fn holders_are_listed_shown_and_taken_from_only_when_confirmed() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let url = server.url();
    assert_eq!(
        output(&url, &["ls"]),
        (0, "KEY  HOLDER  LEFT  WAITING\n".to_owned(), String::new())
    );
    assert_eq!(output(&url, &["who", "k"]), (1, "k is free\n".to_owned(), String::new()));
    let holder = section(&url, dir.path(), &[], "");
    let () = server.cli("SET lock:maintenance jo");
    let client = server.get("lock:k").unwrap()[..8].to_owned();

    let (status, told, _) = output(&url, &["ls"]);
    let lines: Vec<Vec<_>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((status, lines.len()), (0, 3), "{told}");
    assert_eq!(lines[1][..2], ["k", &client], "{told}");
    assert!(lines[1][2].ends_with('s') && lines[1][3] == "0", "{told}");
    assert!(told.lines().nth(2).unwrap().contains("a foreign value"), "{told}");
    let (_, told, _) = output(&url, &["ls", "--json"]);
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["owner"]["client"], client.as_str());
    assert!(lines[0]["owner"]["remaining_ms"].as_u64().unwrap() <= 10_000);
    assert!(lines[1]["owner"]["client"].is_null() && lines[1]["owner"]["remaining_ms"].is_null());

    let (status, told, _) = output(&url, &["who", "k"]);
    assert!(status == 0 && told.contains(&client) && told.contains("waiting  0"), "{told}");
    let (_, told, _) = output(&url, &["who", "k", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["held"], &told["key"]), (&Value::Bool(true), &Value::from("k")));

    // There is no terminal to ask on.
    let (status, _, errors) = output(&url, &["release", "k", "--force"]);
    assert!(status == 2 && errors.contains("--yes"), "{errors}");
    assert!(server.has("lock:k"), "nothing was done");
    let (status, told, _) = output(&url, &["release", "maintenance", "--force", "--yes"]);
    assert_eq!((status, told.as_str()), (0, "maintenance was taken from a foreign value\n"));
    assert!(!server.has("lock:maintenance"));
    send_signal(&holder, Signal::TERM);
    finished(holder);
}

/// A lock whose name in the store is its key. `ls` says that it cannot tell which keys are locks.
#[test]
fn lock_without_a_namespace_is_shown_taken_and_run_under() {
    let server = RedisServer::start();
    let url = server.url();
    let () = server.cli("SET mylock other PX 60000");
    let (status, told, _) = output(&url, &["who", "mylock", "--no-namespace"]);
    assert!(status == 0 && told.contains("a foreign value"), "{told}");
    let mut who = lockctl(&url, &["who", "mylock", "--no-namespace"]);
    let (status, told, errors) = finished(who.env("LOCK_NAMESPACE", "shop").spawn().unwrap());
    assert!(status == 0 && told.contains("a foreign value"), "{told}{errors}");
    let run = ["run", "--no-namespace", "-k", "mylock", "-w", "none", "--", "true"];
    assert_eq!(output(&url, &run).0, 75);
    let (status, told, errors) = output(&url, &["ls", "--no-namespace"]);
    assert!(status == 2 && told.is_empty() && errors.contains("cannot be listed"), "{errors}");
    let release = ["release", "mylock", "--force", "--yes", "--no-namespace"];
    assert_eq!(output(&url, &release).0, 0);
    assert!(!server.has("mylock"));
    assert_eq!(output(&url, &run).0, 0);
    let (status, told, errors) = output(&url, &["doctor", "--no-namespace"]);
    assert!(status == 0 && told.contains("by a message"), "{told}{errors}");
    assert_eq!(server.cli::<Vec<String>>("KEYS *"), ["lock:{0}:fence"]);
}
