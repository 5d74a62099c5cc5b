//! One instance of an object: its tasks, and how it ends.
//!
//! The platform ends an object only together with its JavaScript, and says nothing to the Rust in it.
//! So the instance is ours: whatever an object does runs in tasks that its [`Life`] owns, a panic in
//! any of them ends that life, and the next call begins another one.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use durably::error::StorageError;
use durably::host::LocalFuture;
use worker::State;

/// Why a call was not answered by its object.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Code of the object panicked, in this call or in something else that ended the instance.
    #[error("the object panicked: {0}")]
    Panicked(String),
    /// The object could not be opened.
    #[error("the object cannot be opened: {0}")]
    Unopened(String),
    /// Storage failed in a way that leaves open what is stored.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The instance ended before it had answered.
    #[error("the object's instance has ended: {0}")]
    Ended(String),
}

impl CallError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            CallError::Panicked(_) => "object_panicked",
            CallError::Unopened(_) => "object_unopened",
            CallError::Storage(error) => error.code(),
            CallError::Ended(_) => "object_ended",
        }
    }
}

/// The life of one instance.
pub(crate) struct Life {
    state: Rc<State>,
    fate: RefCell<Option<CallError>>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    next_task: Cell<u64>,
}

struct Task {
    /// Out of its place while it is polled.
    future: Option<LocalFuture<()>>,
    waker: Option<Waker>,
}

impl Life {
    pub(crate) fn new(state: Rc<State>) -> Rc<Life> {
        Rc::new(Life {
            state,
            fate: RefCell::default(),
            tasks: RefCell::default(),
            next_task: Cell::new(0),
        })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.fate.borrow().is_some()
    }

    /// Why it ended.
    pub(crate) fn fate(&self) -> CallError {
        let fate = self.fate.borrow().clone();
        fate.unwrap_or_else(|| CallError::Ended("its turn was dropped".into()))
    }

    /// Runs a task, from the next microtask on. The platform keeps the object in memory meanwhile.
    pub(crate) fn spawn(self: &Rc<Self>, future: LocalFuture<()>) {
        if self.has_ended() {
            return;
        }
        let number = self.next_task.get();
        self.next_task.set(number + 1);
        self.tasks.borrow_mut().insert(
            number,
            Task {
                future: Some(future),
                waker: None,
            },
        );
        self.state.wait_until(Turns {
            life: Rc::downgrade(self),
            number,
        });
    }

    /// Ends the instance: no task is polled again, and each is dropped soon. Not at once, since this
    /// may be called from within one of them.
    pub(crate) fn end(&self, why: CallError) {
        if self.has_ended() {
            return;
        }
        if !matches!(why, CallError::Ended(_)) {
            tracing::error!(error = %why, "durability.object.failed");
        }
        *self.fate.borrow_mut() = Some(why);
        let wakers: Vec<Waker> = self
            .tasks
            .borrow_mut()
            .values_mut()
            .filter_map(|task| task.waker.take())
            .collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll(self: &Rc<Self>, number: u64, context: &mut Context<'_>) -> Poll<()> {
        let future = match self.tasks.borrow_mut().get_mut(&number) {
            Some(task) => {
                task.waker = Some(context.waker().clone());
                task.future.take()
            }
            None => None,
        };
        let Some(mut future) = future else {
            return Poll::Ready(());
        };
        if !self.has_ended() {
            match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
                Ok(Poll::Pending) if !self.has_ended() => {
                    if let Some(task) = self.tasks.borrow_mut().get_mut(&number) {
                        task.future = Some(future);
                    }
                    return Poll::Pending;
                }
                Ok(_) => {}
                Err(panic) => self.end(CallError::Panicked(panic_text(&*panic))),
            }
        }
        self.tasks.borrow_mut().remove(&number);
        drop_caught(future);
        Poll::Ready(())
    }
}

/// The turns of one task, as the platform's queue runs them. It owns nothing of the task: when the
/// platform resets an object, what is in that queue is neither polled nor dropped.
struct Turns {
    life: Weak<Life>,
    number: u64,
}

impl Future for Turns {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.life.upgrade() {
            Some(life) => life.poll(self.number, context),
            None => Poll::Ready(()),
        }
    }
}

/// Drops something of the application's, whose destructors may panic.
pub(crate) fn drop_caught<T>(dropped: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(dropped))) {
        tracing::error!(
            problem = panic_text(&*panic),
            "durability.background_execution.failed"
        );
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}
