//! Where the layers and the clients outside of objects get time and randomness from.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use crate::host::{Host, LocalFuture};
use crate::time::Timestamp;

/// A clock with an alarm bell.
pub trait Timer {
    /// What [`sleep`](Self::sleep) returns.
    type Sleep: Future<Output = ()>;

    /// The wall clock.
    fn now(&self) -> Timestamp;

    /// Resolves after at least `duration`.
    fn sleep(&self, duration: Duration) -> Self::Sleep;
}

/// A source of numbers that spread out retries; not for secrets. Every `Fn() -> u64` is one.
pub trait Randomness {
    /// A number, uniformly distributed.
    fn next(&self) -> u64;
}

impl<F: Fn() -> u64> Randomness for F {
    fn next(&self) -> u64 {
        self()
    }
}

/// An object's own clock, for clients that live inside the object.
#[derive(Clone)]
pub struct HostTimer(Rc<dyn Host>);

impl HostTimer {
    /// The clock of `host`.
    pub fn new(host: Rc<dyn Host>) -> HostTimer {
        HostTimer(host)
    }
}

impl Timer for HostTimer {
    type Sleep = LocalFuture<()>;

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        self.0.sleep(duration)
    }
}

/// An object's own randomness, for clients that live inside the object.
#[derive(Clone)]
pub struct HostRandom(Rc<dyn Host>);

impl HostRandom {
    /// The randomness of `host`.
    pub fn new(host: Rc<dyn Host>) -> HostRandom {
        HostRandom(host)
    }
}

impl Randomness for HostRandom {
    fn next(&self) -> u64 {
        let mut bytes = [0; 8];
        self.0.random(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}
