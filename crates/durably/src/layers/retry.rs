//! Repeats a call that failed for a reason that may pass.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use super::backoff::Backoff;
use super::timer::{Randomness, Timer};
use crate::error::ConfigError;
use crate::time::Timestamp;

/// An error that knows whether the same call may succeed later.
pub trait Retryable {
    /// Whether a repetition makes sense.
    fn is_retryable(&self) -> bool;
}

/// A call that may be made again.
pub trait Repeat: Clone {
    /// The call is about to be made again at `now`; what it says about the time of sending follows.
    fn repeat_at(&mut self, now: Timestamp);
}

/// Puts a [`Retry`] in front of a service.
#[derive(Clone, Debug)]
pub struct RetryLayer<T, R> {
    timer: T,
    random: R,
    backoff: Backoff,
    attempts: u32,
}

impl<T: Timer, R: Randomness> RetryLayer<T, R> {
    /// Makes a call up to `attempts` times in all, waiting in between.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming `attempts` if it is 0, or a bound of `backoff`.
    pub fn new(timer: T, random: R, backoff: Backoff, attempts: u32) -> Result<Self, ConfigError> {
        if attempts == 0 {
            return Err(ConfigError::new("attempts", "must be at least 1"));
        }
        backoff.check()?;
        Ok(RetryLayer {
            timer,
            random,
            backoff,
            attempts,
        })
    }
}

impl<S, T: Clone, R: Clone> Layer<S> for RetryLayer<T, R> {
    type Service = Retry<S, T, R>;

    fn layer(&self, inner: S) -> Retry<S, T, R> {
        Retry {
            inner,
            settings: self.clone(),
        }
    }
}

/// A service that repeats calls of another.
#[derive(Clone, Debug)]
pub struct Retry<S, T, R> {
    inner: S,
    settings: RetryLayer<T, R>,
}

impl<S, T, R, Request> Service<Request> for Retry<S, T, R>
where
    S: Service<Request> + Clone,
    S::Error: Retryable,
    T: Timer + Clone,
    R: Randomness + Clone,
    Request: Repeat,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = RetryFuture<S, T, R, Request>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // The one that was polled ready takes the call; a clone takes its place.
        let next = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, next);
        RetryFuture {
            step: Step::Calling(Box::pin(ready.call(request.clone()))),
            inner: ready,
            settings: self.settings.clone(),
            request,
            attempt: 1,
        }
    }
}

/// A call of a [`Retry`], with its repetitions.
pub struct RetryFuture<S: Service<Request>, T: Timer, R, Request> {
    inner: S,
    settings: RetryLayer<T, R>,
    request: Request,
    attempt: u32,
    step: Step<S::Future, T::Sleep>,
}

enum Step<F, P> {
    Calling(Pin<Box<F>>),
    Waiting(Pin<Box<P>>),
    Preparing,
}

// What must not move is boxed.
impl<S: Service<Request>, T: Timer, R, Request> Unpin for RetryFuture<S, T, R, Request> {}

impl<S, T, R, Request> Future for RetryFuture<S, T, R, Request>
where
    S: Service<Request>,
    S::Error: Retryable,
    T: Timer,
    R: Randomness,
    Request: Repeat,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let failed = match &mut this.step {
                Step::Calling(answer) => match answer.as_mut().poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(answer)) => return Poll::Ready(Ok(answer)),
                    Poll::Ready(Err(error)) => error,
                },
                Step::Waiting(sleep) => match sleep.as_mut().poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(()) => {
                        this.step = Step::Preparing;
                        continue;
                    }
                },
                Step::Preparing => match this.inner.poll_ready(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(())) => {
                        this.attempt += 1;
                        this.request.repeat_at(this.settings.timer.now());
                        let call = this.inner.call(this.request.clone());
                        this.step = Step::Calling(Box::pin(call));
                        continue;
                    }
                    Poll::Ready(Err(error)) => {
                        this.attempt += 1;
                        error
                    }
                },
            };
            if this.attempt >= this.settings.attempts || !failed.is_retryable() {
                return Poll::Ready(Err(failed));
            }
            let random = this.settings.random.next();
            let delay = this.settings.backoff.delay(this.attempt, random);
            this.step = Step::Waiting(Box::pin(this.settings.timer.sleep(delay)));
        }
    }
}
