//! The server: one key, and the rules of the scripts in `lock-core/src/store/redis/scripts`, line by line.
//!
//! `script.lua | line` quotes the line that the next statement stands for; a test compares the quotes with the scripts. A
//! script is executed at once, and each call asks for one thing, since the scripts serve many one after another.

use super::protocol::{Broken, Event};
use super::state::{
    Answer, Ask, FOREIGN, Lock, Message, Promise, Reply, Request, Span, Token, Ttl,
};
use super::step::Step;

impl Step<'_> {
    /// Executes what is asked, and answers, if the connection is still there.
    pub(crate) fn execute(&mut self, request: Request) {
        let answer = match request.ask {
            Ask::Claim { place, void } => self.acquire(request.token, place, void),
            Ask::Release { member, hold } => self.release(&request, member, hold),
            Ask::Renew(ttl) => self.renew(request.token, ttl),
        };
        let Request { client, token, sent, .. } = request;
        if self.state.clients[usize::from(client)].connection == request.connection {
            self.state.replies.push(Reply { client, token, sent, answer });
        }
    }

    /// acquire.lua
    fn acquire(&mut self, token: Token, place: bool, void: bool) -> Answer {
        // queue.lua | time = redis.call('TIME')
        let us = self.time();
        // acquire.lua | if us > tonumber(void_after) then
        if void && !self.breaks(Broken::VoidClaimsCount) {
            self.count(Event::VoidClaim);
            return Answer::Void;
        }
        // acquire.lua | local set = redis.pcall('SET', lock, token, 'NX', 'PX', ttl)
        let taken = self.state.lock.is_none();
        if taken {
            self.state.lock = Some(Lock::of(token, us, Ttl::Full));
            // acquire.lua | elseif set and waiting == 0 then
            if self.state.queue.is_empty() {
                return Answer::Granted(self.fence());
            }
        }
        // A free lock with a queue is the head's, whoever asks.
        // acquire.lua | if taken then
        if taken {
            // Expired tickets leave the model's queue when they expire.
            // acquire.lua | line.forget_expired(256)
            // acquire.lua | local head = redis.call('ZRANGE', queue, 0, 0)[1]
            let head = self.state.queue.first().map(|(head, _)| *head);
            // Another than the head is also one who has no member.
            // acquire.lua | if not (head and head ~= member and line.hand_off('')) then
            let another = head.is_some_and(|head| !place || head != token);
            let barges = self.breaks(Broken::FirstToAskTakes);
            if barges || !(another && self.hand_off(us)) {
                let ahead =
                    self.state.queue.iter().take_while(|(other, _)| *other != token).count();
                if ahead > 0 {
                    self.breach(Promise::FirstInFirstOut);
                }
                // acquire.lua | if member then line.leave(member) end
                if place && !self.breaks(Broken::TicketKept) {
                    self.leave(token);
                }
                return Answer::Granted(self.fence());
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
            self.lengthen(us, Ttl::Full, Broken::ClaimShortens);
            self.count(Event::ClaimOfHolder);
            return Answer::Granted(self.fence());
        }
        // acquire.lua | if not member then return {0, left, ours} end
        if !place {
            return Answer::Busy;
        }
        // acquire.lua | if redis.call('ZADD', queue, 'NX', string.format('%.0f', ticket), member) == 1 then
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
        // How long the ticket is good, the model leaves open.
        // acquire.lua | redis.call('ZADD', line.alive, math.floor(us / 1000) + life, member)
        // acquire.lua | return {2, left, ours, ticket, place}
        Answer::Queued { us, ticket }
    }

    /// release.lua
    fn release(&mut self, request: &Request, member: bool, hold: bool) -> Answer {
        let token = request.token;
        let us = self.time();
        // release.lua | local holder = redis.pcall('GET', lock)
        let held = self.state.lock.filter(|lock| lock.named);
        // release.lua | if holder == token then
        let blindly = self.breaks(Broken::ReleaseWithoutCompare) && self.state.lock.is_some();
        if blindly || held.is_some_and(|lock| lock.token == token) {
            if self.state.lock.is_some_and(|lock| lock.token != token) {
                self.breach(Promise::OthersAreNotReleased);
            }
            if hold {
                // release.lua | redis.call('SET', lock, '=' .. token, 'PX', hold)
                let named = self.breaks(Broken::HoldKeepsToken);
                let expiry = Span::of(us, Ttl::Full);
                self.state.lock = Some(Lock { token, named, kept: true, expiry });
                self.count(Event::KeptForMinHold);
            } else if self.state.queue.is_empty() || !self.hand_off(us) {
                // release.lua | elseif waiting < count and redis.pcall('EXISTS', queue) ~= 1 then
                // release.lua | redis.call('DEL', lock)
                // release.lua | if not (ok and given) then redis.call('DEL', lock) end
                self.state.lock = None;
            }
        } else if member {
            // release.lua | if member ~= '' then pcall(line_of(lock, queue).leave, member) end
            self.leave(token);
        }
        // release.lua | local now = redis.call('TIME')
        let flight = self.state.traces[usize::from(token)].flight;
        let claims_over = flight.is_none_or(|flight| flight.void);
        Answer::Released { connection: request.connection, claims_over }
    }

    /// renew.lua
    fn renew(&mut self, token: Token, ttl: Ttl) -> Answer {
        let us = self.time();
        let ours = self.state.lock.filter(|lock| lock.named && lock.token == token);
        if self.breaks(Broken::RenewalBySet) {
            if ours.is_none() {
                self.breach(Promise::NothingIsResurrected);
            }
            self.state.lock = Some(Lock::of(token, us, ttl));
            return Answer::Renewed(ttl);
        }
        // renew.lua | local holder = redis.call('GET', lock)
        // renew.lua | if holder ~= token then return holder and 2 or 0 end
        let Some(lock) = ours else {
            if self.state.traces[usize::from(token)].release.is_some() {
                self.count(Event::RenewalCrossesRelease);
            }
            return Answer::NotRenewed;
        };
        if lock.kept {
            self.breach(Promise::ReleasedStaysReleased);
        }
        // renew.lua | if redis.call('PTTL', lock) < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
        self.lengthen(us, ttl, Broken::RenewalShortens);
        Answer::Renewed(ttl)
    }

    /// queue.lua: pops until somebody is there.
    fn hand_off(&mut self, us: u8) -> bool {
        let mut fence = None;
        while !self.state.queue.is_empty() {
            // queue.lua | local head = redis.call('ZPOPMIN', queue)
            // queue.lua | redis.call('ZREM', line.alive, member)
            let (token, ticket) = self.state.queue.remove(0);
            let fence = *fence.get_or_insert_with(|| self.fence());
            // How many hear it is up to the world.
            // queue.lua | heard = redis.pcall('PUBLISH', inbox,
            // queue.lua | if type(heard) ~= 'number' or heard > 0 or sign == '~' then
            if self.skips > 0 {
                self.skips -= 1;
                self.miss(token);
                continue;
            }
            if self.is_crashed(token) {
                // Its connection has not been missed yet.
                self.count(Event::GrantToTheDead);
            } else {
                self.state.pushes.push(Message { token, ticket, fence, us });
            }
            // queue.lua | redis.call('SET', lock, token, 'PX', claim)
            self.state.lock = Some(Lock::of(token, us, Ttl::Claim));
            return true;
        }
        false
    }

    /// Never shortens, unless `fault` is what is tried.
    fn lengthen(&mut self, us: u8, ttl: Ttl, fault: Broken) {
        let shortens = self.breaks(fault);
        let Some(lock) = &mut self.state.lock else { return };
        if shortens {
            lock.expiry = Span::of(us, ttl);
        } else {
            lock.expiry.lengthen(us, ttl);
        }
    }

    fn leave(&mut self, token: Token) {
        // queue.lua | redis.call('ZREM', queue, member)
        // queue.lua | redis.call('ZREM', line.alive, member)
        self.state.queue.retain(|(other, _)| *other != token);
    }

    /// Its time is over.
    pub(crate) fn expire(&mut self) {
        if let Some(lock) = self.state.lock.take() {
            self.state.over.ends(&lock.expiry);
            if lock.kept {
                self.count(Event::MinHoldOver);
            }
        }
    }

    /// `SET lock value NX PX ttl` by hand.
    pub(crate) fn taken_by_another(&mut self) {
        let us = self.time();
        self.state.lock = Some(Lock::of(FOREIGN, us, Ttl::Full));
    }
}

impl Lock {
    fn of(token: Token, us: u8, ttl: Ttl) -> Self {
        Self { token, named: true, kept: false, expiry: Span::of(us, ttl) }
    }
}
