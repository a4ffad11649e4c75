//! A connection to a server: its commands one after another, and what is known of its client.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::caller::Caller;
use super::channels::Kind;
use super::resp::{Reply, take_command};
use super::{Core, Fake};
use crate::net::{Arrived, Conn};

/// How often a connection that waits for the replica looks.
const LOOK: Duration = Duration::from_millis(1);

impl Fake {
    /// `WAIT`, on a connection whose last change was that.
    async fn wait(&self, args: &[Vec<u8>], changed: u64) -> Reply {
        let number = |at: usize| std::str::from_utf8(&args[at]).unwrap().parse::<u64>().unwrap();
        let until = Instant::now() + Duration::from_millis(number(2));
        loop {
            {
                let core = self.core();
                if !core.is_master() {
                    return Reply::error("UNBLOCKED force unblock from blocking operation");
                }
                let is_there =
                    core.feed.as_ref().is_some_and(|feed| feed.has_acknowledged(changed));
                if is_there || Instant::now() >= until {
                    return Reply::Int(i64::from(is_there));
                }
            }
            sleep(LOOK).await;
        }
    }

    /// Serves one connection to its end.
    pub(crate) async fn serve(self, conn: Conn) {
        let mut buffer = Vec::new();
        let mut caller = Caller { conn: conn.clone(), resp3: false, is_asking: false };
        // The last change by this connection.
        let mut changed = 0;
        loop {
            let sent = match conn.next_request().await {
                Arrived::Bytes(bytes, sent) => {
                    buffer.extend(bytes);
                    sent
                }
                Arrived::End => break,
            };
            loop {
                let stalled = self.core().stalled_until.filter(|until| *until > Instant::now());
                if let Some(until) = stalled {
                    self.core().counts.stalled += usize::from(!buffer.is_empty());
                    sleep_until(until).await;
                    continue;
                }
                if conn.is_over() {
                    break;
                }
                let Some(args) = take_command(&mut buffer) else { break };
                let before = self.core().changes;
                let mut reply = self.execute(&args, Some(&mut caller));
                if self.core().changes > before {
                    changed = self.core().changes;
                }
                if args[0] == b"WAIT" {
                    reply = self.wait(&args, changed).await;
                }
                let mut wire = Vec::new();
                reply.encode(caller.resp3, &mut wire);
                // Published messages go first, also to this connection.
                for (to, message) in std::mem::take(&mut self.core().told) {
                    to.answer(message, None);
                }
                conn.answer(wire, may_have_changed(&args, &reply).then_some(sent));
            }
        }
        self.core().channels.forget(conn.id());
        conn.close();
    }
}

/// Whether the outcome of that command matters to its client.
fn may_have_changed(args: &[Vec<u8>], reply: &Reply) -> bool {
    let is = |name: &str| args[0].eq_ignore_ascii_case(name.as_bytes());
    (is("EVAL") || is("EVALSHA") || is("SET")) && !matches!(reply, Reply::Error(_))
}

impl Core {
    /// Runs a command of a connection.
    pub(super) fn run_for(&mut self, args: &[Vec<u8>], caller: &mut Caller) -> Reply {
        let name = args[0].to_ascii_uppercase();
        caller.is_asking = name == b"ASKING";
        let kind = match name.as_slice() {
            b"ASKING" => return Reply::OK,
            b"HELLO" => return self.hello(args, &mut caller.resp3),
            b"SUBSCRIBE" => Kind::Plain,
            b"SSUBSCRIBE" => Kind::Sharded,
            _ => return self.run(args),
        };
        let [_, channel] = args else { panic!("one channel at a time is enough here") };
        self.channels.subscribe(kind, channel, &caller.conn, caller.resp3)
    }

    fn hello(&self, args: &[Vec<u8>], resp3: &mut bool) -> Reply {
        if !self.traits.resp3 {
            return Reply::error("ERR unknown command 'HELLO', with args beginning with: '3' ");
        }
        *resp3 = args.get(1).is_some_and(|version| version == b"3");
        Reply::Map(vec![
            Reply::bulk("server"),
            Reply::bulk("redis"),
            Reply::bulk("version"),
            Reply::bulk("7.0.15"),
            Reply::bulk("proto"),
            Reply::Int(if *resp3 { 3 } else { 2 }),
        ])
    }
}
