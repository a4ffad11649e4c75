//! Where grants are told: one channel for each store and namespace, subscribed when somebody first has to wait.
//!
//! With RESP3 the channel is on the command connection, so it lives and dies with it. Where that protocol is refused, a second
//! connection subscribes. Where pub/sub is forbidden, waiters ask at short intervals instead.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::PubSubSink;
use redis::{PushInfo, PushKind, Value};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::connection::{Connection, Health, Live};
use super::error::{Fault, discreet};
use super::keys;
use super::waiter::Message;
use crate::error::{Error, ErrorKind};
use crate::runtime::spawn_handle;
use crate::store::Token;
use crate::time::{Instant, Late, timeout_at};

/// The inbox of a store.
pub(super) struct Inbox {
    /// Tells this store's channels from those of others; drawn when it is first needed.
    id: OnceLock<Token>,
    state: Mutex<State>,
    waiting: AtomicUsize,
    /// One task subscribes, the others wait for it.
    joining: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Tokens are random already.
    boxes: HashMap<Token, mpsc::UnboundedSender<News>, BuildHasherDefault<DefaultHasher>>,
    /// Of each namespace, how its grants come here, and on which channel.
    lines: HashMap<Arc<str>, (Line, Arc<str>)>,
    /// The second connection, where RESP3 is refused.
    subscriber: Option<Subscriber>,
    /// Subscriptions in a row that broke their connection.
    broken: u32,
    warned: bool,
}

/// How a namespace's grants come here, as far as is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Line {
    /// On the command connection of this generation.
    Pushed(u64),
    /// On the second connection.
    Subscribed,
    /// The server refused it on the connection of this generation.
    Refused(u64),
    /// The server did not confirm it; not tried again before this time.
    Unconfirmed(Instant),
}

/// How soon the second connection is tried again.
const NO_SECOND_PAUSE: Duration = Duration::from_secs(5);
/// After a subscription that nobody confirmed, which costs the connection.
const UNCONFIRMED_PAUSE: Duration = Duration::from_secs(60);

/// This many subscriptions in a row that break their connection are no outage.
const BROKEN_LIMIT: u32 = 2;

impl Line {
    fn is_before(self, now: u64) -> bool {
        matches!(self, Self::Pushed(generation) | Self::Refused(generation) if generation < now)
    }
}

/// A second connection that only listens.
struct Subscriber {
    sink: PubSubSink,
    alive: Arc<AtomicBool>,
    task: AbortHandle,
}

/// What a waiter hears.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    Grant(Message),
    /// Messages may have been lost.
    Lost,
}

/// What one token hears, until it is dropped.
pub(super) struct Mailbox {
    inbox: Arc<Inbox>,
    token: Token,
    news: mpsc::UnboundedReceiver<News>,
}

/// A grant for a token that does not wait.
pub(super) struct Stray<'m> {
    pub(super) token: Token,
    pub(super) name: &'m str,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            id: OnceLock::new(),
            state: Mutex::default(),
            waiting: AtomicUsize::new(0),
            joining: tokio::sync::Mutex::default(),
        }
    }

    /// How many tokens wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The channel for `namespace`, if the server tells grants there; subscribes it if need be.
    ///
    /// The attempt outlives a caller with little patience, or none would ever succeed.
    pub(super) async fn join(
        connection: &Arc<Connection>,
        live: &Arc<Live>,
        namespace: &str,
        until: Instant,
    ) -> Result<Option<String>, Fault> {
        let (inbox, label) = (connection.inbox(), connection.label());
        let told = match inbox.known(live, namespace) {
            Some(told) => told,
            None => {
                let runtime = spawn_handle()
                    .ok_or_else(|| Fault::NotSent(Error::of(ErrorKind::NoRuntime)))?;
                let (connection, live) = (Arc::clone(connection), Arc::clone(live));
                let namespace: Arc<str> = namespace.into();
                let joined = runtime.spawn(async move {
                    connection.inbox().subscribe(&connection, &live, namespace).await
                });
                match timeout_at(until, joined).await {
                    Ok(Ok(told)) => told?,
                    // The runtime that was to do it is gone, and the connection with it.
                    Ok(Err(_)) => return Err(Fault::gone()),
                    Err(Late) => return Err(Fault::silent(label)),
                }
            }
        };
        if told { inbox.channel(namespace).map(Some) } else { Ok(None) }
    }

    fn channel(&self, namespace: &str) -> Result<String, Fault> {
        let id = match self.id.get() {
            Some(id) => *id,
            None => {
                let fresh = Token::fresh().map_err(Fault::NotSent)?;
                *self.id.get_or_init(|| fresh)
            }
        };
        let mut text = [0; Token::TEXT_LEN];
        Ok(keys::inbox(namespace, id.encode(&mut text)))
    }

    /// Whether grants for `namespace` come here; `None`: it was not tried on this connection.
    pub(super) fn known(&self, live: &Live, namespace: &str) -> Option<bool> {
        let state = self.lock();
        match state.lines.get(namespace)?.0 {
            Line::Pushed(generation) if generation == live.generation => Some(true),
            Line::Refused(generation) if generation == live.generation => Some(false),
            Line::Subscribed if state.subscriber.as_ref().is_some_and(Subscriber::is_alive) => {
                Some(true)
            }
            Line::Unconfirmed(until) if Instant::now() < until => Some(false),
            Line::Pushed(_) | Line::Refused(_) | Line::Subscribed | Line::Unconfirmed(_) => None,
        }
    }

    /// The channel for `namespace`, if the connection of `generation` hears it.
    pub(super) fn pushed_to(&self, generation: u64, namespace: &str) -> Option<Arc<str>> {
        let state = self.lock();
        let (line, channel) = state.lines.get(namespace)?;
        (*line == Line::Pushed(generation)).then(|| Arc::clone(channel))
    }

    async fn subscribe(
        self: &Arc<Self>,
        connection: &Connection,
        live: &Live,
        namespace: Arc<str>,
    ) -> Result<bool, Fault> {
        let _turn = self.joining.lock().await;
        if let Some(told) = self.known(live, &namespace) {
            return Ok(told);
        }
        let channel = self.channel(&namespace)?;
        let subscribed = async {
            if live.resp3 {
                live.connection.clone().subscribe(&channel).await
            } else {
                self.subscriber(connection).await?.subscribe(&channel).await
            }
        };
        let until = if live.resp3 { connection.patience(None) } else { connection.one_call() };
        let line = match timeout_at(until, subscribed).await {
            Ok(Ok(())) => {
                self.lock().broken = 0;
                self.try_out(connection, live, &channel).await?
            }
            Ok(Err(error)) => match Fault::of(error) {
                Fault::Refused(error) => {
                    self.warn(connection.label(), &discreet(error).to_string());
                    Line::Refused(live.generation)
                }
                fault if live.resp3 => {
                    connection.note(live.generation, Health::Broken);
                    if !self.breaks_again() {
                        return Err(fault);
                    }
                    self.warn(connection.label(), "the connection breaks when it subscribes");
                    Line::Unconfirmed(Instant::now().saturating_add(UNCONFIRMED_PAUSE))
                }
                fault => {
                    // A second connection is not to be had: commands have one all the same.
                    self.warn(connection.label(), &Error::from(fault).to_string());
                    Line::Unconfirmed(Instant::now().saturating_add(NO_SECOND_PAUSE))
                }
            },
            Err(Late) => {
                if live.resp3 {
                    // The confirmation may still come, in the place of an answer to something else.
                    connection.note(live.generation, Health::Broken);
                }
                self.warn(connection.label(), "the subscription was not confirmed");
                Line::Unconfirmed(Instant::now().saturating_add(UNCONFIRMED_PAUSE))
            }
        };
        let mut state = self.lock();
        // What was known of connections that are gone is of no use.
        state.lines.retain(|_, (line, _)| !line.is_before(live.generation));
        state.lines.insert(namespace, (line, channel.into()));
        drop(state);
        Ok(matches!(line, Line::Pushed(_) | Line::Subscribed))
    }

    /// Counts a subscription that broke its connection. Some proxies close it at a command that they do not know.
    fn breaks_again(&self) -> bool {
        let mut state = self.lock();
        state.broken = (state.broken + 1) % BROKEN_LIMIT;
        state.broken == 0
    }

    /// Sends a message that nobody hears: where we may not publish, neither may those whose releases are to be heard of.
    async fn try_out(
        &self,
        connection: &Connection,
        live: &Live,
        channel: &str,
    ) -> Result<Line, Fault> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(format!("{channel}:check")).arg("");
        match connection.send(live, &publish, None).await {
            Ok(_) if live.resp3 => Ok(Line::Pushed(live.generation)),
            Ok(_) => Ok(Line::Subscribed),
            Err(Fault::Refused(error)) => {
                self.warn(connection.label(), &discreet(error).to_string());
                Ok(Line::Refused(live.generation))
            }
            Err(fault) => Err(fault),
        }
    }

    /// The second connection, made if there is none.
    async fn subscriber(
        self: &Arc<Self>,
        connection: &Connection,
    ) -> Result<PubSubSink, redis::RedisError> {
        let open = {
            let state = self.lock();
            let open = state.subscriber.as_ref().filter(|subscriber| subscriber.is_alive());
            open.map(|subscriber| subscriber.sink.clone())
        };
        if let Some(sink) = open {
            return Ok(sink);
        }
        let (sink, stream) = connection.subscriber().await?.split();
        let alive = Arc::new(AtomicBool::new(true));
        let listening = listen(stream, connection.weak(), Arc::clone(&alive));
        let task = Handle::current().spawn(listening).abort_handle();
        let mut state = self.lock();
        state.lines.retain(|_, (line, _)| *line != Line::Subscribed);
        state.subscriber = Some(Subscriber { sink: sink.clone(), alive, task });
        Ok(sink)
    }

    fn warn(&self, server: &str, why: &str) {
        if !std::mem::replace(&mut self.lock().warned, true) {
            tracing::warn!(
                target: "lock_core", server, why,
                "redis does not tell us of hand-overs: waiters ask at short intervals instead, which \
                 is slower. See the ACL line in the documentation of `RedisStore`"
            );
        }
    }

    /// Opens a mailbox for a token that is about to wait.
    pub(super) fn mailbox(self: &Arc<Self>, token: Token) -> Mailbox {
        let (sender, news) = mpsc::unbounded_channel();
        self.lock().boxes.insert(token, sender);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Mailbox { inbox: Arc::clone(self), token, news }
    }

    /// Gives a message to the one it is for; if that one does not wait, it is a stray.
    pub(super) fn deliver<'m>(&self, text: &'m str) -> Option<Stray<'m>> {
        let (token, message, name) = Message::parse(text)?;
        let token = Token::parse(token)?;
        let sender = self.lock().boxes.get(&token).cloned();
        match sender {
            // Fails only if the mailbox is dropped in this moment: the janitor has the token then.
            Some(sender) => {
                let _ = sender.send(News::Grant(message));
                None
            }
            None => Some(Stray { token, name }),
        }
    }

    /// Has all who wait ask again.
    pub(super) fn lost(&self) {
        let senders: Vec<_> = self.lock().boxes.values().cloned().collect();
        for sender in senders {
            let _ = sender.send(News::Lost);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds this lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox {
    /// The next news. Dropping the future loses none.
    pub(super) async fn next(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            // Only a second mailbox for the token could end this one, and there is none.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let sender = self.inbox.lock().boxes.remove(&self.token);
        self.inbox.waiting.fetch_sub(1, Ordering::Relaxed);
        drop(sender);
    }
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

impl Subscriber {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a push on the command connection means.
pub(super) fn on_push(connection: &Arc<Connection>, push: &PushInfo) {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::Message, [_, payload]) => on_message(connection, payload),
        (PushKind::Disconnection, _) => connection.inbox().lost(),
        _ => {}
    }
}

fn on_message(connection: &Arc<Connection>, payload: &Value) {
    let text = match payload {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text.as_str()),
        _ => None,
    };
    if let Some(stray) = text.and_then(|text| connection.inbox().deliver(text)) {
        connection.give_back(&stray);
    }
}

/// Listens on the second connection until it breaks.
async fn listen(
    mut stream: redis::aio::PubSubStream,
    connection: Weak<Connection>,
    alive: Arc<AtomicBool>,
) {
    /// Also when the task's runtime ends.
    struct End(Weak<Connection>, Arc<AtomicBool>);
    impl Drop for End {
        fn drop(&mut self) {
            self.1.store(false, Ordering::Release);
            if let Some(connection) = self.0.upgrade() {
                connection.inbox().lost();
            }
        }
    }
    let end = End(connection, alive);
    while let Some(message) = stream.next().await {
        let Some(connection) = end.0.upgrade() else { return };
        if let Ok(payload) = message.get_payload::<Value>() {
            on_message(&connection, &payload);
        }
    }
}
