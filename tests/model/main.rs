//! An exhaustive model of the protocol on one Redis server.
//!
//! Up to three clients acquire one key. Messages arrive late, twice or not at all; locks and
//! tickets expire, claims become void, and clients give up, crash and reconnect, at any moment and
//! in any order. Each run limits the number of these events to between one and three. The model
//! checker visits every reachable state. [`server`] has the rules of the scripts, [`client`] the
//! rules of the client, [`choices`] the possible actions, and [`promises`] the properties that must
//! hold.
//!
//! The model does not cover durations, which [`arithmetic`] tests, nor failovers, lost data, or how
//! soon a waiter is served. It assumes that different values have different keys, which [`keys`]
//! tests.

// Tests fail by panicking, and print the number of states and the time. The records of the model
// are small now, but may grow.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::trivially_copy_pass_by_ref
)]

mod arithmetic;
mod choices;
mod client;
mod keys;
mod lease;
mod promises;
mod protocol;
mod rounds;
mod search;
mod server;
mod state;
mod step;
mod votes;

use std::sync::Arc;

use lock_core::time;
use lock_testkit::{Experiment, scale};

use self::protocol::{Event, Protocol, WrongRule};
use self::rounds::Rounds;
use self::search::explore;
use self::state::Rare;
use self::votes::{Votes, WrongVote};

/// The files in [`lease`] import this from `crate::error`.
mod error {
    pub(crate) use lock_core::LostReason;
}

/// Every kind of rare event.
const ANYTHING: [Rare; 16] = [
    Rare::Loss,
    Rare::Duplicate,
    Rare::Crash,
    Rare::NoSubscriber,
    Rare::Expiry,
    Rare::TicketExpiry,
    Rare::Foreign,
    Rare::Cancel,
    Rare::Timeout,
    Rare::Reconnect,
    Rare::Void,
    Rare::Refresh,
    Rare::Renew,
    Rare::Extend,
    Rare::HandOn,
    Rare::ClockStep,
];
/// From this scale on, the bounds are those of the full programme.
const FULL_SCALE: usize = 10;

/// A protocol in which any rare events may happen, `in_all` of them in total.
fn anything(clients: u8, turns: u8, in_all: u8) -> Protocol {
    let rare = ANYTHING.map(|rare| (rare, in_all)).to_vec();
    Protocol { clients, turns, rare, in_all: Some(in_all), ..Protocol::default() }
}

/// A protocol in which only the given rare events may happen, each up to its number.
fn these(clients: u8, turns: u8, rare: &[(Rare, u8)]) -> Protocol {
    Protocol { clients, turns, rare: rare.to_vec(), ..Protocol::default() }
}

/// Some order of messages, expiries and crashes could break a promise.
#[test]
fn every_promise_holds_in_every_state() {
    const EVENTS: [(&str, Event); 30] = [
        ("grants by message", Event::GrantByMessage),
        ("grants that arrived before their ticket", Event::GrantAheadOfTicket),
        ("grants for an old ticket", Event::GrantForOldTicket),
        ("grants that had expired", Event::GrantExpired),
        ("replies that came too late", Event::GrantTooLate),
        ("grants to crashed clients", Event::GrantToCrashed),
        ("crashed waiters skipped", Event::CrashedSkipped),
        ("live waiters without a subscriber", Event::NoSubscriber),
        ("tickets expired", Event::TicketExpired),
        ("void claims", Event::VoidClaim),
        ("claims by the holder", Event::ClaimOfHolder),
        ("claims without a reply", Event::ClaimUnanswered),
        ("claims handed to the next task", Event::ClaimPassedOn),
        ("requests duplicated", Event::DuplicatedRequest),
        ("pushes duplicated", Event::DuplicatedPush),
        ("messages lost", Event::Lost),
        ("replies ignored", Event::ResponseIgnored),
        ("pushes ignored", Event::PushIgnored),
        ("renewals confirmed", Event::RenewalConfirmed),
        ("renewals that crossed a release", Event::RenewalCrossesRelease),
        ("leases lost", Event::LeaseLost),
        ("hand-offs within a process", Event::HandedOn),
        ("releases not final", Event::ReleaseNotFinal),
        ("holds ended", Event::MinHoldOver),
        ("reconnections", Event::Reconnected),
        ("crashes", Event::Crashed),
        ("clocks that went back", Event::ClockWentBack),
        ("expiries cut to what was asked", Event::Cut),
        ("cuts that came too late", Event::CutVoid),
        ("renewals that a cut may follow", Event::RenewalBehindCut),
    ];
    let names = EVENTS.map(|(name, _)| name);
    let mut experiment = Experiment::new(
        3,
        "every promise holds in every state of the model, with one server",
        "late, lost and duplicated messages, expiry, cancellation, crashes: up to three, in any order",
        &names,
    );
    let lone = |protocol| Protocol { contended: false, ..protocol };
    let hold = |protocol| Protocol { min_hold: true, ..protocol };
    let stale = [(Rare::Expiry, 1), (Rare::Refresh, 1), (Rare::Foreign, 1)];
    let stepped = [
        (Rare::ClockStep, 1),
        (Rare::Renew, 2),
        (Rare::Extend, 1),
        (Rare::Reconnect, 1),
        (Rare::Duplicate, 1),
        (Rare::Expiry, 1),
    ];
    let mut runs = vec![
        ("two clients, two faults", anything(2, 1, 2)),
        ("two clients twice, a fault", anything(2, 2, 1)),
        ("two clients that first claim without a place, a fault", lone(anything(2, 1, 1))),
        ("two clients, one with min_hold, a fault", hold(anything(2, 1, 1))),
        ("three clients, a fault", anything(3, 1, 1)),
        ("two clients, events that lead to a stale grant", these(2, 1, &stale)),
        ("one client, a clock that goes back", these(1, 1, &stepped)),
    ];
    if scale(1) >= FULL_SCALE {
        runs.extend([
            ("two clients twice, two faults", anything(2, 2, 2)),
            ("two clients, three faults", anything(2, 1, 3)),
            (
                "two clients twice that first claim without a place, a fault",
                lone(anything(2, 2, 1)),
            ),
            ("two clients twice, one with min_hold, a fault", hold(anything(2, 2, 1))),
            ("two clients, one with min_hold, two faults", hold(anything(2, 1, 2))),
            ("two clients three times, a fault", anything(2, 3, 1)),
            ("three clients, two faults", anything(3, 1, 2)),
            ("two clients, a clock that goes back", these(2, 1, &stepped)),
        ]);
    }
    for (name, protocol) in runs {
        let events = Arc::clone(&protocol.events);
        let found = explore(name, protocol);
        if let Some((property, steps)) = found.refuted.first() {
            panic!("{name}: does not hold: {property}\n{steps}");
        }
        experiment.ran(found.states);
        for (name, event) in EVENTS {
            experiment.saw(name, events.seen(event));
        }
    }
    experiment.finish();
}

/// A lost wake-up would leave a waiter in a state without further transitions.
#[test]
fn hand_off_alone_serves_every_waiter() {
    const BY_MESSAGE: &str = "grants by message";
    let mut experiment = Experiment::new(
        3,
        "a free lock has no waiters, although no claim is repeated",
        "waiters that never repeat a claim; cancellation, renewal, hand-off in the process",
        &[BY_MESSAGE, "claims handed to the next task", "hand-offs within a process"],
    );
    let rare = [(Rare::Cancel, 1), (Rare::HandOn, 1), (Rare::Renew, 1)];
    let mut runs = vec![these(2, 2, &rare), these(3, 1, &rare)];
    runs.push(Protocol { contended: false, ..these(2, 2, &rare) });
    if scale(1) >= FULL_SCALE {
        runs.push(these(3, 2, &[]));
        runs.push(these(2, 3, &rare));
    }
    for protocol in runs {
        let protocol = Protocol { pauses: false, ..protocol };
        let events = Arc::clone(&protocol.events);
        let found = explore("without pauses", protocol);
        if let Some((property, steps)) = found.refuted.first() {
            panic!("does not hold: {property}\n{steps}");
        }
        experiment.ran(found.states);
        experiment.saw(BY_MESSAGE, events.seen(Event::GrantByMessage));
        experiment.saw("claims handed to the next task", events.seen(Event::ClaimPassedOn));
        experiment.saw("hand-offs within a process", events.seen(Event::HandedOn));
    }
    experiment.finish();
}

/// A model that accepts wrong rules would prove nothing about the right ones.
#[test]
fn wrong_rules_are_refuted() {
    use Rare::{
        Cancel, ClockStep, Expiry, Extend, Foreign, HandOn, Reconnect, Refresh, Renew, Void,
    };
    const ON_SERVER: &str = "a lease that a client believes in is on the server";
    const LEFT_BEHIND: &str = "nothing is left behind";
    type Case = (WrongRule, &'static str, &'static [(Rare, u8)]);
    /// An extension meets a renewal that cuts.
    const CUT: &[(Rare, u8)] = &[(ClockStep, 1), (Renew, 1), (Extend, 1), (Expiry, 1)];
    /// On another connection, so that the cut may be executed behind it.
    const LATE_CUT: &[(Rare, u8)] =
        &[(ClockStep, 1), (Renew, 1), (Extend, 1), (Reconnect, 1), (Expiry, 1)];
    const CASES: [Case; 23] = [
        (WrongRule::VoidClaimsCount, LEFT_BEHIND, &[(Void, 1), (Cancel, 1), (Reconnect, 1)]),
        (WrongRule::FirstToAskTakes, "first in, first out", &[(Expiry, 1)]),
        (WrongRule::TicketKept, LEFT_BEHIND, &[(Expiry, 1), (Refresh, 1)]),
        (WrongRule::ClaimShortens, ON_SERVER, &[(Extend, 1), (Expiry, 1), (Reconnect, 1)]),
        (WrongRule::ReleaseWithoutCompare, "only the holder releases", &[(Expiry, 1)]),
        (
            WrongRule::HoldKeepsToken,
            "a released lock stays released",
            &[(Renew, 1), (Reconnect, 1)],
        ),
        (WrongRule::RenewalBySet, "a renewal creates nothing", &[(Renew, 1), (Expiry, 1)]),
        (WrongRule::RenewalShortens, ON_SERVER, &[(Extend, 1), (Renew, 1), (Expiry, 1)]),
        (WrongRule::DeadlineFromReply, "no two leases at a time", &[(Expiry, 1)]),
        (WrongRule::GrantDeadlineFromReceipt, ON_SERVER, &[(Expiry, 1)]),
        (WrongRule::GrantWithoutTicket, ON_SERVER, &[(Expiry, 2), (Refresh, 1), (Foreign, 1)]),
        (WrongRule::UnansweredClaimsCount, ON_SERVER, &[(Expiry, 1), (Refresh, 1), (Foreign, 1)]),
        (WrongRule::NoClaimAfterSubscribing, "no client waits forever", &[]),
        (WrongRule::LateAnswerEnters, "one grant per acquisition", &[(Refresh, 1)]),
        (WrongRule::EntryForgetsClaim, LEFT_BEHIND, &[(Refresh, 1), (Reconnect, 1)]),
        (WrongRule::ReleaseFinalAtFirstAnswer, LEFT_BEHIND, &[(Cancel, 1), (Reconnect, 1)]),
        (WrongRule::CancelKeepsPlace, LEFT_BEHIND, &[(Cancel, 1)]),
        (WrongRule::FenceKept, "fences grow", &[(HandOn, 1)]),
        (WrongRule::HandOnBeginsLease, "no two leases at a time", &[(HandOn, 1), (Expiry, 1)]),
        (WrongRule::CutForgetsLease, ON_SERVER, CUT),
        (WrongRule::CutBesideAnother, ON_SERVER, CUT),
        (WrongRule::CutCountsForEver, ON_SERVER, LATE_CUT),
        (WrongRule::RenewalBehindCutCounts, ON_SERVER, LATE_CUT),
    ];
    const REFUTED: &str = "wrong rules refuted";
    let mut experiment = Experiment::new(
        3,
        "the model refutes wrong rules",
        "a rule that is wrong in one point",
        &[REFUTED],
    );
    for (rule, expected, rare) in CASES {
        let protocol = || Protocol {
            turns: 1 + u8::from(matches!(
                rule,
                WrongRule::FenceKept | WrongRule::HandOnBeginsLease
            )),
            clients: match rule {
                WrongRule::FirstToAskTakes => 3,
                WrongRule::CutCountsForEver | WrongRule::RenewalBehindCutCounts => 1,
                _ => 2,
            },
            contended: rule != WrongRule::NoClaimAfterSubscribing,
            min_hold: rule == WrongRule::HoldKeepsToken,
            ..these(2, 1, rare)
        };
        let wrong =
            explore(&format!("{rule:?}"), Protocol { wrong_rule: Some(rule), ..protocol() });
        let refuted: Vec<_> = wrong.refuted.iter().map(|(property, _)| *property).collect();
        assert!(refuted.contains(&expected), "{rule:?}: {refuted:?}");
        let right = explore("the same with the right rule", protocol());
        assert!(right.refuted.is_empty(), "{rule:?}: {:?}", right.refuted);
        experiment.ran(wrong.states + right.states);
        experiment.saw(REFUTED, 1);
    }
    experiment.finish();
}

/// The numbers of two grants on a quorum could be equal, or out of order, whatever is lost, late,
/// doubled, expired or forgotten.
#[test]
fn numbers_of_a_quorum_are_unique_and_grow() {
    let full = scale(1) >= FULL_SCALE;
    let base = Votes { clients: 2, numbers: 2, repeats: 1, ..Votes::default() };
    let mut runs = vec![
        ("two clients", base),
        ("a member forgets", Votes { repeats: 0, forgets: 1, ticks: 2, ..base }),
    ];
    if full {
        runs.push(("three numbers", Votes { numbers: 3, ..base }));
        runs.push(("three clients", Votes { clients: 3, numbers: 3, repeats: 0, ..base }));
        let forgets = Votes { forgets: 1, ticks: 3, numbers: 3, ..base };
        runs.push(("a member forgets, longer", Votes { repeats: 0, ..forgets }));
        runs.push(("a member forgets, repeats", forgets));
    }
    for (name, votes) in runs {
        let found = explore(name, votes);
        let names: Vec<_> = found.refuted.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["all clients are granted"], "{:?}", found.refuted);
        assert!(found.states > 1_000, "{name}: {} states", found.states);
    }
}

/// A rule that is wrong in one point could pass unnoticed.
#[test]
fn the_model_refutes_wrong_votes() {
    let base = Votes { clients: 2, numbers: 2, repeats: 1, ..Votes::default() };
    let forgets = Votes { repeats: 0, numbers: 3, forgets: 2, ticks: 3, ..base };
    for (rule, votes) in [
        (WrongVote::EqualNumberCounts, base),
        (WrongVote::WithoutComparison, base),
        (WrongVote::MembersNumber, base),
        (WrongVote::WithoutDelay, forgets),
        (WrongVote::WithoutWindow, forgets),
    ] {
        let found = explore(&format!("{rule:?}"), Votes { wrong_rule: Some(rule), ..votes });
        let refuted: Vec<_> = found.refuted.iter().map(|(name, _)| *name).collect();
        let is_wrong = |name: &&str| name.contains("number");
        assert!(refuted.iter().any(is_wrong), "{rule:?}: {refuted:?}");
    }
}

/// A release that comes late could take a member from a later round of the same acquisition.
#[test]
fn late_releases_never_let_two_clients_in() {
    let rounds = Rounds { rounds: 2, ..Rounds::default() };
    let inside =
        |found: &search::Found| found.refuted.iter().any(|(name, _)| name.starts_with("no two"));
    assert!(!inside(&explore("a token for each round", rounds)));
    let wrong = Rounds { token_again: true, ..rounds };
    assert!(inside(&explore("one token for all rounds", wrong)));
    let wrong = Rounds { of_those_that_answer: true, ..rounds };
    assert!(inside(&explore("a majority of those that answer", wrong)));
}

/// The model quotes each line of the scripts that reads or writes, except those in `LEFT_OUT`. A
/// script could otherwise change without the model.
#[test]
fn the_model_follows_the_scripts_line_by_line() {
    const SCRIPTS: [(&str, &str); 5] = [
        ("shared.lua", include_str!("../../lock-core/src/store/redis/scripts/shared.lua")),
        ("acquire.lua", include_str!("../../lock-core/src/store/redis/scripts/acquire.lua")),
        ("release.lua", include_str!("../../lock-core/src/store/redis/scripts/release.lua")),
        ("renew.lua", include_str!("../../lock-core/src/store/redis/scripts/renew.lua")),
        ("vote.lua", include_str!("../../lock-core/src/store/redis/scripts/vote.lua")),
    ];
    /// Lines that the model leaves out, by their beginning.
    const LEFT_OUT: [(&str, &str); 32] = [
        // The fence counter. The model only assumes that numbers grow.
        ("shared.lua", "local last = redis.pcall('SET', counter,"),
        ("shared.lua", "redis.call('SET', counter, last)"),
        ("shared.lua", "if number and number - 1 > us then redis.call('SET', counter,"),
        // In the model, tickets leave the queue when they expire.
        ("shared.lua", "local expired = redis.call('ZRANGEBYSCORE', alive,"),
        ("shared.lua", "redis.call('ZREM', queue, unpack(expired))"),
        ("shared.lua", "redis.call('ZREM', alive, unpack(expired))"),
        ("shared.lua", "redis.call('DEL', alive)"),
        // Members that are no claims: the model has none.
        ("shared.lua", "local head = redis.call('ZRANGE', queue, 0, 0)[1]"),
        (
            "shared.lua",
            "if not head or read(head) and redis.call('ZSCORE', alive, head) then return end",
        ),
        // The place determines when to claim again; the model allows any time.
        ("acquire.lua", "local place = redis.call('ZRANK', queue, member)"),
        ("acquire.lua", "place = redis.call('ZRANK', queue, member)"),
        // A queue outlasts its tickets.
        ("acquire.lua", "redis.call('PEXPIRE', queue, QUEUE_MS)"),
        ("acquire.lua", "redis.call('PEXPIRE', alive, QUEUE_MS)"),
        ("release.lua", "if count > 1 then redis.call('PEXPIRE', queue, QUEUE_MS) end"),
        ("release.lua", "redis.call('PEXPIRE', lock, hold)"),
        // Writes what there is.
        ("renew.lua", "redis.call('PEXPIRE', lock, left)"),
        // Carries no information; it only changes the order in which the server writes.
        ("shared.lua", "releaser_flushed = redis.pcall('PUBLISH', own, '')"),
        // Batches: the same with fewer calls.
        (
            "acquire.lua",
            "local waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + count, 1 + 2 * count))",
        ),
        ("release.lua", "waiting = redis.pcall('PEXPIRE', KEYS[3], QUEUE_MS)"),
        ("release.lua", "waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + count,"),
        ("release.lua", "local holders = redis.pcall('MGET', unpack(KEYS, 2, 1 + count))"),
        ("release.lua", "if free[1] then redis.call('DEL', unpack(free)) end"),
        // In the model, a member knows that it forgot.
        ("vote.lua", "local info = redis.pcall('INFO', 'all')"),
        ("vote.lua", "local mark = redis.call('GET', KEYS[1])"),
        ("vote.lua", "redis.call('SET', KEYS[1], string.format("),
        // The model of votes has no queue.
        ("vote.lua", "waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + 2 * count))"),
        ("vote.lua", "or redis.call('ZCOUNT', alive,"),
        // Nor has it renewals.
        ("vote.lua", "if number == '-2' then return redis.call('EXISTS', lock) == 0 end"),
        // Locks vanish at any time.
        ("vote.lua", "if left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end"),
        ("vote.lua", "local time = redis.call('TIME')"),
        // Errors of the server.
        ("vote.lua", "if taken then redis.call('DEL', KEYS[1 + i]) end"),
        ("acquire.lua", "if taken then redis.call('DEL', lock) end"),
    ];
    let mut quotes = Vec::new();
    let sources = [include_str!("server.rs"), include_str!("votes.rs")];
    let mut lines = sources.into_iter().flat_map(str::lines).map(str::trim);
    while let Some(line) = lines.next() {
        let Some((script, quote)) =
            line.strip_prefix("// ").and_then(|line| line.split_once(" | "))
        else {
            continue;
        };
        let mut quote = quote.to_owned();
        if let Some(start) = quote.strip_suffix('\\') {
            let rest = lines.next().and_then(|line| line.strip_prefix("// ")).unwrap();
            quote = format!("{start}{rest}");
        }
        let (_, text) = SCRIPTS.iter().find(|(name, _)| *name == script).unwrap();
        assert!(
            text.lines().any(|line| line.trim() == quote),
            "{script} has changed: does the model still follow it? It quotes `{quote}`"
        );
        quotes.push((script, quote));
    }
    for (script, text) in SCRIPTS {
        for line in text.lines().map(str::trim) {
            let calls = line.contains("redis.call(") || line.contains("redis.pcall(");
            let known = quotes.iter().any(|(name, quote)| *name == script && quote == line)
                || LEFT_OUT.iter().any(|(name, start)| *name == script && line.starts_with(start));
            assert!(!calls || known, "{script}: the model does not know `{line}`");
        }
    }
}
