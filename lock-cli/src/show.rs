//! `lockctl ls`, `lockctl who` and `lockctl release`.

use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal, Write as _};
use std::time::Duration;

use lock_core::{LockClient, LockEntry, LockInfo, LockList, OwnerInfo};
use serde_json::{Value, json};

use crate::args::{Global, LsArgs, ReleaseArgs};
use crate::failure::{Failure, USAGE};
use crate::output::{is_read, note, shown, write};

/// Moves the cursor to the top left and clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Lists the locks that are taken.
pub(crate) async fn list(
    client: &LockClient,
    global: &Global,
    args: &LsArgs,
) -> Result<u8, Failure> {
    loop {
        let LockList { entries, is_cut, .. } = match (client.list(args.limit).await, args.watch) {
            (Ok(list), _) => list,
            // An outage is when it is watched.
            (Err(error), Some(seconds)) if error.is_retryable() => {
                Failure::from(error).print(global.json);
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                continue;
            }
            (Err(error), _) => return Err(error.into()),
        };
        let mut text = String::new();
        if global.json {
            for entry in &entries {
                let line = as_json(&entry.key, &entry.info);
                writeln!(text, "{line}").expect("BUG: a string takes all");
            }
        } else {
            if args.watch.is_some() && std::io::stdout().is_terminal() {
                text.push_str(CLEAR);
            }
            text.push_str(&table(&entries));
        }
        if !is_read(text.as_bytes())? {
            return Ok(0);
        }
        if is_cut {
            note(global.json, "there may be more: raise --limit");
        }
        let Some(seconds) = args.watch else { return Ok(0) };
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// Shows who holds a lock.
pub(crate) async fn owner(client: &LockClient, global: &Global, key: &str) -> Result<u8, Failure> {
    let info = client.inspect(key.to_owned()).await?;
    let text = if global.json {
        format!("{}\n", as_json(key, &info))
    } else {
        match &info.owner {
            None => format!("{} is free\n", shown(key)),
            Some(owner) => format!(
                "{} is held\n  holder   {}\n  left     {}\n  waiting  {}\n  fence    {}\n",
                shown(key),
                holder(owner, true),
                left(owner),
                waiting(&info),
                format_args!("at most {}", info.latest_fencing_token),
            ),
        }
    };
    write(text.as_bytes())?;
    Ok(u8::from(info.owner.is_none()))
}

/// Takes a lock from its holder.
pub(crate) async fn release(
    client: &LockClient,
    global: &Global,
    args: &ReleaseArgs,
) -> Result<u8, Failure> {
    let key = &args.key;
    let Some(owner) = client.inspect(key.clone()).await?.owner else {
        return freed(global, key, None);
    };
    if !args.yes && !agrees(key, &owner)? {
        return Err(Failure::new(1, "nothing was done"));
    }
    if !client.force_release_from(key.clone(), &owner).await? {
        let who = holder(&owner, false);
        return Err(Failure::new(
            1,
            format!("{} is no longer held by {who}: nothing was done", shown(key)),
        ));
    }
    freed(global, key, Some(&owner))
}

fn freed(global: &Global, key: &str, former: Option<&OwnerInfo>) -> Result<u8, Failure> {
    let text = match (global.json, former) {
        (true, former) => {
            format!(
                "{}\n",
                json!({ "key": key, "released": former.is_some(),
                "client": former.and_then(|owner| owner.client).map(|id| id.to_string()) })
            )
        }
        (false, None) => format!("{} is free\n", shown(key)),
        (false, Some(owner)) => {
            format!("{} was taken from {}\n", shown(key), holder(owner, false))
        }
    };
    write(text.as_bytes())
}

/// Asks on the terminal.
fn agrees(key: &str, owner: &OwnerInfo) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(USAGE, "there is no terminal to ask on: add --yes"));
    }
    eprint!(
        "{} is held by {} for {}. Its section may still run. Take it? [y/N] ",
        shown(key),
        holder(owner, false),
        left(owner)
    );
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}

/// Aligned columns.
fn table(entries: &[LockEntry]) -> String {
    let head = ["KEY", "HOLDER", "LEFT", "WAITING"].map(str::to_owned);
    let rows = entries.iter().map(|entry| {
        let owner = entry.info.owner.as_ref();
        [
            shown(&entry.key),
            owner.map_or_else(String::new, |owner| holder(owner, false)),
            owner.map_or_else(String::new, left),
            waiting(&entry.info),
        ]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let widths: [usize; 4] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            write!(line, "{cell:width$}  ").expect("BUG: a string takes all");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn holder(owner: &OwnerInfo, long: bool) -> String {
    match (owner.client, owner.is_released) {
        (None, _) => "a foreign value".to_owned(),
        (Some(client), true) => format!("{client} (released, kept by min_hold)"),
        (Some(client), false) if long => {
            format!("{client} (`redis-cli client list | grep {client}` shows host and process)")
        }
        (Some(client), false) => client.to_string(),
    }
}

fn left(owner: &OwnerInfo) -> String {
    match owner.remaining {
        None => "ever".to_owned(),
        Some(left) if left < Duration::from_secs(60) => format!("{:.1}s", left.as_secs_f64()),
        Some(left) => humantime::format_duration(Duration::from_secs(left.as_secs())).to_string(),
    }
}

fn waiting(info: &LockInfo) -> String {
    info.waiting.map_or_else(|| "?".to_owned(), |waiting| waiting.to_string())
}

fn as_json(key: &str, info: &LockInfo) -> Value {
    let owner = info.owner.as_ref().map(|owner| {
        json!({
            "client": owner.client.map(|id| id.to_string()),
            "remaining_ms": owner.remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            "released": owner.is_released,
        })
    });
    json!({
        "key": key,
        "held": owner.is_some(),
        "owner": owner,
        "waiting": info.waiting,
        // A string: the number exceeds what JavaScript can hold.
        "fence_at_most": info.latest_fencing_token.to_string(),
    })
}
