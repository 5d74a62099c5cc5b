//! The door for applications: staging and discarding in their transactions, publishing now, and
//! seeing what is pending and why.

use std::rc::Rc;

use futures::channel::oneshot;
use serde_json::Value;

use super::driver::{Driver, Lane, Reply};
use super::error::{MAX_KEY_BYTES, MAX_VALUE_BYTES, OutboxError};
use super::event::{OutboxEvent, OutboxEventKind};
use super::publish::{ChannelConfig, Publish};
use super::store::{self, Ending, EntryStatus, Marked, NewEntry};
use crate::bugs::{self, Bug};
use crate::error::{ConfigError, OpenError, StorageError};
use crate::host::{Sql, Transaction};
use crate::lifecycle::Hook;
use crate::scheduler::Scheduler;

/// The longest name of a channel, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// The outbox of one object. Clones are handles to the same one.
#[derive(Clone)]
pub struct Outbox(Rc<Driver>);

/// One of its channels. Clones are handles to the same one.
#[derive(Clone)]
pub struct Channel {
    driver: Rc<Driver>,
    lane: Rc<Lane>,
}

impl Outbox {
    /// Makes the object's outbox and attaches it to the scheduler.
    ///
    /// # Errors
    ///
    /// What [`Scheduler::attach`] answers; the object has one outbox.
    pub fn new(scheduler: &Scheduler) -> Result<Self, OpenError> {
        let driver = Driver::new(scheduler);
        scheduler.attach(&driver)?;
        Ok(Outbox(driver))
    }

    /// Tells `hook` what happens to entries, of all channels.
    pub fn on_event(&self, hook: Hook<OutboxEvent>) {
        *self.0.hook.borrow_mut() = Some(hook);
    }

    /// Adds a channel. Entries of a channel that is not there in an instance wait for one that has it.
    ///
    /// # Errors
    ///
    /// [`OpenError::Config`] for settings out of range and a name that is empty, too long or taken,
    /// [`OpenError::AttachedLate`] once the scheduler is open.
    pub fn channel(
        &self,
        name: impl Into<Rc<str>>,
        config: ChannelConfig,
        publish: Publish,
    ) -> Result<Channel, OpenError> {
        let name = name.into();
        config.check()?;
        if self.0.opened.get() {
            return Err(OpenError::AttachedLate(super::CAPABILITY));
        }
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            let problem = format!("must have 1 to {MAX_NAME_BYTES} bytes");
            return Err(ConfigError::new("channel", problem).into());
        }
        if self
            .0
            .channels
            .borrow()
            .iter()
            .any(|lane| lane.name == name)
        {
            return Err(ConfigError::new("channel", format!("{name:?} is there twice")).into());
        }
        let lane = self.0.add(name, config, publish);
        Ok(Channel {
            driver: self.0.clone(),
            lane,
        })
    }

    /// The scheduler that it is attached to.
    pub fn scheduler(&self) -> &Scheduler {
        &self.0.scheduler
    }

    /// Takes back what is pending of a range of keys, in a channel that may not be there in this
    /// instance.
    pub(crate) fn discard_between(
        &self,
        transaction: &dyn Transaction,
        channel: &str,
        from: &str,
        before: &str,
    ) -> Result<(), StorageError> {
        let sql = transaction.sql();
        let lanes = self.0.channels.borrow();
        let lane = lanes.iter().find(|lane| *lane.name == *channel).cloned();
        drop(lanes);
        let mut events = Vec::new();
        for entry in store::entries_between(sql, channel, from, before)? {
            if entry.ended.is_none() {
                store::end(sql, channel, &entry.key, entry.version, Ending::Discarded)?;
                events.push(self.0.event(
                    channel.into(),
                    entry.key,
                    entry.version,
                    entry.attempts,
                    OutboxEventKind::Discarded,
                ));
            }
        }
        if let Some(lane) = lane.filter(|_| !events.is_empty()) {
            self.0.clone().after_release(transaction, lane, events);
        }
        Ok(())
    }
}

impl Driver {
    fn event(
        &self,
        channel: Rc<str>,
        key: String,
        version: u64,
        attempt: u64,
        kind: OutboxEventKind,
    ) -> OutboxEvent {
        OutboxEvent {
            channel,
            key,
            version,
            attempt,
            at: self.scheduler.now(),
            kind,
        }
    }

    /// Has the channel tell `events` after the commit, and do what has become due.
    fn after_release(
        self: Rc<Self>,
        transaction: &dyn Transaction,
        lane: Rc<Lane>,
        events: Vec<OutboxEvent>,
    ) {
        transaction.on_release(Box::new(move || {
            lane.events.borrow_mut().extend(events);
            self.wake(&lane);
        }));
    }
}

/// What staging a value made.
struct Staged {
    version: u64,
    events: Vec<OutboxEvent>,
}

impl Channel {
    /// Has `observer` hear of this channel's events, too.
    pub(crate) fn observe(&self, observer: Hook<OutboxEvent>) {
        *self.lane.observer.borrow_mut() = Some(observer);
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.lane.name
    }

    /// Stores a value for `key`, due now, in the place of what is pending there, and returns its
    /// version. It is delivered once `transaction`, one of [`Scheduler::transaction`], has committed.
    ///
    /// # Errors
    ///
    /// [`OutboxError::InvalidKey`], [`OutboxError::ValueTooLarge`] and what storage answers.
    pub fn stage(
        &self,
        transaction: &dyn Transaction,
        key: &str,
        value: &Value,
    ) -> Result<u64, OutboxError> {
        self.stage_marked(transaction, key, value, None)
    }

    /// The same with a mark that stays when the value has gone.
    pub(crate) fn stage_marked(
        &self,
        transaction: &dyn Transaction,
        key: &str,
        value: &Value,
        mark: Option<&str>,
    ) -> Result<u64, OutboxError> {
        let Staged { version, events } = self.stage_row(transaction.sql(), key, value, mark)?;
        let driver = self.driver.clone();
        driver.after_release(transaction, self.lane.clone(), events);
        Ok(version)
    }

    /// The same while the object opens, when a channel is not awake yet.
    pub(crate) fn stage_opening(
        &self,
        sql: &dyn Sql,
        key: &str,
        value: &Value,
        mark: Option<&str>,
    ) -> Result<(), OutboxError> {
        let staged = self.stage_row(sql, key, value, mark)?;
        self.lane.events.borrow_mut().extend(staged.events);
        Ok(())
    }

    fn stage_row(
        &self,
        sql: &dyn Sql,
        key: &str,
        value: &Value,
        mark: Option<&str>,
    ) -> Result<Staged, OutboxError> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(OutboxError::InvalidKey(key.len()));
        }
        let text = value.to_string();
        if text.len() > MAX_VALUE_BYTES {
            return Err(OutboxError::ValueTooLarge(text.len()));
        }
        let channel = &self.lane.name;
        let now = self.driver.scheduler.now();
        let newest = store::newest(sql, channel, key)?;
        let begins_again = bugs::is_on(Bug::VersionsBeginAgain);
        let version = newest
            .filter(|(_, pending)| pending.is_some() || !begins_again)
            .map_or(1, |(version, _)| version + 1);
        store::stage(
            sql,
            &NewEntry {
                channel,
                key,
                version,
                due_at: now,
                staged: self.driver.next_staged(now),
                mark,
                value: &text,
            },
        )?;
        let event = |version, attempt, kind| {
            let (channel, key) = (channel.clone(), key.to_owned());
            self.driver.event(channel, key, version, attempt, kind)
        };
        let mut events = Vec::with_capacity(2);
        if let Some((version, Some(attempts))) = newest {
            events.push(event(version, attempts, OutboxEventKind::Superseded));
        }
        events.push(event(version, 0, OutboxEventKind::Staged));
        Ok(Staged { version, events })
    }

    /// Takes back what is pending for `key`; `false` if nothing is. A call that is on its way may
    /// still arrive; what becomes of it is not looked at.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub fn discard(&self, transaction: &dyn Transaction, key: &str) -> Result<bool, OutboxError> {
        let event = self.discard_row(transaction.sql(), key)?;
        let discarded = event.is_some();
        if let Some(event) = event {
            let driver = self.driver.clone();
            driver.after_release(transaction, self.lane.clone(), vec![event]);
        }
        Ok(discarded)
    }

    /// The same while the object opens.
    pub(crate) fn discard_opening(&self, sql: &dyn Sql, key: &str) -> Result<(), OutboxError> {
        let event = self.discard_row(sql, key)?;
        self.lane.events.borrow_mut().extend(event);
        Ok(())
    }

    fn discard_row(&self, sql: &dyn Sql, key: &str) -> Result<Option<OutboxEvent>, OutboxError> {
        let channel = &self.lane.name;
        let Some((version, Some(attempts))) = store::newest(sql, channel, key)? else {
            return Ok(None);
        };
        if !(bugs::is_on(Bug::DiscardForgetsAttempted) && attempts > 0) {
            store::end(sql, channel, key, version, Ending::Discarded)?;
        }
        let kind = OutboxEventKind::Discarded;
        let event = self
            .driver
            .event(channel.clone(), key.to_owned(), version, attempts, kind);
        Ok(Some(event))
    }

    /// Attempts what is pending for `key` now, whenever it is due, in turn behind those who asked
    /// before; says whether the newest version is out.
    ///
    /// # Errors
    ///
    /// What storage answers; what is pending is attempted again later.
    #[tracing::instrument(
        name = "durability.outbox.publish_now",
        level = "debug",
        skip_all,
        fields(channel = %self.lane.name, key)
    )]
    pub async fn publish_now(&self, key: &str) -> Result<bool, OutboxError> {
        let (reply, answer) = oneshot::channel();
        self.take_place(key.to_owned(), reply);
        published(answer).await
    }

    /// Takes a place in line for `key` in the order of the commits.
    pub(crate) fn line_up(
        &self,
        transaction: &dyn Transaction,
        key: &str,
    ) -> impl Future<Output = Result<bool, OutboxError>> + use<> {
        let (reply, answer) = oneshot::channel();
        let (channel, key) = (self.clone(), key.to_owned());
        transaction.on_release(Box::new(move || channel.take_place(key, reply)));
        published(answer)
    }

    fn take_place(&self, key: String, reply: Reply) {
        let ticket = self.lane.lanes.borrow_mut().line_up(key);
        self.lane.waiting.borrow_mut().insert(ticket, reply);
        self.driver.wake(&self.lane);
    }

    /// Where the entry of `key` stands; `None` if nothing was ever staged for it.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn status(&self, key: &str) -> Result<Option<EntryStatus>, OutboxError> {
        let (lane, key) = (self.lane.clone(), key.to_owned());
        let host = self.driver.scheduler.host();
        let read = host.transaction(move |transaction| {
            store::entry(transaction.sql(), &lane.name, &key).map_err(OutboxError::from)
        });
        read.await
    }

    /// What is pending and why, longest due first: at most `limit` entries after the first `skip`.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn pending(&self, skip: u64, limit: u64) -> Result<Vec<EntryStatus>, OutboxError> {
        let lane = self.lane.clone();
        let host = self.driver.scheduler.host();
        let read = host.transaction(move |transaction| {
            let sql = transaction.sql();
            store::pending(sql, &lane.name, skip, limit).map_err(OutboxError::from)
        });
        read.await
    }

    /// Where the entries of a range of keys stand.
    pub(crate) fn entries_between(
        &self,
        sql: &dyn Sql,
        from: &str,
        before: &str,
    ) -> Result<Vec<EntryStatus>, StorageError> {
        store::entries_between(sql, &self.lane.name, from, before)
    }

    /// Where the entry of a key stands.
    pub(crate) fn entry(
        &self,
        sql: &dyn Sql,
        key: &str,
    ) -> Result<Option<EntryStatus>, StorageError> {
        store::entry(sql, &self.lane.name, key)
    }

    /// How the newest version of a key ended, if it has, and its mark.
    pub(crate) fn mark(&self, sql: &dyn Sql, key: &str) -> Result<Option<Marked>, StorageError> {
        store::mark(sql, &self.lane.name, key)
    }
}

async fn published(
    answer: oneshot::Receiver<Result<bool, OutboxError>>,
) -> Result<bool, OutboxError> {
    answer
        .await
        .unwrap_or_else(|_| Err(StorageError::Ended("the publication was cut off".into()).into()))
}
