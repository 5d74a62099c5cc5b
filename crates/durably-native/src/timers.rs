//! Short sleeps, to the tenth of a millisecond.
//!
//! The runtime's timers are whole milliseconds, rounded up twice: a sleep of 1 ms takes 2 and more. A
//! round's wait is that short, and everybody who asks waits for it. So sleeps of a few milliseconds are
//! kept by a thread of their own, which wakes exactly when the next one is over and not at all while
//! there are none. Longer sleeps are the runtime's.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Sleeps longer than this are off by little enough.
pub(crate) const LONGEST: Duration = Duration::from_millis(20);

/// The thread that keeps the short sleeps of a system. Dropping it ends the thread; sleeps that are left
/// never end.
pub(crate) struct Timers(Sleeper);

/// Where short sleeps are had.
#[derive(Clone)]
pub(crate) struct Sleeper(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By the end of the sleep; the number tells apart those that end at the same time.
    waiting: BTreeMap<Key, Waker>,
    next: u64,
    stopping: bool,
}

type Key = (Instant, u64);

impl Timers {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If the operating system has no thread to give.
    pub(crate) fn start() -> io::Result<Timers> {
        let shared: Arc<Shared> = Arc::default();
        let timers = Timers(Sleeper(shared.clone()));
        std::thread::Builder::new()
            .name("durably-timer".to_owned())
            .spawn(move || shared.run())?;
        Ok(timers)
    }

    pub(crate) fn sleeper(&self) -> &Sleeper {
        &self.0
    }
}

impl Sleeper {
    /// Resolves after at least `duration`.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        Sleep {
            timers: self.0.clone(),
            until: Instant::now() + duration,
            number: None,
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        let shared = &self.0.0;
        shared.state().stopping = true;
        shared.changed.notify_one();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock leaves it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        while !state.stopping {
            let now = Instant::now();
            let later = state.waiting.split_off(&(now, u64::MAX));
            let over = std::mem::replace(&mut state.waiting, later);
            if !over.is_empty() {
                drop(state);
                over.into_values().for_each(Waker::wake);
                state = self.state();
                continue;
            }
            let next = state.waiting.first_key_value().map(|((at, _), _)| *at);
            state = match next {
                Some(at) => {
                    let waited = self.changed.wait_timeout(state, at.duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

/// A short sleep.
pub(crate) struct Sleep {
    timers: Arc<Shared>,
    until: Instant,
    /// Under which number the thread knows it.
    number: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.until {
            return Poll::Ready(());
        }
        let timers = self.timers.clone();
        let mut state = timers.state();
        let number = *self.number.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        let key = (self.until, number);
        let is_first = state
            .waiting
            .first_key_value()
            .is_none_or(|(first, _)| key < *first);
        let former = state.waiting.insert(key, context.waker().clone());
        // Dropping a waker may run code of others, who may sleep, too.
        drop(state);
        drop(former);
        if is_first {
            timers.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut state = self.timers.state();
            let left = state.waiting.remove(&(self.until, number));
            drop(state);
            drop(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleeps_end_in_order_and_not_too_soon() {
        let timers = Timers::start().expect("a thread");
        let start = Instant::now();
        let sleep = |millis: u64| {
            let sleep = timers.sleeper().sleep(Duration::from_millis(millis));
            async move {
                sleep.await;
                (millis, start.elapsed())
            }
        };
        let mut slept = Vec::new();
        let dropped = timers.sleeper().sleep(Duration::from_millis(1));
        drop(dropped);
        let all = futures::stream::FuturesUnordered::from_iter([5, 1, 3, 3].map(sleep));
        futures::pin_mut!(all);
        while let Some((millis, elapsed)) = futures::StreamExt::next(&mut all).await {
            assert!(elapsed >= Duration::from_millis(millis));
            slept.push(millis);
        }
        slept.dedup();
        assert_eq!(slept, [1, 3, 5]);
        assert!(timers.0.0.state().waiting.is_empty());
    }

    #[test]
    fn its_thread_ends_with_it() {
        let timers = Timers::start().expect("a thread");
        let shared = Arc::downgrade(&timers.0.0);
        drop(timers);
        let end = Instant::now() + Duration::from_secs(30);
        while shared.strong_count() > 0 {
            assert!(Instant::now() < end, "the thread goes on");
            std::thread::yield_now();
        }
    }
}
