//! One reading for all viewers.
//!
//! A task reads while there are viewers, and ends with the last of them. It is no part of a
//! viewer's future: that one is polled only while its connection takes what it is sent, so a viewer
//! that stops reading would hold up the others.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use lock_core::time::Instant;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// What was read, an object, and when.
#[derive(Clone)]
pub(super) struct Reading {
    text: Arc<str>,
    at: Instant,
}

impl Reading {
    /// The object, with its age as a further field.
    pub(super) fn with_age(&self) -> String {
        let age = Instant::now().saturating_since(self.at).as_millis();
        format!("{{\"ageMs\":{age},{}", self.text.get(1..).unwrap_or_default())
    }
}

/// The latest reading, and the task that makes them.
pub(super) struct Feed {
    latest: watch::Sender<Option<Reading>>,
    /// From the end of a reading to the next.
    pause: Duration,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Feed {
    pub(super) fn new(pause: Duration) -> Arc<Self> {
        Arc::new(Self { latest: watch::Sender::default(), pause, task: Mutex::default() })
    }

    /// How many viewers there are.
    pub(super) fn viewers(&self) -> usize {
        self.latest.receiver_count()
    }

    /// The latest reading and those to come, for a viewer. One that is slow misses some.
    pub(super) fn watch<R, F>(
        self: &Arc<Self>,
        read: R,
    ) -> impl Stream<Item = Reading> + Send + use<R, F>
    where
        R: Fn() -> F + Send + 'static,
        F: Future<Output = Value> + Send + 'static,
    {
        let mut news = self.latest.subscribe();
        news.mark_changed();
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            // Nothing from before a time without viewers.
            self.latest.send_if_modified(|latest| {
                let is_old = |reading: &mut Reading| {
                    Instant::now() > reading.at.saturating_add(self.pause.saturating_mul(2))
                };
                latest.take_if(is_old).is_some()
            });
            *task = Some(Handle::current().spawn(Arc::clone(self).run(read)));
        }
        drop(task);
        stream::unfold(news, async |mut news| {
            loop {
                news.changed().await.ok()?;
                let reading = news.borrow_and_update().clone();
                if let Some(reading) = reading {
                    return Some((reading, news));
                }
            }
        })
    }

    async fn run<F>(self: Arc<Self>, read: impl Fn() -> F)
    where
        F: Future<Output = Value>,
    {
        loop {
            let last = self.latest.borrow().as_ref().map(|reading| reading.at);
            let wait = last.map(|at| at.saturating_add(self.pause).remaining());
            let is_left = timeout(wait.unwrap_or_default(), self.latest.closed()).await.is_ok();
            if self.ends() {
                return;
            }
            if is_left {
                // Another viewer came.
                continue;
            }
            let text = read().await.to_string().into();
            self.latest.send_replace(Some(Reading { text, at: Instant::now() }));
        }
    }

    /// Whether the task ends, because there are no viewers. The next one starts another.
    fn ends(&self) -> bool {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if self.viewers() == 0 {
            *task = None;
        }
        task.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::StreamExt as _;
    use futures_util::future::join_all;
    use serde_json::json;

    use super::*;

    /// Longer than a busy machine takes for what should happen meanwhile.
    const PAUSE: Duration = Duration::from_millis(300);

    struct Source {
        feed: Arc<Feed>,
        reads: Arc<AtomicU32>,
    }

    impl Source {
        fn new() -> Self {
            Self { feed: Feed::new(PAUSE), reads: Arc::default() }
        }

        fn watch(&self) -> impl Stream<Item = Reading> + Send + Unpin + use<> {
            let reads = Arc::clone(&self.reads);
            Box::pin(self.feed.watch(move || {
                let number = reads.fetch_add(1, Ordering::SeqCst) + 1;
                async move {
                    tokio::task::yield_now().await;
                    json!({ "number": number })
                }
            }))
        }

        fn reads(&self) -> u32 {
            self.reads.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn viewers_share_each_reading_and_one_that_stops_reading_holds_up_no_other() {
        let source = Source::new();
        let (mut stuck, mut leaver) = (source.watch(), source.watch());
        let mut others: Vec<_> = (0..10).map(|_| source.watch()).collect();
        assert!(futures_util::poll!(stuck.next()).is_pending());
        assert!(futures_util::poll!(leaver.next()).is_pending());
        for number in 1..=3 {
            let next = join_all(others.iter_mut().map(|viewer| viewer.next())).await;
            let number = format!("\"number\":{number}}}");
            assert!(next.iter().all(|news| news.as_ref().unwrap().text.ends_with(&number)));
            // `stuck` stays, and is not polled any more.
            others.pop();
        }
        drop(leaver);
        others[0].next().await.unwrap();
        assert_eq!(source.reads(), 4);
        assert!(stuck.next().await.unwrap().text.contains('4'), "it gets the latest");
    }

    #[tokio::test]
    async fn nothing_is_read_without_viewers_nor_more_often_for_those_that_come_and_go() {
        let source = Source::new();
        for _ in 0..5 {
            let first = source.watch().next().await.unwrap();
            assert!(first.with_age().starts_with("{\"ageMs\":"), "{}", first.with_age());
        }
        assert_eq!(source.reads(), 1);
        // Viewers that do not wait for a reading are no way around the pause.
        for _ in 0..5 {
            assert!(futures_util::poll!(pin!(source.watch()).next()).is_ready());
            tokio::task::yield_now().await;
        }
        assert_eq!(source.reads(), 1);
        // That time, not something to come.
        tokio::time::sleep(3 * PAUSE).await;
        assert_eq!(source.reads(), 1);
        assert!(source.watch().next().await.unwrap().text.contains('2'));
    }
}
