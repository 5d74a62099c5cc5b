//! The waits of a holder whose recording is replayed: they end when the recording says so, not when
//! a clock does. In the recorded run rounds began some time after they were due.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use durably::Timestamp;
use durably::host::LocalFuture;
use durably::semaphore::SemaphoreError;
use durably::semaphore::protocol::Reply;
use durably::semaphore::tap::{Act, Reading, Tap, Wait};
use futures::channel::oneshot;

/// What a holder waits for.
#[derive(Default)]
pub(super) struct Paced {
    round: Cell<Option<oneshot::Sender<()>>>,
    /// By the number of the message.
    parked: RefCell<BTreeMap<u64, oneshot::Sender<()>>>,
    /// The id of the message that is taken next.
    taking: Cell<Option<String>>,
    numbers: RefCell<BTreeMap<String, u64>>,
}

impl Paced {
    /// The message that is taken next has this id.
    pub(super) fn takes(&self, id: &str) {
        self.taking.set(Some(id.to_owned()));
    }

    /// Has the round begin that is scheduled.
    pub(super) fn start_round(&self) -> Result<(), String> {
        let round = self.round.take().ok_or("no round is scheduled")?;
        round.send(()).map_err(|()| "the round is gone".to_owned())
    }

    /// Ends the wait of a parked request.
    pub(super) fn end_wait(&self, id: &str) -> Result<(), String> {
        let number = self.numbers.borrow().get(id).copied();
        let number = number.ok_or("no such message was taken")?;
        let wait = self.parked.borrow_mut().remove(&number);
        let wait = wait.ok_or("this message does not wait")?;
        wait.send(()).map_err(|()| "the wait is over".to_owned())
    }
}

impl Tap for Paced {
    fn begun(&self, act: u64, _: Timestamp, what: Act<'_>) {
        if let (Act::Message(_), Some(id)) = (what, self.taking.take()) {
            self.numbers.borrow_mut().insert(id, act);
        }
    }

    fn read(&self, _: u64, _: Reading<'_>) {}

    fn answered(&self, _: u64, message: u64, _: Result<&Reply, &SemaphoreError>) {
        self.parked.borrow_mut().remove(&message);
    }

    fn ended(&self, _: u64, _: bool) {}

    fn wait(&self, why: Wait, _: LocalFuture<()>) -> LocalFuture<()> {
        let (end, ended) = oneshot::channel();
        match why {
            Wait::Round => self.round.set(Some(end)),
            Wait::Parked(message) => {
                self.parked.borrow_mut().insert(message, end);
            }
        }
        Box::pin(async move {
            // Whoever ends it by dropping it ends the holder as well.
            let _ = ended.await;
        })
    }
}
