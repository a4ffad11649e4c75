//! A handler that counts its requests and can hold them up.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use tokio::sync::{Semaphore, watch};

use super::soon;

/// How many requests got how far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counts {
    /// Had their key extracted, so wait for the lock or have it.
    pub(crate) asked: usize,
    /// Are or were in the handler.
    pub(crate) entered: usize,
    /// Are in the handler.
    pub(crate) inside: usize,
    /// The most that were in the handler at once.
    pub(crate) most: usize,
    /// Came out of the handler with its result.
    pub(crate) finished: usize,
    /// Left the server, with or without a response.
    pub(crate) gone: usize,
}

/// A clone shares the counts and the door.
#[derive(Clone)]
pub(crate) struct Desk {
    counts: watch::Sender<Counts>,
    door: Arc<Semaphore>,
}

impl Desk {
    /// Work goes through at once.
    pub(crate) fn open() -> Self {
        Self {
            counts: watch::Sender::default(),
            door: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
        }
    }

    /// Work waits inside until [`Self::let_through`].
    pub(crate) fn closed() -> Self {
        Self { counts: watch::Sender::default(), door: Arc::new(Semaphore::new(0)) }
    }

    pub(crate) fn let_through(&self, how_many: usize) {
        self.door.add_permits(how_many);
    }

    /// To be called where the key is made.
    pub(crate) fn asked(&self) {
        self.counts.send_modify(|counts| counts.asked += 1);
    }

    /// The handler.
    pub(crate) async fn work(&self) {
        self.counts.send_modify(|counts| {
            counts.entered += 1;
            counts.inside += 1;
            counts.most = counts.most.max(counts.inside);
        });
        let inside = Leave(self, |counts| counts.inside -= 1);
        // Lets other requests enter, if no lock prevents it.
        tokio::task::yield_now().await;
        self.door.acquire().await.unwrap().forget();
        self.counts.send_modify(|counts| counts.finished += 1);
        drop(inside);
    }

    /// The application under a layer that counts the requests that have left it.
    pub(crate) fn outside(&self, app: Router) -> Router {
        let desk = self.clone();
        app.route_layer(from_fn(move |request: Request, next: Next| {
            let desk = desk.clone();
            async move {
                let _gone = Leave(&desk, |counts| counts.gone += 1);
                next.run(request).await
            }
        }))
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    pub(crate) async fn until(&self, reached: impl Fn(&Counts) -> bool) {
        let mut counts = self.counts.subscribe();
        soon(counts.wait_for(reached)).await.unwrap();
    }
}

struct Leave<'a>(&'a Desk, fn(&mut Counts));

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.counts.send_modify(self.1);
    }
}
