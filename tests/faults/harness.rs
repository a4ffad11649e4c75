//! Tests of the harness, since a fault that is not injected proves nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use lock_testkit::{Action, Gate, Op, Proxy, RedisServer, client, eventually, ms, within};

#[tokio::test]
async fn the_proxy_forwards_counts_and_classifies_operations() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let seen = || [Op::Acquire, Op::Renew, Op::Release].map(|op| proxy.seen(op));
    let before = seen();
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(server.has("lock:k"));
    guard.extend(ms(20_000)).await.unwrap();
    guard.release().await.unwrap();
    assert!(!server.has("lock:k"));
    assert_eq!(seen(), before.map(|count| count + 1));
    assert_eq!(proxy.connections(), 1);
    assert_eq!(server.calls("eval"), 0);
}

#[tokio::test]
async fn each_action_does_what_it_says() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let gate = Gate::new();
    let executed = [
        (Action::LoseRequest, false),
        (Action::LoseReply, true),
        (Action::CloseBefore, false),
        (Action::CloseAfter, true),
        (Action::DelayRequest(ms(600)), false),
        (Action::DelayReply(ms(600)), true),
        (Action::HoldReply(gate.clone()), true),
        (Action::Duplicate, true),
        (Action::Refuse("LOADING not yet"), false),
        (Action::Truncate(3), true),
        (Action::Slice, true),
        (Action::ResetBefore, false),
        (Action::ResetAfter, true),
    ];
    for (number, (action, executed)) in executed.into_iter().enumerate() {
        let rule = proxy.rule(Op::Acquire, action.clone()).once();
        let mutex = client.mutex(format!("k{number}"));
        let attempt = tokio::spawn(mutex.without_wait().lock());
        eventually("the rule hits", ms(5_000), || rule.hits() == 1).await;
        if executed {
            let key = format!("lock:k{number}");
            eventually("it is executed", ms(5_000), || server.has(&key)).await;
        }
        let (outcome, _) = within("an answer", ms(5_000), attempt).await;
        drop(outcome.unwrap());
        gate.open();
        lock_core::testing::wait_idle(&client).await;
    }
}

/// A bare connection, which shows what arrives and when.
struct Bare(TcpStream);

impl Bare {
    fn open(proxy: &Proxy) -> Self {
        let address = proxy.url().replace("redis://", "").replace('/', "");
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(ms(50))).unwrap();
        Self(stream)
    }

    fn send(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.write_all(bytes.as_bytes()).unwrap();
    }

    /// Reads until nothing arrives for 50 ms.
    fn hear(&mut self) -> String {
        let (mut text, mut bytes) = (String::new(), [0; 4_096]);
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return text + "closed",
                Ok(count) => text += std::str::from_utf8(&bytes[..count]).unwrap(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return text,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads until `what` has arrived.
    fn hears(&mut self, what: &str) -> String {
        let (mut text, start) = (String::new(), Instant::now());
        while !text.contains(what) {
            text += &self.hear();
            assert!(start.elapsed() < ms(5_000), "no {what} in {text}");
        }
        text
    }
}

/// Only messages are lost, delayed or doubled. Replies and confirmations are not.
#[test]
fn faults_of_messages_spare_the_replies() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    for hello in ["PING", "HELLO 3"] {
        let mut bare = Bare::open(&proxy);
        bare.send(hello);
        let _hello = bare.hears("\r\n");
        bare.send("SUBSCRIBE inbox");
        let _confirmed = bare.hears("subscribe");
        let mut publish = |text: &str, action: Option<Action>| {
            let rule = action.map(|action| proxy.rule(Op::Message, action).once());
            assert_eq!(server.cli::<i64>(&format!("PUBLISH inbox {text}")), 1);
            let start = Instant::now();
            while rule.as_ref().is_some_and(|rule| rule.hits() == 0) {
                assert!(start.elapsed() < ms(5_000));
            }
            bare.send("PING");
            let reply = if hello == "PING" { "pong" } else { "PONG" };
            bare.hears(reply)
        };
        assert!(publish("plain", None).contains("plain"));
        assert!(!publish("lost", Some(Action::Vanish)).contains("lost"));
        assert_eq!(publish("double", Some(Action::Duplicate)).matches("double").count(), 2);
        let gate = Gate::new();
        assert!(!publish("held", Some(Action::HoldReply(gate.clone()))).contains("held"));
        assert!(!publish("late", Some(Action::DelayReply(ms(300)))).contains("late"));
        assert!(publish("overtakes", None).contains("overtakes"));
        let late = bare.hears("late");
        assert!(!late.contains("held"), "{late}");
        gate.open();
        let _held = bare.hears("held");
        let message = proxy.messages().into_iter().find(|message| message.text == "late").unwrap();
        assert!(message.passed.unwrap() - message.came >= ms(300));
        let lost = proxy.messages().into_iter().find(|message| message.text == "lost").unwrap();
        assert_eq!(lost.passed, None);
    }
    assert_eq!((proxy.seen(Op::Hello), proxy.seen(Op::Subscribe)), (1, 2));
    assert_eq!(proxy.seen(Op::Message), 12);

    // Neither a refused `HELLO 3` nor a lost confirmation shifts the other replies.
    let _old = proxy.rule(Op::Hello, Action::Refuse("NOPROTO no")).once();
    let _unconfirmed = proxy.rule(Op::Subscribe, Action::Vanish).once();
    let mut bare = Bare::open(&proxy);
    for command in ["HELLO 3", "ECHO one", "SUBSCRIBE inbox", "PING two"] {
        bare.send(command);
    }
    let heard = bare.hears("two");
    assert!(heard.starts_with("-NOPROTO no\r\n$3\r\none\r\n*2\r\n$4\r\npong"), "{heard}");
}

/// Faults of a connection and of a reply, as a bare client sees them.
#[test]
fn replies_are_cut_sliced_and_replaced_and_connections_are_reset() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    // Its reply is as long each time. That of `TIME` is not.
    let meet = |action: Action| {
        let rule = proxy.rule(Op::Other, action).once();
        let mut bare = Bare::open(&proxy);
        bare.send("CONFIG GET maxclients");
        let mut heard = Vec::new();
        let mut byte = [0];
        bare.0.set_read_timeout(Some(ms(5_000))).unwrap();
        let end = loop {
            match bare.0.read(&mut byte) {
                Ok(0) => break None,
                Ok(_) => heard.push(byte[0]),
                Err(error) => break Some(error.kind()),
            }
            if heard.len() == proxy.reply_len(Op::Other) && heard.ends_with(b"\r\n") {
                break Some(ErrorKind::Other);
            }
        };
        assert_eq!(rule.hits(), 1);
        (heard, end)
    };
    let (whole, _) = meet(Action::Slice);
    assert!(whole.starts_with(b"*2\r\n$10\r\n"), "{}", String::from_utf8_lossy(&whole));
    for bytes in 0..whole.len() {
        let (heard, end) = meet(Action::Truncate(bytes));
        assert_eq!((heard.len(), end), (bytes, None), "cut behind {bytes}");
    }
    assert_eq!(meet(Action::ResetBefore), (Vec::new(), Some(ErrorKind::ConnectionReset)));
    assert_eq!(meet(Action::ResetAfter), (Vec::new(), Some(ErrorKind::ConnectionReset)));
    assert_eq!(meet(Action::CloseAfter), (Vec::new(), None));
    let mut bare = Bare::open(&proxy);
    let _instead = proxy.rule(Op::Time, Action::Replace(b":7\r\n"[..].into())).once();
    let _answer = proxy.rule(Op::Info, Action::Answer(b":8\r\n"[..].into())).once();
    for command in ["ECHO one", "TIME", "INFO", "ECHO two"] {
        bare.send(command);
    }
    assert_eq!(bare.hears("two"), "$3\r\none\r\n:7\r\n:8\r\n$3\r\ntwo\r\n");
}
