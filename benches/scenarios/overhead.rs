//! What the macro, the layer and recorded metrics add to the guard. The store is in memory, so that
//! nothing else takes time.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use lock_core::store::MemoryStore;
use lock_core::{Error, LockClient, distributed_lock, key};
use lock_tower::LockLayer;
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::clock::now;
use crate::support::report::{Limit, Outcome, Threshold};
use crate::support::run::Run;
use crate::support::stats::median;
use crate::support::table::{Column, Row, Table};

const COLUMNS: &[Column] = &[
    Column::new("ns", "ns per section", 0),
    Column::new("over_ns", "above the guard, ns", 0),
    Column::new("allocations", "heap allocations", 1),
    Column::new("over_allocations", "above the guard", 1),
];

/// Consecutive sections of one variant.
const BATCH: u64 = 2_000;

/// The variants; each is compared with the same work done with a guard.
#[derive(Clone, Copy)]
enum Variant {
    Guard,
    Macro,
    /// A service behind a guard that is acquired by hand.
    GuardedService,
    Layer,
    /// A guard, with a Prometheus recorder for the client's metrics. The other variants have no
    /// recorder.
    Recorded,
}

const VARIANTS: [Variant; 5] =
    [Variant::Guard, Variant::Macro, Variant::GuardedService, Variant::Layer, Variant::Recorded];

pub(super) fn measure(run: &Run) -> Outcome {
    let rounds = run.quick_or_full(50, 300);
    run.progress("overhead", 0, 1);
    // A separate runtime on a separate thread, because allocations are counted per thread.
    std::thread::spawn(move || outcome(rounds)).join().unwrap()
}

fn outcome(rounds: usize) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = || LockClient::builder(MemoryStore::new()).build().unwrap();
    let (plain, recorder) = (client(), PrometheusBuilder::new().build_recorder());
    let recorded = metrics::with_local_recorder(&recorder, || {
        let client = client();
        // The handles of a label are made at its first lock.
        runtime.block_on(batch(Variant::Recorded, &client));
        client
    });
    let exporter = recorder.handle();
    let client_of = |variant| if let Variant::Recorded = variant { &recorded } else { &plain };
    let mut took = [const { Vec::new() }; VARIANTS.len()];
    for _ in 0..=rounds {
        for (variant, took) in VARIANTS.iter().zip(&mut took) {
            let start = now();
            runtime.block_on(batch(*variant, client_of(*variant)));
            took.push((now() - start) as f64 / BATCH as f64);
        }
        // As a scrape does; else the histograms grow for ever.
        exporter.run_upkeep();
    }
    let sections = (rounds as u64 + 2) * BATCH;
    let exported = exporter.render();
    let is_counted = exported.lines().any(|line| {
        line.starts_with("lock_acquisitions_total{") && line.ends_with(&format!(" {sections}"))
    });
    assert!(is_counted, "{sections} sections were not recorded: {exported}");
    let allocations = VARIANTS.map(|variant| {
        let client = client_of(variant);
        let counted = allocation_counter::measure(|| runtime.block_on(batch(variant, client)));
        // Includes a few of the runtime and the releaser that do not occur per section.
        counted.count_total as f64 / BATCH as f64
    });
    let row = |name: &str, variant: Variant, base: Variant| {
        let (variant, base) = (variant as usize, base as usize);
        // The first round warms up.
        let pairs = took[variant].iter().zip(&took[base]).skip(1);
        let over =
            (variant != base).then(|| median(pairs.map(|(one, other)| one - other))).flatten();
        let more = (variant != base).then(|| allocations[variant] - allocations[base]);
        let values = vec![
            median(took[variant][1..].iter().copied()),
            over,
            Some(allocations[variant]),
            more,
        ];
        Row { name: name.to_owned(), values }
    };
    let rows = vec![
        row("guard", Variant::Guard, Variant::Guard),
        row("macro", Variant::Macro, Variant::Guard),
        row("service behind a guard", Variant::GuardedService, Variant::GuardedService),
        row("service behind the layer", Variant::Layer, Variant::GuardedService),
        row("guard, metrics recorded", Variant::Recorded, Variant::Guard),
    ];
    let threshold = |what: &str, figure: Option<f64>, required, unit| Threshold {
        what: what.to_owned(),
        figure,
        required: Limit::AtMost(required),
        target: None,
        unit,
    };
    let us = |row: &Row| row.values[1].map(|ns| ns / 1e3);
    let thresholds = vec![
        threshold("the macro over the guard, in memory", us(&rows[1]), 1.0, "µs"),
        // A tenth allows for allocations that do not occur per section.
        threshold("the macro over the guard, heap allocations", rows[1].values[3], 0.1, ""),
        threshold("the layer over the guard, in memory", us(&rows[3]), 2.0, "µs"),
        threshold("recorded metrics over the guard, in memory", us(&rows[4]), 1.0, "µs"),
        threshold("recorded metrics, heap allocations", rows[4].values[3], 0.1, ""),
    ];
    let table = Table {
        id: "overhead".to_owned(),
        title: "Overhead of the macro, the layer and metrics, with MemoryStore".to_owned(),
        columns: COLUMNS,
        rows,
        drawn: &["ns"],
    };
    Outcome { tables: vec![table], thresholds }
}

async fn batch(variant: Variant, client: &LockClient) {
    match variant {
        Variant::Guard | Variant::Recorded => {
            for id in 0..BATCH {
                by_guard(client, id).await.unwrap();
            }
        }
        Variant::Macro => {
            for id in 0..BATCH {
                by_macro(client, id).await.unwrap();
            }
        }
        Variant::GuardedService => {
            let service = service_fn(answer);
            for id in 0..BATCH {
                let guard = client.mutex(key!("bench:<id>")).lock().await.unwrap();
                let response = service.oneshot(request(id)).await.unwrap();
                guard.release().await.unwrap();
                assert!(response.status().is_success());
            }
        }
        Variant::Layer => {
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
