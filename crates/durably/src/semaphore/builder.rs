//! Configuring a holder: every setting, its default and its bounds.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use super::event::SemaphoreEvent;
use super::holder::{Inner, Semaphore};
use super::lease_options::LeaseOptions;
use super::limits::{CanGrantCallback, GroupLimitCallback, Limit, Limits};
use super::tap::{Tap, Told};
use crate::error::{BoxError, ConfigError, OpenError};
use crate::lifecycle::Hook;
use crate::scheduler::Scheduler;
use crate::time::{check_count, check_duration};

/// What a holder was told about its rounds.
pub(super) struct Settings {
    pub(super) round_wait: Duration,
    pub(super) round_period: Duration,
    pub(super) grant_timeout: Duration,
    pub(super) max_waiting: u64,
    pub(super) max_waiting_entries: u64,
    pub(super) max_wait: Duration,
}

/// Configures a [`Semaphore`]. Only a limit must be given.
///
/// Callbacks and the hook live as long as the holder. One that needs the object that owns the
/// holder must hold it weakly, or a hibernated object is never freed.
#[must_use = "there is no holder before `build`"]
pub struct SemaphoreBuilder {
    scheduler: Scheduler,
    limit: Option<Limit>,
    group_limit: Option<GroupLimitCallback>,
    can_grant: Option<CanGrantCallback>,
    answer_timeout: Duration,
    leases: Option<LeaseOptions>,
    settings: Settings,
    hook: Option<Hook<SemaphoreEvent>>,
    tap: Option<Rc<dyn Tap>>,
}

impl SemaphoreBuilder {
    pub(super) fn new(scheduler: Scheduler) -> Self {
        SemaphoreBuilder {
            scheduler,
            limit: None,
            group_limit: None,
            can_grant: None,
            answer_timeout: Duration::from_secs(30),
            leases: None,
            settings: Settings {
                round_wait: Duration::from_secs(1),
                round_period: Duration::from_secs(2),
                grant_timeout: Duration::from_secs(10),
                max_waiting: 10_000,
                max_waiting_entries: 100_000,
                max_wait: Duration::from_secs(60),
            },
            hook: None,
            tap: None,
        }
    }

    /// How many permits may be out at once; 0 stops everything. Up to 2^53 - 1.
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = Some(Limit::Fixed(limit));
        self
    }

    /// Asks `callback` for the limit once a round, before anything else. A limit that was lowered
    /// stops new permits and never running work. If the callback fails, says more than 2^53 - 1 or
    /// takes longer than [`answer_timeout`](Self::answer_timeout), the requests of the round fail
    /// with [`SemaphoreError::Limit`](super::SemaphoreError::Limit).
    ///
    /// ```
    /// # use std::{cell::Cell, rc::Rc};
    /// # use durably::semaphore::SemaphoreBuilder;
    /// # fn configure(builder: SemaphoreBuilder) -> SemaphoreBuilder {
    /// let limit = Rc::new(Cell::new(12));
    /// let current = limit.clone();
    /// builder.limit_with(move || {
    ///     let limit = current.get();
    ///     async move { Ok(limit) }
    /// })
    /// # }
    /// ```
    pub fn limit_with<Answer>(mut self, callback: impl Fn() -> Answer + 'static) -> Self
    where
        Answer: Future<Output = Result<u64, BoxError>> + 'static,
    {
        self.limit = Some(Limit::Asked(Rc::new(move || Box::pin(callback()))));
        self
    }

    /// Asks `callback` once a round for the ceiling of each demanded group that may have permits:
    /// `Some(0)` stops the group, `None` leaves it only the limit of all. If the callback fails, the
    /// group gets nothing in that round, with the reason `limit_resolution_error`. Without a
    /// callback no group has a ceiling.
    pub fn group_limit<Answer>(mut self, callback: impl Fn(String) -> Answer + 'static) -> Self
    where
        Answer: Future<Output = Result<Option<u64>, BoxError>> + 'static,
    {
        self.group_limit = Some(Rc::new(move |group| Box::pin(callback(group))));
        self
    }

    /// Asks `callback` once a round whether each demanded group may have permits at all; if not, it
    /// gets none, with the reason `not_permitted`. A failure closes the group like one of
    /// [`group_limit`](Self::group_limit).
    pub fn can_grant<Answer>(mut self, callback: impl Fn(String) -> Answer + 'static) -> Self
    where
        Answer: Future<Output = Result<bool, BoxError>> + 'static,
    {
        self.can_grant = Some(Rc::new(move |group| Box::pin(callback(group))));
        self
    }

    /// How long a callback may take before it counts as failed; 30 s by default.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// How long a request waits at least, so that others join its round; 1 s by default.
    pub fn round_wait(mut self, wait: Duration) -> Self {
        self.settings.round_wait = wait;
        self
    }

    /// The least time between the starts of two rounds; 2 s by default.
    pub fn round_period(mut self, period: Duration) -> Self {
        self.settings.round_period = period;
        self
    }

    /// How long permits may be claimed before they are taken back; 10 s by default.
    pub fn grant_timeout(mut self, timeout: Duration) -> Self {
        self.settings.grant_timeout = timeout;
        self
    }

    /// Gives leases to clients that can use them; without this none are given, and those that are
    /// stored from before are retired. [`Semaphore::set_leases`] changes it later.
    pub fn leases(mut self, options: LeaseOptions) -> Self {
        self.leases = Some(options);
        self
    }

    /// How long a request may wait for capacity, whatever it asks for with `waitMs`; 1 min by
    /// default.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.settings.max_wait = wait;
        self
    }

    /// How many requests may wait for a round; one more is refused as
    /// [`SemaphoreError::Overloaded`](super::SemaphoreError::Overloaded). 10,000 by default.
    pub fn max_waiting(mut self, requests: u64) -> Self {
        self.settings.max_waiting = requests;
        self
    }

    /// How many demands and reports the waiting requests may have together, with the same refusal;
    /// a request that waits alone is always taken. 100,000 by default.
    pub fn max_waiting_entries(mut self, entries: u64) -> Self {
        self.settings.max_waiting_entries = entries;
        self
    }

    /// Has `hook` hear every event after its commit.
    pub fn on_event(mut self, hook: impl Fn(&SemaphoreEvent) + 'static) -> Self {
        self.hook = Some(Rc::new(hook));
        self
    }

    /// Has `tap` hear everything that the holder takes, does and answers; see [`tap`](super::tap).
    pub fn tap(mut self, tap: Rc<dyn Tap>) -> Self {
        self.tap = Some(tap);
        self
    }

    /// Attaches the holder to its scheduler.
    ///
    /// # Errors
    ///
    /// [`OpenError::Config`] naming the setting that is missing or out of range, and what
    /// [`Scheduler::attach`] answers.
    pub fn build(self) -> Result<Semaphore, OpenError> {
        let settings = self.settings;
        check_duration("round_wait", settings.round_wait)?;
        check_duration("round_period", settings.round_period)?;
        check_duration("grant_timeout", settings.grant_timeout)?;
        check_duration("answer_timeout", self.answer_timeout)?;
        check_duration("max_wait", settings.max_wait)?;
        if let Some(leases) = &self.leases {
            leases.check()?;
        }
        check_count("max_waiting", settings.max_waiting)?;
        check_count("max_waiting_entries", settings.max_waiting_entries)?;
        let limits = Limits {
            limit: self
                .limit
                .ok_or_else(|| ConfigError::new("limit", "must be given"))?,
            group_limit: self.group_limit,
            can_grant: self.can_grant,
            timeout: self.answer_timeout,
        };
        limits.check()?;
        let inner = Inner::new(
            self.scheduler,
            settings,
            limits,
            self.leases,
            self.hook,
            Told::new(self.tap),
        );
        inner.attach()?;
        Ok(Semaphore::new(inner))
    }
}
