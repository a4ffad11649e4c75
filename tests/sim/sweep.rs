//! Futures that are dropped after each number of polls.

use std::time::Duration;

use lock_tests::{Experiment, dose};
use tokio::time::{sleep, timeout};

use crate::crowd;
use crate::fake::Traits;
use crate::setting::{EXACT, SOON, Setting, cut, simulated};

/// What is dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum What {
    Lock,
    /// Behind another client, which releases meanwhile.
    WaitingLock,
    TryLock,
    Release,
    Extend,
    Run,
}

/// What happens to the client's streams in that moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    None,
    Reset,
    Silence,
}

/// No future here needs more polls than this to end.
const MOST_POLLS: usize = 200;
/// The number of seeds.
const SEEDS: usize = 20;

#[test]
fn a_future_dropped_after_any_number_of_polls_leaves_nothing_behind() {
    let mut experiment = Experiment::new(
        9,
        "a dropped future leaves nothing behind",
        "lock, try_lock, release, extend and run dropped after each number of polls",
        &["dropped", "ended by itself", "dropped while streams broke"],
    );
    let counts = std::sync::Mutex::new([0; 3]);
    let seeds = dose(SEEDS) as u64;
    crowd::each(0..seeds, |seed| {
        let all =
            [What::Lock, What::WaitingLock, What::TryLock, What::Release, What::Extend, What::Run];
        for what in all {
            for fault in [Fault::None, Fault::Reset, Fault::Silence] {
                let polls = (0..MOST_POLLS).find(|polls| {
                    let traits = Traits { resp3: seed % 3 != 0, ..EXACT };
                    let ended = simulated(seed, traits, async |setting| {
                        drop_after(setting, what, fault, *polls).await
                    });
                    let counts = &mut *counts.lock().unwrap();
                    counts[0] += usize::from(!ended);
                    counts[1] += usize::from(ended);
                    counts[2] += usize::from(!ended && fault != Fault::None);
                    ended
                });
                assert!(polls.is_some_and(|polls| polls > 0), "{what:?} {fault:?}: {polls:?}");
            }
        }
    });
    let [dropped, ended, broke] = counts.into_inner().unwrap();
    println!("{dropped} dropped, {ended} ended, {broke} while streams broke");
    experiment.ran(dropped + ended);
    experiment.saw("dropped", dropped);
    experiment.saw("ended by itself", ended);
    experiment.saw("dropped while streams broke", broke);
    experiment.finish();
}

/// Whether it ended before.
async fn drop_after(mut setting: Setting, what: What, fault: Fault, polls: usize) -> bool {
    setting.case += &format!(": {what:?} after {polls} polls, {fault:?}");
    let (client, machine) = setting.client().await;
    let (other, _) = setting.client().await;
    let mutex = client.mutex("k");
    let ended = match what {
        What::Lock => cut(mutex.lock(), polls).await.is_some(),
        What::TryLock => cut(mutex.try_lock(), polls).await.is_some(),
        What::WaitingLock => {
            let guard = other.mutex("k").lock().await.unwrap();
            let releasing = tokio::spawn(async move {
                sleep(Duration::from_millis(1_300)).await;
                guard.release().await.unwrap();
            });
            let ended = cut(mutex.lock(), polls).await.is_some();
            if !ended {
                break_streams(&machine, fault);
            }
            releasing.await.unwrap();
            ended
        }
        What::Release => {
            let guard = mutex.lock().await.unwrap();
            cut(guard.release(), polls).await.is_some()
        }
        What::Extend => {
            let guard = mutex.lock().await.unwrap();
            cut(guard.extend(Duration::from_secs(9)), polls).await.is_some()
        }
        What::Run => {
            let body = async |_| sleep(Duration::from_millis(5)).await;
            cut(mutex.run(body), polls).await.is_some()
        }
    };
    if !ended && what != What::WaitingLock {
        break_streams(&machine, fault);
    }
    setting.nothing_remains(&client).await;
    let next = timeout(SOON, other.mutex("k").try_lock()).await;
    assert!(matches!(next, Ok(Ok(Some(_)))), "{}: {next:?}", setting.case);
    ended
}

fn break_streams(machine: &crate::net::Machine, fault: Fault) {
    match fault {
        Fault::None => {}
        Fault::Reset => machine.reset(true),
        Fault::Silence => machine.silence(crate::net::Way::Down),
    }
}
