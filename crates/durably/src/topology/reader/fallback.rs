//! What a reader may fall back on, of the application's own.

use std::future::{Future, ready};

use super::error::UnavailableReason;
use super::reading::Origin;
use crate::topology::snapshot::Snapshot;

/// What an application opts into for groups that cannot be read, and what it wants to hear of it.
///
/// The order is: the last good copy ([`stale_if_error`](super::ReaderOptions::stale_if_error)),
/// then [`seed`](Self::seed), then [`fallback`](Self::fallback). Callers call these by themselves, each
/// for itself, on the thread and in the task in which they read.
///
/// ```
/// use durably::Timestamp;
/// use durably::topology::{Fallbacks, Member, MemberState, Snapshot};
///
/// /// Every tenant began with one shard, whose id follows from its name.
/// struct FirstShard;
///
/// impl Fallbacks for FirstShard {
///     fn seed(&self, group: &str) -> Option<Snapshot> {
///         let first = Member::new(format!("{group}-0"), MemberState::Active, Timestamp::ZERO);
///         Some(Snapshot::new(group, 0, "", vec![first]))
///     }
/// }
/// ```
pub trait Fallbacks {
    /// Derives a group without I/O. Also asked of groups that are missing; called whenever it is needed,
    /// so it should be quick.
    fn seed(&self, group: &str) -> Option<Snapshot> {
        let _ = group;
        None
    }

    /// Gets a group from somewhere else. The answer is not remembered. Not from the coordinator: all readers
    /// would turn to that one object just when the store is in trouble.
    fn fallback(
        &self,
        group: &str,
        reason: &UnavailableReason,
    ) -> impl Future<Output = Option<Snapshot>> {
        let _ = (group, reason);
        ready(None)
    }

    /// A caller is about to be given something else than what is published.
    fn on_fallback(&self, event: &FallbackEvent<'_>) {
        let _ = event;
    }
}

/// No fallback but the last good copy, if that is opted into.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFallbacks;

impl Fallbacks for NoFallbacks {}

/// That a caller was given something else than what is published.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FallbackEvent<'a> {
    /// The group.
    pub group: &'a str,
    /// What is the matter with its published copy.
    pub reason: &'a UnavailableReason,
    /// What was given instead.
    pub origin: Origin,
}

impl FallbackEvent<'_> {
    pub(super) fn trace(&self) {
        tracing::debug!(
            target: "durably::topology::reader",
            group = self.group,
            reason = %self.reason,
            origin = self.origin.as_str(),
            "durability.topology.fallback"
        );
    }
}
