//! What a lock and its release cost when nobody else wants the key, beside the same two commands on a bare
//! `MultiplexedConnection`: `SET NX PX`, and the compare-and-delete script.
//!
//! Rounds are interleaved, so that what else the machine does hits both alike; the figures are medians of
//! the rounds' ratios. Starts its own redis-server. `--json` prints one object per cell.

// A benchmark prints, and fails by panicking.
#![allow(
    clippy::disallowed_methods,
    clippy::future_not_send,
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs
)]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lock_core::LockClient;
use lock_core::store::RedisStore;
use redis::Script;
use redis::aio::MultiplexedConnection;

const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(400);
const TTL_MS: u64 = 10_000;

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        let child = command.stdout(Stdio::null()).spawn().expect("redis-server is installed");
        let until = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "redis-server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, port }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

#[derive(Clone)]
struct Raw {
    connection: MultiplexedConnection,
    release: Script,
}

impl Raw {
    async fn section(&mut self, key: &str) {
        let token = uuid::Uuid::new_v4().to_string();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&token).arg("NX").arg("PX").arg(TTL_MS);
        let taken: Option<String> = set.query_async(&mut self.connection).await.unwrap();
        assert!(taken.is_some());
        let freed: u64 =
            self.release.key(key).arg(&token).invoke_async(&mut self.connection).await.unwrap();
        assert_eq!(freed, 1);
    }
}

/// Sections per second, and the median of their durations.
type Figures = (f64, Duration);

/// Runs sections in `tasks` tasks for a round.
async fn round(tasks: usize, section: impl AsyncFn(usize)) -> Figures {
    let start = Instant::now();
    let section = &section;
    let all = join_all((0..tasks).map(async |task| {
        let mut took = Vec::new();
        while start.elapsed() < ROUND {
            let one = Instant::now();
            section(task).await;
            took.push(one.elapsed());
        }
        took
    }))
    .await;
    let elapsed = start.elapsed().as_secs_f64();
    let mut all: Vec<_> = all.into_iter().flatten().collect();
    #[allow(clippy::cast_precision_loss)]
    let rate = all.len() as f64 / elapsed;
    all.sort_unstable();
    (rate, all[all.len() / 2])
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let json = std::env::args().any(|arg| arg == "--json");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(json));
}

#[allow(clippy::large_futures)]
async fn measure(json: bool) {
    let server = Server::start();
    let connection = redis::Client::open(server.url()).unwrap();
    let raw = Raw {
        connection: connection.get_multiplexed_async_connection().await.unwrap(),
        release: Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
        ),
    };
    let client =
        LockClient::builder(RedisStore::connect(server.url()).await.unwrap()).build().unwrap();
    if !json {
        println!("tasks   raw p50   ours p50   ratio   raw/s   ours/s   ratio");
    }
    for tasks in [1, 64] {
        let keys: Vec<String> = (0..tasks).map(|task| format!("bench:{task}")).collect();
        let mutexes: Vec<_> = keys.iter().map(|key| client.mutex(key)).collect();
        let raw_section = async |task: usize| raw.clone().section(&keys[task]).await;
        let our_section = async |task: usize| {
            let guard = mutexes[task].lock().await.unwrap();
            guard.release().await.unwrap();
        };
        round(tasks, &raw_section).await;
        round(tasks, &our_section).await;
        let mut cells = Vec::new();
        for turn in 0..ROUNDS {
            let (raw, ours) = if turn % 2 == 0 {
                let raw = round(tasks, &raw_section).await;
                (raw, round(tasks, &our_section).await)
            } else {
                let ours = round(tasks, &our_section).await;
                (round(tasks, &raw_section).await, ours)
            };
            cells.push((raw, ours));
        }
        let of =
            |figure: fn(&(Figures, Figures)) -> f64| median(cells.iter().map(figure).collect());
        let (raw_p50, our_p50) =
            (of(|c| c.0.1.as_secs_f64() * 1e6), of(|c| c.1.1.as_secs_f64() * 1e6));
        let p50_ratio = of(|c| c.1.1.as_secs_f64() / c.0.1.as_secs_f64());
        let (raw_rate, our_rate) = (of(|c| c.0.0), of(|c| c.1.0));
        let rate_ratio = of(|c| c.1.0 / c.0.0);
        if json {
            println!(
                "{{\"tasks\":{tasks},\"raw_p50_us\":{raw_p50:.1},\"ours_p50_us\":{our_p50:.1},\"p50_ratio\":{p50_ratio:.3},\"raw_per_s\":{raw_rate:.0},\"ours_per_s\":{our_rate:.0},\"rate_ratio\":{rate_ratio:.3}}}"
            );
        } else {
            println!(
                "{tasks:5}  {raw_p50:6.1} us  {our_p50:6.1} us   {p50_ratio:5.3}  {raw_rate:6.0}   {our_rate:6.0}   {rate_ratio:5.3}"
            );
        }
    }
}
