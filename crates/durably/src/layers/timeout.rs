//! Stops waiting for an answer after a while.
//!
//! It cancels nothing: the call has left when the wait begins, and whoever was called goes on. When
//! the wait is over the inner future is dropped, so a transport must not take a message back then. A
//! holder does not: a request whose caller has left takes part in its round all the same, its
//! reports count, and what it was granted comes back by the claim deadline.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tower_layer::Layer;
use tower_service::Service;

use super::timer::Timer;
use crate::error::ConfigError;
use crate::time::check_duration;

/// No answer came in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer came within {} ms", .0.as_millis())]
pub struct Elapsed(pub Duration);

/// A call whose answer may be held back on purpose.
pub trait HeldBack {
    /// For how long at most, beside the time that an answer takes.
    fn held_back(&self) -> Duration {
        Duration::ZERO
    }
}

/// Puts a [`Timeout`] in front of a service.
#[derive(Clone, Debug)]
pub struct TimeoutLayer<T> {
    timer: T,
    after: Duration,
}

impl<T: Timer> TimeoutLayer<T> {
    /// Waits for `after`, 1 ms to 2^31 - 1 ms, and for as long as the call lets its answer be held back
    /// ([`HeldBack`]).
    ///
    /// A request for permits is answered by the holder's next round, so give it more than the
    /// holder's `round_wait` and `round_period` together.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming `timeout`.
    pub fn new(timer: T, after: Duration) -> Result<Self, ConfigError> {
        check_duration("timeout", after)?;
        Ok(TimeoutLayer { timer, after })
    }
}

impl<S, T: Clone> Layer<S> for TimeoutLayer<T> {
    type Service = Timeout<S, T>;

    fn layer(&self, inner: S) -> Timeout<S, T> {
        Timeout {
            inner,
            timer: self.timer.clone(),
            after: self.after,
        }
    }
}

/// A service that waits only so long for another's answer.
#[derive(Clone, Debug)]
pub struct Timeout<S, T> {
    inner: S,
    timer: T,
    after: Duration,
}

impl<S, T, Request> Service<Request> for Timeout<S, T>
where
    S: Service<Request>,
    S::Error: From<Elapsed>,
    T: Timer,
    Request: HeldBack,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = TimeoutFuture<S::Future, T::Sleep>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let after = self.after + request.held_back();
        TimeoutFuture {
            answer: Box::pin(self.inner.call(request)),
            sleep: Box::pin(self.timer.sleep(after)),
            after,
        }
    }
}

/// The wait of a [`Timeout`].
pub struct TimeoutFuture<F, P> {
    answer: Pin<Box<F>>,
    sleep: Pin<Box<P>>,
    after: Duration,
}

impl<F, P, Response, Error> Future for TimeoutFuture<F, P>
where
    F: Future<Output = Result<Response, Error>>,
    P: Future<Output = ()>,
    Error: From<Elapsed>,
{
    type Output = Result<Response, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(answer) = self.answer.as_mut().poll(context) {
            return Poll::Ready(answer);
        }
        match self.sleep.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(Elapsed(self.after).into())),
            Poll::Pending => Poll::Pending,
        }
    }
}
