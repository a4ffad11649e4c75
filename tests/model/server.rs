//! The server: one key, and the rules of the scripts in `lock-core/src/store/redis/scripts`, line
//! by line.
//!
//! A comment `script.lua | line` quotes the line that the next statement models; a test compares
//! the quotes with the scripts. A quote that ends with a backslash continues in the next line. A
//! script runs atomically. The model sends one command per call, because the scripts execute the
//! commands of a call one after another.

use super::protocol::{Event, WrongRule};
use super::state::{
    Command, Cut, FOREIGN, Lock, Message, Promise, Reply, Request, Response, Span, Token, Ttl,
};
use super::step::Step;

impl Step<'_> {
    /// Executes a request, and responds if its connection is still open.
    pub(crate) fn execute(&mut self, request: Request) {
        let reply = match request.command {
            Command::Claim { place, void } => self.acquire(request.token, place, void),
            Command::Release { member, hold } => self.release(&request, member, hold),
            Command::Renew { ttl, cut, behind_cut } => {
                self.renew(request.token, ttl, cut, behind_cut)
            }
        };
        let Request { client, token, sent, .. } = request;
        if self.state.clients[usize::from(client)].connection == request.connection {
            self.state.responses.push(Response { client, token, sent, reply });
        }
    }

    /// acquire.lua
    fn acquire(&mut self, token: Token, place: bool, void: bool) -> Reply {
        // shared.lua | time = redis.call('TIME')
        let us = self.time();
        // acquire.lua | if us > tonumber(void_after) then
        if void && !self.breaks(WrongRule::VoidClaimsCount) {
            self.count(Event::VoidClaim);
            return Reply::Void;
        }
        // acquire.lua | local set = redis.pcall('SET', lock, token, 'NX', 'PX', ttl)
        let taken = self.state.lock.is_none();
        if taken {
            self.state.lock = Some(Lock::of(token, us, Ttl::Full));
            // acquire.lua | elseif not set or waiting > 0 then
            if self.state.queue.is_empty() {
                return Reply::Granted(self.fence());
            }
        }
        // A free lock with a queue belongs to the first waiter, regardless of which client claims
        // it.
        // acquire.lua | if taken then
        if taken {
            // Expired tickets leave the model's queue when they expire.
            // acquire.lua | waiters.forget_expired()
            // acquire.lua | local head = redis.call('ZRANGE', queue, 0, 0)[1]
            let head = self.state.queue.first().map(|(head, _)| *head);
            // A client without a place in the queue is not the first waiter either.
            // acquire.lua | if not (head and head ~= member and waiters.hand_off('')) then
            let another = head.is_some_and(|head| !place || head != token);
            let barges = self.breaks(WrongRule::FirstToAskTakes);
            if barges || !(another && self.hand_off(us)) {
                let ahead =
                    self.state.queue.iter().take_while(|(other, _)| *other != token).count();
                if ahead > 0 {
                    self.breach(Promise::FirstInFirstOut);
                }
                // acquire.lua | if member then waiters.leave(member) end
                if place && !self.breaks(WrongRule::TicketKept) {
                    self.leave(token);
                }
                return Reply::Granted(self.fence());
            }
        }
        // acquire.lua | local holder, left = redis.call('GET', lock), redis.call('PTTL', lock)
        let Some(lock) = &mut self.state.lock else { unreachable!("it is held") };
        // acquire.lua | if holder == token then
        if lock.named && lock.token == token {
            if lock.kept {
                self.breach(Promise::ReleasedStaysReleased);
            }
            // acquire.lua | if left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
            self.lengthen(us, Ttl::Full, WrongRule::ClaimShortens);
            self.count(Event::ClaimOfHolder);
            return Reply::Granted(self.fence());
        }
        // acquire.lua | if not member then return {0, left, by_token} end
        if !place {
            return Reply::Busy;
        }
        // acquire.lua | local is_new = redis.call('ZADD', queue, 'NX', \
        // string.format('%.0f', ticket), member) == 1
        // acquire.lua | ticket = tonumber(redis.call('ZSCORE', queue, member))
        let known = self.state.queue.iter().find(|(other, _)| *other == token);
        let ticket = match known {
            Some((_, ticket)) => *ticket,
            None => {
                let ticket = self.ticket();
                self.state.queue.push((token, ticket));
                ticket
            }
        };
        // The model leaves open how long the ticket is valid.
        // acquire.lua | redis.call('ZADD', alive, math.floor(us / 1000) + keep_ms, member)
        // acquire.lua | return {2, left, by_token, ticket, place}
        Reply::Queued { us, ticket }
    }

    /// release.lua
    fn release(&mut self, request: &Request, member: bool, hold: bool) -> Reply {
        let token = request.token;
        let us = self.time();
        // release.lua | local holder = redis.pcall('GET', lock)
        let held = self.state.lock.filter(|lock| lock.named);
        // release.lua | if holder == token then
        let blindly = self.breaks(WrongRule::ReleaseWithoutCompare) && self.state.lock.is_some();
        if blindly || held.is_some_and(|lock| lock.token == token) {
            if self.state.lock.is_some_and(|lock| lock.token != token) {
                self.breach(Promise::OthersAreNotReleased);
            }
            if hold {
                // release.lua | redis.call('SET', lock, '=' .. token, 'PX', hold)
                let named = self.breaks(WrongRule::HoldKeepsToken);
                let expiry = Span::of(us, Ttl::Full);
                self.state.lock = Some(Lock { token, named, kept: true, expiry, excess: false });
                self.count(Event::KeptForMinHold);
            } else if self.state.queue.is_empty() || !self.hand_off(us) {
                // release.lua | elseif waiting < count and redis.pcall('EXISTS', queue) ~= 1 then
                // release.lua | redis.call('DEL', lock)
                // release.lua | if not (ok and given) then redis.call('DEL', lock) end
                self.state.lock = None;
            }
        } else if member {
            // release.lua | if member ~= '' then \
            // pcall(waiters_of(lock, queue, alive).leave, member) end
            self.leave(token);
        }
        // release.lua | local now = redis.call('TIME')
        let in_doubt = self.state.records[usize::from(token)].in_doubt;
        let claims_over = in_doubt.is_none_or(|in_doubt| in_doubt.void);
        Reply::Released { connection: request.connection, claims_over }
    }

    /// renew.lua
    fn renew(&mut self, token: Token, ttl: Ttl, cut: Option<Cut>, behind_cut: bool) -> Reply {
        // renew.lua | local time = redis.call('TIME')
        let us = self.time();
        // `in_doubt.rs`: a renewal for no more than the cut leaves loses nothing by it. Nor does
        // any that the server executes when the cut is void, as the time in the reply tells.
        let record = self.state.records[usize::from(token)];
        let over = record.cut.is_none_or(|cut| cut.void);
        let counts = !behind_cut || ttl <= Ttl::Full || over;
        let believes = self.breaks(WrongRule::RenewalBehindCutCounts);
        let renewed = Reply::Renewed { ttl, cut: cut.is_some(), counts: counts || believes };
        let held = self.state.lock.filter(|lock| lock.named && lock.token == token);
        if self.breaks(WrongRule::RenewalBySet) {
            if held.is_none() {
                self.breach(Promise::NothingIsResurrected);
            }
            self.state.lock = Some(Lock::of(token, us, ttl));
            return renewed;
        }
        // renew.lua | local holder = redis.call('GET', lock)
        // renew.lua | if holder ~= token then return holder and 2 or 0 end
        let Some(lock) = held else {
            if self.state.records[usize::from(token)].release.is_some() {
                self.count(Event::RenewalCrossesRelease);
            }
            return Reply::NotRenewed;
        };
        if lock.kept {
            self.breach(Promise::ReleasedStaysReleased);
        }
        // renew.lua | local left = redis.call('PTTL', lock)
        // renew.lua | redis.call('PEXPIRE', lock, ttl)
        self.lengthen(us, ttl, WrongRule::RenewalShortens);
        if let Some(cut) = cut {
            // renew.lua | local cuts = has_cuts and us <= tonumber(ARGV[2 * (count + i)])
            // renew.lua | redis.call('PEXPIRE', lock, longest)
            if cut.void && !self.breaks(WrongRule::CutCountsForEver) {
                self.count(Event::CutVoid);
            } else {
                self.cut(us, ttl, &cut.lease);
            }
        }
        renewed
    }

    /// Brings the expiry back to what was asked: to the renewal's own ttl, but not below the lease
    /// that the client believed in when it sent the renewal.
    fn cut(&mut self, us: u8, ttl: Ttl, lease: &Span) {
        let forgets = self.breaks(WrongRule::CutForgetsLease);
        let Some(lock) = &mut self.state.lock else { return };
        let had_excess = std::mem::take(&mut lock.excess);
        lock.expiry = if forgets { Span::default() } else { *lease };
        lock.expiry.lengthen(us, ttl);
        if had_excess {
            self.count(Event::Cut);
        }
    }

    /// shared.lua: pops waiters until one of them has a subscriber.
    fn hand_off(&mut self, us: u8) -> bool {
        while !self.state.queue.is_empty() {
            // shared.lua | local head = redis.call('ZPOPMIN', queue)
            // shared.lua | local is_known = redis.call('ZREM', alive, member) == 1
            let (token, ticket) = self.state.queue.remove(0);
            let number = self.fence();
            // `skips` decides how many waiters have no subscriber.
            // shared.lua | receivers = redis.pcall(sign == '#' and 'SPUBLISH' or 'PUBLISH', inbox,
            // shared.lua | if type(receivers) ~= 'number' or receivers > 0 or sign == '~' then
            if self.skips > 0 {
                self.skips -= 1;
                self.miss(token);
                continue;
            }
            if self.is_crashed(token) {
                // The server has not noticed yet that the connection is gone.
                self.count(Event::GrantToCrashed);
            } else {
                self.state.pushes.push(Message { token, ticket, number, us });
            }
            // shared.lua | redis.call('SET', lock, token, 'PX', string.format('%.0f', ttl))
            self.state.lock = Some(Lock::of(token, us, Ttl::HandOff));
            return true;
        }
        false
    }

    /// Never shortens the lock, unless the wrong rule `fault` is in use.
    fn lengthen(&mut self, us: u8, ttl: Ttl, fault: WrongRule) {
        let shortens = self.breaks(fault);
        let Some(lock) = &mut self.state.lock else { return };
        if shortens {
            lock.expiry = Span::of(us, ttl);
        } else {
            lock.expiry.lengthen(us, ttl);
        }
    }

    fn leave(&mut self, token: Token) {
        // shared.lua | redis.call('ZREM', queue, member)
        // shared.lua | redis.call('ZREM', alive, member)
        self.state.queue.retain(|(other, _)| *other != token);
    }

    /// The lock expires.
    pub(crate) fn expire(&mut self) {
        if let Some(lock) = self.state.lock.take() {
            self.state.expired.ends(&lock.expiry);
            if lock.kept {
                self.count(Event::MinHoldOver);
            }
        }
    }

    /// The clock goes back: the lock expires later than any client asked.
    pub(crate) fn clock_steps_back(&mut self) {
        self.state.stepped = true;
        if let Some(lock) = &mut self.state.lock {
            lock.excess = true;
        }
        self.count(Event::ClockWentBack);
    }

    /// A foreign client executes `SET lock value NX PX ttl`.
    pub(crate) fn taken_by_foreign_client(&mut self) {
        let us = self.time();
        self.state.lock = Some(Lock::of(FOREIGN, us, Ttl::Full));
    }
}

impl Lock {
    fn of(token: Token, us: u8, ttl: Ttl) -> Self {
        Self { token, named: true, kept: false, expiry: Span::of(us, ttl), excess: false }
    }
}
