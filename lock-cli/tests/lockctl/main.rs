//! The binary on a real server: what scripts rely on.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

mod doctor;
mod manual;
mod mistakes;
mod run;
mod servers;
mod show;
mod terminal;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lock_testkit::ms;

fn lockctl(url: &str, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockctl"));
    command.args(words).env("LOCK_URL", url).env("NO_COLOR", "1").env_remove("LOCK_NAMESPACE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(url: &str, words: &[&str]) -> (i32, String, String) {
    finished(lockctl(url, words).spawn().unwrap())
}

/// Exit status, standard output and standard error.
fn finished(child: Child) -> (i32, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::sleep(ms(5));
    }
}

/// `sh -c script` under the lock `k`, once it has written the file `started`.
fn section(url: &str, dir: &Path, options: &[&str], script: &str) -> Child {
    let script = format!("{script}: >started; while :; do sleep 0.02; done");
    let words: Vec<_> = ["run", "--key", "k"].iter().chain(options).copied().collect();
    let mut command = lockctl(url, &words);
    let child = command.args(["--", "sh", "-c", &script]).current_dir(dir).spawn().unwrap();
    until("the section begins", || dir.join("started").exists());
    child
}
