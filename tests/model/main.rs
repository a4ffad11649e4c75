//! An exhaustive model of the protocol on one Redis server.
//!
//! Two or three clients want one key. Messages come late, twice or not at all; locks and tickets expire, claims become void,
//! clients give up, crash and reconnect, at any moment and in any order: as many of these as each run names, from one to three of
//! any kind. Every state that can be reached so is looked at.
//! [`server`] has the rules of the scripts, [`client`] those of the client, [`choices`] what may happen, and [`promises`] what
//! must hold.
//!
//! Outside it: what durations do to the order of things, which [`arithmetic`] tries; failovers and lost data; and how soon
//! anybody is served. [`keys`] tries what the model takes for granted: that a key stands for one thing.

// Tests fail by panicking and say how many states there were and how long it took; the model's records are small, and get larger.
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
mod server;
mod state;
mod step;

use std::sync::Arc;
use std::time::Instant;

use lock_core::time;
use lock_testkit::{Experiment, scale};
use stateright::{Checker, HasDiscoveries, Model};

use self::protocol::{Broken, Event, Protocol};
use self::state::Rare;

/// Where the files in [`lease`] look for it.
mod error {
    pub(crate) use lock_core::LostReason;
}

/// Everything that may happen.
const ANYTHING: [Rare; 15] = [
    Rare::Loss,
    Rare::Double,
    Rare::Crash,
    Rare::Unheard,
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
];
/// From this on, the bounds are those of the full programme.
const FULL_SCALE: usize = 10;

/// A protocol in which anything may happen, and so much of it in all.
fn anything(clients: u8, turns: u8, in_all: u8) -> Protocol {
    let rare = ANYTHING.map(|rare| (rare, in_all)).to_vec();
    Protocol { clients, turns, rare, in_all: Some(in_all), ..Protocol::default() }
}

/// One in which these happen at most so often each.
fn these(clients: u8, turns: u8, rare: &[(Rare, u8)]) -> Protocol {
    Protocol { clients, turns, rare: rare.to_vec(), ..Protocol::default() }
}

/// What a look at all states found.
struct Found {
    states: usize,
    /// What does not hold, with the shortest way there.
    refuted: Vec<(&'static str, String)>,
}

/// Looks at all states, or until something does not hold.
fn explore(name: &str, protocol: Protocol) -> Found {
    let since = Instant::now();
    let checker = protocol.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{name}: {states} states in {:.1} s", since.elapsed().as_secs_f32());
    let discoveries = checker.discoveries().into_iter();
    let refuted = discoveries.map(|(property, path)| {
        let steps: Vec<_> =
            path.into_actions().iter().map(|action| format!("  {action:?}\n")).collect();
        (property, steps.concat())
    });
    Found { states, refuted: refuted.collect() }
}

#[test]
fn every_promise_is_kept_in_every_state() {
    const EVENTS: [(&str, Event); 26] = [
        ("grants by message", Event::GrantByMessage),
        ("grants ahead of their ticket", Event::GrantAheadOfTicket),
        ("grants for a ticket of the past", Event::GrantOfThePast),
        ("grants whose time is over", Event::GrantOver),
        ("answers whose time is over", Event::GrantTooLate),
        ("grants to the dead", Event::GrantToTheDead),
        ("dead waiters skipped", Event::DeadSkipped),
        ("live waiters not heard of", Event::Unheard),
        ("tickets expired", Event::TicketExpired),
        ("void claims", Event::VoidClaim),
        ("claims of the holder", Event::ClaimOfHolder),
        ("claims unanswered", Event::ClaimUnanswered),
        ("claims passed on", Event::ClaimPassedOn),
        ("requests doubled", Event::DoubledRequest),
        ("pushes doubled", Event::DoubledPush),
        ("messages lost", Event::Lost),
        ("answers ignored", Event::AnswerIgnored),
        ("pushes ignored", Event::PushIgnored),
        ("renewals confirmed", Event::RenewalConfirmed),
        ("renewals that cross a release", Event::RenewalCrossesRelease),
        ("leases lost", Event::LeaseLost),
        ("hand-offs within a process", Event::HandedOn),
        ("releases not final", Event::ReleaseNotFinal),
        ("holds over", Event::MinHoldOver),
        ("reconnections", Event::Reconnected),
        ("crashes", Event::Crashed),
    ];
    let names = EVENTS.map(|(name, _)| name);
    let mut experiment = Experiment::new(
        3,
        "one server keeps every promise, in every state of the model",
        "late, lost and doubled messages, expiry, cancellation, crashes: up to three, in any order",
        &names,
    );
    let lone = |protocol| Protocol { contended: false, ..protocol };
    let hold = |protocol| Protocol { min_hold: true, ..protocol };
    let stale = [(Rare::Expiry, 1), (Rare::Refresh, 1), (Rare::Foreign, 1)];
    let mut runs = vec![
        ("two clients, two faults", anything(2, 1, 2)),
        ("two clients twice, a fault", anything(2, 2, 1)),
        ("two clients that ask for no place at first, a fault", lone(anything(2, 1, 1))),
        ("two clients, one with min_hold, a fault", hold(anything(2, 1, 1))),
        ("three clients, a fault", anything(3, 1, 1)),
        ("two clients, what leads to a stale grant", these(2, 1, &stale)),
    ];
    if scale(1) >= FULL_SCALE {
        runs.extend([
            ("two clients twice, two faults", anything(2, 2, 2)),
            ("two clients, three faults", anything(2, 1, 3)),
            ("two clients twice that ask for no place at first, a fault", lone(anything(2, 2, 1))),
            ("two clients twice, one with min_hold, a fault", hold(anything(2, 2, 1))),
            ("two clients, one with min_hold, two faults", hold(anything(2, 1, 2))),
            ("two clients three times, a fault", anything(2, 3, 1)),
            ("three clients, two faults", anything(3, 1, 2)),
        ]);
    }
    for (name, protocol) in runs {
        let events = Arc::clone(&protocol.events);
        let found = explore(name, protocol);
        if let Some((property, steps)) = found.refuted.first() {
            panic!("{name}: not so: {property}\n{steps}");
        }
        experiment.ran(found.states);
        for (name, event) in EVENTS {
            experiment.saw(name, events.seen(event));
        }
    }
    experiment.finish();
}

/// A wake-up that is lost would leave a state from which nothing leads on.
#[test]
fn the_hand_over_alone_serves_everybody() {
    const HANDED: &str = "grants by message";
    let mut experiment = Experiment::new(
        3,
        "a free lock has no waiter, though nobody asks again",
        "waiters that never repeat a claim; cancellation, renewal, hand-off in the process",
        &[HANDED, "claims passed on", "hand-offs within a process"],
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
            panic!("not so: {property}\n{steps}");
        }
        experiment.ran(found.states);
        experiment.saw(HANDED, events.seen(Event::GrantByMessage));
        experiment.saw("claims passed on", events.seen(Event::ClaimPassedOn));
        experiment.saw("hand-offs within a process", events.seen(Event::HandedOn));
    }
    experiment.finish();
}

/// A model that lets wrong rules pass proves nothing about right ones.
#[test]
fn wrong_rules_are_refuted() {
    use Rare::{Cancel, Expiry, Extend, Foreign, HandOn, Reconnect, Refresh, Renew, Void};
    const ON_RECORD: &str = "a lease that is believed in is on record";
    const LEFT_BEHIND: &str = "nothing is left behind";
    type Case = (Broken, &'static str, &'static [(Rare, u8)]);
    const CASES: [Case; 19] = [
        (Broken::VoidClaimsCount, LEFT_BEHIND, &[(Void, 1), (Cancel, 1), (Reconnect, 1)]),
        (Broken::FirstToAskTakes, "first in, first out", &[(Expiry, 1)]),
        (Broken::TicketKept, LEFT_BEHIND, &[(Expiry, 1), (Refresh, 1)]),
        (Broken::ClaimShortens, ON_RECORD, &[(Extend, 1), (Expiry, 1), (Reconnect, 1)]),
        (Broken::ReleaseWithoutCompare, "only the holder releases", &[(Expiry, 1)]),
        (Broken::HoldKeepsToken, "what is released stays released", &[(Renew, 1), (Reconnect, 1)]),
        (Broken::RenewalBySet, "a renewal creates nothing", &[(Renew, 1), (Expiry, 1)]),
        (Broken::RenewalShortens, ON_RECORD, &[(Extend, 1), (Renew, 1), (Expiry, 1)]),
        (Broken::DeadlineFromReply, "no two leases at a time", &[(Expiry, 1)]),
        (Broken::GrantDeadlineFromReceipt, ON_RECORD, &[(Expiry, 1)]),
        (Broken::GrantWithoutTicket, ON_RECORD, &[(Expiry, 2), (Refresh, 1), (Foreign, 1)]),
        (Broken::UnansweredClaimsCount, ON_RECORD, &[(Expiry, 1), (Refresh, 1), (Foreign, 1)]),
        (Broken::NoClaimAfterSubscribing, "nobody waits for ever", &[]),
        (Broken::LateAnswerEnters, "one grant for an acquisition", &[(Refresh, 1)]),
        (Broken::EntryForgetsClaim, LEFT_BEHIND, &[(Refresh, 1), (Reconnect, 1)]),
        (Broken::ReleaseFinalAtFirstAnswer, LEFT_BEHIND, &[(Cancel, 1), (Reconnect, 1)]),
        (Broken::CancelKeepsPlace, LEFT_BEHIND, &[(Cancel, 1)]),
        (Broken::FenceKept, "fences grow", &[(HandOn, 1)]),
        (Broken::HandOnBeginsLease, "no two leases at a time", &[(HandOn, 1), (Expiry, 1)]),
    ];
    const REFUTED: &str = "wrong rules refuted";
    let mut experiment = Experiment::new(
        3,
        "the model refutes wrong rules",
        "a rule that is wrong in one point",
        &[REFUTED],
    );
    for (broken, expected, rare) in CASES {
        let protocol = || Protocol {
            turns: 1 + u8::from(matches!(broken, Broken::FenceKept | Broken::HandOnBeginsLease)),
            clients: 2 + u8::from(broken == Broken::FirstToAskTakes),
            contended: broken != Broken::NoClaimAfterSubscribing,
            min_hold: broken == Broken::HoldKeepsToken,
            ..these(2, 1, rare)
        };
        let wrong =
            explore(&format!("{broken:?}"), Protocol { broken: Some(broken), ..protocol() });
        let refuted: Vec<_> = wrong.refuted.iter().map(|(property, _)| *property).collect();
        assert!(refuted.contains(&expected), "{broken:?}: {refuted:?}");
        let right = explore("the same by the right rule", protocol());
        assert!(right.refuted.is_empty(), "{broken:?}: {:?}", right.refuted);
        experiment.ran(wrong.states + right.states);
        experiment.saw(REFUTED, 1);
    }
    experiment.finish();
}

/// The rules of the model are those of the scripts: it quotes each line that reads or writes, but for those that it leaves out.
#[test]
fn the_model_follows_the_scripts_line_by_line() {
    const SCRIPTS: [(&str, &str); 4] = [
        ("queue.lua", include_str!("../../lock-core/src/store/redis/scripts/queue.lua")),
        ("acquire.lua", include_str!("../../lock-core/src/store/redis/scripts/acquire.lua")),
        ("release.lua", include_str!("../../lock-core/src/store/redis/scripts/release.lua")),
        ("renew.lua", include_str!("../../lock-core/src/store/redis/scripts/renew.lua")),
    ];
    /// Beginnings of lines.
    const LEFT_OUT: [(&str, &str); 19] = [
        // The counter: numbers grow.
        ("queue.lua", "local last = redis.pcall('SET', counter,"),
        ("queue.lua", "redis.call('SET', counter, last)"),
        ("queue.lua", "if number and number - 1 > us then redis.call('SET', counter,"),
        // Tickets leave the queue when they expire.
        ("queue.lua", "local gone = redis.call('ZRANGEBYSCORE', line.alive,"),
        ("queue.lua", "redis.call('ZREM', queue, unpack(gone))"),
        ("queue.lua", "redis.call('ZREM', line.alive, unpack(gone))"),
        ("queue.lua", "redis.call('DEL', line.alive)"),
        // The place tells when to ask again, which may be at any time.
        ("acquire.lua", "local place = redis.call('ZRANK', queue, member)"),
        // A queue outlasts its tickets.
        ("acquire.lua", "redis.call('PEXPIRE', queue, 120000)"),
        ("acquire.lua", "redis.call('PEXPIRE', line.alive, 120000)"),
        ("release.lua", "if count > 1 then redis.call('PEXPIRE', queue, 120000) end"),
        ("release.lua", "redis.call('PEXPIRE', lock, hold)"),
        // Tells nothing: it has the server write in another order.
        (
            "queue.lua",
            "if own ~= '' and own ~= inbox and not behind then behind = redis.pcall('PUBLISH', own, '') end",
        ),
        // For many at a time: the same in fewer calls.
        ("acquire.lua", "local waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + count))"),
        ("release.lua", "waiting = redis.pcall('PEXPIRE', KEYS[3], 120000)"),
        ("release.lua", "waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + count))"),
        ("release.lua", "local holders = redis.pcall('MGET', unpack(KEYS, 2, 1 + count))"),
        ("release.lua", "if free[1] then redis.call('DEL', unpack(free)) end"),
        // Errors of the server.
        ("acquire.lua", "if taken then redis.call('DEL', lock) end"),
    ];
    let mut quotes = Vec::new();
    for line in include_str!("server.rs").lines().map(str::trim) {
        let Some((script, quote)) =
            line.strip_prefix("// ").and_then(|line| line.split_once(" | "))
        else {
            continue;
        };
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
            let known = quotes.contains(&(script, line))
                || LEFT_OUT.iter().any(|(name, start)| *name == script && line.starts_with(start));
            assert!(!calls || known, "{script}: the model knows nothing of `{line}`");
        }
    }
}
