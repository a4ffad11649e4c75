//! The rounds of a scenario: which peers take part, in which order, and their figures.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::peers::{self, Kind, Peer};
use crate::support::clock::now;
use crate::support::run::Run;
use crate::support::stats::median;

/// The order in which the peers of a round are measured; it rotates. In a quick run, crates
/// without a threshold are measured only in the first round.
pub(super) fn turns(run: &Run, round: usize, among: &[&'static Kind]) -> Vec<usize> {
    let all = 0..among.len();
    let mut turns: Vec<_> = all
        .filter(|index| {
            let kind = among[*index];
            !run.quick || round == 0 || !kind.third_party || kind.name == peers::RSLOCK
        })
        .collect();
    let shift = round % turns.len();
    turns.rotate_left(shift);
    turns
}

/// The peers that can wait.
pub(super) fn waiting() -> Vec<&'static Kind> {
    peers::ALL.iter().copied().filter(|kind| kind.waits).collect()
}

/// Lets `tasks` tasks take locks, each on a key of its own, for `lasts` nanoseconds. Returns what
/// each section took and how long all took, in nanoseconds; `None` if the peer failed.
pub(super) async fn own_keys(
    peer: &Arc<dyn Peer>,
    tasks: usize,
    lasts: u64,
) -> Option<(Vec<u64>, u64)> {
    let start = now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let peer = Arc::clone(peer);
            let key = format!("own:{task}");
            tokio::spawn(async move {
                let mut took = Vec::new();
                let mut began = start;
                while began < start + lasts {
                    began = now();
                    peer.section(&key, Box::pin(async {})).await;
                    took.push(now() - began);
                }
                took
            })
        })
        .collect();
    let took: Result<Vec<_>, _> = join_all(running).await.into_iter().collect();
    Some((took.ok()?.concat(), now() - start))
}

/// The figures of every peer and round; `None` if the peer was not measured in that round.
pub(super) struct Rounds<T>(Vec<Vec<Option<T>>>);

impl<T> Rounds<T> {
    pub(super) fn new(peers: usize, rounds: usize) -> Self {
        Self((0..peers).map(|_| (0..rounds).map(|_| None).collect()).collect())
    }

    pub(super) fn put(&mut self, peer: usize, round: usize, figures: T) {
        self.0[peer][round] = Some(figures);
    }

    /// The median of a figure over the rounds.
    pub(super) fn median(&self, peer: usize, figure: impl Fn(&T) -> Option<f64>) -> Option<f64> {
        let rounds = self.0[peer].iter().flatten();
        median(rounds.filter_map(figure))
    }

    /// The median of the ratios of a figure to another peer's in the same round.
    pub(super) fn ratio(
        &self,
        peer: usize,
        other: Option<usize>,
        figure: impl Fn(&T) -> Option<f64>,
    ) -> Option<f64> {
        let pairs = self.0[peer].iter().zip(&self.0[other?]);
        let ratio = |(one, other): (&Option<T>, &Option<T>)| {
            Some(figure(one.as_ref()?)? / figure(other.as_ref()?)?)
        };
        median(pairs.filter_map(ratio))
    }
}

pub(super) fn index_of(name: &str, among: &[&'static Kind]) -> Option<usize> {
    among.iter().position(|kind| kind.name == name)
}
