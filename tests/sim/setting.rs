//! A small simulation for a test that scripts its events itself.

use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, Seeded, wait_idle};
use lock_core::{LockClient, LockOptions};
use lock_testkit::{Experiment, Rng, scale};
use tokio::time::timeout;

use crate::fake::{Fake, Traits};
use crate::log::{Log, Reader};
use crate::net::{Latency, Machine, Net};

/// A server, and a network for clients.
pub(crate) struct Setting {
    pub(crate) fake: Fake,
    pub(crate) net: Net,
    pub(crate) log: Log,
    pub(crate) rng: Rng,
    /// The name of the case in messages of failed tests.
    pub(crate) case: String,
}

pub(crate) const EXACT: Traits = Traits { resp3: true, clock_rate: 1_000_000 };
pub(crate) const NEAR: Latency = Latency { usual: 3, longest: 3, slow: 0 };
/// The ttl of clients that do not choose another: well above [`SOON`], so that a test notices a
/// lock that is left to expire.
pub(crate) const TTL: Duration = Duration::from_secs(10);
/// How long a client waits for an answer.
pub(crate) const REQUEST: Duration = Duration::from_millis(200);
/// How soon an abandoned lock is released once the server is reachable: pauses between attempts,
/// and a few connection attempts.
pub(crate) const SOON: Duration = Duration::from_secs(3);

/// Runs `what` under simulated time, by the choices of `seed`.
pub(crate) fn simulated<T>(seed: u64, traits: Traits, what: impl AsyncFnOnce(Setting) -> T) -> T {
    let _seeded = Seeded::with(seed);
    let runtime = { tokio::runtime::Builder::new_current_thread() }
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut rng = Rng::new(seed);
        let log = Log::new(Reader::None);
        let fake = Fake::new(traits, log.clone());
        let net = Net::new(fake.clone(), NEAR, REQUEST, rng.split());
        what(Setting { fake, net, log, rng, case: format!("seed {seed}") }).await
    })
}

/// Runs an experiment for `seeds` seeds. `what` returns which events a seed saw.
pub(crate) fn experiment<const N: usize>(
    mut experiment: Experiment,
    seeds: usize,
    what: impl AsyncFn(Setting) -> [(&'static str, usize); N],
) {
    for seed in 0..scale(seeds) as u64 {
        let seen = simulated(seed, EXACT, &what);
        experiment.ran(1);
        for (event, count) in seen {
            experiment.saw(event, count);
        }
    }
    experiment.finish();
}

impl Setting {
    /// A client on a machine of its own.
    pub(crate) async fn client(&self) -> (LockClient, Machine) {
        self.client_with(TTL).await
    }

    pub(crate) async fn client_with(&self, ttl: Duration) -> (LockClient, Machine) {
        let machine = self.net.machine();
        let store = RedisStore::builder("redis://simulated/")
            .with_connector(machine.clone())
            .with_request_timeout(REQUEST)
            .connect()
            .await
            .unwrap();
        let options = LockOptions::new().with_ttl(ttl);
        let client = LockClient::builder(store).with_defaults(options).build().unwrap();
        (client, machine)
    }

    /// Asserts that [soon](SOON) nothing is left of what the client gave up, neither here nor on
    /// the server.
    pub(crate) async fn nothing_remains(&self, client: &LockClient) {
        let what = &self.case;
        let done = timeout(SOON, wait_idle(client)).await;
        assert!(done.is_ok(), "{what}: {:?}", ClientStats::of(client));
        assert!(ClientStats::of(client).is_idle(), "{what}: {:?}", ClientStats::of(client));
        let remains = self.fake.leftovers();
        assert!(remains.is_empty(), "{what}: {remains:?}");
    }
}
