//! The scenarios: one file per kind of load.

mod drain;
mod faults;
mod hot_key;
mod overhead;
mod renewal;
mod rounds;
mod topologies;
mod uncontended;

use crate::support::report::Outcome;
use crate::support::run::Run;

pub(crate) const NAMES: [&str; 7] =
    ["uncontended", "hot-key", "drain", "faults", "renewal", "topologies", "overhead"];

pub(crate) async fn measure(name: &str, run: &Run) -> Outcome {
    match name {
        "uncontended" => uncontended::measure(run).await,
        "hot-key" => hot_key::measure(run).await,
        "drain" => drain::measure(run).await,
        "faults" => faults::measure(run).await,
        "renewal" => renewal::measure(run).await,
        "topologies" => topologies::measure(run).await,
        "overhead" => overhead::measure(run),
        _ => unreachable!("parsed"),
    }
}
