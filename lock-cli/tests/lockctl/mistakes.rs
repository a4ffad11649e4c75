//! Bad input: what is refused, with which status and words, and that nothing is left.

use lock_testkit::{RedisServer, free_port, ms};
use serde_json::Value;

use super::{lockctl, output, until};

#[test]
fn failures_have_statuses_that_differ_and_say_what_to_do() {
    let (server, url) = (RedisServer::start(), format!("redis://127.0.0.1:{}/", free_port()));
    let run = ["run", "--key", "k", "--", "true"];
    let (status, _, errors) = output(&url, &run);
    assert!(status == 69 && errors.contains("cannot connect"), "{status} {errors}");
    assert!(errors.lines().count() == 1 && errors.contains("`LOCK_URL`"), "said once: {errors}");
    let own = ["run", "--key", "k", "--store-status", "3", "--", "true"];
    assert_eq!(output(&url, &own).0, 3);
    let url = server.url();
    let (status, _, errors) = output(&url, &["run", "--key", "k", "--", "/no/such/program"]);
    assert!(status == 127 && errors.contains("/no/such/program"), "{status} {errors}");
    let (status, _, _) = output(&url, &["run", "--key", "k", "--", "/"]);
    assert_eq!(status, 126);
    for (words, problem) in [
        (&["run", "--key", "k"][..], "COMMAND"),
        (&["run", "--", "true"], "--key"),
        (&["run", "--key", "", "--", "true"], "key"),
        (&["run", "--key", "k", "--ttl", "1ms", "--", "true"], "100ms"),
        (&["run", "--key", "k", "--ttl", "soon", "--", "true"], "--ttl"),
        (&["who", "k", "--store", "localhost"], "--store, or `LOCK_URL`, is not a redis URL"),
        (&["who", "k", "--store", "redis://a/ redis://b/"], "`LOCK_URL`, are two servers"),
        (&["run", "--key", "k", "--store", "memory:", "--", "true"], "one process"),
        (&["doctor", "memory:"], "one process"),
        (&["who", "k", "--namespace", "a:b"], "--namespace"),
        (&["who", "k", "--namespace", "shop", "--no-namespace"], "cannot be used with"),
        (&["--namespace", "shop", "who", "k", "--no-namespace"], "cannot be used with"),
        (&["who", "lock:{0}:fence", "--no-namespace"], "record"),
        (&["release", "k"], "--force"),
        (&["lost"], "lost"),
        (&["ls", "--watch", "0"], "--watch"),
    ] {
        let (status, told, errors) = output(&url, words);
        assert!(status == 2 && told.is_empty(), "{words:?}: {status} {told}");
        assert!(errors.contains(problem), "{words:?}: {errors}");
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// A program that wants JSON reads standard error, too.
#[test]
fn each_failure_is_a_line_of_json_with_that_option() {
    let server = RedisServer::start();
    let url = server.url();
    for (words, status, problem) in [
        (&["ls", "extra", "--json"][..], 2, "unexpected argument 'extra' found"),
        (&["--json", "release", "k"], 2, "--force"),
        (&["--json", "lost"], 2, "unrecognized subcommand 'lost'"),
        (&["--json", "who", "k", "--namespace", "a", "--no-namespace"], 2, "cannot be used with"),
        (&["--json", "who", ""], 2, "empty"),
        (&["--json", "who", "k", "--store", "redis://127.0.0.1:1/"], 69, "cannot connect"),
        (&["run", "--json", "-k", "k", "--", "/no/such/program"], 127, "/no/such/program"),
    ] {
        let (found, told, errors) = output(&url, words);
        assert!(found == status && told.is_empty(), "{words:?}: {found} {told}");
        let failure: Value = serde_json::from_str(&errors).unwrap_or_else(|_| panic!("{errors}"));
        assert_eq!(failure["status"], status, "{errors}");
        assert!(failure["error"].as_str().unwrap().contains(problem), "{words:?}: {errors}");
    }
    // There it is a word for the command.
    let (_, _, errors) = output(&url, &["run", "--", "true", "--json"]);
    assert!(errors.starts_with("error: "), "{errors}");
    let (status, told, _) = output(&url, &["--json", "--help"]);
    assert!(status == 0 && told.contains("Usage: lockctl"), "{told}");

    for key in ["one", "two"] {
        let () = server.cli(&format!("SET lock:{key} jo"));
    }
    let (status, told, notes) = output(&url, &["ls", "--json", "--limit", "1"]);
    assert!(status == 0 && told.lines().count() == 1, "{told}");
    let note: Value = serde_json::from_str(&notes).unwrap();
    assert!(note["note"].as_str().unwrap().contains("--limit"), "{notes}");
}

/// What goes wrong at the start is reported by the command alone, and an outage later by the
/// library as well.
#[test]
fn outage_during_a_command_is_one_warning_more_than_its_own_words() {
    let (mut server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let words = ["run", "-k", "k", "--ttl", "1s", "--grace", "1s", "--", "sh", "-c"];
    let script = ": >started; while :; do sleep 0.02; done";
    let mut command = lockctl(&server.url(), &words);
    let holder = command.arg(script).current_dir(dir.path()).spawn().unwrap();
    until("the section begins", || dir.path().join("started").exists());
    std::thread::sleep(ms(50));
    server.kill();
    let (status, _, errors) = super::finished(holder);
    assert_eq!(status, 74, "{errors}");
    for part in ["WARN the lock store cannot be reached", "lockctl: the lock was lost"] {
        assert_eq!(errors.matches(part).count(), 1, "{part}: {errors}");
    }
}

#[test]
fn directory_for_manual_pages_is_named_if_it_cannot_be_made() {
    let (status, told, errors) =
        output("redis://127.0.0.1:1/", &["man", "--dir", "/dev/null/man1"]);
    assert!(status == 1 && told.is_empty() && errors.contains("/dev/null/man1: "), "{errors}");
}
