//! Lifecycle events: told after the commit, best effort, and never able to change what happened.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// What an application gives to hear a capability's events. It runs after the commit on the
/// object's thread and must not block; longer work belongs in a task of the host.
pub type Hook<Event> = Rc<dyn Fn(&Event)>;

/// Tells `hook` of `event`. A hook that panics is reported and changes nothing.
pub(crate) fn emit<Event>(hook: Option<&Hook<Event>>, event: &Event) {
    let Some(hook) = hook else { return };
    if catch_unwind(AssertUnwindSafe(|| hook(event))).is_err() {
        tracing::error!(
            name: "durability.background_execution.failed",
            problem = "a lifecycle hook panicked",
            "durability.background_execution.failed"
        );
    }
}
