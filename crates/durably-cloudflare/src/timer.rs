//! The platform's timer as a future. `worker` has one, but that throws past Rust when it is dropped
//! where no timers may be touched, as when JavaScript finds that an object is gone.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use wasm_bindgen::JsValue;
use wasm_bindgen::closure::Closure;

use durably::host::LocalFuture;
use durably::time::Timestamp;

use crate::javascript::{clear_timeout, exception_text, set_timeout};

/// Resolves after so many milliseconds, of which the platform takes at most 2^31 - 1.
pub(crate) struct Timer {
    state: Rc<State>,
    id: JsValue,
    /// What the platform calls; gone with the timer.
    _callback: Closure<dyn FnMut()>,
}

#[derive(Default)]
struct State {
    fired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Timer {
    pub(crate) fn start(millis: u32) -> Timer {
        let state = Rc::<State>::default();
        let firing = state.clone();
        let callback = Closure::wrap_assert_unwind_safe(Box::new(move || {
            firing.fired.set(true);
            if let Some(waker) = firing.waker.take() {
                waker.wake();
            }
        }) as Box<dyn FnMut()>);
        match set_timeout(&callback, millis) {
            Ok(id) => Timer {
                state,
                id,
                _callback: callback,
            },
            // An object that cannot wait would go round in circles.
            Err(exception) => panic!(
                "the platform gives no timer: {}",
                exception_text(&exception)
            ),
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.state.fired.get() {
            return Poll::Ready(());
        }
        *self.state.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if !self.state.fired.get() {
            // Where it cannot be cleared, whoever would hear of it is gone.
            let _ = clear_timeout(&self.id);
        }
    }
}

/// The longest timer that the platform takes, in milliseconds; a longer one would go off at once.
const LONGEST_TIMER_MS: u32 = (1 << 31) - 1;

/// The wall clock. It stands still while code runs without awaiting.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_millis(js_sys::Date::now() as u64)
}

/// Resolves after at least `duration`.
pub(crate) fn sleep(duration: Duration) -> LocalFuture<()> {
    // To whole milliseconds, never too short.
    let mut left = duration.as_nanos().div_ceil(1_000_000);
    Box::pin(async move {
        loop {
            let millis =
                u32::try_from(left).map_or(LONGEST_TIMER_MS, |millis| millis.min(LONGEST_TIMER_MS));
            Timer::start(millis).await;
            left -= u128::from(millis);
            if left == 0 {
                return;
            }
        }
    })
}

/// The clock of a worker, for clients and readers outside of objects. A timer runs only while the request is
/// answered that started it.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerTimer;

impl durably::layers::Timer for WorkerTimer {
    type Sleep = LocalFuture<()>;

    fn now(&self) -> Timestamp {
        now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        sleep(duration)
    }
}
