//! What passes through a proxy, and the rules for it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::rule::Rules;
use crate::op::Op;

/// A message that came for the inbox of a client.
#[derive(Clone, Debug)]
pub struct Message {
    /// What it says.
    pub text: String,
    /// When it came to the proxy.
    pub came: Instant,
    /// When it was passed on, for the first time.
    pub passed: Option<Instant>,
}

/// What all connections through a proxy share.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) rules: Rules,
    seen: [AtomicUsize; Op::COUNT],
    reply_len: [AtomicUsize; Op::COUNT],
    messages: Mutex<Vec<Message>>,
}

impl Traffic {
    pub(super) fn see(&self, op: Op) {
        self.seen[op as usize].fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn seen(&self, op: Op) -> usize {
        self.seen[op as usize].load(Ordering::Acquire)
    }

    pub(super) fn replied(&self, op: Op, len: usize) {
        self.reply_len[op as usize].store(len, Ordering::Release);
    }

    pub(super) fn reply_len(&self, op: Op) -> usize {
        self.reply_len[op as usize].load(Ordering::Acquire)
    }

    /// Records a message, and gives its index in the list.
    pub(super) fn message_came(&self, text: String) -> usize {
        let mut messages = self.messages.lock().unwrap();
        messages.push(Message { text, came: Instant::now(), passed: None });
        messages.len() - 1
    }

    pub(super) fn message_passed(&self, index: usize) {
        let passed = &mut self.messages.lock().unwrap()[index].passed;
        let _ = passed.get_or_insert_with(Instant::now);
    }

    pub(super) fn messages(&self) -> Vec<Message> {
        self.messages.lock().unwrap().clone()
    }
}
