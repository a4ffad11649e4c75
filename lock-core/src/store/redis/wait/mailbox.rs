//! Mailboxes: messages about grants go to the tasks that wait with their tokens.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::Value;
use tokio::sync::mpsc;

use super::ticket::GrantMessage;
use crate::store::redis::in_doubt::InDoubt;
use crate::store::redis::keys::Tag;
use crate::store::redis::protocol::release_stray_grant;
use crate::store::redis::transport::{Connection, Observer};
use crate::store::{ForceReleaseListener, ForceReleaseListeners, Token};

/// The mailboxes of a store.
#[derive(Default)]
pub(crate) struct Mailboxes {
    senders: Mutex<Senders>,
    /// How many there are, for readers without the lock.
    len: AtomicUsize,
    /// The clients that listen for forced releases. The message of one is the bare token.
    force_releases: ForceReleaseListeners,
}

/// Tokens are random already, so the hash needs no random keys.
type Senders = HashMap<Token, Sender, BuildHasherDefault<DefaultHasher>>;

/// Where the events of a token go, and the tag of the lock that it waits for.
#[derive(Clone)]
struct Sender {
    events: mpsc::UnboundedSender<Event>,
    tag: Tag,
}

/// Receives the events of one token, until it is dropped.
pub(crate) struct Mailbox {
    mailboxes: Arc<Mailboxes>,
    token: Token,
    events: mpsc::UnboundedReceiver<Event>,
}

/// What a waiter receives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A message, and the connection that brought it.
    Grant(GrantMessage, u64),
    /// Messages may have been missed.
    Missed,
}

/// A grant for a token that no task waits with.
pub(super) struct StrayGrant<'m> {
    pub(super) token: Token,
    pub(super) name: &'m str,
}

/// Takes the messages of a connection: each to its mailbox. A grant without a mailbox is released
/// if its token is among the last that were released here. Any other ends with its hand-off TTL.
pub(crate) struct Incoming<P> {
    pub(crate) mailboxes: Arc<Mailboxes>,
    pub(crate) in_doubt: Arc<InDoubt<P>>,
}

impl Mailboxes {
    /// How many tokens wait.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Tells `listener` of locks that were taken by force.
    pub(super) fn report_forced_releases(&self, listener: Weak<dyn ForceReleaseListener>) {
        self.force_releases.add(listener);
    }

    /// Opens a mailbox for a token that is about to wait for a lock with this tag.
    pub(super) fn open(self: &Arc<Self>, token: Token, tag: Tag) -> Mailbox {
        let (sender, events) = mpsc::unbounded_channel();
        self.lock().insert(token, Sender { events: sender, tag });
        self.len.fetch_add(1, Ordering::Relaxed);
        Mailbox { mailboxes: Arc::clone(self), token, events }
    }

    /// Delivers a message to its mailbox, or returns it as a stray grant.
    pub(super) fn deliver<'m>(
        &self,
        generation: u64,
        payload: &'m Value,
    ) -> Option<StrayGrant<'m>> {
        let text = match payload {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
            Value::SimpleString(text) => text,
            _ => return None,
        };
        if let Some(token) = Token::parse(text) {
            self.force_releases.tell(token);
            return None;
        }
        let (token, message, name) = GrantMessage::parse(text)?;
        let token = Token::parse(token)?;
        let sender = self.lock().get(&token).cloned();
        match sender {
            // Fails only if the mailbox is dropped at this moment. The client then releases the
            // token.
            Some(sender) => {
                let _ = sender.events.send(Event::Grant(message, generation));
                None
            }
            None => Some(StrayGrant { token, name }),
        }
    }

    /// Makes all waiters claim again.
    fn missed(&self) {
        self.missed_by(|_| true);
    }

    /// Makes those claim again that wait for locks with such tags.
    pub(super) fn missed_by(&self, is_concerned: impl Fn(Tag) -> bool) {
        let senders: Vec<_> =
            self.lock().values().filter(|sender| is_concerned(sender.tag)).cloned().collect();
        for sender in senders {
            let _ = sender.events.send(Event::Missed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Senders> {
        // Nothing that holds this lock panics.
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox {
    /// The next event. Dropping the future loses none.
    pub(super) async fn next(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            // Only a second mailbox for the token could close this one, and there is none.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let sender = self.mailboxes.lock().remove(&self.token);
        self.mailboxes.len.fetch_sub(1, Ordering::Relaxed);
        drop(sender);
    }
}

impl<P: Send + 'static> Observer for Incoming<P> {
    fn message(&self, connection: &Arc<Connection>, generation: u64, payload: &Value) {
        if let Some(StrayGrant { token, name }) = self.mailboxes.deliver(generation, payload) {
            release_stray_grant(connection, &self.in_doubt, token, name);
        }
    }

    fn missed(&self) {
        self.mailboxes.missed();
    }
}
