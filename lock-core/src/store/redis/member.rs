//! One server as a member of a quorum.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::RedisStore;
use super::check::check;
use super::error::Fault;
use super::inspect::value_of;
use super::keys::{self, Tag};
use super::scripts::REVOKE;
use super::servers::Servers;
use super::transport::Connection;
use crate::error::Error;
use crate::store::{Ballot, BoxFuture, Member, Name, Owner, VoteError, Voted};
use crate::time::Instant;

impl RedisStore {
    /// The connection to the one server. The list of members is refused if it names a cluster.
    fn one(&self) -> Result<&Arc<Connection>, Error> {
        match self.server.servers() {
            Servers::One(connection) => Ok(connection),
            Servers::Cluster(_) => Err(Error::unsupported("a cluster is no member of a quorum")),
        }
    }
}

impl Member for RedisStore {
    fn open(&self, until: Instant) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.one()?.live(Some(until)).await?;
            Ok(())
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(check(self.server.servers()))
    }

    fn clock(&self) -> Option<u64> {
        let connection = self.one().ok()?;
        let live = connection.open()?;
        let us = connection.clock().latest_at(Instant::now(), live.generation);
        (us > 0).then_some(us)
    }

    fn process(&self) -> Option<Arc<str>> {
        self.one().ok()?.open()?.process()
    }

    fn vote<'a>(&'a self, ballot: &'a Ballot) -> BoxFuture<'a, Result<Voted, VoteError>> {
        Box::pin(self.server.vote(ballot))
    }

    fn last_number<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let mut buffer = String::new();
            let mut cmd = redis::cmd("GET");
            cmd.arg(keys::number(name, Tag::SINGLE, &mut buffer));
            let live = self.one()?.live(None).await?;
            let reply = live.send(&cmd).await?;
            let number: Option<u64> = redis::from_redis_value(reply).map_err(|_| Fault::Garbled)?;
            Ok(number.unwrap_or(0))
        })
    }

    fn revoke<'a>(
        &'a self,
        name: &'a Name,
        owner: &'a Owner,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let mut cmd = Cmd::new();
            cmd.arg("EVAL").arg(REVOKE).arg(1).arg(name.as_str()).arg(value_of(owner));
            let live = self.one()?.live(None).await?;
            match live.send(&cmd).await? {
                Value::Int(taken @ 0..=1) => Ok(taken == 1),
                _ => Err(Fault::Garbled.into()),
            }
        })
    }
}
