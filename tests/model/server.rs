//! The server: one key, and the scripts of `lock-core/src/store/redis/scripts`, line by line.
//!
//! A script is executed at once. Each call carries one thing that is asked, as the scripts deal with many one after another;
//! only their common lines (the void time, whether there are queues) are not told apart here. Numbers grow, whatever the
//! counter (queue.lua, `begin` and `finish`).

use super::protocol::{Broken, Event, Step};
use super::state::{
    Answer, Ask, FOREIGN, Lock, Message, Promise, Reply, Request, Span, Token, Ttl,
};

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
        // queue.lua `begin`: the server's clock.
        let us = self.time();
        // `if us <= tonumber(ARGV[2])`
        if void && !self.breaks(Broken::VoidClaimsCount) {
            self.count(Event::VoidClaim);
            return Answer::Void;
        }
        // `SET lock token NX PX ttl`
        let taken = self.state.lock.is_none();
        if taken {
            self.state.lock = Some(Lock::of(token, us, Ttl::Full));
            // `elseif set and waiting == 0`
            if self.state.queue.is_empty() {
                return Answer::Granted(self.fence());
            }
        }
        // `local function queued`, `if taken`: a free lock with a queue is the head's, whoever asks. An expired ticket
        // (`forget_expired`) leaves the model's queue when it expires.
        if taken {
            let head = self.state.queue.first().map(|(head, _)| *head);
            // `head ~= member`: true for one who has no member.
            let another = head.is_some_and(|head| !place || head != token);
            let barges = self.breaks(Broken::FirstToAskTakes);
            if barges || !(another && self.hand_off(us)) {
                let ahead =
                    self.state.queue.iter().take_while(|(other, _)| *other != token).count();
                if ahead > 0 {
                    self.breach(Promise::FirstInFirstOut);
                }
                // `if member then line.leave(member) end`
                if place && !self.breaks(Broken::TicketKept) {
                    self.leave(token);
                }
                return Answer::Granted(self.fence());
            }
        }
        // `local holder, left = GET, PTTL`, `if holder == token`
        let Some(lock) = &mut self.state.lock else { unreachable!("it is held") };
        if lock.named && lock.token == token {
            if lock.kept {
                self.breach(Promise::ReleasedStaysReleased);
            }
            self.lengthen(us, Ttl::Full, Broken::ClaimShortens);
            self.count(Event::ClaimOfHolder);
            return Answer::Granted(self.fence());
        }
        // `if not member then return {0, left, ours} end`
        if !place {
            return Answer::Busy;
        }
        // `ZADD queue NX ticket member`, `ZSCORE`
        let known = self.state.queue.iter().find(|(other, _)| *other == token);
        let ticket = match known {
            Some((_, ticket)) => *ticket,
            None => {
                let ticket = self.ticket();
                self.state.queue.push((token, ticket));
                ticket
            }
        };
        Answer::Queued { us, ticket }
    }

    /// release.lua
    fn release(&mut self, request: &Request, member: bool, hold: bool) -> Answer {
        let token = request.token;
        let us = self.time();
        let held = self.state.lock.filter(|lock| lock.named);
        // `if holder == token`
        let blindly = self.breaks(Broken::ReleaseWithoutCompare) && self.state.lock.is_some();
        if blindly || held.is_some_and(|lock| lock.token == token) {
            if self.state.lock.is_some_and(|lock| lock.token != token) {
                self.breach(Promise::OthersAreNotReleased);
            }
            if hold {
                // `SET lock '=' .. token PX hold`
                let named = self.breaks(Broken::HoldKeepsToken);
                let expiry = Span::of(us, Ttl::Full);
                self.state.lock = Some(Lock { token, named, kept: true, expiry });
                self.count(Event::KeptForMinHold);
            } else if self.state.queue.is_empty() || !self.hand_off(us) {
                // `redis.call('DEL', lock)`
                self.state.lock = None;
            }
        } else if member {
            // `line.leave(member)`
            self.leave(token);
        }
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
        // `if holder ~= token then return holder and 2 or 0 end`
        let Some(lock) = ours else {
            if self.state.traces[usize::from(token)].release.is_some() {
                self.count(Event::RenewalCrossesRelease);
            }
            return Answer::NotRenewed;
        };
        if lock.kept {
            self.breach(Promise::ReleasedStaysReleased);
        }
        // `if PTTL < ttl then PEXPIRE`
        self.lengthen(us, ttl, Broken::RenewalShortens);
        Answer::Renewed(ttl)
    }

    /// queue.lua, `line.hand_off`: pops until somebody is there.
    fn hand_off(&mut self, us: u8) -> bool {
        let mut fence = None;
        while !self.state.queue.is_empty() {
            // `ZPOPMIN`
            let (token, ticket) = self.state.queue.remove(0);
            let fence = *fence.get_or_insert_with(|| self.fence());
            // `heard = PUBLISH`: that is up to the world.
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
            // `SET lock token PX claim`
            self.state.lock = Some(Lock::of(token, us, Ttl::Claim));
            return true;
        }
        false
    }

    /// `if PTTL < ttl then PEXPIRE`, unless `fault` is what is tried.
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
