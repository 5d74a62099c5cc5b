//! The object that a trace drives, in a world of its own, whatever its class is.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, Object};
use durably::{Scheduler, Timestamp};
use serde_json::Value;

use crate::{Alarms, VirtualObject, World};

/// An object whose scheduler a trace looks at.
pub(super) trait Staged: Object {
    fn scheduler(&self) -> &Scheduler;
}

/// A world with one object.
pub(super) struct Stage<O: Staged> {
    pub(super) world: World,
    pub(super) object: VirtualObject<O>,
    /// The latest configuration was refused, so there is no instance until the next.
    pub(super) refused: bool,
    crashes: Rc<Cell<u64>>,
}

impl<O: Staged> Stage<O> {
    pub(super) fn new<F, Built>(now: u64, factory: F) -> Self
    where
        F: Fn(Rc<dyn Host>) -> Built + 'static,
        Built: Future<Output = Result<Rc<O>, BoxError>> + 'static,
    {
        let world = World::new(now);
        Stage {
            object: world.object("holder", Alarms::Manual, factory),
            world,
            refused: false,
            crashes: Rc::default(),
        }
    }

    /// Drops the instance with everything in memory.
    pub(super) fn crash(&self) {
        self.crashes.set(self.crashes.get() + 1);
        self.object.crash();
    }

    /// Everything that becomes due at one instant is a tick of its own; `outputs` are those since the
    /// last.
    pub(super) fn advance(
        &self,
        millis: u64,
        outputs: impl Fn() -> Result<Vec<Value>, String>,
    ) -> Result<Vec<Value>, String> {
        let target = self.world.now() + Duration::from_millis(millis);
        let mut all = Vec::new();
        while let Some(due) = self.world.next_timer().filter(|due| *due <= target) {
            self.world.advance_to(due);
            all.extend(outputs()?);
        }
        self.world.advance_to(target);
        Ok(all)
    }

    pub(super) fn reopen(&mut self) -> Result<(), String> {
        self.refused = false;
        let object = self.object.clone();
        let opened = self.run(async move { object.open().await })?;
        opened.map_err(|error| error.to_string())
    }

    /// Starts an alarm pass; `failed` hears if it fails, and not if its instance ends first.
    pub(super) fn start_alarm(&self, failed: impl FnOnce(String) + 'static) {
        let (object, crashes) = (self.object.clone(), self.crashes.clone());
        let before = crashes.get();
        self.world.spawn(async move {
            if let Err(error) = object.fire_alarm().await
                && crashes.get() == before
            {
                failed(error.to_string());
            }
        });
    }

    pub(super) fn alarm(&self) -> Result<Value, String> {
        if self.refused {
            return Ok(Value::Null);
        }
        let pending = self.ask(|object| async move {
            let pending = object.scheduler().next_pending_at().await;
            pending.map_err(|error| error.to_string())
        })??;
        let millis = |at: Timestamp| at.as_millis().into();
        Ok(pending.map_or(Value::Null, millis))
    }

    /// Says if the instance has ended where it must not have.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.refused || self.object.is_open() {
            true => Ok(()),
            false => Err("the instance has ended, by a panic or a failed commit".into()),
        }
    }

    /// Starts a call to the object; what comes of it, the call puts out itself.
    pub(super) fn start<F>(&self, call: impl FnOnce(Rc<O>) -> F + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let call = self.object.call(call);
        self.world.spawn(async move {
            // Calls that end with their instance are answered by the crash.
            let _ = call.await;
        });
    }

    /// The answer of a call that takes no time.
    pub(super) fn ask<T: 'static, F>(
        &self,
        call: impl FnOnce(Rc<O>) -> F + 'static,
    ) -> Result<T, String>
    where
        F: Future<Output = T> + 'static,
    {
        let called = self.run(self.object.call(call))?;
        called.map_err(|error| error.to_string())
    }

    /// What a future resolves to without the clock moving.
    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, String> {
        let slot = Rc::new(Cell::new(None));
        let result = slot.clone();
        self.world
            .spawn(async move { slot.set(Some(future.await)) });
        self.world.run_until_idle();
        result
            .take()
            .ok_or_else(|| "the object took time where it must not".to_owned())
    }
}

impl<O: Staged> Drop for Stage<O> {
    fn drop(&mut self) {
        // Calls that still wait hold the object, and it the world.
        self.object.crash();
        if !std::thread::panicking() {
            self.world.run_until_idle();
        }
    }
}
