//! The state of the model, and the reduction of times and numbers to their order.
//!
//! A time is a rank: the model knows the order of two times, not their distance, and 0 is before
//! all others. It does not know how long anything takes. An expiry, a deadline, or the time after
//! which a claim is void may therefore come at any moment that the order allows. The model knows
//! only this about spans: a span that counts from `a` has ended when a span of the same or a longer
//! ttl that counts from `a` or later has ended.
//!
//! A clock of the server that goes back puts expiries off by an unknown span, so they may come at
//! any later moment. What a client reckons from two times of such a server comes out too early,
//! which only shortens its lease.

/// The rank of an event in time. 0: it never happened.
pub(crate) type Time = u8;
/// A ticket or the number of a grant. 0: none.
pub(crate) type Number = u8;
/// Identifies an acquisition.
pub(crate) type Token = u8;

/// The token of a foreign client, which ignores the queue.
pub(crate) const FOREIGN: Token = 255;

/// The length of a lease, in ascending order.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum Ttl {
    /// The hand-off TTL.
    HandOff,
    /// The ttl of claims and renewals.
    Full,
    /// The ttl of `extend`.
    Long,
}

/// For each ttl, the latest time from which it counts. The span ends when the last of them ends.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Span(pub(crate) [Time; 3]);

impl Span {
    pub(crate) fn of(since: Time, ttl: Ttl) -> Self {
        let mut span = Self::default();
        span.lengthen(since, ttl);
        span
    }

    /// Extends the span to last at least for `ttl` from `since`.
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

    /// Whether this span may still last although all spans in `over` have ended.
    pub(crate) fn outlasts(&self, over: &Self) -> bool {
        self.0.iter().zip(&over.0).any(|(since, over)| since > over)
    }

    /// Records that `span` has ended, and with it every span that ends earlier.
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
    /// Whether the value is the token itself; otherwise it is `=` and the token.
    pub(crate) named: bool,
    /// Whether the lock was released but is kept for `min_hold`.
    pub(crate) kept: bool,
    /// When it expires at the earliest.
    pub(crate) expiry: Span,
    /// Whether the server's clock went back since, so that it expires later than any client asked.
    pub(crate) excess: bool,
}

/// A command on its way to the server. A connection delivers its requests in order.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Request {
    pub(crate) client: u8,
    pub(crate) connection: u8,
    pub(crate) token: Token,
    pub(crate) sent: Time,
    pub(crate) command: Command,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Command {
    Claim {
        place: bool,
        /// The server's clock has passed the time up to which the claim counts.
        void: bool,
    },
    Release {
        member: bool,
        hold: bool,
    },
    Renew {
        ttl: Ttl,
        cut: Option<Cut>,
        /// A renewal that cuts had no reply when this was sent.
        behind_cut: bool,
    },
}

/// A renewal brings an expiry back to what was asked.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Cut {
    /// The lease that the client believes in when it sends the renewal.
    pub(crate) lease: Span,
    /// The server's clock has passed the time up to which it may cut.
    pub(crate) void: bool,
}

/// A reply on its way to a client. The responses to one client arrive in order.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Response {
    pub(crate) client: u8,
    pub(crate) token: Token,
    /// When the request was sent.
    pub(crate) sent: Time,
    pub(crate) reply: Reply,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Reply {
    Granted(Number),
    Queued {
        us: Time,
        ticket: Number,
    },
    Busy,
    Void,
    Released {
        connection: u8,
        /// The time in the reply proves that no earlier claim can be executed any more.
        claims_over: bool,
    },
    Renewed {
        ttl: Ttl,
        /// Whether it was to cut.
        cut: bool,
        /// The lease may count on it: no cut can follow that does not know of it.
        counts: bool,
    },
    NotRenewed,
}

impl Reply {
    /// Whether this replies to a renewal.
    pub(crate) const fn is_about_lease(&self) -> bool {
        matches!(self, Self::Renewed { .. } | Self::NotRenewed)
    }
}

/// A grant that a release or claim of another client publishes for a waiter. Messages arrive at any
/// time, in any order.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Message {
    pub(crate) token: Token,
    pub(crate) ticket: Number,
    pub(crate) number: Number,
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

/// Whether and when a waiter claims again by itself.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum Next {
    Never,
    Now,
    /// After its pause.
    Later,
}

/// The place in the queue, as `ticket.rs` keeps it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Place {
    pub(crate) ticket: Number,
    pub(crate) sent: Time,
    pub(crate) us: Time,
}

/// A claim that awaits its reply.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct PendingClaim {
    pub(crate) sent: Time,
    pub(crate) void: bool,
}

/// A process whose tasks acquire the lock one after another.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    /// The number of the current task.
    pub(crate) turn: u8,
    pub(crate) token: Token,
    pub(crate) connection: u8,
    pub(crate) contended: bool,
    pub(crate) pending: Option<PendingClaim>,
    pub(crate) next: Next,
    pub(crate) place: Option<Place>,
    pub(crate) early: Option<Message>,
    pub(crate) lease: Span,
    /// The number of the grant, and the number of the hand-off within the process.
    pub(crate) fence: (Number, u8),
}

/// What the client still has to settle for a token: see `in_doubt.rs` and `releaser.rs`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Record {
    pub(crate) in_doubt: Option<InDoubt>,
    pub(crate) member: bool,
    /// An unconfirmed release: when it was last sent, or 0 if it must be sent again.
    pub(crate) release: Option<Time>,
    pub(crate) hold: bool,
    pub(crate) cut: Option<UnansweredCut>,
}

/// A renewal that cuts and has no reply, so that the server may still execute it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct UnansweredCut {
    pub(crate) void: bool,
}

/// Claims without a reply, which the server may still execute.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct InDoubt {
    /// The connection that carried all of them; `None` if there were several.
    pub(crate) connection: Option<u8>,
    pub(crate) void: bool,
}

/// Events whose number is limited.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Rare {
    /// A message is lost.
    Loss,
    /// A message comes twice.
    Duplicate,
    Crash,
    /// The inbox of a live waiter has no subscriber.
    NoSubscriber,
    /// The lock of a live client expires.
    Expiry,
    TicketExpiry,
    /// A foreign client, which ignores the queue, acquires the free lock.
    Foreign,
    Cancel,
    /// A client stops waiting for a reply that would still arrive.
    Timeout,
    Reconnect,
    Void,
    /// A waiter claims again although other events are possible.
    Refresh,
    Renew,
    Extend,
    HandOn,
    /// The server's clock goes back.
    ClockStep,
}

pub(crate) const KINDS: usize = Rare::ClockStep as usize + 1;

/// Promises that a transition can breach. The others are properties of states.
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
    /// Tokens with their tickets, in the order in which they are served.
    pub(crate) queue: Vec<(Token, Number)>,
    pub(crate) clients: Vec<Client>,
    pub(crate) records: Vec<Record>,
    pub(crate) requests: Vec<Request>,
    pub(crate) responses: Vec<Response>,
    pub(crate) pushes: Vec<Message>,
    pub(crate) remaining: [u8; KINDS],
    /// The spans that have ended.
    pub(crate) expired: Span,
    /// Whether the server's clock went back.
    pub(crate) stepped: bool,
    /// The fencing token of the latest critical section.
    pub(crate) last: (Number, u8),
    pub(crate) breached: Option<Promise>,
}

/// Greater than every number of a hand-off.
const ANY_HAND_OFF: u8 = 64;

impl State {
    /// The greatest number of each kind.
    pub(crate) fn newest(&mut self) -> [u8; 3] {
        let mut newest = [0; 3];
        self.each(|kind, _, rank| newest[kind as usize] = (*rank).max(newest[kind as usize]));
        newest
    }

    /// Replaces times and numbers by their ranks, and drops what has no effect, so that equivalent
    /// states become equal.
    pub(crate) fn reduce(&mut self) {
        for client in &mut self.clients {
            if client.phase == Phase::Held && !client.lease.outlasts(&self.expired) {
                client.lease = Span::default();
            }
        }
        self.requests.sort_by_key(|request| (request.client, request.connection));
        self.responses.sort_by_key(|response| response.client);
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

    /// Sorts the clients, which are interchangeable, so that the model visits only one of the
    /// states that differ by the clients' numbers alone.
    pub(crate) fn sort_clients(&mut self, turns: u8) {
        let key = |client: &Client, index: usize| {
            let first = index * usize::from(turns);
            let turn = client.token.saturating_sub(u8::try_from(first).unwrap_or(u8::MAX));
            let records = &self.records[first..first + usize::from(turns)];
            (Client { token: turn, early: None, ..client.clone() }, records.to_vec())
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
        self.records =
            sorted.iter().flat_map(|((_, records), _)| records.iter().copied()).collect();
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
        for response in &mut self.responses {
            token(&mut response.token);
            response.client = to[usize::from(response.client)];
        }
    }

    /// Visits all ranks. A rank that is not exact is a bound: it can be replaced by the greatest
    /// exact rank that is not above it.
    pub(crate) fn each(&mut self, mut visit: impl FnMut(Kind, bool, &mut u8)) {
        use Kind::{Fence, Ticket, Time};
        for since in &mut self.expired.0 {
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
            if let Some(pending) = &mut client.pending {
                visit(Time, true, &mut pending.sent);
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
            visit(Fence, true, &mut message.number);
            visit(Time, true, &mut message.us);
        }
        for record in &mut self.records {
            if let Some(sent) = &mut record.release {
                visit(Time, true, sent);
            }
        }
        for request in &mut self.requests {
            visit(Time, true, &mut request.sent);
            if let Command::Renew { cut: Some(cut), .. } = &mut request.command {
                for since in &mut cut.lease.0 {
                    visit(Time, true, since);
                }
            }
        }
        for response in &mut self.responses {
            visit(Time, true, &mut response.sent);
            match &mut response.reply {
                Reply::Granted(fence) => visit(Fence, true, fence),
                Reply::Queued { us, ticket } => {
                    visit(Time, false, us);
                    visit(Ticket, true, ticket);
                }
                Reply::Busy
                | Reply::Void
                | Reply::Released { .. }
                | Reply::Renewed { .. }
                | Reply::NotRenewed => {}
            }
        }
    }
}

/// The kind of a number. Numbers of different kinds are never compared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Time,
    Ticket,
    Fence,
}
