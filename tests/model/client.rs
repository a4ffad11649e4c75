//! The client: `wait.rs`, `waiter.rs`, `traces.rs` and `mod.rs` of `lock-core/src/store/redis`, the lease in
//! `lock-core/src/lease`, the line within the process in `lock-core/src/registry`, and the janitor in `lock-core/src/driver`.

use super::protocol::{Broken, Event};
use super::state::{
    Answer, Ask, Asked, Flight, Message, Next, Phase, Place, Promise, Reply, Request, Span, Token,
    Trace, Ttl,
};
use super::step::Step;

impl Step<'_> {
    /// acquire.rs, `Pending::new`: a fresh token.
    pub(crate) fn begin(&mut self, client: usize) {
        let contended = self.protocol.contended;
        let token = self.protocol.token(client, self.state.clients[client].turn);
        let me = &mut self.state.clients[client];
        me.phase = Phase::Waiting;
        me.token = token;
        me.contended = contended;
        self.claim(client);
    }

    /// wait.rs, `ask`; mod.rs, `claim_once`.
    pub(crate) fn claim(&mut self, client: usize) {
        let sent = self.time();
        let me = &mut self.state.clients[client];
        let (token, place) = (me.token, me.contended);
        me.asked = Some(Asked { sent, void: false });
        me.next = Next::Never;
        if let Some(known) = &mut me.place
            && self.protocol.broken == Some(Broken::UnansweredClaimsCount)
        {
            known.sent = sent;
        }
        // traces.rs, `queue`
        self.state.traces[usize::from(token)].member |= place;
        self.send(client, token, sent, Ask::Claim { place, void: false });
    }

    fn send(&mut self, client: usize, token: Token, sent: u8, ask: Ask) {
        let connection = self.state.clients[client].connection;
        #[allow(clippy::cast_possible_truncation)] // there are two or three
        let client = client as u8;
        self.state.requests.push(Request { client, connection, token, sent, ask });
    }

    /// traces.rs, `InFlight::drop`: the claim under way may still be executed.
    fn leave_unanswered(&mut self, client: usize) {
        let me = &mut self.state.clients[client];
        let Some(asked) = me.asked.take() else { return };
        let connection = me.connection;
        let trace = &mut self.state.traces[usize::from(me.token)];
        trace.flight = Some(match trace.flight {
            None => Flight { connection: Some(connection), void: asked.void },
            Some(before) => Flight {
                connection: before.connection.filter(|before| *before == connection),
                void: asked.void && before.void,
            },
        });
    }

    /// wait.rs, `failed`: asks again after a pause.
    pub(crate) fn give_up_on_the_answer(&mut self, client: usize) {
        self.leave_unanswered(client);
        self.state.clients[client].next = Next::Now;
        self.count(Event::ClaimUnanswered);
    }

    /// What was asked on the old connection is not answered any more. mod.rs, `claim`: once more, on the new one.
    pub(crate) fn reconnect(&mut self, client: usize) {
        let waits = self.state.clients[client].phase == Phase::Waiting;
        self.leave_unanswered(client);
        self.state.clients[client].connection += 1;
        self.state.replies.retain(|reply| usize::from(reply.client) != client);
        for token in self.protocol.tokens(client) {
            if let Some(sent) = &mut self.state.traces[token].release {
                *sent = 0;
            }
        }
        if waits {
            self.state.clients[client].next = Next::Now;
        }
    }

    /// An answer. One that is not awaited is ignored.
    pub(crate) fn answered(&mut self, reply: &Reply) {
        let client = usize::from(reply.client);
        let me = &self.state.clients[client];
        match reply.answer {
            Answer::Released { connection, claims_over } => {
                if self.state.traces[usize::from(reply.token)].release == Some(reply.sent) {
                    self.released(reply.token, connection, claims_over);
                }
            }
            Answer::Renewed(ttl) => {
                // state.rs, `renewed`: only a lease that is good.
                let good = me.lease.outlasts(&self.state.over);
                if me.phase == Phase::Held && me.token == reply.token && good {
                    let since = self.counts_from(reply.sent, Broken::DeadlineFromReply);
                    self.state.clients[client].lease.lengthen(since, ttl);
                    self.count(Event::RenewalConfirmed);
                }
            }
            Answer::NotRenewed => {
                // state.rs, `lose`
                if me.phase == Phase::Held && me.token == reply.token {
                    self.state.clients[client].lease = Span::default();
                }
            }
            Answer::Granted(_) | Answer::Queued { .. } | Answer::Busy | Answer::Void => {
                let awaited = me.asked.is_some_and(|asked| asked.sent == reply.sent);
                if awaited && me.token == reply.token {
                    self.claimed(client, reply);
                } else {
                    self.count(Event::AnswerIgnored);
                }
            }
        }
    }

    /// wait.rs, `ask`: the answer to a claim.
    fn claimed(&mut self, client: usize, reply: &Reply) {
        let me = &mut self.state.clients[client];
        me.asked = None;
        match reply.answer {
            Answer::Granted(fence) => {
                let since = self.counts_from(reply.sent, Broken::DeadlineFromReply);
                self.enter(client, Span::of(since, Ttl::Full), fence);
            }
            Answer::Busy => {
                me.contended = true;
                let again = self.protocol.broken != Some(Broken::NoClaimAfterSubscribing);
                me.next = if again { Next::Now } else { Next::Never };
            }
            Answer::Queued { us, ticket } => {
                me.next = Next::Later;
                // waiter.rs, `queued`
                let newer = me.place.is_none_or(|place| {
                    ticket > place.ticket || ticket == place.ticket && reply.sent > place.sent
                });
                if newer {
                    me.place = Some(Place { ticket, sent: reply.sent, us });
                }
                // waiter.rs, `early`
                if let Some(message) = me.early.take() {
                    self.count(Event::GrantAheadOfTicket);
                    self.judge(client, message);
                }
            }
            // wait.rs, `claim_until`: it asks again.
            Answer::Void => me.next = Next::Now,
            Answer::Released { .. } | Answer::Renewed(_) | Answer::NotRenewed => {}
        }
    }

    /// A message from the inbox. It is heard as long as the token waits.
    pub(crate) fn told(&mut self, message: Message) {
        let client = self.protocol.owner(message.token);
        let me = &self.state.clients[client];
        if me.phase == Phase::Waiting && me.token == message.token {
            self.judge(client, message);
        }
    }

    /// waiter.rs, `granted`
    fn judge(&mut self, client: usize, message: Message) {
        let now = self.time();
        let me = &mut self.state.clients[client];
        let believes_any = self.protocol.broken == Some(Broken::GrantWithoutTicket);
        let place = match me.place {
            Some(place) if place.ticket == message.ticket || believes_any => place,
            Some(place) if place.ticket > message.ticket => {
                self.count(Event::GrantOfThePast);
                return;
            }
            _ => {
                me.early = Some(message);
                me.next = Next::Now;
                return;
            }
        };
        // The lease counts from `sent`, and from as much later as the grant came after the answer. A claim is answered after it
        // was sent, so that is no later than the grant.
        let since = if self.protocol.broken == Some(Broken::GrantDeadlineFromReceipt) {
            now
        } else if message.us <= place.us {
            place.sent
        } else if place.sent <= place.us {
            message.us
        } else {
            now
        };
        let lease = Span::of(since, Ttl::Claim);
        if !lease.outlasts(&self.state.over) {
            me.next = Next::Now;
            self.count(Event::GrantOver);
            return;
        }
        self.count(Event::GrantByMessage);
        self.enter(client, lease, message.fence);
    }

    /// The time from which a lease counts: when it was asked for.
    fn counts_from(&mut self, sent: u8, fault: Broken) -> u8 {
        if self.breaks(fault) { self.time() } else { sent }
    }

    /// wait.rs, `entered`; traces.rs, `granted`; state.rs, `granted`.
    fn enter(&mut self, client: usize, lease: Span, fence: u8) {
        if self.state.clients[client].phase == Phase::Held {
            self.breach(Promise::OneGrant);
        }
        let forgets = self.breaks(Broken::EntryForgetsClaim);
        if self.breaks(Broken::LateAnswerEnters) {
            // Goes on as if it still waited for the answer.
        } else if forgets {
            self.state.clients[client].asked = None;
        } else {
            self.leave_unanswered(client);
        }
        let me = &mut self.state.clients[client];
        me.place = None;
        me.early = None;
        me.next = Next::Never;
        let trace = &mut self.state.traces[usize::from(me.token)];
        if trace.flight.is_none() || forgets {
            *trace = Trace::default();
        }
        if !lease.outlasts(&self.state.over) {
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

    pub(crate) fn renew_lease(&mut self, client: usize, ttl: Ttl) {
        let sent = self.time();
        let token = self.state.clients[client].token;
        self.send(client, token, sent, Ask::Renew(ttl));
    }

    /// `hand_off.rs`, `next`; state.rs, `handed_on`: the next task of the process has the lease as it is.
    pub(crate) fn hand_on(&mut self, client: usize) {
        let now = self.time();
        let me = &mut self.state.clients[client];
        me.turn += 1;
        if self.protocol.broken != Some(Broken::FenceKept) {
            me.fence.1 += 1;
        }
        if self.protocol.broken == Some(Broken::HandOnBeginsLease) {
            me.lease = Span::of(now, Ttl::Full);
        }
        self.count(Event::HandedOn);
        self.begin_body(client);
    }

    /// The guard is dropped, and nobody of the process is next: the store has it back, then the seat goes on.
    pub(crate) fn end(&mut self, client: usize) {
        if !self.state.clients[client].lease.outlasts(&self.state.over) {
            self.count(Event::LeaseLost);
        }
        self.give_back(client, self.protocol.min_hold && client == 0);
    }

    /// acquire.rs, `Pending::drop`: the next task of the process goes on with the token, or the janitor has it.
    pub(crate) fn give_up(&mut self, client: usize, pledged: bool) {
        self.leave_unanswered(client);
        if !pledged {
            self.give_back(client, false);
            return;
        }
        let me = &mut self.state.clients[client];
        me.turn += 1;
        me.next = Next::Now;
        // wait.rs, `resume`: what has a trace may have a place.
        me.contended |= self.state.traces[usize::from(me.token)] != Trace::default();
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
        me.asked = None;
        me.lease = Span::default();
        me.fence = (0, 0);
        self.state.traces[usize::from(token)].hold = hold;
        self.send_release(token);
    }

    /// mod.rs, `release_once`
    pub(crate) fn send_release(&mut self, token: Token) {
        let sent = self.time();
        let member = !self.breaks(Broken::CancelKeepsPlace);
        let trace = &mut self.state.traces[usize::from(token)];
        trace.release = Some(sent);
        let ask = Ask::Release { member: trace.member && member, hold: trace.hold };
        self.send(self.protocol.owner(token), token, sent, ask);
    }

    /// traces.rs, `land`: final if no claim of the token can be executed any more.
    fn released(&mut self, token: Token, connection: u8, claims_over: bool) {
        let trace = &mut self.state.traces[usize::from(token)];
        let same = trace.flight.is_none_or(|flight| flight.connection == Some(connection));
        if same || claims_over || self.protocol.broken == Some(Broken::ReleaseFinalAtFirstAnswer) {
            *trace = Trace::default();
        } else {
            trace.release = Some(0);
            self.count(Event::ReleaseNotFinal);
        }
    }
}
