//! A server with a wall clock of its own that a test can move.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use lock_testkit::{RedisServer, skip};

use crate::support::history::Ground;

/// The clock of one server.
#[derive(Debug)]
pub(crate) struct WallClock {
    library: PathBuf,
    shift: PathBuf,
}

impl WallClock {
    /// Builds the library that moves a clock with the machine's C compiler. Returns `None` and
    /// prints why if there is no compiler and tests may be skipped.
    pub(crate) fn build(ground: &Ground) -> Option<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("process/support/wall_clock.c");
        let library = ground.path().join("wall_clock.so");
        let shift = ground.path().join("wall_clock");
        fs::write(&shift, 0_i64.to_ne_bytes()).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
        match compiler.status() {
            Ok(status) => assert!(status.success(), "{} does not compile", source.display()),
            Err(error) => {
                skip(format_args!("no clock is moved for want of a C compiler: {error}"));
                return None;
            }
        }
        Some(Self { library, shift })
    }

    /// Starts a server with this clock.
    pub(crate) fn server(&self, config: &[&str]) -> RedisServer {
        let server = config.iter().fold(RedisServer::builder(), |server, line| server.config(line));
        server.env("LD_PRELOAD", &self.library).env("LOCK_TESTS_WALL_CLOCK", &self.shift).start()
    }

    /// Sets the clock to be so many milliseconds ahead of the machine's.
    pub(crate) fn shift(&self, millis: i64) {
        let file = File::options().write(true).open(&self.shift).unwrap();
        file.write_all_at(&millis.to_ne_bytes(), 0).unwrap();
    }

    /// By how many milliseconds `server` says that its clock is ahead of the machine's.
    pub(crate) fn ahead(server: &RedisServer) -> i64 {
        let (seconds, micros): (i64, i64) = server.cli("TIME");
        let local = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        seconds * 1_000 + micros / 1_000 - i64::try_from(local.as_millis()).unwrap()
    }
}
