//! Programs with the library run under valgrind, so that its users have memcheck, callgrind and
//! massif.

use std::io::ErrorKind;
use std::process::{Command, Output};

use lock_testkit::skip;

/// The status by which memcheck tells errors that it found.
const FOUND_ERRORS: i32 = 99;

/// Runs an example under memcheck; `None` if there is no valgrind and the test may be skipped.
fn memcheck(name: &str) -> Option<Output> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", &format!("--error-exitcode={FOUND_ERRORS}")]);
    // No server listens there.
    valgrind.arg(super::example(name)).env("REDIS_URL", "redis://127.0.0.1:1/");
    match valgrind.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip("there is no valgrind");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// rustix#1559: a program that reads the vDSO by itself crashes at its first look at the clock.
#[test]
fn example_runs_under_valgrind_without_an_error() {
    let Some(output) = memcheck("testing_your_code") else { return };
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("afterwards: Ok(7)\n"), "{output:?}");
}

/// The same for the store on Redis, which is built, dials and says that it cannot connect.
#[test]
fn redis_store_runs_under_valgrind_without_an_error() {
    let Some(output) = memcheck("guard") else { return };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Unavailable"), "{output:?}");
}
