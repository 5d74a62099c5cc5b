//! Configuring a queue: every setting, its default and its bounds.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use super::SemaphoreQueue;
use super::event::QueueEvent;
use super::inner::Inner;
use super::item::AdmittedItem;
use super::transport::HolderTransport;
use crate::error::{BoxError, ConfigError, OpenError};
use crate::host::LocalFuture;
use crate::layers::Backoff;
use crate::lifecycle::Hook;
use crate::scheduler::Scheduler;
use crate::semaphore::protocol::check_id;
use crate::time::{check_count, check_duration};

pub(super) type AdmitCallback = Rc<dyn Fn(Vec<AdmittedItem>) -> LocalFuture<Result<(), BoxError>>>;
pub(super) type FinishedCallback =
    Rc<dyn Fn(Vec<String>) -> LocalFuture<Result<Vec<String>, BoxError>>>;

/// How much longer than the holder may keep a request its answer is waited for.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);

/// What a queue was told about its limits and times.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) max_admitted: u64,
    pub(super) max_body_bytes: u64,
    pub(super) max_batch_items: u64,
    pub(super) max_queue_length: u64,
    pub(super) max_admit_items: u64,
    pub(super) retention: Duration,
    pub(super) finished_after: Duration,
    pub(super) answer_timeout: Duration,
    pub(super) request_wait: Duration,
    pub(super) backoff: Backoff,
}

/// Configures a [`SemaphoreQueue`]. A holder and an `admit` callback must be given.
///
/// Callbacks and the hook live as long as the queue. One that needs the queue, or the object that
/// owns it, must hold it weakly ([`SemaphoreQueue::downgrade`]), or a hibernated object is never
/// freed.
#[must_use = "there is no queue before `build`"]
pub struct SemaphoreQueueBuilder {
    scheduler: Scheduler,
    holder: Option<Rc<dyn HolderTransport>>,
    admit: Option<AdmitCallback>,
    finished: Option<FinishedCallback>,
    hook: Option<Hook<QueueEvent>>,
    settings: Settings,
}

impl SemaphoreQueueBuilder {
    pub(super) fn new(scheduler: Scheduler) -> Self {
        let max_admitted = scheduler.pool().capacity();
        SemaphoreQueueBuilder {
            scheduler,
            holder: None,
            admit: None,
            finished: None,
            hook: None,
            settings: Settings {
                max_admitted,
                max_body_bytes: 128 * 1024,
                max_batch_items: 1_000,
                max_queue_length: 1_000_000,
                max_admit_items: 100,
                retention: Duration::from_secs(24 * 60 * 60),
                finished_after: Duration::from_secs(30),
                answer_timeout: Duration::from_secs(30),
                request_wait: Duration::from_secs(20),
                backoff: Backoff::default(),
            },
        }
    }

    /// How holders are reached, by the items' keys; usually a
    /// [`SemaphoreClient`](crate::semaphore::client::SemaphoreClient).
    pub fn holder(mut self, transport: impl HolderTransport + 'static) -> Self {
        self.holder = Some(Rc::new(transport));
        self
    }

    /// Takes items whose permit is confirmed; when it succeeds, each of them is in the
    /// application's hands until it is [released](SemaphoreQueue::release). It is called after the
    /// commit, and again until it succeeds, also after a crash: it must be idempotent by item id.
    pub fn admit<Answer>(mut self, callback: impl Fn(Vec<AdmittedItem>) -> Answer + 'static) -> Self
    where
        Answer: Future<Output = Result<(), BoxError>> + 'static,
    {
        self.admit = Some(Rc::new(move |items| Box::pin(callback(items))));
        self
    }

    /// Says which of the items, all of them admitted for a while, have ended. They are released
    /// then: a release that was lost does not keep its permit.
    pub fn finished<Answer>(mut self, callback: impl Fn(Vec<String>) -> Answer + 'static) -> Self
    where
        Answer: Future<Output = Result<Vec<String>, BoxError>> + 'static,
    {
        self.finished = Some(Rc::new(move |ids| Box::pin(callback(ids))));
        self
    }

    /// Has `hook` hear every event after its commit.
    pub fn on_event(mut self, hook: impl Fn(&QueueEvent) + 'static) -> Self {
        self.hook = Some(Rc::new(hook));
        self
    }

    /// How many items may hold permits at once, claims included: no more permits are asked for.
    /// By default what the scheduler's handler pool has.
    pub fn max_admitted(mut self, items: u64) -> Self {
        self.settings.max_admitted = items;
        self
    }

    /// The largest body that is taken, in bytes; 128 KiB by default.
    pub fn max_body_bytes(mut self, bytes: u64) -> Self {
        self.settings.max_body_bytes = bytes;
        self
    }

    /// How many items are taken at once; 1,000 by default.
    pub fn max_batch_items(mut self, items: u64) -> Self {
        self.settings.max_batch_items = items;
        self
    }

    /// How many items may wait; 1,000,000 by default.
    pub fn max_queue_length(mut self, items: u64) -> Self {
        self.settings.max_queue_length = items;
        self
    }

    /// How many items `admit` and `finished` are given at once; 100 by default.
    pub fn max_admit_items(mut self, items: u64) -> Self {
        self.settings.max_admit_items = items;
        self
    }

    /// How long a finished item is known, at least; 24 h by default.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// How long after its admission `finished` is first asked about an item, and then again; 30 s by
    /// default.
    pub fn finished_after(mut self, duration: Duration) -> Self {
        self.settings.finished_after = duration;
        self
    }

    /// How long the queue waits for a holder's answer, whatever the transport does; 30 s by default.
    /// A request is answered by the holder's next round, or later by
    /// [`request_wait`](Self::request_wait).
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.settings.answer_timeout = timeout;
        self
    }

    /// How long a holder may keep a request that it has nothing for, so that a permit that becomes free
    /// is not waited for until it is time to ask again; 20 s by default. Only requests whose groups all
    /// know why they wait are kept. Zero keeps none; otherwise it is at least 5 s shorter than
    /// [`answer_timeout`](Self::answer_timeout), and should be much shorter than the holder's leases
    /// last: their time counts from the moment a request is sent.
    pub fn request_wait(mut self, wait: Duration) -> Self {
        self.settings.request_wait = wait;
        self
    }

    /// How long it waits after failures of the holder or of a callback; from 500 ms to 1 min by
    /// default.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Attaches the queue to its scheduler. It works once that is open.
    ///
    /// # Errors
    ///
    /// [`OpenError::Config`] naming the setting that is missing or out of range,
    /// [`OpenError::AttachedTwice`], [`OpenError::AttachedLate`].
    pub fn build(self) -> Result<SemaphoreQueue, OpenError> {
        let settings = &self.settings;
        for (field, count) in [
            ("max_admitted", settings.max_admitted),
            ("max_body_bytes", settings.max_body_bytes),
            ("max_batch_items", settings.max_batch_items),
            ("max_queue_length", settings.max_queue_length),
            ("max_admit_items", settings.max_admit_items),
        ] {
            check_count(field, count)?;
        }
        for (field, duration) in [
            ("retention", settings.retention),
            ("finished_after", settings.finished_after),
            ("answer_timeout", settings.answer_timeout),
        ] {
            check_duration(field, duration)?;
        }
        if !settings.request_wait.is_zero() {
            check_duration("request_wait", settings.request_wait)?;
            if settings.request_wait + ANSWER_MARGIN > settings.answer_timeout {
                let problem = "must be at least 5 s shorter than answer_timeout, or zero";
                return Err(ConfigError::new("request_wait", problem).into());
            }
        }
        settings.backoff.check()?;
        let client_id = self.scheduler.host().id().to_owned();
        check_id("clientId", &client_id)
            .map_err(|error| ConfigError::new("the object's id", error.problem))?;
        let holder = self
            .holder
            .ok_or_else(|| ConfigError::new("holder", "is missing"))?;
        let admit = self
            .admit
            .ok_or_else(|| ConfigError::new("admit", "is missing"))?;
        let inner = Inner::new(
            self.scheduler,
            client_id,
            holder,
            admit,
            self.finished,
            self.hook,
            self.settings,
        );
        inner.attach()?;
        Ok(SemaphoreQueue::new(inner))
    }
}
