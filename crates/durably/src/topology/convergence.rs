//! How far a group has come: what is published, and what each member has.

use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, select};
use serde::Serialize;

use super::delivery::{keys_of, target_of};
use super::driver::{Driver, check_group, live_group};
use super::error::TopologyError;
use super::store;
use crate::host::Sql;
use crate::outbox::{Ending, EntryStatus};
use crate::time::Timestamp;

/// How far a group has come.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Convergence {
    /// The group.
    pub group: String,
    /// Its version.
    pub version: u64,
    /// Its publication; `None` without a publisher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publication: Option<Progress>,
    /// Its state channels that have a value, by name.
    pub channels: Vec<ChannelConvergence>,
    /// Whether all is published and delivered.
    pub converged: bool,
}

/// How far the value of a channel has come.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ChannelConvergence {
    /// The channel.
    pub channel: String,
    /// The members in its role, by id.
    pub members: Vec<MemberConvergence>,
}

/// How far the value of a channel has come to one member.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MemberConvergence {
    /// The member.
    pub member: String,
    /// How far it has come.
    #[serde(flatten)]
    pub progress: Progress,
}

/// How far one publication or delivery has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Progress {
    /// Whether the newest has arrived.
    pub done: bool,
    /// The newest version: counts what was sent under this name.
    pub version: u64,
    /// Attempts at it that have started.
    pub attempts: u64,
    /// When the next one is due, or was, if it is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Timestamp>,
    /// Why the last one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl From<EntryStatus> for Progress {
    fn from(status: EntryStatus) -> Self {
        Progress {
            done: status.ended == Some(Ending::Delivered),
            version: status.version,
            attempts: status.attempts,
            next_attempt_at: status.next_attempt_at,
            last_error: status.last_error,
        }
    }
}

/// Whom a version is to have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The store.
    Published,
    /// The store, and of every channel more than half of the members in its role.
    Quorum,
    /// The store, and all members.
    All,
}

impl Convergence {
    /// Whether the group is at `version` or a later one, and that has reached `audience`.
    pub fn reached(&self, version: u64, audience: Audience) -> bool {
        self.version >= version && self.missing(audience) == 0
    }

    /// How many publications and deliveries must still end well before the group's version has reached
    /// `audience`.
    fn missing(&self, audience: Audience) -> u64 {
        let publication = self.publication.as_ref();
        let unpublished = publication.is_some_and(|publication| !publication.done);
        let undelivered = self.channels.iter().map(|channel| {
            let members = channel.members.len();
            let done = |member: &&MemberConvergence| member.progress.done;
            let enough = match audience {
                Audience::Published => 0,
                Audience::Quorum if members == 0 => 0,
                Audience::Quorum => members / 2 + 1,
                Audience::All => members,
            };
            enough.saturating_sub(channel.members.iter().filter(done).count()) as u64
        });
        u64::from(unpublished) + undelivered.sum::<u64>()
    }
}

impl Driver {
    pub(super) async fn convergence(
        self: &Rc<Self>,
        group: &str,
    ) -> Result<Convergence, TopologyError> {
        check_group(group)?;
        let (driver, group) = (self.clone(), group.to_owned());
        let host = self.scheduler.host();
        let read = host.transaction(move |transaction| driver.look_over(transaction.sql(), &group));
        read.await
    }

    fn look_over(&self, sql: &dyn Sql, group: &str) -> Result<Convergence, TopologyError> {
        let row = live_group(sql, group)?;
        let publication = match self.publishing() {
            Some(publishing) => {
                let entry = publishing.channel.entry(sql, group)?;
                Some(entry.map_or_else(Progress::default, Progress::from))
            }
            None => None,
        };
        let members = store::members(sql, group)?;
        let states = store::states(sql, group)?;
        let (from, before) = keys_of(group);
        let mut channels = Vec::new();
        for channel in self.channels() {
            if !states.contains_key(&channel.name) {
                continue;
            }
            let entries = channel.channel.entries_between(sql, &from, &before)?;
            let mut entries: std::collections::BTreeMap<_, _> = entries
                .into_iter()
                .filter_map(|entry| Some((target_of(&entry.key)?.1, entry)))
                .collect();
            let members = members
                .iter()
                .filter(|member| channel.role.includes(member));
            channels.push(ChannelConvergence {
                channel: channel.name.clone(),
                members: members
                    .map(|member| MemberConvergence {
                        member: member.id.clone(),
                        progress: entries
                            .remove(&member.id)
                            .map_or_else(Progress::default, Progress::from),
                    })
                    .collect(),
            });
        }
        channels.sort_by(|one, other| one.channel.cmp(&other.channel));
        let mut convergence = Convergence {
            group: row.group,
            version: row.version,
            publication,
            channels,
            converged: false,
        };
        convergence.converged = convergence.reached(row.version, Audience::All);
        Ok(convergence)
    }

    pub(super) async fn wait_until(
        self: &Rc<Self>,
        group: &str,
        version: u64,
        audience: Audience,
        timeout: Duration,
    ) -> Result<Convergence, TopologyError> {
        let mut over = self.scheduler.host().sleep(timeout);
        loop {
            // Before looking, so that nothing is missed in between.
            let (waiter, woken) = self.waiting.begin(group);
            let convergence = self.convergence(group).await?;
            if convergence.reached(version, audience) {
                return Ok(convergence);
            }
            // A version that is still to come is told as a change.
            if convergence.version >= version {
                waiter.until_ended(convergence.missing(audience));
            }
            match select(woken, over).await {
                Either::Left((_, waiting)) => over = waiting,
                Either::Right(_) => return self.convergence(group).await,
            }
        }
    }
}
