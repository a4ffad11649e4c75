//! What operators ask of a quorum.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;

use super::QuorumStore;
use super::failure::{no_majority, reason, unavailable};
use super::servers::one_each;
use crate::error::{Error, ErrorKind};
use crate::store::{
    BoxFuture, Inspect, LockRecord, Member, MissingPermissions, Name, Owner, StoreHealth,
};

/// Members refuse numbers that are further than this from their clocks, in microseconds.
const APART: u64 = 1_000_000;

impl Inspect for QuorumStore {
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<LockRecord, Error>> {
        Box::pin(async move {
            let ask = async |member: &dyn Member| {
                let number = member.last_number(name).await?;
                let record = match member.inspector() {
                    Some(inspector) => inspector.inspect(name).await?,
                    None => LockRecord::new(None, None, 0),
                };
                Ok((record, number))
            };
            let members = self.quorum.members.iter();
            let replies = self.of_majority(join_all(members.map(|it| ask(&**it))).await)?;
            // A grant was accepted by a majority, so at least one of those that replied knows it.
            let latest = replies.iter().map(|(_, number)| *number).max().unwrap_or(0);
            let waiting = replies.iter().filter_map(|(record, _)| record.waiting).max();
            let owners: Vec<_> =
                replies.into_iter().filter_map(|(record, _)| record.owner).collect();
            Ok(LockRecord::new(self.owner_of(&owners), waiting, latest))
        })
    }

    fn force_release<'a>(
        &'a self,
        name: &'a Name,
        owner: &'a Owner,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let mut owner = owner.clone();
            if let Some(inner) = owner.token.and_then(|token| self.quorum.tokens.inner(token)) {
                owner.token = Some(inner);
            }
            let members = self.quorum.members.iter();
            let replies = join_all(members.map(|member| member.revoke(name, &owner))).await;
            let taken = replies.iter().filter(|reply| matches!(reply, Ok(true))).count();
            let others = replies.iter().filter(|reply| matches!(reply, Ok(false))).count();
            let (all, majority) = (replies.len(), self.quorum.majority());
            match self.of_majority(replies) {
                // No majority is left to the owner, on whatever members its renewal repairs.
                _ if all - taken < majority => Ok(true),
                Err(error) if taken > 0 => Err(error.in_doubt("it was taken from its owner there")),
                Err(error) => Err(error),
                // At most, what was left of an owner that had no majority.
                Ok(_) if others >= majority || taken == 0 => Ok(false),
                Ok(_) => Err(taken_from_some(taken, all)),
            }
        })
    }

    fn list<'a>(
        &'a self,
        namespace: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Name>, Error>> {
        Box::pin(async move {
            let ask = async |member: &dyn Member| match member.inspector() {
                Some(inspector) => inspector.list(namespace, most).await,
                None => Ok(Vec::new()),
            };
            let members = self.quorum.members.iter();
            let replies = self.of_majority(join_all(members.map(|it| ask(&**it))).await)?;
            let names: HashSet<Name> = replies.into_iter().flatten().collect();
            Ok(names.into_iter().take(most).collect())
        })
    }

    fn missing_permissions<'a>(
        &'a self,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<MissingPermissions, Error>> {
        Box::pin(async move {
            let ask = async |member: &dyn Member| match member.inspector() {
                Some(inspector) => inspector.missing_permissions(namespace).await,
                None => Ok(MissingPermissions::default()),
            };
            let members = self.quorum.members.iter();
            let replies = self.of_majority(join_all(members.map(|it| ask(&**it))).await)?;
            let mut missing = MissingPermissions::default();
            for reply in replies {
                missing.rules.extend(reply.rules);
                missing.unknown_commands.extend(reply.unknown_commands);
            }
            for list in [&mut missing.rules, &mut missing.unknown_commands] {
                list.sort_unstable();
                list.dedup();
            }
            Ok(missing)
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<StoreHealth, Error>> {
        Box::pin(async move {
            let ask = async |member: &dyn Member| match member.inspector() {
                Some(inspector) => inspector.health().await,
                None => Ok(StoreHealth::new(member.to_string(), Vec::new())),
            };
            let members = self.quorum.members.iter();
            let replies = join_all(members.map(|it| ask(&**it))).await;
            let (mut servers, mut problems) = (Vec::new(), Vec::new());
            let (mut notes, mut away) = (Vec::new(), Vec::new());
            for (member, reply) in self.quorum.members.iter().zip(replies) {
                match reply {
                    Ok(health) => {
                        servers.push(health.server);
                        let named = |text: String| format!("{member}: {text}");
                        problems.extend(health.problems.into_iter().map(named));
                        notes.extend(health.notes.into_iter().map(named));
                    }
                    Err(error) => {
                        let why = error.text_with_causes();
                        away.push(format!("{member} does not answer: {why}"));
                    }
                }
            }
            if servers.len() < self.quorum.majority() {
                let what = no_majority(servers.len(), self.quorum.members.len());
                return Err(unavailable(what, away.join("; ")));
            }
            if let Err(failure) = one_each(&self.quorum.members) {
                problems.push(failure.into_error().to_string());
            }
            problems.extend(self.clocks_apart());
            problems.extend(away);
            servers.sort();
            servers.dedup();
            let server = format!("quorum of {}: {}", self.quorum.members.len(), servers.join(", "));
            Ok(StoreHealth::new(server, problems).with_notes(notes))
        })
    }
}

/// A lock was taken from its owner on `taken` of `all` members, and may be the owner's on the rest.
fn taken_from_some(taken: usize, all: usize) -> Error {
    let what = format!(
        "the lock was taken from its owner on {taken} of {all} lock servers, which may be too few: \
         inspect it, and repeat it if the owner still has it"
    );
    Error::plain(ErrorKind::Unknown, what)
}

impl QuorumStore {
    /// What the members replied, if a majority did.
    fn of_majority<T>(&self, replies: Vec<Result<T, Error>>) -> Result<Vec<T>, Error> {
        let (mut good, mut failed) = (Vec::new(), Vec::new());
        for (member, reply) in self.quorum.members.iter().zip(replies) {
            match reply {
                Ok(reply) => good.push(reply),
                Err(error) if error.kind() == ErrorKind::WrongType => return Err(error),
                Err(error) => failed.push(reason(&**member, &error)),
            }
        }
        if good.len() >= self.quorum.majority() {
            return Ok(good);
        }
        Err(unavailable(no_majority(good.len(), self.quorum.members.len()), failed.join("; ")))
    }

    /// The members whose clocks are too far from those of the others for their votes on numbers.
    fn clocks_apart(&self) -> Vec<String> {
        let Some(median) = self.quorum.median() else { return Vec::new() };
        let clocks = self.quorum.members.iter().map(|member| Some((member, member.clock()?)));
        let far = clocks.flatten().filter(|(_, clock)| clock.abs_diff(median) > APART);
        far.map(|(member, clock)| {
            let apart = Duration::from_micros(clock.abs_diff(median));
            let side = if clock > median { "ahead of" } else { "behind" };
            format!(
                "{member} has a clock that is {apart:.1?} {side} the other lock servers': it is \
                 not counted for fencing tokens until it is set right"
            )
        })
        .collect()
    }

    /// The owner that a majority names, for as long as a majority keeps the lock for it.
    fn owner_of(&self, owners: &[Owner]) -> Option<Owner> {
        let is_same = |one: &Owner, two: &Owner| {
            one.token == two.token
                && one.is_released == two.is_released
                && one.foreign_value() == two.foreign_value()
        };
        let quorum = self.quorum.majority();
        for owner in owners {
            let same = owners.iter().filter(|other| is_same(owner, other));
            let mut left: Vec<Duration> =
                same.map(|other| other.left.unwrap_or(Duration::MAX)).collect();
            left.sort_unstable();
            left.reverse();
            if let Some(left) = left.get(quorum - 1) {
                let mut owner = owner.clone();
                owner.left = (*left < Duration::MAX).then_some(*left);
                let outer = owner.token.and_then(|inner| self.quorum.tokens.outer(inner));
                owner.token = outer.or(owner.token);
                return Some(owner);
            }
        }
        None
    }
}
