//! The messages that clients get on their channels when a lock is handed on, and their order.

use lock_core::testing::wait_idle;
use lock_core::{LockClient, MutexGuard};
use lock_testkit::{RedisServer, client, eventually, ms, within};
use tokio::task::JoinHandle;

/// The channels of the namespace that the tests' clients use.
const INBOXES: &str = "lock:{0}:inbox:";

/// A subscriber to all channels of the namespace.
struct Eavesdropper<'s> {
    server: &'s RedisServer,
    connection: redis::Connection,
}

impl<'s> Eavesdropper<'s> {
    fn at(server: &'s RedisServer) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection_with_timeout(ms(5_000)).unwrap();
        connection.set_read_timeout(Some(ms(5_000))).unwrap();
        // The subscription ends with the connection.
        let () =
            redis::cmd("PSUBSCRIBE").arg(format!("{INBOXES}*")).query(&mut connection).unwrap();
        Self { server, connection }
    }

    /// The messages sent so far, with their channels. Messages that only test the permission to
    /// publish are left out.
    fn heard(&mut self) -> Vec<(String, String)> {
        let end = format!("{INBOXES}end");
        assert_eq!(self.server.cli::<usize>(&format!("PUBLISH {end} end")), 1);
        let mut heard = Vec::new();
        loop {
            let message: (String, String, String, String) =
                redis::from_redis_value(self.connection.recv_response().unwrap()).unwrap();
            let (kind, _, channel, text) = message;
            assert_eq!(kind, "pmessage");
            if channel == end {
                return heard;
            }
            if !channel.ends_with(":check") {
                heard.push((channel, text));
            }
        }
    }
}

type Waiter = JoinHandle<Result<MutexGuard, lock_core::Error>>;

/// Makes `client` wait for locks that other clients hold. Returns the channel on which it is
/// notified.
async fn queue_up(
    server: &RedisServer,
    client: &LockClient,
    keys: &[&'static str],
) -> (Vec<Waiter>, String) {
    let mut waiters = Vec::new();
    for key in keys {
        waiters.push(tokio::spawn(client.mutex(*key).with_wait(ms(60_000)).lock()));
        eventually("it is queued", ms(5_000), || server.queued(key) == 1).await;
    }
    let place = server.queue(keys[0]).remove(0);
    let (_, inbox) = place.split_once('=').expect("it names an inbox");
    (waiters, inbox.to_owned())
}

async fn served(waiters: Vec<Waiter>) -> Vec<MutexGuard> {
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(within("the lock", ms(5_000), waiter).await.0.unwrap().unwrap());
    }
    guards
}

/// Redis writes first to the client that most recently got something to read. If that is the new
/// holder, everyone else waits for it. So a release first sends an empty message to the releasing
/// client, if that client listens on the connection that gets the answer.
#[tokio::test]
async fn the_answer_to_a_release_is_written_before_the_grant() {
    let server = RedisServer::start();
    server.load_scripts();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let mut ear = Eavesdropper::at(&server);

    // A client that has never waited does not listen, so it is sent nothing.
    let guard = two.mutex("a").lock().await.unwrap();
    let (waiters, inbox_of_one) = queue_up(&server, &one, &["a"]).await;
    guard.release().await.unwrap();
    let heard = ear.heard();
    let [(to, grant)] = heard.as_slice() else { panic!("{heard:?}") };
    assert!(*to == inbox_of_one && grant.ends_with(" lock:a"), "{heard:?}");
    let mut guards = served(waiters).await;

    let (waiters, inbox_of_two) = queue_up(&server, &two, &["a"]).await;
    assert_eq!(ear.heard(), []);
    guards.remove(0).release().await.unwrap();
    let heard = ear.heard();
    let [behind, (to, grant)] = heard.as_slice() else { panic!("{heard:?}") };
    assert_eq!(*behind, (inbox_of_one.clone(), String::new()));
    assert!(*to == inbox_of_two && grant.ends_with(" lock:a"), "{heard:?}");

    // No client waits any more.
    for guard in served(waiters).await {
        guard.release().await.unwrap();
    }
    one.mutex("a").lock().await.unwrap().release().await.unwrap();
    assert_eq!(ear.heard(), []);
    for client in [one, two] {
        wait_idle(&client).await;
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}
