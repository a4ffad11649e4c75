//! Channels: who listens, and which message goes where.

use std::collections::BTreeMap;

use super::resp::Reply;
use crate::net::Conn;

/// The channels of a server.
#[derive(Default)]
pub(super) struct Channels(BTreeMap<u64, Subscriber>);

struct Subscriber {
    conn: Conn,
    resp3: bool,
    channels: Vec<(Kind, Vec<u8>)>,
}

/// How a channel belongs to its server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Plain,
    /// Of a slot of a cluster.
    Sharded,
}

/// Bytes for a connection.
pub(super) type Told = (Conn, Vec<u8>);

impl Kind {
    /// What tells of such a channel: a subscription, its end, and a message.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Plain => ["subscribe", "unsubscribe", "message"],
            Self::Sharded => ["ssubscribe", "sunsubscribe", "smessage"],
        }
    }
}

impl Channels {
    pub(super) fn subscribe(
        &mut self,
        kind: Kind,
        channel: &[u8],
        conn: &Conn,
        resp3: bool,
    ) -> Reply {
        let subscriber = self.0.entry(conn.id()).or_insert_with(|| Subscriber {
            conn: conn.clone(),
            resp3,
            channels: Vec::new(),
        });
        let channel = (kind, channel.to_vec());
        if !subscriber.channels.contains(&channel) {
            subscriber.channels.push(channel.clone());
        }
        let [subscribed, ..] = kind.words();
        subscriber.told(kind, subscribed, channel.1)
    }

    /// What a message becomes, for each of its receivers.
    pub(super) fn publish(&self, kind: Kind, channel: &[u8], message: &[u8]) -> Vec<Told> {
        let hears =
            |it: &&Subscriber| it.channels.iter().any(|(of, it)| *of == kind && it == channel);
        let [.., name] = kind.words();
        let told = Reply::Push([name.as_bytes(), channel, message].map(Reply::bulk).into());
        self.0.values().filter(hears).map(|subscriber| subscriber.bytes(&told)).collect()
    }

    /// Ends the subscriptions of sharded channels that this server does not keep any more. Returns
    /// what tells of it.
    pub(super) fn keep(&mut self, is_kept: impl Fn(&[u8]) -> bool) -> Vec<Told> {
        let mut told = Vec::new();
        let [_, ended, _] = Kind::Sharded.words();
        for subscriber in self.0.values_mut() {
            let is_over =
                |(kind, channel): &(Kind, Vec<u8>)| *kind == Kind::Sharded && !is_kept(channel);
            while let Some(at) = subscriber.channels.iter().position(is_over) {
                let (kind, channel) = subscriber.channels.remove(at);
                let message = subscriber.told(kind, ended, channel);
                told.push(subscriber.bytes(&message));
            }
        }
        told
    }

    /// Whether a connection can carry messages only, because it has subscribed by RESP2.
    pub(super) fn only_listens(&self, conn: u64) -> bool {
        self.0.get(&conn).is_some_and(|subscriber| !subscriber.resp3)
    }

    /// The connection is closed.
    pub(super) fn forget(&mut self, conn: u64) {
        self.0.remove(&conn);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Subscriber {
    /// Tells of a channel, and how many of its kind there are.
    fn told(&self, kind: Kind, what: &str, channel: Vec<u8>) -> Reply {
        let count = self.channels.iter().filter(|(of, _)| *of == kind).count();
        Reply::Push(vec![Reply::bulk(what), Reply::Bulk(channel), Reply::Int(count as i64)])
    }

    fn bytes(&self, message: &Reply) -> Told {
        let mut wire = Vec::new();
        message.encode(self.resp3, &mut wire);
        (self.conn.clone(), wire)
    }
}
