//! What an object gets from where it lives.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::error::StorageError;
use durably::host::{Host, Instance, LocalFuture, Work};
use durably::time::Timestamp;
use futures::channel::oneshot;

use crate::instance::{CallError, Life, panic_text};
use crate::javascript::{exception_text, get_random_values};
use crate::storage::{Outcome, Storage};
use crate::timer;

/// The most random bytes that the platform gives at once.
const MAX_RANDOM_BYTES: usize = 65_536;

/// The host of one instance.
pub(crate) struct CloudflareHost {
    name: String,
    id: String,
    instance: Instance,
    storage: Rc<Storage>,
    /// Weak, since it owns tasks that hold the host.
    life: Weak<Life>,
    queue: RefCell<VecDeque<Queued>>,
    /// A closure, or what follows one, is running.
    running: Cell<bool>,
}

struct Queued {
    work: Work,
    done: oneshot::Sender<Result<(), StorageError>>,
}

impl CloudflareHost {
    pub(crate) fn new(name: String, id: String, storage: Rc<Storage>, life: &Rc<Life>) -> Self {
        CloudflareHost {
            name,
            id,
            instance: Instance::default(),
            storage,
            life: Rc::downgrade(life),
            queue: RefCell::default(),
            running: Cell::new(false),
        }
    }

    fn living(&self) -> Option<Rc<Life>> {
        self.life.upgrade().filter(|life| !life.has_ended())
    }

    /// Runs what is queued, in order. Closures that are handed in meanwhile join the end.
    fn run_queue(&self) {
        if self.running.replace(true) {
            return;
        }
        while let Some(life) = self.living() {
            let Some(Queued { work, done }) = self.queue.borrow_mut().pop_front() else {
                break;
            };
            let end = match self.storage.transact(work) {
                Outcome::Released(hooks) => {
                    let applied = catch_unwind(AssertUnwindSafe(|| {
                        hooks.into_iter().for_each(|apply| apply());
                    }));
                    applied
                        .err()
                        .map(|panic| CallError::Panicked(panic_text(&*panic)))
                }
                Outcome::RolledBack => None,
                Outcome::Panicked(text) => Some(CallError::Panicked(text)),
                Outcome::Failed(error) => Some(CallError::Storage(error)),
            };
            match end {
                // Whoever dropped the future does not want to know.
                None => drop(done.send(Ok(()))),
                Some(end) => life.end(end),
            }
        }
        self.running.set(false);
        if self.living().is_none() {
            let abandoned = self.queue.take();
            drop(abandoned);
        }
    }
}

impl Host for CloudflareHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> &str {
        &self.id
    }

    /// Runs the work before it returns, unless it is called from within another's.
    fn transact(&self, work: Work) -> LocalFuture<Result<(), StorageError>> {
        let (done, committed) = oneshot::channel();
        self.queue.borrow_mut().push_back(Queued { work, done });
        self.run_queue();
        Box::pin(async move {
            committed.await.unwrap_or_else(|oneshot::Canceled| {
                Err(StorageError::Ended(
                    "it ended before the transaction was committed".into(),
                ))
            })
        })
    }

    fn now(&self) -> Timestamp {
        timer::now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        timer::sleep(duration)
    }

    fn spawn(&self, task: LocalFuture<()>) {
        if let Some(life) = self.living() {
            life.spawn(task);
        }
    }

    fn random(&self, bytes: &mut [u8]) {
        for some in bytes.chunks_mut(MAX_RANDOM_BYTES) {
            // Without randomness ids could repeat, so the instance must not go on.
            if let Err(exception) = get_random_values(some) {
                panic!(
                    "the platform gives no randomness: {}",
                    exception_text(&exception)
                );
            }
        }
    }

    fn instance(&self) -> &Instance {
        &self.instance
    }
}
