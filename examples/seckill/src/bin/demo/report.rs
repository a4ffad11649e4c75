//! What the run has shown: the table, the JSON object, and whether the promise was kept.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::cli::Options;
use crate::load::Outcome;
use crate::mode::Mode;

/// With fewer users than this, luck alone may keep the unlocked service from doing damage.
const ENOUGH_FOR_DAMAGE: u32 = 20;

/// With less time than this between reading and inserting, too.
const GAP_FOR_DAMAGE_MS: u64 = 5;

/// A whole run.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) redis: &'a str,
    pub(crate) instances: u16,
    pub(crate) modes: Vec<Outcome>,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Json {
    redis: String,
    instances: u16,
    modes: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    mode: Mode,
    requests: u64,
    orders: i64,
    users_with_duplicates: i64,
    stock_left: i64,
    oversold: i64,
    errors: u64,
    rps: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Report<'_> {
    /// Prints the object or the table on standard output, and what is wrong on standard error.
    pub(crate) fn print(&self, json: bool, broken: &[String]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        if json {
            serde_json::to_writer(&mut stdout, &self.json())?;
            writeln!(stdout)?;
        } else {
            writeln!(stdout, "{}", self.table())?;
            if broken.is_empty() {
                writeln!(
                    stdout,
                    "With the lock every user has exactly one order, whichever of {} instances \
                     took it.",
                    self.instances
                )?;
            }
        }
        let mut stderr = io::stderr().lock();
        for promise in broken {
            writeln!(stderr, "broken promise: {promise}")?;
        }
        Ok(())
    }

    /// What should be otherwise; nothing, if all is well.
    pub(crate) fn broken_promises(&self, options: &Options) -> Vec<String> {
        let mut broken = Vec::new();
        for outcome in &self.modes {
            match outcome.mode {
                Mode::None => expect_damage(outcome, options, &mut broken),
                Mode::Macro | Mode::Layer => expect_none(outcome, options, &mut broken),
            }
            if let Some(error) = &outcome.first_error {
                let (mode, errors) = (outcome.mode, outcome.errors);
                broken.push(format!("{mode}: {errors} requests failed, the first with: {error}"));
            }
        }
        broken
    }

    fn json(&self) -> Json {
        Json {
            redis: without_passwords(self.redis),
            instances: self.instances,
            modes: self.modes.iter().map(Row::from).collect(),
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_header([
            "mode",
            "requests",
            "orders",
            "users with\nmore than one",
            "stock\nleft",
            "oversold",
            "errors",
            "requests\nper second",
            "p50\nms",
            "p99\nms",
        ]);
        for row in self.modes.iter().map(Row::from) {
            table.add_row([
                row.mode.to_string(),
                row.requests.to_string(),
                row.orders.to_string(),
                row.users_with_duplicates.to_string(),
                row.stock_left.to_string(),
                row.oversold.to_string(),
                row.errors.to_string(),
                format!("{:.0}", row.rps),
                format!("{:.1}", row.p50_ms),
                format!("{:.1}", row.p99_ms),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

fn expect_damage(outcome: &Outcome, options: &Options, broken: &mut Vec<String>) {
    let enough = options.users >= ENOUGH_FOR_DAMAGE
        && options.duplicates > 1
        && options.payment_ms >= GAP_FOR_DAMAGE_MS;
    if enough && outcome.audit.users_with_duplicates == 0 {
        broken.push("none: no user has two orders, so this run shows nothing".to_owned());
    }
}

fn expect_none(outcome: &Outcome, options: &Options, broken: &mut Vec<String>) {
    let (mode, audit, users) = (outcome.mode, outcome.audit, i64::from(options.users));
    if audit.users_with_duplicates > 0 {
        let users = audit.users_with_duplicates;
        broken.push(format!("{mode}: {users} users have more than one order"));
    }
    if audit.users_with_orders != users {
        let missing = users - audit.users_with_orders;
        broken.push(format!("{mode}: {missing} users asked and have no order"));
    }
    if audit.oversold > 0 || audit.stock_left != users - audit.orders {
        let (orders, left) = (audit.orders, audit.stock_left);
        broken.push(format!("{mode}: of a stock of {users}, {orders} are sold and {left} left"));
    }
}

/// Says where the instances can be looked at while the demo stays.
pub(crate) fn invite(addresses: &[String]) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    writeln!(stderr, "Press the button yourself, and Ctrl-C to end:")?;
    for address in addresses {
        writeln!(stderr, "  {address}/")?;
    }
    Ok(())
}

impl From<&Outcome> for Row {
    fn from(outcome: &Outcome) -> Self {
        let Outcome { mode, audit, requests, errors, first_error: _, took, latencies } = outcome;
        Self {
            mode: *mode,
            requests: *requests,
            orders: audit.orders,
            users_with_duplicates: audit.users_with_duplicates,
            stock_left: audit.stock_left,
            oversold: audit.oversold,
            errors: *errors,
            rps: rounded(*requests as f64 / took.as_secs_f64()),
            p50_ms: rounded(percentile(latencies, 50)),
            p99_ms: rounded(percentile(latencies, 99)),
        }
    }
}

/// The smallest latency that `percent` of all do not exceed, in milliseconds.
fn percentile(ascending: &[Duration], percent: usize) -> f64 {
    let rank = (ascending.len() * percent).div_ceil(100).max(1);
    ascending.get(rank - 1).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// The URLs, fit to be shown.
fn without_passwords(urls: &str) -> String {
    urls.split_whitespace().map(without_password).collect::<Vec<_>>().join(" ")
}

fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
    // For sentinels the parameters may have a password.
    let address = address.split('?').next().unwrap_or_default();
    format!("{scheme}://{address}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use seckill::db::Audit;

    use super::{Report, percentile, without_passwords};
    use crate::cli::{Cli, Options};
    use crate::load::Outcome;
    use crate::mode::Mode;

    /// What is said about one mode in which `users` users have `orders` orders in all.
    fn broken(mode: Mode, orders: i64, users: i64, errors: u64) -> Vec<String> {
        let options: Options = Cli::parse_from(["demo", "--users", "100"]).options;
        let audit = Audit {
            orders,
            users_with_orders: users,
            users_with_duplicates: orders - users,
            stock_left: 100 - orders,
            oversold: (orders - 100).max(0),
        };
        let outcome = Outcome {
            mode,
            audit,
            requests: 500,
            errors,
            first_error: (errors > 0).then(|| "503 Service Unavailable".to_owned()),
            took: Duration::from_secs(1),
            latencies: vec![Duration::from_millis(1); 500],
        };
        let report = Report { redis: "redis://localhost", instances: 3, modes: vec![outcome] };
        report.broken_promises(&options)
    }

    #[test]
    fn promises_are_kept_by_one_order_each() {
        assert_eq!(broken(Mode::Macro, 100, 100, 0), [""; 0]);
        assert_eq!(broken(Mode::Layer, 100, 100, 0), [""; 0]);
        assert_eq!(broken(Mode::None, 150, 100, 0), [""; 0]);
    }

    #[test]
    fn every_broken_promise_is_named() {
        for (broken, expected) in [
            (broken(Mode::Macro, 101, 100, 0), "more than one order"),
            (broken(Mode::Layer, 101, 100, 0), "more than one order"),
            (broken(Mode::Macro, 101, 100, 0), "of a stock of 100"),
            (broken(Mode::Macro, 99, 99, 0), "1 users asked and have no order"),
            (broken(Mode::Layer, 100, 100, 2), "2 requests failed, the first with: 503"),
            (broken(Mode::None, 100, 100, 0), "this run shows nothing"),
            (broken(Mode::None, 150, 100, 1), "1 requests failed"),
        ] {
            assert!(broken.iter().any(|text| text.contains(expected)), "{expected}: {broken:?}");
        }
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let latencies: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&latencies, 50), 100.0);
        assert_eq!(percentile(&latencies, 99), 198.0);
        assert_eq!(percentile(&latencies[..1], 99), 1.0);
        assert_eq!(percentile(&[], 50), 0.0);
    }

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379/", "redis://127.0.0.1:6379/"),
            ("redis://:hunter2@cache/1", "redis://cache/1"),
            ("rediss://user:hunter@2@cache", "rediss://cache"),
            (
                "redis+sentinel://:hunter2@a,b/shop?sentinel_password=hunter2",
                "redis+sentinel://a,b/shop",
            ),
            ("redis+cluster://:hunter2@a,b", "redis+cluster://a,b"),
            ("redis://:hunter2@a/ redis://:hunter2@b/", "redis://a/ redis://b/"),
        ] {
            assert_eq!(without_passwords(url), shown);
        }
    }
}
