//! Mailboxes: messages about grants go to the tasks that wait with their tokens.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;
use tokio::sync::mpsc;

use super::ticket::GrantMessage;
use crate::store::Token;
use crate::store::redis::in_doubt::InDoubt;
use crate::store::redis::keys::Tag;
use crate::store::redis::protocol::release_orphan;
use crate::store::redis::transport::{Connection, Observer};

/// The mailboxes of a store.
#[derive(Default)]
pub(crate) struct Mailboxes {
    senders: Mutex<Senders>,
    /// How many there are, for readers without the lock.
    len: AtomicUsize,
}

/// Tokens are random already, so the hash needs no random keys.
type Senders = HashMap<Token, mpsc::UnboundedSender<Event>, BuildHasherDefault<DefaultHasher>>;

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
    /// Messages may have been lost.
    Lost,
}

/// A grant for a token that no task waits with.
struct Orphan<'m> {
    token: Token,
    name: &'m str,
}

/// Takes the messages of a connection: each to its mailbox, or, if there is none, back to the
/// server as a release.
pub(crate) struct Incoming<P> {
    pub(crate) mailboxes: Arc<Mailboxes>,
    pub(crate) in_doubt: Arc<InDoubt<P>>,
    pub(crate) tag: Tag,
}

impl Mailboxes {
    /// How many tokens wait.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Opens a mailbox for a token that is about to wait.
    pub(super) fn open(self: &Arc<Self>, token: Token) -> Mailbox {
        let (sender, events) = mpsc::unbounded_channel();
        self.lock().insert(token, sender);
        self.len.fetch_add(1, Ordering::Relaxed);
        Mailbox { mailboxes: Arc::clone(self), token, events }
    }

    /// Delivers a message to its mailbox, or returns it as an orphan.
    fn deliver<'m>(&self, generation: u64, text: &'m str) -> Option<Orphan<'m>> {
        let (token, message, name) = GrantMessage::parse(text)?;
        let token = Token::parse(token)?;
        let sender = self.lock().get(&token).cloned();
        match sender {
            // Fails only if the mailbox is dropped at this moment. The client then releases the
            // token.
            Some(sender) => {
                let _ = sender.send(Event::Grant(message, generation));
                None
            }
            None => Some(Orphan { token, name }),
        }
    }

    /// Makes all waiters claim again.
    fn lost(&self) {
        let senders: Vec<_> = self.lock().values().cloned().collect();
        for sender in senders {
            let _ = sender.send(Event::Lost);
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
        let text = match payload {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
            Value::SimpleString(text) => Some(text.as_str()),
            _ => None,
        };
        let orphan = text.and_then(|text| self.mailboxes.deliver(generation, text));
        if let Some(Orphan { token, name }) = orphan {
            release_orphan(connection, &self.in_doubt, self.tag, token, name);
        }
    }

    fn lost(&self) {
        self.mailboxes.lost();
    }
}
