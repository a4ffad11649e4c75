//! Futures that are dropped after each number of polls.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::RedisStore;
use lock_testkit::{Experiment, scale};
use lock_tests::cancellation::{Moment, Operation, Rival, Trial};

use crate::fake::Traits;
use crate::net::Way;
use crate::setting::{EXACT, REQUEST, SOON, Setting, simulated};
use crate::stress;

/// What happens to the client's streams in the moment of the drop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    None,
    Reset,
    Silence,
}

/// One drop.
#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    operation: &'a Operation,
    rival: Rival,
    fault: Fault,
    moment: Moment,
    polls: usize,
}

/// No future here needs more polls than this to end.
const MOST_POLLS: usize = 200;
/// How long a rival keeps the lock. A waiter is queued and subscribed long before that.
const PAUSE: Duration = Duration::from_millis(100);
/// The number of seeds.
const SEEDS: usize = 1;

/// What was counted.
#[derive(Default)]
struct Seen {
    dropped: usize,
    woken: usize,
    broke: usize,
    ended: usize,
    /// The most that it took to the end.
    polls: BTreeMap<String, usize>,
}

/// Every public future is dropped after each number of polls.
#[test]
fn future_dropped_after_any_poll_leaves_nothing_behind() {
    let mut experiment = Experiment::new(
        9,
        "a dropped future leaves nothing behind",
        "all that is public and async dropped after each number of polls",
        &["dropped", "dropped when woken", "dropped while streams broke", "ended by itself"],
    );
    let (operations, seen) = (Operation::all(), Mutex::new(Seen::default()));
    let failure = Mutex::new(None);
    let count = operations.len() as u64;
    stress::each(0..scale(SEEDS) as u64 * count, |number| {
        let operation = &operations[(number % count) as usize];
        let one = AssertUnwindSafe(|| sweep(operation, number / count, number, &seen));
        if let Err(panic) = catch_unwind(one) {
            *failure.lock().unwrap() = Some(panic);
        }
    });
    if let Some(panic) = failure.into_inner().unwrap() {
        resume_unwind(panic);
    }
    let Seen { dropped, woken, broke, ended, polls } = seen.into_inner().unwrap();
    for (what, polls) in polls {
        println!("{what}: {polls} polls");
    }
    println!("{dropped} dropped, {woken} when woken, {broke} while streams broke, {ended} ended");
    experiment.ran(dropped + ended);
    experiment.saw("dropped", dropped);
    experiment.saw("dropped when woken", woken);
    experiment.saw("dropped while streams broke", broke);
    experiment.saw("ended by itself", ended);
    experiment.finish();
}

fn sweep(operation: &Operation, round: u64, seed: u64, seen: &Mutex<Seen>) {
    use Moment::{AfterItsPoll, InPlaceOfAPoll};
    let (one, other) = match round % 2 {
        0 => (AfterItsPoll, InPlaceOfAPoll),
        _ => (InPlaceOfAPoll, AfterItsPoll),
    };
    let ways = [
        (Fault::None, AfterItsPoll),
        (Fault::None, InPlaceOfAPoll),
        (Fault::Reset, one),
        (Fault::Silence, other),
    ];
    for &rival in operation.rivals() {
        for (fault, moment) in ways {
            let case = |polls| Case { operation, rival, fault, moment, polls };
            let end = (0..MOST_POLLS).find(|polls| drop_at(seed, case(*polls)));
            let polls = end.unwrap_or_else(|| panic!("{:?} does not end", case(MOST_POLLS)));
            assert!(polls > usize::from(operation.waits(rival)), "{:?}", case(polls));
            let mut seen = seen.lock().unwrap();
            seen.dropped += polls;
            seen.woken += polls * usize::from(moment == InPlaceOfAPoll);
            seen.broke += polls * usize::from(fault != Fault::None);
            seen.ended += 1;
            let most = seen.polls.entry(format!("{operation:?}, {rival:?}")).or_default();
            *most = polls.max(*most);
        }
    }
}

/// Whether it ended before.
fn drop_at(seed: u64, case: Case<'_>) -> bool {
    let Case { operation, rival, fault, moment, polls } = case;
    let traits = Traits { resp3: !seed.is_multiple_of(3), ..EXACT };
    simulated(seed, traits, async |setting: Setting| {
        let (other, _) = setting.client().await;
        let machine = setting.net.machine();
        let connector = machine.clone();
        let trial = Trial {
            store: Arc::new(move || {
                RedisStore::builder("redis://simulated/")
                    .with_connector(connector.clone())
                    .with_request_timeout(REQUEST)
            }),
            other: &other,
            key: "k".to_owned(),
            pause: PAUSE,
            at_drop: match fault {
                Fault::None => None,
                Fault::Reset => Some(&|| machine.reset(true)),
                Fault::Silence => Some(&|| machine.silence(Way::Down)),
            },
            leftovers: &|| {
                let remains = setting.fake.leftovers().into_iter();
                // What a check at the start that lost its connection leaves expires by itself: no
                // lock can be called like that.
                let excused = |name: &String| {
                    !matches!(fault, Fault::None) && name.starts_with("lock:{0}:check:")
                };
                remains.filter(|name| !excused(name)).collect()
            },
            bound: SOON,
        };
        let name = format!("{}: {case:?}", setting.case);
        trial.drop_after(operation, rival, polls, moment, &name).await
    })
}
