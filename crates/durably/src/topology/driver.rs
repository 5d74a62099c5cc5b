//! What a coordinator keeps in memory, what it does when its object opens, and its part in the alarm.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures::future::{Either, select};
use serde_json::Value;

use super::delivery::{StateChannel, delivery_value};
use super::draft::{Current, Draft, RemovalGuard};
use super::drain::Drained;
use super::error::{MAX_ID_BYTES, TopologyError};
use super::event::{TopologyEvent, TopologyEventKind};
use super::publication::Publishing;
use super::snapshot::{Edition, Incarnation, Snapshot};
use super::store::{self, GroupRow};
use super::waiting::Waiting;
use crate::error::{BoxError, StorageError};
use crate::host::{LocalFuture, Sql};
use crate::lifecycle::{self, Hook};
use crate::migrations::Migration;
use crate::outbox::{Channel, Ending, Outbox, OutboxError, OutboxEventKind};
use crate::scheduler::{Participant, Scheduler};
use crate::time::Timestamp;

/// What an updater is: it runs within the transaction.
pub(super) type Updater = Box<dyn FnOnce(&Current) -> Result<Draft, TopologyError>>;

/// Settings that do not concern one publisher or channel.
pub(super) struct Settings {
    pub(super) coordinator: String,
    pub(super) drained: Option<Drained>,
    pub(super) drain_check_period: Duration,
    pub(super) max_snapshot_bytes: usize,
    pub(super) guard: Option<RemovalGuard>,
    pub(super) hook: Option<Hook<TopologyEvent>>,
}

/// One coordinator.
pub(super) struct Driver {
    /// Itself, for what is called without an `Rc`.
    me: Weak<Driver>,
    pub(super) scheduler: Scheduler,
    pub(super) outbox: Outbox,
    pub(super) settings: Settings,
    publishing: OnceCell<Publishing>,
    channels: OnceCell<Vec<StateChannel>>,
    incarnation: RefCell<Option<Incarnation>>,
    /// Names of state channels that are not configured but may have entries.
    pub(super) former_channels: RefCell<Vec<String>>,
    /// Who waits for a group to come somewhere.
    pub(super) waiting: Waiting,
    /// Drains that are being looked at.
    pub(super) draining: RefCell<BTreeSet<(String, String)>>,
}

impl Driver {
    pub(super) fn new(outbox: &Outbox, settings: Settings) -> Rc<Self> {
        Rc::new_cyclic(|me| Driver {
            me: me.clone(),
            scheduler: outbox.scheduler().clone(),
            outbox: outbox.clone(),
            settings,
            publishing: OnceCell::new(),
            channels: OnceCell::new(),
            incarnation: RefCell::default(),
            former_channels: RefCell::default(),
            waiting: Waiting::default(),
            draining: RefCell::default(),
        })
    }

    pub(super) fn set_publishing(&self, publishing: Publishing) {
        // Builders set it once.
        let _ = self.publishing.set(publishing);
    }

    pub(super) fn set_channels(&self, channels: Vec<StateChannel>) {
        let _ = self.channels.set(channels);
    }

    pub(super) fn publishing(&self) -> Option<&Publishing> {
        self.publishing.get()
    }

    pub(super) fn channels(&self) -> &[StateChannel] {
        self.channels.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation.borrow().clone()
    }

    /// Hears of what becomes of a channel's entries, for those who wait for it.
    pub(super) fn observe(&self, channel: &Channel) {
        let weak = self.me.clone();
        channel.observe(Rc::new(move |event| {
            let ended = matches!(
                event.kind,
                OutboxEventKind::Delivered | OutboxEventKind::Discarded
            );
            if let Some(driver) = weak.upgrade().filter(|_| ended) {
                driver.waiting.ended(&super::delivery::group_of(&event.key));
            }
        }));
    }

    pub(super) fn tell(&self, group: &str, kind: TopologyEventKind) {
        let event = TopologyEvent {
            group: group.to_owned(),
            at: self.scheduler.now(),
            kind,
        };
        event.trace();
        lifecycle::emit(self.settings.hook.as_ref(), &event);
    }

    pub(super) fn edition(&self, version: u64) -> Edition {
        let unborn = || Incarnation {
            created_at: Timestamp::ZERO,
            nonce: String::new(),
        };
        Edition {
            coordinator: self.settings.coordinator.clone(),
            incarnation: self.incarnation().unwrap_or_else(unborn),
            version,
        }
    }

    pub(super) fn snapshot_at(
        &self,
        sql: &dyn Sql,
        row: &GroupRow,
    ) -> Result<Snapshot, StorageError> {
        let members = store::members(sql, &row.group)?;
        let coordinator = &self.settings.coordinator;
        Ok(Snapshot::new(&row.group, row.version, coordinator, members))
    }

    pub(super) async fn snapshot(
        self: &Rc<Self>,
        group: &str,
    ) -> Result<Option<Snapshot>, TopologyError> {
        check_group(group)?;
        let (driver, group) = (self.clone(), group.to_owned());
        let read = self.scheduler.host().transaction(move |transaction| {
            let sql = transaction.sql();
            let row = store::group(sql, &group)?.filter(|row| !row.deleted);
            let snapshot = row.map(|row| driver.snapshot_at(sql, &row)).transpose();
            snapshot.map_err(TopologyError::from)
        });
        read.await
    }

    pub(super) async fn states(
        &self,
        group: &str,
    ) -> Result<BTreeMap<String, Value>, TopologyError> {
        check_group(group)?;
        let group = group.to_owned();
        let read = self.scheduler.host().transaction(move |transaction| {
            let sql = transaction.sql();
            live_group(sql, &group)?;
            let states = store::states(sql, &group)?.into_iter();
            Ok(states
                .map(|(channel, state)| (channel, state.value))
                .collect())
        });
        read.await
    }

    pub(super) async fn groups(
        &self,
        after: &str,
        limit: u64,
    ) -> Result<Vec<String>, TopologyError> {
        let after = after.to_owned();
        let read = self.scheduler.host().transaction(move |transaction| {
            // Deleted groups are few; a page of nothing but them is passed over.
            let (sql, mut after) = (transaction.sql(), after);
            loop {
                let rows = store::groups_after(sql, &after, limit)?;
                let Some(last) = rows.last() else {
                    return Ok::<_, TopologyError>(Vec::new());
                };
                after.clone_from(&last.group);
                let live: Vec<_> = rows.into_iter().filter(|row| !row.deleted).collect();
                if !live.is_empty() {
                    return Ok(live.into_iter().map(|row| row.group).collect());
                }
            }
        });
        read.await
    }

    /// A new incarnation, later than `after`, that is not stored yet.
    fn next_incarnation(&self, now: Timestamp, after: Option<&Incarnation>) -> Incarnation {
        let mut random = [0; 8];
        self.scheduler.host().random(&mut random);
        let latest = self
            .incarnation
            .borrow()
            .as_ref()
            .max(after)
            .map(|one| one.created_at);
        let created_at = latest.map_or(now, |latest| now.max(latest + Duration::from_millis(1)));
        Incarnation {
            created_at,
            nonce: format!("{:016x}", u64::from_be_bytes(random)),
        }
    }

    /// Begins a new incarnation, later than `after`, and stages all groups and what all members are to
    /// have: members may have passed over, or not have been sent, what an older copy knows nothing of.
    pub(super) async fn new_incarnation(
        self: &Rc<Self>,
        after: Option<Incarnation>,
    ) -> Result<Incarnation, TopologyError> {
        let driver = self.clone();
        let begun = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            let incarnation = driver.next_incarnation(driver.scheduler.now(), after.as_ref());
            store::set_incarnation(sql, &incarnation)?;
            store::set_all_unstaged(sql)?;
            if let Some(publishing) = driver.publishing() {
                for row in store::unstaged(sql)? {
                    publishing.stage(transaction, &row)?;
                    store::set_staged(sql, &row.group)?;
                }
            }
            for channel in driver.channels() {
                channel.stage_all(transaction)?;
            }
            let (driver, begun) = (driver.clone(), incarnation.clone());
            transaction.on_release(Box::new(move || {
                driver.incarnation.replace(Some(begun));
            }));
            Ok::<_, TopologyError>(incarnation)
        });
        let driver = self.clone();
        let told = self.scheduler.detached(async move {
            let incarnation = begun.await?;
            driver.tell("", TopologyEventKind::Incarnation(incarnation.clone()));
            Ok(incarnation)
        });
        told.await
    }

    /// Stages the deliveries of a channel that was not there in the instance before, or in another
    /// role: what was not staged for its members meanwhile, and not what they have.
    fn catch_up(&self, sql: &dyn Sql, channel: &StateChannel) -> Result<(), OutboxError> {
        for entry in channel.channel.entries_between(sql, "[", "\\")? {
            let Some((group, id)) = super::delivery::target_of(&entry.key) else {
                continue;
            };
            let member = store::member(sql, &group, &id)?;
            let reached = member.is_some_and(|member| channel.role.includes(&member));
            if entry.ended.is_none() && !reached {
                channel.channel.discard_opening(sql, &entry.key)?;
            }
        }
        for (group, digest) in store::groups_with_state(sql, &channel.name)? {
            let Some(row) = store::group(sql, &group)? else {
                continue;
            };
            for member in store::members(sql, &group)? {
                if !channel.role.includes(&member) {
                    continue;
                }
                let key = super::delivery::key(&group, &member.id);
                let newest = channel.channel.mark(sql, &key)?;
                let has_it = newest.is_some_and(|newest| {
                    newest.ended != Some(Ending::Discarded)
                        && newest.mark.as_deref() == Some(&*digest)
                });
                if !has_it {
                    let value = delivery_value(row.version);
                    channel
                        .channel
                        .stage_opening(sql, &key, &value, Some(&digest))?;
                }
            }
        }
        Ok(())
    }

    fn load_channels(&self, sql: &dyn Sql) -> Result<(), OutboxError> {
        let known = store::channels(sql)?;
        for channel in self.channels() {
            let before = known.get(&channel.name).cloned().flatten();
            if before.as_deref() != Some(channel.role.as_str()) {
                self.catch_up(sql, channel)?;
                store::put_channel(sql, &channel.name, Some(channel.role))?;
            }
        }
        let mut former = Vec::new();
        for (name, role) in known {
            if self.channels().iter().any(|channel| channel.name == name) {
                continue;
            }
            if role.is_some() {
                store::put_channel(sql, &name, None)?;
            }
            former.push(name);
        }
        self.former_channels.replace(former);
        Ok(())
    }
}

pub(super) fn check_group(group: &str) -> Result<(), TopologyError> {
    match group.len() {
        1..=MAX_ID_BYTES => Ok(()),
        bytes => Err(TopologyError::InvalidGroup(bytes)),
    }
}

pub(super) fn live_group(sql: &dyn Sql, group: &str) -> Result<GroupRow, TopologyError> {
    let row = store::group(sql, group)?.filter(|row| !row.deleted);
    row.ok_or_else(|| TopologyError::UnknownGroup(group.to_owned()))
}

impl Driver {
    /// Waits for `call` for at most `timeout`; `None` if it takes longer.
    pub(super) async fn within<T>(
        &self,
        timeout: Duration,
        call: impl Future<Output = T> + Unpin,
    ) -> Option<T> {
        match select(call, self.scheduler.host().sleep(timeout)).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }
}

impl Participant for Driver {
    fn name(&self) -> &'static str {
        super::CAPABILITY
    }

    fn migrations(&self) -> &'static [Migration] {
        store::MIGRATIONS
    }

    fn load(&self, sql: &dyn Sql, now: Timestamp) -> Result<(), StorageError> {
        let incarnation = match store::incarnation(sql)? {
            Some(incarnation) => incarnation,
            None => {
                let incarnation = self.next_incarnation(now, None);
                store::set_incarnation(sql, &incarnation)?;
                incarnation
            }
        };
        self.incarnation.replace(Some(incarnation));
        let failed = |error: OutboxError| match error {
            OutboxError::Storage(error) => error,
            other => StorageError::Failed(other.to_string()),
        };
        if let Some(publishing) = self.publishing() {
            for row in store::unstaged(sql)? {
                publishing.stage_opening(sql, &row).map_err(failed)?;
                store::set_staged(sql, &row.group)?;
            }
        }
        self.load_channels(sql).map_err(failed)
    }

    fn next_pending_at(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        store::next_drain(sql)
    }

    fn next_wake_at(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        store::next_drain_after(sql, now)
    }

    fn run_due(self: Rc<Self>, now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { self.end_drains(now).await.map_err(BoxError::from) })
    }
}
