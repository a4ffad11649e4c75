//! What the lock protects: a number in a file or in a row of an SQL table. A turn reads it, waits
//! and writes it. The fencing token is checked or not.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::fencing::{ADVANCE, CREATE_TABLE, StaleFence, check_advanced};
use lock_testkit::history::now;
use rusqlite::{Connection, TransactionBehavior};
use rustix::fs::{FlockOperation, flock};

use crate::args::Args;

pub(crate) struct Resource {
    place: Place,
    /// Whether tokens are checked.
    fenced: bool,
}

enum Place {
    Files(PathBuf),
    Rows(Mutex<Connection>),
}

/// A process may be stopped within a transaction.
const PATIENCE: Duration = Duration::from_secs(20);

impl Resource {
    pub(crate) fn open(args: &Args) -> Self {
        let dir = Path::new(args.text("dir"));
        let fenced = args.number("fenced") == 1;
        let place = match args.text("resource") {
            "file" => Place::Files(dir.to_owned()),
            "row" => Place::Rows(Mutex::new(connect(&dir.join("rows.sqlite")))),
            other => panic!("no such resource: {other}"),
        };
        Self { place, fenced }
    }

    /// Reads the number. If tokens are checked, writes with an older token are refused from now on.
    pub(crate) fn read(&self, key: &str, token: FencingToken) -> Result<i64, StaleFence> {
        match &self.place {
            Place::Files(dir) => {
                let record = Record::open(dir, key);
                let (value, newest) = record.get();
                if self.fenced {
                    if token.as_i64() < newest {
                        return Err(StaleFence);
                    }
                    record.set(value, token.as_i64());
                }
                Ok(value)
            }
            Place::Rows(connection) => {
                let mut connection = connection.lock().unwrap();
                let tx =
                    connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                if self.fenced {
                    let rows = tx.execute(ADVANCE, (key, token.as_i64())).unwrap();
                    check_advanced(rows as u64)?;
                }
                let value = value_of(&tx, key);
                tx.commit().unwrap();
                Ok(value)
            }
        }
    }

    /// Writes the number, and returns when.
    pub(crate) fn write(
        &self,
        key: &str,
        value: i64,
        token: FencingToken,
    ) -> (u128, Result<(), StaleFence>) {
        let token = token.as_i64();
        match &self.place {
            Place::Files(dir) => {
                let record = Record::open(dir, key);
                let at = now();
                let (_, newest) = record.get();
                if self.fenced && token < newest {
                    return (at, Err(StaleFence));
                }
                record.set(value, token);
                (at, Ok(()))
            }
            Place::Rows(connection) => {
                let mut connection = connection.lock().unwrap();
                let tx =
                    connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                let at = now();
                let rows = if self.fenced {
                    let sql = "UPDATE counters SET value = ?2 WHERE name = ?1 \
                        AND ?3 = (SELECT token FROM fences WHERE resource = ?1)";
                    tx.execute(sql, (key, value, token))
                } else {
                    tx.execute("UPDATE counters SET value = ?2 WHERE name = ?1", (key, value))
                };
                tx.commit().unwrap();
                (at, check_advanced(rows.unwrap() as u64))
            }
        }
    }

    /// The sum of the numbers of these keys.
    pub(crate) fn total(&self, keys: impl Iterator<Item = String>) -> i64 {
        let value = |key: String| match &self.place {
            Place::Files(dir) => Record::open(dir, &key).get().0,
            Place::Rows(connection) => value_of(&connection.lock().unwrap(), &key),
        };
        keys.map(value).sum()
    }
}

fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    // Tests kill processes, but not the machine.
    connection.execute_batch("PRAGMA synchronous = OFF").unwrap();
    connection.execute(CREATE_TABLE, ()).unwrap();
    let counters = "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER)";
    connection.execute(counters, ()).unwrap();
    connection
}

fn value_of(connection: &Connection, key: &str) -> i64 {
    connection.execute("INSERT OR IGNORE INTO counters VALUES (?1, 0)", [key]).unwrap();
    let sql = "SELECT value FROM counters WHERE name = ?1";
    connection.query_row(sql, [key], |row| row.get(0)).unwrap()
}

/// A number and the newest token that wrote it, in a file that is locked until this is dropped.
struct Record(File);

impl Record {
    fn open(dir: &Path, key: &str) -> Self {
        let path = dir.join(format!("counter-{key}"));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        Self(file)
    }

    fn get(&self) -> (i64, i64) {
        let mut bytes = [0; 16];
        if self.0.metadata().unwrap().len() > 0 {
            self.0.read_exact_at(&mut bytes, 0).unwrap();
        }
        let (value, token) = bytes.split_at(8);
        let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
        (number(value), number(token))
    }

    /// A single write, so that a killed process does not leave half of it.
    fn set(&self, value: i64, token: i64) {
        let bytes = [value.to_le_bytes(), token.to_le_bytes()].concat();
        self.0.write_all_at(&bytes, 0).unwrap();
    }
}
