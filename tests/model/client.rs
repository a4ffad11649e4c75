//! The client: how the Redis store waits (`lock-core/src/store/redis`), the lease
//! (`lock-core/src/lease`), the wait list of the process (`lock-core/src/registry`) and the
//! releaser (`lock-core/src/driver`). Comments name the file that a function models.

use super::protocol::{Event, WrongRule};
use super::state::{
    Client, Command, Cut, InDoubt, Message, Next, PendingClaim, Phase, Place, Promise, Record,
    Reply, Request, Response, Span, Token, Ttl, UnansweredCut,
};
use super::step::Step;

impl Step<'_> {
    /// `acquire.rs`: starts an acquisition with a fresh token.
    pub(crate) fn begin(&mut self, client: usize) {
        let contended = self.protocol.contended;
        let token = self.protocol.token(client, self.state.clients[client].turn);
        let me = &mut self.state.clients[client];
        me.phase = Phase::Waiting;
        me.token = token;
        me.contended = contended;
        self.claim(client);
    }

    /// `wait/mod.rs`: sends a claim.
    pub(crate) fn claim(&mut self, client: usize) {
        let sent = self.time();
        let me = &mut self.state.clients[client];
        let (token, place) = (me.token, me.contended);
        me.pending = Some(PendingClaim { sent, void: false });
        me.next = Next::Never;
        if let Some(known) = &mut me.place
            && self.protocol.wrong_rule == Some(WrongRule::UnansweredClaimsCount)
        {
            known.sent = sent;
        }
        // `in_doubt.rs`: from now on the token may have a place in the queue.
        self.state.records[usize::from(token)].member |= place;
        self.send(client, token, sent, Command::Claim { place, void: false });
    }

    fn send(&mut self, client: usize, token: Token, sent: u8, command: Command) {
        let connection = self.state.clients[client].connection;
        #[allow(clippy::cast_possible_truncation)] // there are two or three
        let client = client as u8;
        self.state.requests.push(Request { client, connection, token, sent, command });
    }

    /// `in_doubt.rs`: the server may still execute the claim whose reply is no longer awaited.
    fn leave_in_doubt(&mut self, client: usize) {
        let me = &mut self.state.clients[client];
        let Some(pending) = me.pending.take() else { return };
        let connection = me.connection;
        let record = &mut self.state.records[usize::from(me.token)];
        record.in_doubt = Some(match record.in_doubt {
            None => InDoubt { connection: Some(connection), void: pending.void },
            Some(before) => InDoubt {
                connection: before.connection.filter(|before| *before == connection),
                void: pending.void && before.void,
            },
        });
    }

    /// `wait/mod.rs`: claims again after a failed call.
    pub(crate) fn time_out_claim(&mut self, client: usize) {
        self.leave_in_doubt(client);
        self.state.clients[client].next = Next::Now;
        self.count(Event::ClaimUnanswered);
    }

    /// Requests on the old connection get no reply any more. The client repeats its claim on the
    /// new connection.
    pub(crate) fn reconnect(&mut self, client: usize) {
        let waits = self.state.clients[client].phase == Phase::Waiting;
        self.leave_in_doubt(client);
        self.state.clients[client].connection += 1;
        self.state.responses.retain(|response| usize::from(response.client) != client);
        for token in self.protocol.tokens(client) {
            if let Some(sent) = &mut self.state.records[token].release {
                *sent = 0;
            }
        }
        if waits {
            self.state.clients[client].next = Next::Now;
        }
    }

    /// Handles a response. A response that is not awaited is ignored.
    pub(crate) fn receive(&mut self, response: &Response) {
        let client = usize::from(response.client);
        let me = &self.state.clients[client];
        match response.reply {
            Reply::Released { connection, claims_over } => {
                if self.state.records[usize::from(response.token)].release == Some(response.sent) {
                    self.released(response.token, connection, claims_over);
                }
            }
            Reply::Renewed { ttl, cut, counts } => {
                // `in_doubt.rs`, `answered`
                let record = &mut self.state.records[usize::from(response.token)];
                if cut {
                    record.cut = None;
                }
                // `protocol.rs`: as good as no reply.
                if !counts {
                    self.count(Event::RenewalBehindCut);
                    return;
                }
                // `state.rs`, `renewed`: only a valid lease is extended.
                let valid = me.lease.outlasts(&self.state.expired);
                if me.phase == Phase::Held && me.token == response.token && valid {
                    let since = self.counts_from(response.sent, WrongRule::DeadlineFromReply);
                    self.state.clients[client].lease.lengthen(since, ttl);
                    self.count(Event::RenewalConfirmed);
                }
            }
            Reply::NotRenewed => {
                // `state.rs`, `lose`
                if me.phase == Phase::Held && me.token == response.token {
                    self.state.clients[client].lease = Span::default();
                }
            }
            Reply::Granted(_) | Reply::Queued { .. } | Reply::Busy | Reply::Void => {
                let awaited = me.pending.is_some_and(|pending| pending.sent == response.sent);
                if awaited && me.token == response.token {
                    self.claimed(client, response);
                } else {
                    self.count(Event::ResponseIgnored);
                }
            }
        }
    }

    /// `wait/mod.rs`: handles the reply to a claim.
    fn claimed(&mut self, client: usize, response: &Response) {
        let me = &mut self.state.clients[client];
        me.pending = None;
        match response.reply {
            Reply::Granted(fence) => {
                let since = self.counts_from(response.sent, WrongRule::DeadlineFromReply);
                self.enter(client, Span::of(since, Ttl::Full), fence);
            }
            Reply::Busy => {
                me.contended = true;
                let again = self.protocol.wrong_rule != Some(WrongRule::NoClaimAfterSubscribing);
                me.next = if again { Next::Now } else { Next::Never };
            }
            Reply::Queued { us, ticket } => {
                me.next = Next::Later;
                // `ticket.rs`, `queued`
                let newer = me.place.is_none_or(|place| {
                    ticket > place.ticket || ticket == place.ticket && response.sent > place.sent
                });
                if newer {
                    me.place = Some(Place { ticket, sent: response.sent, us });
                }
                // `ticket.rs`: a grant may arrive before its ticket.
                if let Some(message) = me.early.take() {
                    self.count(Event::GrantAheadOfTicket);
                    self.judge(client, message);
                }
            }
            // `wait/mod.rs`: claims again.
            Reply::Void => me.next = Next::Now,
            Reply::Released { .. } | Reply::Renewed { .. } | Reply::NotRenewed => {}
        }
    }

    /// Handles a message from the inbox, which is dispatched as long as the token waits.
    pub(crate) fn notified(&mut self, message: Message) {
        let client = self.protocol.owner(message.token);
        let me = &self.state.clients[client];
        if me.phase == Phase::Waiting && me.token == message.token {
            self.judge(client, message);
        }
    }

    /// `ticket.rs`, `judge`
    fn judge(&mut self, client: usize, message: Message) {
        let now = self.time();
        let me = &mut self.state.clients[client];
        let believes_any = self.protocol.wrong_rule == Some(WrongRule::GrantWithoutTicket);
        let place = match me.place {
            Some(place) if place.ticket == message.ticket || believes_any => place,
            Some(place) if place.ticket > message.ticket => {
                self.count(Event::GrantForOldTicket);
                return;
            }
            _ => {
                me.early = Some(message);
                me.next = Next::Now;
                return;
            }
        };
        // The lease counts from `sent`, shifted by the server's time between the reply and the
        // grant. The claim was sent before the server replied, so this is no later than the grant.
        let since = if self.protocol.wrong_rule == Some(WrongRule::GrantDeadlineFromReceipt) {
            now
        } else if message.us <= place.us {
            place.sent
        } else if place.sent <= place.us {
            message.us
        } else {
            now
        };
        let lease = Span::of(since, Ttl::HandOff);
        if !lease.outlasts(&self.state.expired) {
            me.next = Next::Now;
            self.count(Event::GrantExpired);
            return;
        }
        self.count(Event::GrantByMessage);
        self.enter(client, lease, message.number);
    }

    /// The time from which a lease counts: when its claim or renewal was sent.
    fn counts_from(&mut self, sent: u8, fault: WrongRule) -> u8 {
        if self.breaks(fault) { self.time() } else { sent }
    }

    /// `wait/mod.rs`, `in_doubt.rs` and `state.rs`: the client holds the lock.
    fn enter(&mut self, client: usize, lease: Span, fence: u8) {
        if self.state.clients[client].phase == Phase::Held {
            self.breach(Promise::OneGrant);
        }
        let forgets = self.breaks(WrongRule::EntryForgetsClaim);
        if self.breaks(WrongRule::LateAnswerEnters) {
            // The client continues as if it still awaited the reply.
        } else if forgets {
            self.state.clients[client].pending = None;
        } else {
            self.leave_in_doubt(client);
        }
        let me = &mut self.state.clients[client];
        me.place = None;
        me.early = None;
        me.next = Next::Never;
        let record = &mut self.state.records[usize::from(me.token)];
        if record.in_doubt.is_none() || forgets {
            *record = Record::default();
        }
        if !lease.outlasts(&self.state.expired) {
            self.count(Event::GrantTooLate);
            self.give_up(client, false);
            return;
        }
        let me = &mut self.state.clients[client];
        me.phase = Phase::Held;
        me.lease = lease;
        me.fence = (fence, 0);
        self.begin_body(client);
    }

    fn begin_body(&mut self, client: usize) {
        let fence = self.state.clients[client].fence;
        if fence <= self.state.last {
            self.breach(Promise::FencesGrow);
        }
        self.state.last = self.state.last.max(fence);
    }

    /// `protocol.rs`: renews, and cuts if it may.
    pub(crate) fn renew_lease(&mut self, client: usize, ttl: Ttl, cuts: bool) {
        let sent = self.time();
        let Client { token, lease, .. } = self.state.clients[client];
        // `in_doubt.rs`, `renewing`
        let record = &mut self.state.records[usize::from(token)];
        let behind_cut = record.cut.is_some_and(|cut| !cut.void);
        let cut = cuts.then_some(Cut { lease, void: false });
        if cuts {
            record.cut = Some(UnansweredCut { void: false });
        }
        self.send(client, token, sent, Command::Renew { ttl, cut, behind_cut });
    }

    /// `hand_off.rs` and `state.rs`: the next task of the process takes over the lease unchanged.
    pub(crate) fn hand_on(&mut self, client: usize) {
        let now = self.time();
        let me = &mut self.state.clients[client];
        me.turn += 1;
        if self.protocol.wrong_rule != Some(WrongRule::FenceKept) {
            me.fence.1 += 1;
        }
        if self.protocol.wrong_rule == Some(WrongRule::HandOnBeginsLease) {
            me.lease = Span::of(now, Ttl::Full);
        }
        self.count(Event::HandedOn);
        self.begin_body(client);
    }

    /// The guard is dropped, and no task of the process waits: the lock is released on the server.
    pub(crate) fn end(&mut self, client: usize) {
        if !self.state.clients[client].lease.outlasts(&self.state.expired) {
            self.count(Event::LeaseLost);
        }
        self.give_back(client, self.protocol.min_hold && client == 0);
    }

    /// `acquire.rs`: the next task of the process takes over the token, or the lock is released.
    pub(crate) fn give_up(&mut self, client: usize, handed_on: bool) {
        self.leave_in_doubt(client);
        if !handed_on {
            self.give_back(client, false);
            return;
        }
        let me = &mut self.state.clients[client];
        me.turn += 1;
        me.next = Next::Now;
        // `wait/mod.rs`: a token with a record may have a place in the queue.
        me.contended |= self.state.records[usize::from(me.token)] != Record::default();
        if me.place.is_none() {
            me.early = None;
        }
        self.count(Event::ClaimPassedOn);
    }

    fn give_back(&mut self, client: usize, hold: bool) {
        let turns = self.protocol.turns;
        let me = &mut self.state.clients[client];
        let token = me.token;
        me.turn += 1;
        me.phase = if me.turn == turns { Phase::Done } else { Phase::Idle };
        me.token = 0;
        me.contended = false;
        me.next = Next::Never;
        me.place = None;
        me.early = None;
        me.pending = None;
        me.lease = Span::default();
        me.fence = (0, 0);
        let record = &mut self.state.records[usize::from(token)];
        record.hold = hold;
        record.cut = None;
        self.send_release(token);
    }

    /// `releaser.rs`: sends the release once.
    pub(crate) fn send_release(&mut self, token: Token) {
        let sent = self.time();
        let member = !self.breaks(WrongRule::CancelKeepsPlace);
        let record = &mut self.state.records[usize::from(token)];
        record.release = Some(sent);
        let command = Command::Release { member: record.member && member, hold: record.hold };
        self.send(self.protocol.owner(token), token, sent, command);
    }

    /// `in_doubt.rs`: the release is final if no claim of the token can be executed any more.
    fn released(&mut self, token: Token, connection: u8, claims_over: bool) {
        let record = &mut self.state.records[usize::from(token)];
        let same = record.in_doubt.is_none_or(|in_doubt| in_doubt.connection == Some(connection));
        if same
            || claims_over
            || self.protocol.wrong_rule == Some(WrongRule::ReleaseFinalAtFirstAnswer)
        {
            *record = Record::default();
        } else {
            record.release = Some(0);
            self.count(Event::ReleaseNotFinal);
        }
    }
}
