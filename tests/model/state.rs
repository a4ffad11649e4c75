//! What the model keeps, and how times and numbers are reduced to their order.
//!
//! A time is a rank: of two, only which is earlier is known, and 0 is before all. Nothing tells how long anything takes, so an
//! expiry, a deadline and the time after which a claim is void may come at any moment at which the order allows it. A span of a
//! ttl that counts from `a` is certainly over when one of the same or a longer ttl is that counts from `a` or later.

/// When something happened. 0: never.
pub(crate) type Time = u8;
/// A ticket or the number of a grant. 0: none.
pub(crate) type Number = u8;
/// Names an acquisition.
pub(crate) type Token = u8;

/// The token of somebody who knows nothing of queues.
pub(crate) const FOREIGN: Token = 255;

/// How long something lasts; the order is that of the lengths.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum Ttl {
    /// Of a lock that is handed over.
    Claim,
    /// Of a claim and of a renewal.
    Full,
    /// Of `extend`.
    Long,
}

/// For each ttl, the newest time from which it counts; what lasts longest ends it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Span(pub(crate) [Time; 3]);

impl Span {
    pub(crate) fn of(since: Time, ttl: Ttl) -> Self {
        let mut span = Self::default();
        span.lengthen(since, ttl);
        span
    }

    /// Makes it last for `ttl` from `since` at least.
    pub(crate) fn lengthen(&mut self, since: Time, ttl: Ttl) {
        let ttl = ttl as usize;
        if self.0[ttl..].iter().any(|&longer| longer >= since) {
            return;
        }
        self.0[ttl] = since;
        for shorter in &mut self.0[..ttl] {
            if *shorter <= since {
                *shorter = 0;
            }
        }
    }

    /// Whether it may last still when all that is in `over` is over.
    pub(crate) fn outlasts(&self, over: &Self) -> bool {
        self.0.iter().zip(&over.0).any(|(since, over)| since > over)
    }

    /// Notes in it that `span` is over, and with it all that ends before.
    pub(crate) fn ends(&mut self, span: &Self) {
        for (ttl, &since) in span.0.iter().enumerate() {
            for over in &mut self.0[..=ttl] {
                *over = since.max(*over);
            }
        }
    }
}

/// The key of the lock.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Lock {
    pub(crate) token: Token,
    /// Whether the value is the token itself, rather than `=` and the token.
    pub(crate) named: bool,
    /// Whether it was released and stays for `min_hold`.
    pub(crate) kept: bool,
    pub(crate) expiry: Span,
}

/// What a client asks of the server. Carried by one connection, in its order.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Request {
    pub(crate) client: u8,
    pub(crate) connection: u8,
    pub(crate) token: Token,
    pub(crate) sent: Time,
    pub(crate) ask: Ask,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Ask {
    Claim {
        place: bool,
        /// The server's clock has passed what it was good for.
        void: bool,
    },
    Release {
        member: bool,
        hold: bool,
    },
    Renew(Ttl),
}

/// An answer. Those of one client come in order.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Reply {
    pub(crate) client: u8,
    pub(crate) token: Token,
    /// When that was sent which is answered.
    pub(crate) sent: Time,
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Answer {
    Granted(Number),
    Queued {
        us: Time,
        ticket: Number,
    },
    Busy,
    Void,
    Released {
        connection: u8,
        /// By its time in the answer, no claim that went before can be executed any more.
        claims_over: bool,
    },
    Renewed(Ttl),
    NotRenewed,
}

impl Answer {
    /// Whether it is to a renewal.
    pub(crate) const fn is_about_lease(&self) -> bool {
        matches!(self, Self::Renewed(_) | Self::NotRenewed)
    }
}

/// What the release of another, or its claim, publishes for a waiter. Comes at any time, in any order.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Message {
    pub(crate) token: Token,
    pub(crate) ticket: Number,
    pub(crate) fence: Number,
    pub(crate) us: Time,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum Phase {
    Idle,
    Waiting,
    Held,
    Done,
    Crashed,
}

/// Whether and when a waiter claims by itself.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum Next {
    Never,
    Now,
    /// At the end of its pause.
    Later,
}

/// `Ticketed` of `waiter.rs`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Place {
    pub(crate) ticket: Number,
    pub(crate) sent: Time,
    pub(crate) us: Time,
}

/// A claim whose answer is awaited.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Asked {
    pub(crate) sent: Time,
    pub(crate) void: bool,
}

/// A process that wants the lock some times over, one task after another.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    /// Of which task it is the turn.
    pub(crate) turn: u8,
    pub(crate) token: Token,
    pub(crate) connection: u8,
    pub(crate) contended: bool,
    pub(crate) asked: Option<Asked>,
    pub(crate) next: Next,
    pub(crate) place: Option<Place>,
    pub(crate) early: Option<Message>,
    pub(crate) lease: Span,
    /// The number of the grant and that of the hand-off within the process.
    pub(crate) fence: (Number, u8),
}

/// What `traces.rs` and the janitor know of a token.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Trace {
    pub(crate) flight: Option<Flight>,
    pub(crate) member: bool,
    /// A release that has to be confirmed: when it was last sent, 0 if it has to be sent again.
    pub(crate) release: Option<Time>,
    pub(crate) hold: bool,
}

/// Unanswered claims.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Flight {
    /// The connection that carried all of them, if it was one.
    pub(crate) connection: Option<u8>,
    pub(crate) void: bool,
}

/// What may happen only so often.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Rare {
    /// A message is lost.
    Loss,
    /// A message comes twice.
    Double,
    Crash,
    /// Nobody listens to the inbox of a live waiter.
    Unheard,
    /// The lock of a live client expires.
    Expiry,
    TicketExpiry,
    /// Somebody who knows nothing of queues takes the free lock.
    Foreign,
    Cancel,
    /// A client does not wait for an answer that would still come.
    Timeout,
    Reconnect,
    Void,
    /// A waiter claims again though it is not alone.
    Refresh,
    Renew,
    Extend,
    HandOn,
}

pub(crate) const KINDS: usize = Rare::HandOn as usize + 1;

/// What was broken, by a transition rather than in a state.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Promise {
    FencesGrow,
    OthersAreNotReleased,
    ReleasedStaysReleased,
    NothingIsResurrected,
    OneGrant,
    FirstInFirstOut,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct State {
    pub(crate) lock: Option<Lock>,
    /// Tokens with their tickets, in order of service.
    pub(crate) queue: Vec<(Token, Number)>,
    pub(crate) clients: Vec<Client>,
    pub(crate) traces: Vec<Trace>,
    pub(crate) requests: Vec<Request>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) pushes: Vec<Message>,
    pub(crate) left: [u8; KINDS],
    /// What has expired.
    pub(crate) over: Span,
    /// The fence of the last body that began.
    pub(crate) last: (Number, u8),
    pub(crate) broken: Option<Promise>,
}

/// Above all numbers of hand-offs.
const ANY_HAND_OFF: u8 = 64;

impl State {
    /// The newest of each kind.
    pub(crate) fn newest(&mut self) -> [u8; 3] {
        let mut newest = [0; 3];
        self.each(|kind, _, rank| newest[kind as usize] = (*rank).max(newest[kind as usize]));
        newest
    }

    /// Replaces times and numbers by their ranks, and drops what has no effect, so that equal situations are equal states.
    pub(crate) fn reduce(&mut self) {
        for client in &mut self.clients {
            if client.phase == Phase::Held && !client.lease.outlasts(&self.over) {
                client.lease = Span::default();
            }
        }
        self.requests.sort_by_key(|request| (request.client, request.connection));
        self.replies.sort_by_key(|reply| reply.client);
        self.pushes.sort_unstable();
        let mut used = [[false; 256]; 3];
        self.each(|kind, exact, rank| used[kind as usize][usize::from(*rank)] |= exact);
        let mut ranks = [[0; 256]; 3];
        for kind in 0..3 {
            let mut rank = 0;
            for number in 1..256 {
                rank += u8::from(used[kind][number]);
                ranks[kind][number] = rank;
            }
        }
        if self.last.0 > 0 && !used[Kind::Fence as usize][usize::from(self.last.0)] {
            self.last.1 = ANY_HAND_OFF;
        }
        self.each(|kind, _, rank| *rank = ranks[kind as usize][usize::from(*rank)]);
    }

    /// Puts the clients, which are alike, into an order, so that of states that differ by names alone one is looked at.
    pub(crate) fn sort_clients(&mut self, turns: u8) {
        let key = |client: &Client, index: usize| {
            let first = index * usize::from(turns);
            let turn = client.token.saturating_sub(u8::try_from(first).unwrap_or(u8::MAX));
            let traces = &self.traces[first..first + usize::from(turns)];
            (Client { token: turn, early: None, ..client.clone() }, traces.to_vec())
        };
        let mut sorted: Vec<_> =
            self.clients.iter().enumerate().map(|(i, c)| (key(c, i), i)).collect();
        if sorted.is_sorted() {
            return;
        }
        sorted.sort_unstable();
        let mut to = [0_u8; 8];
        for (new, (_, old)) in (0_u8..).zip(&sorted) {
            to[*old] = new;
        }
        let token = |token: &mut Token| {
            if *token != FOREIGN {
                *token = to[usize::from(*token / turns)] * turns + *token % turns;
            }
        };
        self.traces = sorted.iter().flat_map(|((_, traces), _)| traces.iter().copied()).collect();
        let olds = std::mem::take(&mut self.clients);
        self.clients = sorted.iter().map(|(_, old)| olds[*old].clone()).collect();
        for client in &mut self.clients {
            if matches!(client.phase, Phase::Waiting | Phase::Held) {
                token(&mut client.token);
            }
            if let Some(message) = &mut client.early {
                token(&mut message.token);
            }
        }
        if let Some(lock) = &mut self.lock {
            token(&mut lock.token);
        }
        self.queue.iter_mut().for_each(|(queued, _)| token(queued));
        self.pushes.iter_mut().for_each(|message| token(&mut message.token));
        for request in &mut self.requests {
            token(&mut request.token);
            request.client = to[usize::from(request.client)];
        }
        for reply in &mut self.replies {
            token(&mut reply.token);
            reply.client = to[usize::from(reply.client)];
        }
    }

    /// Visits all ranks. Those that are not exact are bounds: the greatest exact one that is not above them is as good.
    pub(crate) fn each(&mut self, mut visit: impl FnMut(Kind, bool, &mut u8)) {
        use Kind::{Fence, Ticket, Time};
        for since in &mut self.over.0 {
            visit(Time, false, since);
        }
        for since in self.lock.iter_mut().flat_map(|lock| &mut lock.expiry.0) {
            visit(Time, false, since);
        }
        visit(Fence, false, &mut self.last.0);
        for (_, ticket) in &mut self.queue {
            visit(Ticket, true, ticket);
        }
        for client in &mut self.clients {
            if let Some(asked) = &mut client.asked {
                visit(Time, true, &mut asked.sent);
            }
            if let Some(place) = &mut client.place {
                visit(Ticket, true, &mut place.ticket);
                visit(Time, true, &mut place.sent);
                visit(Time, false, &mut place.us);
            }
            for since in &mut client.lease.0 {
                visit(Time, true, since);
            }
            visit(Fence, true, &mut client.fence.0);
        }
        let early = self.clients.iter_mut().filter_map(|client| client.early.as_mut());
        for message in self.pushes.iter_mut().chain(early) {
            visit(Ticket, true, &mut message.ticket);
            visit(Fence, true, &mut message.fence);
            visit(Time, true, &mut message.us);
        }
        for trace in &mut self.traces {
            if let Some(sent) = &mut trace.release {
                visit(Time, true, sent);
            }
        }
        for request in &mut self.requests {
            visit(Time, true, &mut request.sent);
        }
        for reply in &mut self.replies {
            visit(Time, true, &mut reply.sent);
            match &mut reply.answer {
                Answer::Granted(fence) => visit(Fence, true, fence),
                Answer::Queued { us, ticket } => {
                    visit(Time, false, us);
                    visit(Ticket, true, ticket);
                }
                Answer::Busy
                | Answer::Void
                | Answer::Released { .. }
                | Answer::Renewed(_)
                | Answer::NotRenewed => {}
            }
        }
    }
}

/// Numbers of different kinds are never compared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Time,
    Ticket,
    Fence,
}
