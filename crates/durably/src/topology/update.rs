//! The transactions that change a group. What follows their commits - publication and deliveries - is
//! staged in them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use serde_json::Value;

use super::canonical;
use super::coordinator::{Deleted, Updated, outbox_channel};
use super::delivery::{StateChannel, delivery_value, key, keys_of};
use super::draft::{self, Current, Draft, Membership, RemovalGuard};
use super::drain::{DrainPlan, plan_drains};
use super::driver::{Driver, Updater, check_group};
use super::error::TopologyError;
use super::event::TopologyEventKind;
use super::snapshot::{Member, MemberState, Snapshot, encoded_len};
use super::store::{self, GroupRow, StateRow};
use crate::bugs::{self, Bug};
use crate::error::{StorageError, panic_text};
use crate::host::{LocalFuture, Sql, Transaction};
use crate::outbox::OutboxError;

/// What a publication was answered, if there is one to wait for.
type Line = Option<LocalFuture<Result<bool, OutboxError>>>;

/// A change that is stored, and what follows its commit.
struct Changed {
    snapshot: Snapshot,
    /// The members are others than before.
    is_new: bool,
    line: Line,
}

/// A group as a change finds it.
struct Found {
    row: Option<GroupRow>,
    live: bool,
    states: BTreeMap<String, StateRow>,
}

impl Driver {
    pub(super) async fn update(
        self: &Rc<Self>,
        group: &str,
        updater: Updater,
    ) -> Result<Updated, TopologyError> {
        check_group(group)?;
        let (driver, of) = (self.clone(), group.to_owned());
        let changed = self.scheduler.transaction(move |transaction| {
            let mut changed = driver.change(transaction, &of, updater)?;
            changed.line = driver.line_up(transaction, &of);
            Ok::<_, TopologyError>(changed)
        });
        let (driver, of) = (self.clone(), group.to_owned());
        let followed = self.scheduler.detached(async move {
            let Changed {
                snapshot,
                is_new,
                line,
            } = changed.await?;
            if is_new {
                let version = snapshot.version;
                driver.tell(&of, TopologyEventKind::Changed { version });
            }
            driver.waiting.changed(&of);
            let published = published(line).await?;
            Ok(Updated {
                snapshot,
                published,
            })
        });
        followed.await
    }

    pub(super) async fn delete(
        self: &Rc<Self>,
        group: &str,
        expected: Option<u64>,
    ) -> Result<Deleted, TopologyError> {
        check_group(group)?;
        let (driver, of) = (self.clone(), group.to_owned());
        let deleted = self.scheduler.transaction(move |transaction| {
            let version = driver.remove(transaction, &of, expected)?;
            Ok::<_, TopologyError>((version, driver.line_up(transaction, &of)))
        });
        let (driver, of) = (self.clone(), group.to_owned());
        let followed = self.scheduler.detached(async move {
            let (version, line) = deleted.await?;
            if let Some(version) = version {
                driver.tell(&of, TopologyEventKind::Deleted { version });
            }
            driver.waiting.changed(&of);
            let published = published(line).await?;
            Ok(Deleted { version, published })
        });
        followed.await
    }

    /// Takes a place in line for the group's publication, in the order of the commits.
    fn line_up(&self, transaction: &dyn Transaction, group: &str) -> Line {
        let publishing = self.publishing()?;
        Some(Box::pin(publishing.channel.line_up(transaction, group)))
    }

    /// Removes a draining member, unless it is not one any more; says whether it did. The last member
    /// of a group stays.
    pub(super) fn remove_drained(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
        group: &str,
        id: &str,
    ) -> Result<bool, TopologyError> {
        let sql = transaction.sql();
        let draining = store::member(sql, group, id)?
            .is_some_and(|member| member.state == MemberState::Draining);
        if !draining || store::drain(sql, group, id)?.is_none() {
            store::delete_drain(sql, group, id)?;
            return Ok(false);
        }
        let gone = id.to_owned();
        let updater = Box::new(move |current: &Current| {
            let others = current.members.iter().filter(|member| member.id != gone);
            // The guard is against drafts that forget members, and this one was asked to go.
            Ok(Draft::members(others).guard(RemovalGuard::NONE))
        });
        self.change(transaction, group, updater)?;
        Ok(true)
    }

    fn change(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
        group: &str,
        updater: Updater,
    ) -> Result<Changed, TopologyError> {
        let sql = transaction.sql();
        let now = self.scheduler.now();
        let row = store::group(sql, group)?;
        let found = Found {
            live: row.as_ref().is_some_and(|row| !row.deleted),
            states: store::states(sql, group)?,
            row,
        };
        let mut current = Current {
            version: found
                .row
                .as_ref()
                .filter(|row| !row.deleted)
                .map(|row| row.version),
            members: Vec::new(),
            states: found
                .states
                .iter()
                .map(|(name, state)| (name.clone(), state.value.clone()))
                .collect(),
        };
        if found.live {
            current.members = store::members(sql, group)?;
        }
        let drafted = catch_unwind(AssertUnwindSafe(|| updater(&current)));
        let draft = drafted.unwrap_or_else(|panic| {
            Err(TopologyError::Updater(panic_text("the updater", &*panic)))
        })?;
        let before = current.members;
        if !found.live && draft.members.is_none() {
            return Err(TopologyError::UnknownGroup(group.to_owned()));
        }
        let change = match draft.members {
            Some(members) => draft::membership(&before, members, now)?,
            None => Membership {
                after: before.clone(),
                written: Vec::new(),
                removed: Vec::new(),
                drains: Vec::new(),
            },
        };
        if let Some(guard) = draft.guard.or(self.settings.guard) {
            guard.check(change.removed.len(), before.len())?;
        }
        let is_new = !found.live || change.is_change();
        let begins_again = bugs::is_on(Bug::RecreatedBeginsAgain);
        let known = found.row.as_ref().filter(|_| found.live || !begins_again);
        let last = known.map_or(0, |row| row.version);
        let row = GroupRow {
            group: group.to_owned(),
            version: last + u64::from(is_new),
            deleted: false,
        };
        if is_new {
            self.check_size(&row, &change.after)?;
            for id in &change.removed {
                store::delete_member(sql, group, id)?;
            }
            for place in &change.written {
                store::put_member(sql, group, &change.after[*place])?;
            }
            self.put_version(transaction, &row)?;
        }
        self.write_drains(sql, group, &before, &change)?;
        let (states, changed) = self.write_states(sql, group, found.states, draft.states)?;
        for channel in self.channels() {
            let digest = states.get(&channel.name).map(|state| state.digest.as_str());
            let is_changed = changed.contains(&channel.name);
            let ends = (before.as_slice(), change.after.as_slice());
            stage_deliveries(transaction, channel, &row, ends, digest, is_changed)?;
        }
        let coordinator = &self.settings.coordinator;
        Ok(Changed {
            snapshot: Snapshot::new(group, row.version, coordinator, change.after),
            is_new,
            line: None,
        })
    }

    /// Deletes a group; says with which version, unless there is none.
    fn remove(
        &self,
        transaction: &dyn Transaction,
        group: &str,
        expected: Option<u64>,
    ) -> Result<Option<u64>, TopologyError> {
        let sql = transaction.sql();
        let row = store::group(sql, group)?.filter(|row| !row.deleted);
        let found = row.as_ref().map(|row| row.version);
        if expected.is_some() && expected != found {
            return Err(TopologyError::VersionConflict { expected, found });
        }
        let Some(row) = row else { return Ok(None) };
        let row = GroupRow {
            version: row.version + 1,
            deleted: true,
            ..row
        };
        store::clear_group(sql, group)?;
        let (from, before) = keys_of(group);
        let former = self.former_channels.borrow();
        let configured = self.channels().iter().map(|channel| &channel.name);
        for name in configured.chain(&*former) {
            let channel = outbox_channel(name);
            self.outbox
                .discard_between(transaction, &channel, &from, &before)?;
        }
        self.put_version(transaction, &row)?;
        Ok(Some(row.version))
    }

    /// Stores a group's new version, and stages its publication.
    fn put_version(
        &self,
        transaction: &dyn Transaction,
        row: &GroupRow,
    ) -> Result<(), TopologyError> {
        let publishing = self.publishing();
        let now = self.scheduler.now();
        store::put_group(transaction.sql(), row, publishing.is_some(), now)?;
        let publishes = !(row.deleted && bugs::is_on(Bug::DeletionNotPublished));
        if let Some(publishing) = publishing.filter(|_| publishes) {
            publishing.stage(transaction, row)?;
        }
        Ok(())
    }

    fn check_size(&self, row: &GroupRow, members: &[Member]) -> Result<(), TopologyError> {
        let limit = self.settings.max_snapshot_bytes;
        let edition = self.edition(row.version);
        let bytes = encoded_len(&row.group, &edition, members);
        match bytes > limit {
            true => Err(TopologyError::SnapshotTooLarge { bytes, limit }),
            false => Ok(()),
        }
    }

    fn write_drains(
        &self,
        sql: &dyn Sql,
        group: &str,
        before: &[Member],
        change: &Membership,
    ) -> Result<(), StorageError> {
        let now = self.scheduler.now();
        for plan in plan_drains(before, change) {
            match plan {
                DrainPlan::Begin(member, end) => {
                    self.begin_drain(sql, group, member, end, now)?;
                }
                DrainPlan::End(member) => store::delete_drain(sql, group, &member)?,
            }
        }
        Ok(())
    }

    /// Stores new values; says what each channel has then, and which changed.
    fn write_states(
        &self,
        sql: &dyn Sql,
        group: &str,
        mut states: BTreeMap<String, StateRow>,
        drafted: BTreeMap<String, Value>,
    ) -> Result<(BTreeMap<String, StateRow>, BTreeSet<String>), TopologyError> {
        let mut changed = BTreeSet::new();
        for (channel, value) in drafted {
            let is_known = self.channels().iter().any(|known| known.name == channel);
            let canonical = canonical::text(&value);
            draft::check_state(&channel, is_known, &canonical)?;
            let known = states.get(&channel);
            if known.is_some_and(|state| canonical::same(&state.value, &value)) {
                continue;
            }
            let digest = canonical::digest(&canonical);
            store::put_state(sql, group, &channel, &digest, &value.to_string())?;
            states.insert(channel.clone(), StateRow { digest, value });
            changed.insert(channel);
        }
        Ok((states, changed))
    }
}

/// Stages what an update means for one channel: a changed value for every member in its role, any
/// other for those that enter it. Those that leave it lose what is on its way to them.
fn stage_deliveries(
    transaction: &dyn Transaction,
    channel: &StateChannel,
    row: &GroupRow,
    (before, after): (&[Member], &[Member]),
    digest: Option<&str>,
    is_changed: bool,
) -> Result<(), TopologyError> {
    let (previous, targets) = (channel.role.ids(before), channel.role.ids(after));
    let leaving = previous.difference(&targets);
    for id in leaving.filter(|_| !bugs::is_on(Bug::LeavingGetsValues)) {
        channel.channel.discard(transaction, &key(&row.group, id))?;
    }
    let Some(digest) = digest else { return Ok(()) };
    for id in targets {
        let enters = !previous.contains(id) && !bugs::is_on(Bug::EnteringGetsNothing);
        if is_changed || enters {
            let (key, value) = (key(&row.group, id), delivery_value(row.version));
            channel
                .channel
                .stage_marked(transaction, &key, &value, Some(digest))?;
        }
    }
    Ok(())
}

/// Waits for the publication. A change is committed whatever becomes of it.
async fn published(line: Line) -> Result<bool, TopologyError> {
    let Some(line) = line else { return Ok(true) };
    match line.await {
        Ok(published) => Ok(published),
        Err(OutboxError::Storage(error @ StorageError::Ended(_))) => Err(error.into()),
        // The outbox has reported it and goes on.
        Err(_) => Ok(false),
    }
}
