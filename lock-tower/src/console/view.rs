//! What the page shows, as the JSON of its events.

use std::collections::{HashMap, HashSet};
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::Stream;
use lock_core::time::Instant;
use lock_core::{Activity, Error, ErrorKind, Key, LockClient, LockList, OwnerInfo};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::feed::{Feed, Reading};
use super::settings::Settings;
use super::template::{Templates, is_none};

/// How often the process is looked at: what a person perceives as live.
const PROCESS_PAUSE: Duration = Duration::from_secs(1);
/// How often the store is asked at most.
const STORE_PAUSE: Duration = Duration::from_secs(2);
/// A store that takes long to list its locks lists them so much more rarely: it has other things
/// to do.
const PAUSE_PER_TIME: u32 = 10;
/// No page waits longer than this for the locks.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A store that does not say in this time how it is, is called silent.
const HEALTH_LIMIT: Duration = Duration::from_secs(5);
/// Redis finds the locks by looking at all its keys, in steps. After this they are too many.
pub(super) const LIST_LIMIT: Duration = Duration::from_secs(3);

/// Longer than from one look at the store to the next while there are viewers.
const UNSEEN: Duration = Duration::from_secs(12);

/// What all viewers of a console share.
pub(super) struct Observer {
    pub(super) client: LockClient,
    pub(super) settings: Settings,
    process: Arc<Feed>,
    store: Arc<Feed>,
    templates: Templates,
    /// What this process did when it was last looked at.
    activity: Mutex<Option<(Instant, Arc<Activity>)>>,
    silence: Mutex<Option<Silence>>,
    listing: Mutex<Option<Listing>>,
    /// The right to look for a lock whose key is not known: that costs as much as a listing.
    pub(super) search: tokio::sync::Mutex<()>,
}

/// How long the store has not answered.
#[derive(Clone, Copy)]
struct Silence {
    since: Instant,
    last: Instant,
}

/// What the store said of its locks.
#[derive(Clone)]
struct Listing {
    /// `locks` or `listError`.
    field: &'static str,
    found: Value,
    at: Instant,
    next: Instant,
}

impl Observer {
    pub(super) fn new(client: LockClient, settings: Settings) -> Self {
        Self {
            client,
            settings,
            process: Feed::new(PROCESS_PAUSE),
            store: Feed::new(STORE_PAUSE),
            templates: Templates::default(),
            activity: Mutex::default(),
            silence: Mutex::default(),
            listing: Mutex::default(),
            search: tokio::sync::Mutex::default(),
        }
    }

    /// How many pages are open.
    pub(super) fn viewers(&self) -> usize {
        self.process.viewers()
    }

    /// What this process does with its locks.
    pub(super) fn watch_process(self: &Arc<Self>) -> impl Stream<Item = Reading> + Send + use<> {
        let this = Arc::clone(self);
        self.process.watch(move || std::future::ready(this.process()))
    }

    /// What the store tells.
    pub(super) fn watch_store(self: &Arc<Self>) -> impl Stream<Item = Reading> + Send + use<> {
        let this = Arc::clone(self);
        self.store.watch(move || {
            let this = Arc::clone(&this);
            async move { this.store().await }
        })
    }

    /// Looks at this process: a walk through all of its leases and waiting tasks.
    fn look(&self) -> Arc<Activity> {
        let activity = Arc::new(self.client.activity());
        self.templates.learn(keys(&activity).map(Key::label));
        let seen = Some((Instant::now(), Arc::clone(&activity)));
        *self.activity.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        activity
    }

    /// The last look if it is recent and knows the locks of `list` that this process has, so that
    /// one look serves both tables; else another one.
    fn look_for(&self, list: &LockList) -> Arc<Activity> {
        let last = self.activity.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let recent = last.filter(|(at, _)| Instant::now() < at.saturating_add(PROCESS_PAUSE));
        let own = list.entries.iter().filter(|entry| {
            let owner = entry.info.owner.as_ref();
            owner.is_some_and(|owner| owner.client == Some(self.client.id()))
        });
        let own: Vec<_> = own.map(|entry| entry.key.as_str()).collect();
        let knows = |activity: &Activity| {
            let known: HashSet<_> = keys(activity).map(Key::as_str).collect();
            own.iter().all(|key| known.contains(key))
        };
        match recent {
            Some((_, activity)) if knows(&activity) => activity,
            _ => self.look(),
        }
    }

    fn process(&self) -> Value {
        let activity = self.look();
        let most = self.settings.max_locks;
        let now = Instant::now();
        let held: Vec<_> = activity
            .held
            .iter()
            .take(most)
            .map(|lock| {
                let mut row = self.row(&lock.key);
                row.insert("fence".into(), lock.fencing_token.to_string().into());
                row.insert("heldMs".into(), millis(lock.held_for).into());
                row.insert("leftMs".into(), millis(lock.remaining).into());
                row.insert("doubt".into(), lock.is_in_doubt.into());
                row
            })
            .collect();
        let waiting: Vec<_> = activity
            .waiting
            .iter()
            .take(most)
            .map(|tasks| {
                let mut row = self.row(&tasks.key);
                row.insert("tasks".into(), tasks.tasks.into());
                row
            })
            .collect();
        let losses: Vec<_> = activity
            .losses
            .iter()
            .map(|loss| {
                let mut row = self.row(&loss.key);
                row.insert("fence".into(), loss.fencing_token.to_string().into());
                row.insert("number".into(), loss.number.into());
                row.insert("reason".into(), loss.reason.to_string().into());
                row.insert("heldMs".into(), millis(loss.held_for).into());
                row.insert("agoMs".into(), millis(now.saturating_since(loss.at)).into());
                row
            })
            .collect();
        json!({
            "client": self.client.id().to_string(),
            "namespace": self.client.namespace(),
            "process": std::process::id(),
            "draining": activity.is_draining,
            "pending": activity.pending_releases,
            "held": { "total": activity.held.len(), "rows": held },
            "waiting": { "total": activity.waiting.len(), "rows": waiting },
            "losses": losses,
        })
    }

    /// A row about a key of this process.
    fn row(&self, key: &Key) -> Map<String, Value> {
        let label = Some(key.label()).filter(|label| !is_none(label));
        self.row_of(label, key.as_str())
    }

    fn row_of(&self, label: Option<&'static str>, key: &str) -> Map<String, Value> {
        let mut row = Map::new();
        row.insert("label".into(), label.into());
        if self.settings.keys {
            row.insert("key".into(), key.into());
        }
        row
    }

    async fn store(&self) -> Value {
        match self.health().await {
            Ok(mut found) => {
                let Listing { field, found: listed, at, .. } = self.listing().await;
                found[field] = listed;
                found["listAgeMs"] = millis(Instant::now().saturating_since(at)).into();
                found
            }
            Err(found) => found,
        }
    }

    /// How the store is; as an error, what is shown instead of its locks.
    async fn health(&self) -> Result<Value, Value> {
        let begun = Instant::now();
        let health = match timeout(HEALTH_LIMIT, self.client.health()).await {
            Ok(Ok(health)) => health,
            Ok(Err(error)) if error.kind() == ErrorKind::Unsupported => {
                self.answers();
                return Err(json!({ "answers": true, "listError": with_causes(&error) }));
            }
            Ok(Err(error)) => return Err(self.silent(&with_causes(&error))),
            Err(_) => {
                return Err(self.silent(&format!("it did not reply within {HEALTH_LIMIT:?}")));
            }
        };
        let took = Instant::now().saturating_since(begun);
        self.answers();
        Ok(json!({
            "answers": true,
            "server": health.server,
            "problems": health.problems,
            "tookUs": u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        }))
    }

    /// The locks that the store listed last, or lists now if it is time for that.
    async fn listing(&self) -> Listing {
        let last = self.listing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let begun = Instant::now();
        if let Some(last) = last.filter(|last| begun < last.next) {
            return last;
        }
        let listed = timeout(LIST_LIMIT, self.client.list(self.settings.max_locks)).await;
        let (field, found) = match listed {
            Ok(Ok(list)) => ("locks", self.locks(&list)),
            Ok(Err(error)) => ("listError", with_causes(&error).into()),
            Err(_) => ("listError", too_slow().into()),
        };
        let at = Instant::now();
        let pause = at.saturating_since(begun).saturating_mul(PAUSE_PER_TIME);
        let next = at.saturating_add(pause.clamp(STORE_PAUSE, LONGEST_PAUSE));
        let listing = Listing { field, found, at, next };
        *self.listing.lock().unwrap_or_else(PoisonError::into_inner) = Some(listing.clone());
        listing
    }

    fn answers(&self) {
        *self.silence.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The store does not answer, because of this.
    fn silent(&self, why: &str) -> Value {
        let now = Instant::now();
        let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
        // What it did while there were no viewers is not known.
        let known = silence.filter(|silence| now < silence.last.saturating_add(UNSEEN));
        let since = known.map_or(now, |silence| silence.since);
        *silence = Some(Silence { since, last: now });
        let silent = millis(now.saturating_since(since));
        json!({ "answers": false, "error": why, "silentMs": silent })
    }

    /// Whether the fingerprint of this owner names one lock, and tells nothing that is hidden. That
    /// of a foreign value is the same for all locks with that value, and says what it is to a
    /// viewer who guesses it.
    pub(super) fn may_take(&self, owner: &OwnerInfo) -> bool {
        self.settings.keys || owner.client.is_some()
    }

    /// How a key of any process is named where keys are hidden.
    pub(super) fn label_of(&self, key: &str) -> &'static str {
        self.templates.of(key).unwrap_or("-")
    }

    fn locks(&self, list: &LockList) -> Value {
        let activity = self.look_for(list);
        let labels: HashMap<_, _> = keys(&activity)
            .filter(|key| !is_none(key.label()))
            .map(|key| (key.as_str(), key.label()))
            .collect();
        let rows: Vec<_> = list
            .entries
            .iter()
            .filter_map(|entry| {
                let owner = entry.info.owner.as_ref()?;
                let key = entry.key.as_str();
                let own = labels.get(key).copied();
                let mut row = self.row_of(own.or_else(|| self.templates.of(key)), key);
                row.insert("guessed".into(), own.is_none().into());
                let mark = self.may_take(owner).then(|| format!("{:016x}", owner.fingerprint()));
                row.insert("owner".into(), mark.into());
                row.insert("client".into(), owner.client.map(|client| client.to_string()).into());
                row.insert("here".into(), (owner.client == Some(self.client.id())).into());
                row.insert("released".into(), owner.is_released.into());
                row.insert("leftMs".into(), owner.remaining.map(millis).into());
                row.insert("waiting".into(), entry.info.waiting.into());
                Some(row)
            })
            .collect();
        json!({ "rows": rows, "cut": list.is_cut })
    }
}

/// What a process has or waits for.
fn keys(activity: &Activity) -> impl Iterator<Item = &Key> {
    let held = activity.held.iter().map(|lock| &lock.key);
    held.chain(activity.waiting.iter().map(|tasks| &tasks.key))
}

/// What is said when the locks could not be listed in time.
pub(super) fn too_slow() -> String {
    format!(
        "the store could not list its locks within {LIST_LIMIT:?}, because it is slow or has very \
         many keys: give locks a server of their own, or look at one key with `lockctl who`"
    )
}

/// The error and its causes, each said once.
pub(super) fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use lock_core::key;
    use lock_core::store::MemoryStore;

    use super::*;

    /// With 100,000 leases a look takes a while.
    #[tokio::test]
    async fn both_tables_share_a_look_at_the_process_unless_it_misses_a_lock() {
        let client = LockClient::builder(MemoryStore::new()).build().unwrap();
        let observer = Observer::new(client.clone(), Settings::default());
        let last = || Arc::clone(&observer.activity.lock().unwrap().as_ref().unwrap().1);
        let (first, second) = (1, 2);
        let _first = client.mutex(key!("order:<first>")).lock().await.unwrap();
        observer.process();
        let seen = last();
        let shown = observer.locks(&client.list(10).await.unwrap());
        assert_eq!(shown["rows"][0]["guessed"], false);
        assert!(Arc::ptr_eq(&seen, &last()), "no other look");

        let _second = client.mutex(key!("invoice:<second>")).lock().await.unwrap();
        let shown = observer.locks(&client.list(10).await.unwrap());
        let labels: Vec<_> =
            shown["rows"].as_array().unwrap().iter().map(|row| &row["label"]).collect();
        assert!(labels.contains(&&json!("invoice:<second>")), "{shown}");
        assert!(!Arc::ptr_eq(&seen, &last()), "another look");
    }
}
