//! What is measured: one file per kind of load.

mod drain;
mod faults;
mod hot_key;
mod overhead;
mod renewal;
mod uncontended;

use crate::contenders::{self, Kind};
use crate::support::args::Run;
use crate::support::report::Outcome;

pub(crate) const NAMES: [&str; 6] =
    ["uncontended", "hot-key", "drain", "faults", "renewal", "overhead"];

pub(crate) async fn measure(name: &str, run: &Run) -> Outcome {
    match name {
        "uncontended" => uncontended::measure(run).await,
        "hot-key" => hot_key::measure(run).await,
        "drain" => drain::measure(run).await,
        "faults" => faults::measure(run).await,
        "renewal" => renewal::measure(run).await,
        "overhead" => overhead::measure(run),
        _ => unreachable!("parsed"),
    }
}

/// The contenders of a round in the order of their turns, which rotates. In a quick run the crates that no bar is about
/// take part in the first round only.
fn turns(run: &Run, round: usize, among: &[&'static Kind]) -> Vec<usize> {
    let all = 0..among.len();
    let mut turns: Vec<_> = all
        .filter(|index| {
            let kind = among[*index];
            !run.quick || round == 0 || !kind.peer || kind.name == contenders::RSLOCK
        })
        .collect();
    let shift = round % turns.len();
    turns.rotate_left(shift);
    turns
}

/// The contenders that can wait.
fn waiting() -> Vec<&'static Kind> {
    contenders::ALL.iter().copied().filter(|kind| kind.waits).collect()
}

/// Figures of the rounds of each contender; `None` where it sat one out.
struct Rounds<T>(Vec<Vec<Option<T>>>);

impl<T> Rounds<T> {
    fn new(contenders: usize, rounds: usize) -> Self {
        Self((0..contenders).map(|_| (0..rounds).map(|_| None).collect()).collect())
    }

    fn put(&mut self, contender: usize, round: usize, figures: T) {
        self.0[contender][round] = Some(figures);
    }

    /// The median of a figure.
    fn median(&self, contender: usize, figure: impl Fn(&T) -> Option<f64>) -> Option<f64> {
        let rounds = self.0[contender].iter().flatten();
        crate::support::stats::median(rounds.filter_map(figure))
    }

    /// The median of a figure's ratio to that of another contender in the same round.
    fn ratio(
        &self,
        contender: usize,
        other: Option<usize>,
        figure: impl Fn(&T) -> Option<f64>,
    ) -> Option<f64> {
        let pairs = self.0[contender].iter().zip(&self.0[other?]);
        let ratio = |(one, other): (&Option<T>, &Option<T>)| {
            Some(figure(one.as_ref()?)? / figure(other.as_ref()?)?)
        };
        crate::support::stats::median(pairs.filter_map(ratio))
    }
}

fn index_of(name: &str, among: &[&'static Kind]) -> Option<usize> {
    among.iter().position(|kind| kind.name == name)
}
