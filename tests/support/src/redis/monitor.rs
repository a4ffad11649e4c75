//! What scripts touch, as the server tells it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::server::RedisServer;

/// Reads the commands of a server from its start until [`finish`](Self::finish).
#[derive(Debug)]
pub struct Monitor {
    lines: BufReader<TcpStream>,
}

/// A call of a script.
#[derive(Debug)]
pub struct ScriptCall {
    /// Its digest or its text.
    pub script: String,
    /// The keys that it was given.
    pub declared: Vec<String>,
    /// The keys of its commands.
    pub touched: Vec<String>,
}

/// The last command that a monitor reads.
const END: &str = "end-of-the-monitor";
const READ_TIMEOUT: Duration = Duration::from_secs(10);

impl RedisServer {
    /// Starts to listen to the server's commands.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut reply = String::new();
        lines.read_line(&mut reply).unwrap();
        assert_eq!(reply, "+OK\r\n");
        Monitor { lines }
    }
}

impl Monitor {
    /// The calls of scripts until now.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[must_use]
    pub fn finish(self, server: &RedisServer) -> Vec<ScriptCall> {
        let _: String = server.cli(&format!("ECHO {END}"));
        let mut calls: Vec<ScriptCall> = Vec::new();
        for line in self.lines.lines() {
            let line = line.unwrap();
            let (from, words) = line.split_once("] ").unwrap();
            let words = words.strip_prefix('"').unwrap().strip_suffix('"').unwrap();
            let words: Vec<&str> = words.split("\" \"").collect();
            if from.ends_with(" lua") {
                let call = calls.last_mut().unwrap();
                call.touched.extend(keys(&words).iter().map(|&key| key.to_owned()));
            } else if words.contains(&END) {
                break;
            } else if ["eval", "evalsha"].contains(&words[0].to_ascii_lowercase().as_str()) {
                let count: usize = words[2].parse().unwrap();
                let declared = words[3..][..count].iter().map(|&key| key.to_owned()).collect();
                let script = words[1].to_owned();
                calls.push(ScriptCall { script, declared, touched: Vec::new() });
            }
        }
        calls
    }
}

/// The keys of a command of a lock script.
fn keys<'a>(words: &'a [&'a str]) -> &'a [&'a str] {
    match words[0].to_ascii_uppercase().as_str() {
        // A channel is no key, but belongs to a slot, too. The scripts take it from a member.
        "TIME" | "PUBLISH" | "SPUBLISH" => &[],
        "DEL" => &words[1..],
        _ => &words[1..2],
    }
}
