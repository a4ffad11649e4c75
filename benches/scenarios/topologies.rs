//! The same lock on one server, with Sentinel, on a cluster and on a quorum: what high availability
//! costs.

use std::sync::Arc;

use lock_testkit::{Quorum, RedisCluster, RedisServer, Sentinels};

use super::rounds::{Rounds, own_keys};
use crate::peers::{self, Config, FENCED, FENCED_WITH_ACKS, Kind, Peer, RSLOCK, TTL};
use crate::support::clock::MS;
use crate::support::machine::Cores;
use crate::support::report::{Limit, Outcome, Threshold};
use crate::support::run::Run;
use crate::support::stats::{self, Gaps, quantile_us};
use crate::support::table::{Column, Row, Table};
use crate::support::worker::{End, Race, Raced, Worker};

const COLUMNS: &[Column] = &[
    Column::new("p50_us", "p50 µs", 1),
    Column::new("p99_us", "p99 µs", 1),
    Column::new("p50_to_one", "p50 / one server", 2),
    Column::new("p50_to_replicated", "p50 / one with a replica", 2),
    Column::new("per_s", "locks/s", 0),
    Column::new("to_one", "locks/s / one server", 2),
    Column::new("to_replicated", "locks/s / one with a replica", 2),
    Column::new("to_rslock", "/ rslock on as many", 2),
];

const HOT_COLUMNS: &[Column] = &[
    Column::new("per_s", "sections/s", 0),
    Column::new("to_one", "/ one server", 2),
    Column::new("to_replicated", "/ one with a replica", 2),
    Column::new("to_rslock", "/ rslock on as many", 2),
    Column::new("across_p50_us", "gap across processes p50 µs", 1),
    Column::new("scripts", "script calls per section, all servers", 2),
];

/// A lock on some servers.
struct Contender {
    name: &'static str,
    kind: &'static Kind,
    urls: String,
    servers: usize,
    /// The index of `rslock` on as many servers.
    rslock: Option<usize>,
    hot: bool,
}

struct Servers {
    sentinels: Sentinels,
    cluster: RedisCluster,
    quorum: Quorum,
}

/// Of the quorum.
const MEMBERS: usize = 5;
const ONE: usize = 0;
/// The master that the sentinels watch, by its own address. All servers share a core, so a replica
/// costs its master time. Masters under sentinels and in a cluster have one each, so what their
/// protocol costs is their ratio to this row.
const REPLICATED: usize = 1;
const WITH_SENTINEL: usize = 2;
const WITH_ACKS: usize = 3;
const CLUSTER: usize = 4;
const OF_THREE: usize = 5;
const OF_FIVE: usize = 7;

impl Servers {
    async fn start(cores: Cores) -> Self {
        let (sentinels, cluster) = (Sentinels::start(1).await, RedisCluster::start().await);
        let servers = Self { sentinels, cluster, quorum: Quorum::of_age(MEMBERS, "lock") };
        for server in servers.all() {
            let info: String = server.cli("INFO server");
            let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
            cores.pin_server(pid.trim().parse().unwrap());
        }
        servers
    }

    fn all(&self) -> impl Iterator<Item = &RedisServer> {
        let sentinels = (0..2).map(|index| self.sentinels.server(index));
        sentinels.chain(self.cluster.servers()).chain(self.quorum.servers())
    }

    fn contenders(&self, run: &Run) -> Vec<Contender> {
        let [fenced, acks, rslock] = [FENCED, FENCED_WITH_ACKS, RSLOCK].map(peers::named);
        let fenced = fenced.unwrap();
        let of = |count: usize| {
            let urls: Vec<_> = self.quorum.servers().take(count).map(RedisServer::url).collect();
            urls.join(" ")
        };
        let ours = |name, urls, servers, rslock, hot| Contender {
            name,
            kind: fenced,
            urls,
            servers,
            rslock,
            hot,
        };
        let mut all = vec![
            ours("one server", run.server.url.clone(), 1, None, true),
            ours("one with a replica", self.sentinels.server(0).url(), 1, None, true),
            ours("Sentinel", self.sentinels.url(), 1, None, false),
            Contender {
                kind: acks.unwrap(),
                ..ours("Sentinel, 1 acknowledgement", self.sentinels.url(), 1, None, false)
            },
            ours("cluster of 3", self.cluster.url(), 3, None, true),
            ours("quorum of 3", of(3), 3, None, true),
        ];
        if let Some(kind) = rslock {
            all[OF_THREE].rslock = Some(OF_THREE + 1);
            let rslock =
                |name, count| Contender { kind, ..ours(name, of(count), count, None, true) };
            all.push(rslock("rslock on 3", 3));
            all.push(ours("quorum of 5", of(5), 5, Some(OF_FIVE + 1), true));
            all.push(rslock("rslock on 5", 5));
        } else {
            all.push(ours("quorum of 5, without a peer", of(5), 5, None, true));
        }
        all
    }
}

struct Figures {
    p50: Option<f64>,
    p99: Option<f64>,
    rate: f64,
    scripts: f64,
}

pub(super) async fn measure(run: &Run) -> Outcome {
    let servers = Servers::start(run.cores).await;
    let contenders = servers.contenders(run);
    let mut outcome = Outcome::default();
    let mut all = Vec::new();
    for contender in &contenders {
        let peer = contender.kind.connect(&Config::with_ttl(&contender.urls, TTL)).await;
        peer.section("warm", Box::pin(async {})).await;
        all.push(peer);
    }
    for tasks in [1, 256] {
        let figures = uncontended(run, tasks, &contenders, &all).await;
        outcome.thresholds.extend(thresholds(tasks, &figures));
        outcome.tables.push(table(tasks, &contenders, &figures));
    }
    outcome.thresholds.push(paused_member(run, &servers, &contenders, &all).await);
    outcome.tables.push(hot_key(run, &servers, &contenders, &mut outcome.thresholds).await);
    outcome
}

async fn uncontended(
    run: &Run,
    tasks: usize,
    contenders: &[Contender],
    all: &[Arc<dyn Peer>],
) -> Rounds<Figures> {
    let rounds = run.quick_or_full(3, 7);
    let lasts = run.quick_or_full(150, 350) * MS;
    let title = title(tasks);
    let mut figures = Rounds::new(all.len(), rounds);
    for round in 0..rounds {
        run.progress(&title, round, rounds);
        for turn in 0..all.len() {
            let turn = (turn + round) % all.len();
            own_keys(&all[turn], tasks, lasts / 10).await;
            match own_keys(&all[turn], tasks, lasts).await {
                Some((mut took, elapsed)) => {
                    let rate = took.len() as f64 / elapsed as f64 * 1e9;
                    let p50 = quantile_us(&mut took, 0.5);
                    let p99 = quantile_us(&mut took, 0.99);
                    figures.put(turn, round, Figures { p50, p99, rate, scripts: 0.0 });
                }
                None => stats::failed(contenders[turn].name, &title),
            }
        }
    }
    figures
}

fn title(tasks: usize) -> String {
    let tasks = if tasks == 1 { "1 task".to_owned() } else { format!("{tasks} tasks") };
    format!("Topologies, uncontended, {tasks}")
}

fn table(tasks: usize, contenders: &[Contender], figures: &Rounds<Figures>) -> Table {
    let rate = |round: &Figures| Some(round.rate);
    let rows = contenders.iter().enumerate().map(|(index, contender)| Row {
        name: contender.name.to_owned(),
        values: vec![
            figures.median(index, |round| round.p50),
            figures.median(index, |round| round.p99),
            figures.ratio(index, Some(ONE), |round| round.p50),
            figures.ratio(index, Some(REPLICATED), |round| round.p50),
            figures.median(index, rate),
            figures.ratio(index, Some(ONE), rate),
            figures.ratio(index, Some(REPLICATED), rate),
            figures.ratio(index, contender.rslock, rate),
        ],
    });
    Table {
        id: format!("topologies/{tasks}"),
        title: title(tasks),
        columns: COLUMNS,
        rows: rows.collect(),
        drawn: if tasks == 1 { &["p50_us"] } else { &["per_s"] },
    }
}

fn thresholds(tasks: usize, figures: &Rounds<Figures>) -> Vec<Threshold> {
    let threshold = |what: &str, figure, required, target| Threshold {
        what: what.to_owned(),
        figure,
        required,
        target: Some(target),
        unit: "",
    };
    let p50 = |index, other| figures.ratio(index, Some(other), |round: &Figures| round.p50);
    let rate = |index, other| figures.ratio(index, Some(other), |round: &Figures| Some(round.rate));
    if tasks > 1 {
        return vec![threshold(
            "cluster of 3, 256 tasks, locks/s / one server",
            rate(CLUSTER, ONE),
            Limit::AtLeast(0.35),
            Limit::AtLeast(0.6),
        )];
    }
    vec![
        threshold(
            "cluster, 1 task, p50 / one server",
            p50(CLUSTER, ONE),
            Limit::AtMost(1.1),
            Limit::AtMost(1.03),
        ),
        threshold(
            "Sentinel, 1 task, p50 / one server",
            p50(WITH_SENTINEL, ONE),
            Limit::AtMost(1.03),
            Limit::AtMost(1.0),
        ),
        threshold(
            "Sentinel, 1 task, p50: 1 acknowledgement / none",
            p50(WITH_ACKS, WITH_SENTINEL),
            Limit::AtMost(1.6),
            Limit::AtMost(1.4),
        ),
        threshold(
            "quorum of 3, 1 task, p50, fenced / rslock on the same servers",
            p50(OF_THREE, OF_THREE + 1),
            Limit::AtMost(1.1),
            Limit::AtMost(1.0),
        ),
        threshold(
            "quorum of 5, 1 task, p50, fenced / rslock on the same servers",
            p50(OF_FIVE, OF_FIVE + 1),
            Limit::AtMost(1.1),
            Limit::AtMost(1.0),
        ),
    ]
}

/// A member that does not answer costs a client its timeout once, and then nothing.
async fn paused_member(
    run: &Run,
    servers: &Servers,
    contenders: &[Contender],
    all: &[Arc<dyn Peer>],
) -> Threshold {
    let index = contenders.iter().position(|it| it.name.starts_with("quorum of 5")).unwrap();
    let (quorum, lasts) = (&all[index], run.quick_or_full(300, 1_500) * MS);
    let p99 = async || {
        let (mut took, _) = own_keys(quorum, 1, lasts).await?;
        quantile_us(&mut took, 0.99)
    };
    run.progress("Topologies, paused member", 0, 1);
    let healthy = p99().await;
    servers.quorum.server(0).pause();
    own_keys(quorum, 1, 2_000 * MS).await;
    let paused = p99().await;
    servers.quorum.server(0).resume();
    Threshold {
        what: "quorum of 5, one member paused, after its first timeouts: p99 / healthy".to_owned(),
        figure: paused.zip(healthy).map(|(paused, healthy)| paused / healthy),
        required: Limit::AtMost(1.5),
        target: Some(Limit::AtMost(1.1)),
        unit: "",
    }
}

const PROCESSES: usize = 4;
const WAITERS: usize = 16;

async fn hot_key(
    run: &Run,
    servers: &Servers,
    contenders: &[Contender],
    thresholds: &mut Vec<Threshold>,
) -> Table {
    const TITLE: &str = "Topologies, hot key, 4 processes with 16 waiters each, hold 0";
    let rounds = run.quick_or_full(3, 5);
    let lasts = run.quick_or_full(500, 1_000) * MS;
    let race = Race { waiters: WAITERS, hold: 0, lasts: Some(lasts) };
    let mut figures = Rounds::new(contenders.len(), rounds);
    for (index, contender) in contenders.iter().enumerate().filter(|(_, it)| it.hot) {
        let config = Config::with_ttl(&contender.urls, TTL);
        let mut workers = Worker::start_all(contender.kind, &config, PROCESSES).await;
        for round in 0..rounds {
            run.progress(&format!("{TITLE}: {}", contender.name), round, rounds);
            let calls = || servers.all().map(RedisServer::script_calls).sum::<u64>();
            let before = calls();
            let key = format!("hot:{round}");
            let raced = Worker::race(&mut workers, &key, race, &run.server).await;
            let Raced { start, mut sections, end, .. } = raced;
            stats::check(&mut sections, contender.name);
            let scripts = (calls() - before) as f64 / sections.len().max(1) as f64;
            sections.retain(|section| section.exit <= start + lasts);
            if end == End::Failed {
                stats::failed(contender.name, TITLE);
            } else {
                let rate = sections.len() as f64 / lasts as f64 * 1e9;
                let p50 = quantile_us(&mut Gaps::of(&sections).across, 0.5);
                figures.put(index, round, Figures { p50, p99: None, rate, scripts });
            }
            if end != End::Done {
                workers.clear();
                workers = Worker::start_all(contender.kind, &config, PROCESSES).await;
            }
        }
    }
    let rate = |round: &Figures| Some(round.rate);
    let rows = contenders.iter().enumerate().filter(|(_, contender)| contender.hot);
    let rows = rows.map(|(index, contender)| Row {
        name: contender.name.to_owned(),
        values: vec![
            figures.median(index, rate),
            figures.ratio(index, Some(ONE), rate),
            figures.ratio(index, Some(REPLICATED), rate),
            figures.ratio(index, contender.rslock, rate),
            figures.median(index, |round| round.p50),
            // The server of the other scenarios is not among those that are asked.
            figures.median(index, |round| (contender.servers > 1).then_some(round.scripts)),
        ],
    });
    let of_five = contenders.iter().position(|it| it.name.starts_with("quorum of 5")).unwrap();
    thresholds.extend([
        Threshold {
            what: "quorum of 5, hot key, 4 x 16, sections/s / rslock on 5".to_owned(),
            figure: figures.ratio(of_five, contenders[of_five].rslock, rate),
            required: Limit::AtLeast(5.0),
            target: Some(Limit::AtLeast(20.0)),
            unit: "",
        },
        Threshold {
            what: "quorum of 5, hot key, script calls per section".to_owned(),
            figure: figures.median(of_five, |round| Some(round.scripts)),
            required: Limit::AtMost(15.0),
            target: Some(Limit::AtMost(11.0)),
            unit: "",
        },
        Threshold {
            what: "cluster, hot key: gap across processes / one server".to_owned(),
            figure: figures.ratio(CLUSTER, Some(ONE), |round| round.p50),
            required: Limit::AtMost(1.3),
            target: Some(Limit::AtMost(1.1)),
            unit: "",
        },
    ]);
    Table {
        id: "topologies/hot-key".to_owned(),
        title: TITLE.to_owned(),
        columns: HOT_COLUMNS,
        rows: rows.collect(),
        drawn: &["per_s"],
    }
}
