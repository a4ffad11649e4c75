//! What the macro and the layer add to the guard, on a store in memory, where nothing else takes time.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use lock_core::store::MemoryStore;
use lock_core::{Error, LockClient, distributed_lock, key};
use lock_tower::LockLayer;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::args::Run;
use crate::support::clock::now;
use crate::support::report::{Bar, Limit, Outcome};
use crate::support::stats::median;
use crate::support::table::{Column, Row, Table};

const COLUMNS: &[Column] = &[
    Column::new("ns", "ns per section", 0),
    Column::new("over_ns", "more than the guard, ns", 0),
    Column::new("allocations", "heap allocations", 1),
    Column::new("over_allocations", "more than the guard", 1),
];

/// Sections of one contender in a row.
const BATCH: u64 = 2_000;

/// What is compared, each with the guard form of the same work.
#[derive(Clone, Copy)]
enum Way {
    Guard,
    Macro,
    /// A service behind a guard taken by hand.
    GuardedService,
    Layer,
}

const WAYS: [Way; 4] = [Way::Guard, Way::Macro, Way::GuardedService, Way::Layer];

pub(super) fn measure(run: &Run) -> Outcome {
    let rounds = run.dose(50, 300);
    run.progress("overhead", 0, 1);
    // A runtime of its own, on a thread of its own: allocations are counted per thread.
    std::thread::spawn(move || outcome(rounds)).join().unwrap()
}

fn outcome(rounds: usize) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = LockClient::builder(MemoryStore::new()).build().unwrap();
    let mut took = [const { Vec::new() }; 4];
    for _ in 0..=rounds {
        for (way, took) in WAYS.iter().zip(&mut took) {
            let start = now();
            runtime.block_on(batch(*way, &client));
            took.push((now() - start) as f64 / BATCH as f64);
        }
    }
    let allocations = WAYS.map(|way| {
        let counted = allocation_counter::measure(|| runtime.block_on(batch(way, &client)));
        // The runtime and the janitor have some that are not per section.
        counted.count_total as f64 / BATCH as f64
    });
    let row = |name: &str, way: Way, base: Way| {
        let (way, base) = (way as usize, base as usize);
        // The first round warms up.
        let pairs = took[way].iter().zip(&took[base]).skip(1);
        let over = (way != base).then(|| median(pairs.map(|(one, other)| one - other))).flatten();
        let more = (way != base).then(|| allocations[way] - allocations[base]);
        let values =
            vec![median(took[way][1..].iter().copied()), over, Some(allocations[way]), more];
        Row { name: name.to_owned(), values }
    };
    let rows = vec![
        row("guard", Way::Guard, Way::Guard),
        row("macro", Way::Macro, Way::Guard),
        row("service behind a guard", Way::GuardedService, Way::GuardedService),
        row("service behind the layer", Way::Layer, Way::GuardedService),
    ];
    let bar = |what: &str, figure: Option<f64>, must, unit| Bar {
        what: what.to_owned(),
        figure,
        must: Limit::AtMost(must),
        aim: None,
        unit,
    };
    let us = |row: &Row| row.values[1].map(|ns| ns / 1e3);
    let bars = vec![
        bar("the macro over the guard, in memory", us(&rows[1]), 1.0, "µs"),
        // A tenth, for what is not per section.
        bar("the macro over the guard, heap allocations", rows[1].values[3], 0.1, ""),
        bar("the layer over the guard, in memory", us(&rows[3]), 2.0, "µs"),
    ];
    let table = Table {
        id: "overhead".to_owned(),
        title: "Overhead of the macro and the layer, with MemoryStore".to_owned(),
        columns: COLUMNS,
        rows,
        drawn: &["ns"],
    };
    Outcome { tables: vec![table], bars }
}

async fn batch(way: Way, client: &LockClient) {
    match way {
        Way::Guard => {
            for id in 0..BATCH {
                by_guard(client, id).await.unwrap();
            }
        }
        Way::Macro => {
            for id in 0..BATCH {
                by_macro(client, id).await.unwrap();
            }
        }
        Way::GuardedService => {
            let service = service_fn(answer);
            for id in 0..BATCH {
                let guard = client.mutex(key!("bench:<id>")).lock().await.unwrap();
                let response = service.oneshot(request(id)).await.unwrap();
                guard.release().await.unwrap();
                assert!(response.status().is_success());
            }
        }
        Way::Layer => {
            let layer = LockLayer::from_fn(client.clone(), |parts| {
                let Id(id) = parts.extensions.get::<Id>()?;
                Some(key!("bench:<id>"))
            });
            let service = layer.layer(service_fn(answer));
            for id in 0..BATCH {
                let response = service.clone().oneshot(request(id)).await.unwrap();
                assert!(response.status().is_success());
            }
        }
    }
}

async fn by_guard(client: &LockClient, id: u64) -> Result<u64, Error> {
    let guard = client.mutex(key!("bench:<id>")).lock().await?;
    let answer = std::hint::black_box(id);
    guard.release().await?;
    Ok(answer)
}

#[distributed_lock(key = "bench:<id>", client = client)]
async fn by_macro(client: &LockClient, id: u64) -> Result<u64, Error> {
    Ok(std::hint::black_box(id))
}

#[derive(Clone)]
struct Id(u64);

fn request(id: u64) -> Request<Empty<Bytes>> {
    Request::builder().extension(Id(id)).body(Empty::new()).unwrap()
}

async fn answer(_request: Request<Empty<Bytes>>) -> Result<Response<Empty<Bytes>>, Infallible> {
    Ok(Response::new(Empty::new()))
}
