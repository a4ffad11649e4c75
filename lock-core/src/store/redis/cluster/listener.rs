//! The connection to a node on which sharded channels are heard.
//!
//! A server ends a sharded subscription by itself when the slot leaves it, and when it is demoted.
//! redis-rs takes the message that says so for the reply to the oldest command in flight, and so
//! each later reply for that to another command. Therefore:
//!
//! - No command travels here but `SSUBSCRIBE` and `PING`, one at a time.
//! - No reply confirms a subscription, only the server's message with the name of the channel. A
//!   refusal counts if no message that ends a subscription came while it was awaited.
//! - `SUNSUBSCRIBE` is never sent: it would race with the server's own.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike as _;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::store::redis::error::Fault;
use crate::store::redis::info::Info;
use crate::store::redis::transport::{Connection, Timeouts, Wire};
use crate::time::{Instant, sleep_until, timeout_at};

/// A connection to a node that listens.
pub(super) struct Listener {
    wire: Wire,
    label: Arc<str>,
    lines: Arc<Lines>,
    /// One request at a time.
    asking: tokio::sync::Mutex<()>,
    /// The id of the process that it leads to, if the server tells it.
    run_id: Option<String>,
    end: AbortHandle,
}

/// What a listener reports.
pub(super) enum News<'p> {
    /// What arrived on a channel.
    Message(&'p str, &'p Value),
    /// The server ended the subscription of this channel.
    Ended(&'p str),
    /// The connection is gone, and with it the subscriptions of these channels.
    Gone(Vec<Arc<str>>),
}

type Report = Box<dyn Fn(News<'_>) + Send + Sync>;

/// The channels of a listener.
struct Lines {
    state: Mutex<State>,
    report: Report,
}

struct State {
    channels: HashMap<Arc<str>, Line>,
    /// How many subscriptions the server ended.
    ended: u64,
    is_over: bool,
    /// When the server was last heard.
    heard: Instant,
}

enum Line {
    /// Requested; the sender tells of the confirmation.
    Asked(oneshot::Sender<()>),
    /// Subscribed, and when a task last needed it.
    Open(Instant),
}

/// A listener that heard nothing for so long is asked whether it is alive: nothing else would tell
/// if packets vanish.
const QUIET: Duration = Duration::from_secs(5);
/// With more channels than this it is time to look for those without use: each costs the server
/// some hundred bytes.
const MANY: usize = 4_096;
/// A waiter claims several times in this time, so a channel that was not needed has none.
const IDLE: Duration = Duration::from_secs(60);

impl Listener {
    /// Opens one to the node of `connection`.
    pub(super) async fn open(
        connection: &Connection,
        limit: Instant,
        report: impl Fn(News<'_>) + Send + Sync + 'static,
    ) -> Result<Self, Fault> {
        let state =
            State { channels: HashMap::new(), ended: 0, is_over: false, heard: Instant::now() };
        let lines = Arc::new(Lines { state: Mutex::new(state), report: Box::new(report) });
        let pushed = Arc::clone(&lines);
        let opened = async {
            let mut wire = connection.listen(Arc::new(move |push| pushed.pushed(&push))).await?;
            // Before the first subscription, so the reply is the reply.
            let mut info = redis::cmd("INFO");
            info.arg("server");
            let info = wire.req_packed_command(&info).await.and_then(Value::extract_error);
            Ok((wire, info))
        };
        let opened = timeout_at(limit, opened).await;
        let (wire, info) = opened.map_err(|_late| silent(connection))?.map_err(Fault::of)?;
        let info = match info {
            Ok(info) => Info::read(info),
            Err(error) if error.is_io_error() => return Err(Fault::of(error)),
            // This user may not ask.
            Err(_) => Info::unknown(),
        };
        let run_id = info.field("run_id").map(str::to_owned);
        let end = End(Arc::clone(&lines));
        let end = Handle::current().spawn(async move {
            let _end = end;
            std::future::pending::<()>().await;
        });
        let (asking, end) = (tokio::sync::Mutex::default(), end.abort_handle());
        Ok(Self { wire, label: connection.label().into(), lines, asking, run_id, end })
    }

    /// The id of the process that it leads to, if the server tells it.
    pub(super) fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.lines.lock().is_over
    }

    /// Whether `channel` is subscribed.
    pub(super) fn hears(&self, channel: &str) -> bool {
        let mut state = self.lines.lock();
        let Some(Line::Open(used)) = state.channels.get_mut(channel) else { return false };
        *used = Instant::now();
        true
    }

    /// Whether it is to be replaced by a new one: nothing else ends the subscriptions that are of
    /// no use any more.
    pub(super) fn is_worn(&self) -> bool {
        self.lines.lock().is_worn(Instant::now())
    }

    /// Whether it is time to ask whether it is alive.
    pub(super) fn is_quiet(&self) -> bool {
        Instant::now().saturating_since(self.lines.lock().heard) > QUIET
    }

    /// Asks whether it is alive; closes it if no reply comes in time.
    pub(super) async fn ping(&self, timeouts: Timeouts) {
        let _one = self.asking.lock().await;
        if !self.is_quiet() {
            return;
        }
        let limit = timeouts.request_until(None);
        let mut wire = self.wire.clone();
        match timeout_at(limit, wire.req_packed_command(&redis::cmd("PING"))).await {
            // Any sign of life will do.
            Ok(Ok(_)) => self.lines.lock().heard = Instant::now(),
            Ok(Err(error)) if !error.is_io_error() => self.lines.lock().heard = Instant::now(),
            Ok(Err(_)) | Err(_) => self.lines.close(),
        }
    }

    /// Subscribes `channel`, unless it is subscribed. Closes the listener if nothing at all is
    /// heard in the time of a request, which begins when those before this one are over.
    pub(super) async fn subscribe(&self, channel: &str, timeouts: Timeouts) -> Result<(), Fault> {
        let _one = self.asking.lock().await;
        let Some((mut confirmed, ended)) = self.lines.ask(channel)? else { return Ok(()) };
        let (sent, limit) = (Instant::now(), timeouts.request_until(None));
        let (mut wire, mut command) = (self.wire.clone(), redis::cmd("SSUBSCRIBE"));
        command.arg(channel);
        let mut reply = pin!(wire.req_packed_command(&command));
        let mut is_replied = false;
        loop {
            tokio::select! {
                biased;
                confirmed = &mut confirmed => return confirmed.map_err(|_| Fault::gone()),
                reply = &mut reply, if !is_replied => {
                    is_replied = true;
                    let Some(error) = refusal(reply) else { continue };
                    if error.is_io_error() {
                        self.lines.close();
                        return Err(Fault::of(error));
                    }
                    if self.lines.lock().ended == ended {
                        self.lines.forget(channel);
                        return Err(Fault::of(error));
                    }
                }
                () = sleep_until(limit) => {
                    self.lines.forget(channel);
                    // A reply is a sign of life as well.
                    if !is_replied && self.lines.lock().heard <= sent {
                        self.lines.close();
                    }
                    return Err(Fault::silent(&self.label));
                }
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.end.abort();
    }
}

fn silent(connection: &Connection) -> Fault {
    Fault::silent(connection.label())
}

fn refusal(reply: Result<Value, RedisError>) -> Option<RedisError> {
    reply.and_then(Value::extract_error).err()
}

/// Dropped with its task: when the listener is dropped, and when its runtime ends.
struct End(Arc<Lines>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Lines {
    fn pushed(&self, push: &PushInfo) {
        self.lock().heard = Instant::now();
        match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [Value::BulkString(channel), payload]) => {
                let Ok(channel) = std::str::from_utf8(channel) else { return };
                (self.report)(News::Message(channel, payload));
            }
            (PushKind::SSubscribe, [Value::BulkString(channel), ..]) => self.confirmed(channel),
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => self.ended(channel),
            (PushKind::Disconnection, _) => self.close(),
            _ => {}
        }
    }

    /// Notes that `channel` is requested. Returns what tells of the confirmation, and how many
    /// subscriptions had ended before; `None` if it is subscribed. Fails, before anything is sent,
    /// if the listener is over.
    fn ask(&self, channel: &str) -> Result<Option<(oneshot::Receiver<()>, u64)>, Fault> {
        let mut state = self.lock();
        if state.is_over {
            return Err(Fault::gone().before_the_call());
        }
        if matches!(state.channels.get(channel), Some(Line::Open(_))) {
            return Ok(None);
        }
        let (sender, confirmed) = oneshot::channel();
        state.channels.insert(channel.into(), Line::Asked(sender));
        Ok(Some((confirmed, state.ended)))
    }

    fn confirmed(&self, channel: &[u8]) {
        let Ok(channel) = std::str::from_utf8(channel) else { return };
        let before = self.lock().channels.insert(channel.into(), Line::Open(Instant::now()));
        if let Some(Line::Asked(sender)) = before {
            // Fails if the task that asked is gone.
            let _ = sender.send(());
        }
    }

    fn ended(&self, channel: &[u8]) {
        let Ok(channel) = std::str::from_utf8(channel) else { return };
        let mut state = self.lock();
        state.ended += 1;
        let was = state.channels.remove(channel);
        drop(state);
        drop(was);
        (self.report)(News::Ended(channel));
    }

    /// The subscription was refused, or not confirmed in time.
    fn forget(&self, channel: &str) {
        let mut state = self.lock();
        if matches!(state.channels.get(channel), Some(Line::Asked(_))) {
            state.channels.remove(channel);
        }
    }

    fn close(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        let channels = std::mem::take(&mut state.channels);
        drop(state);
        (self.report)(News::Gone(channels.into_keys().collect()));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds this lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_worn(&self, now: Instant) -> bool {
        if self.channels.len() <= MANY {
            return false;
        }
        let is_idle =
            |line: &&Line| matches!(line, Line::Open(used) if now.saturating_since(*used) > IDLE);
        self.channels.values().filter(is_idle).count() * 2 >= self.channels.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(kind: PushKind, channel: &str) -> PushInfo {
        PushInfo { kind, data: vec![Value::BulkString(channel.into()), Value::Int(1)] }
    }

    fn lines() -> (Arc<Lines>, Arc<Mutex<Vec<String>>>) {
        let told = Arc::<Mutex<Vec<String>>>::default();
        let tell = Arc::clone(&told);
        let report = move |news: News<'_>| {
            tell.lock().unwrap().push(match news {
                News::Message(channel, _) => format!("message on {channel}"),
                News::Ended(channel) => format!("ended {channel}"),
                News::Gone(channels) => format!("gone {}", channels.len()),
            });
        };
        let state =
            State { channels: HashMap::new(), ended: 0, is_over: false, heard: Instant::now() };
        (Arc::new(Lines { state: Mutex::new(state), report: Box::new(report) }), told)
    }

    #[test]
    fn only_the_message_of_the_server_confirms_a_channel() {
        let (lines, told) = lines();
        let (mut confirmed, _) = lines.ask("a").unwrap().unwrap();
        lines.pushed(&push(PushKind::SSubscribe, "b"));
        assert!(confirmed.try_recv().is_err());
        lines.pushed(&push(PushKind::SSubscribe, "a"));
        assert!(confirmed.try_recv().is_ok() && lines.ask("a").unwrap().is_none());
        lines.pushed(&push(PushKind::SUnsubscribe, "a"));
        let (_, ended) = lines.ask("a").unwrap().unwrap();
        assert_eq!((ended, told.lock().unwrap().as_slice()), (1, &["ended a".to_owned()][..]));
    }

    #[test]
    fn listener_with_many_channels_is_worn_when_half_of_them_are_idle() {
        let (lines, _told) = lines();
        for number in 0..=MANY {
            lines.pushed(&push(PushKind::SSubscribe, &number.to_string()));
        }
        let mut state = lines.lock();
        let now = Instant::now();
        let later = now.saturating_add(IDLE * 2);
        assert!(!state.is_worn(now) && state.is_worn(later));
        for number in 0..=MANY / 2 {
            state.channels.insert(number.to_string().into(), Line::Open(later));
        }
        assert!(!state.is_worn(later), "more than half are in use");
        state.channels.remove("0");
        assert!(!state.is_worn(later.saturating_add(IDLE * 2)), "there are not so many");
    }

    #[test]
    fn connection_that_is_gone_tells_so_once_and_takes_no_channel() {
        let (lines, told) = lines();
        lines.pushed(&push(PushKind::SSubscribe, "a"));
        lines.pushed(&PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
        lines.close();
        assert!(lines.ask("b").is_err_and(|fault| matches!(fault, Fault::NotSent(_))));
        assert_eq!(told.lock().unwrap().as_slice(), ["gone 1"]);
    }
}
