//! One read at a time of each group, shared by all who wait for it.
//!
//! Whoever waits drives the read, so it goes on as long as anybody does, and nothing needs to be spawned:
//! a caller that leaves takes nothing along. When the last one leaves, the read is dropped.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::future::{FutureExt, Shared, WeakShared};

use super::cache::Kept;
use super::error::UnavailableReason;
use super::inner::Inner;
use super::source::Source;
use crate::layers::{Randomness, Timer};

/// The reads that are under way. What is listed lives in those who wait for it.
pub(super) struct Flights<S: Source, T: Timer, R: Randomness, F>(Mutex<List<S, T, R, F>>);

struct List<S: Source, T: Timer, R: Randomness, F> {
    by_group: HashMap<Arc<str>, Listed<S, T, R, F>>,
    last_number: u64,
}

struct Listed<S: Source, T: Timer, R: Randomness, F> {
    number: u64,
    flight: WeakShared<Flight<S, T, R, F>>,
}

/// A read of a group that is under way.
pub(super) struct Flight<S: Source, T: Timer, R: Randomness, F> {
    inner: Arc<Inner<S, T, R, F>>,
    group: Arc<str>,
    /// Tells it from others of the group.
    number: u64,
    step: Step<S, T>,
}

/// What who joins gets.
pub(super) enum Joined<S: Source, T: Timer, R: Randomness, F> {
    /// A read to wait for.
    Flight(Shared<Flight<S, T, R, F>>),
    /// What a read has brought already.
    Landed(Kept),
}

enum Step<S: Source, T: Timer> {
    Starting,
    /// The read, and the time that it may take.
    Reading(Pin<Box<S::Read>>, Pin<Box<T::Sleep>>),
}

impl<S: Source, T: Timer, R: Randomness, F> Flights<S, T, R, F> {
    pub(super) fn new() -> Self {
        Flights(Mutex::new(List {
            by_group: HashMap::new(),
            last_number: 0,
        }))
    }

    /// Joins the read of `group` that is under way, or starts one unless there is something to use,
    /// as `standing` says.
    pub(super) fn join(
        &self,
        inner: &Arc<Inner<S, T, R, F>>,
        group: &str,
        standing: impl FnOnce() -> Option<Kept>,
    ) -> Joined<S, T, R, F> {
        let mut list = self.lock();
        let listed = list.by_group.get(group);
        if let Some(flight) = listed.and_then(|listed| listed.flight.upgrade()) {
            return Joined::Flight(flight);
        }
        // Who found nothing to use may have been overtaken by a read that has ended since.
        if let Some(entry) = standing() {
            return Joined::Landed(entry);
        }
        list.last_number += 1;
        let number = list.last_number;
        let group: Arc<str> = group.into();
        let flight = Flight {
            inner: inner.clone(),
            group: group.clone(),
            number,
            step: Step::Starting,
        };
        let flight = flight.shared();
        // There is a handle for everything that was not polled to its end.
        if let Some(weak) = flight.downgrade() {
            let listed = Listed {
                number,
                flight: weak,
            };
            list.by_group.insert(group, listed);
        }
        Joined::Flight(flight)
    }

    /// Forgets a read that has ended or was given up, unless another one has taken its place.
    fn leave(&self, group: &str, number: u64) {
        let mut list = self.lock();
        if list
            .by_group
            .get(group)
            .is_some_and(|listed| listed.number == number)
        {
            list.by_group.remove(group);
        }
    }

    fn lock(&self) -> MutexGuard<'_, List<S, T, R, F>> {
        // Nothing that runs under the lock leaves it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// What must not move is boxed.
impl<S: Source, T: Timer, R: Randomness, F> Unpin for Flight<S, T, R, F> {}

impl<S: Source, T: Timer, R: Randomness, F> Future for Flight<S, T, R, F> {
    type Output = Kept;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Kept> {
        let Flight {
            inner, group, step, ..
        } = &mut *self;
        loop {
            let (read, sleep) = match step {
                Step::Reading(read, sleep) => (read, sleep),
                Step::Starting => {
                    // Here, since the source is the application's and nothing is locked.
                    let sleep = inner.timer.sleep(inner.options.read_timeout);
                    let read = inner.source.read(group);
                    *step = Step::Reading(Box::pin(read), Box::pin(sleep));
                    continue;
                }
            };
            let answer = match read.as_mut().poll(context) {
                Poll::Ready(Ok(text)) => Ok(text),
                Poll::Ready(Err(error)) => Err(UnavailableReason::Failed(Arc::from(error))),
                Poll::Pending => match sleep.as_mut().poll(context) {
                    Poll::Ready(()) => Err(UnavailableReason::Slow(inner.options.read_timeout)),
                    Poll::Pending => return Poll::Pending,
                },
            };
            return Poll::Ready(inner.land(group, answer));
        }
    }
}

impl<S: Source, T: Timer, R: Randomness, F> Drop for Flight<S, T, R, F> {
    fn drop(&mut self) {
        self.inner.flights.leave(&self.group, self.number);
    }
}
