//! What a queue tells about itself. When it is told is not decided here.

use serde::Serialize;

/// Under which target a queue's events are traced.
pub(super) const TARGET: &str = "durably::semaphore::queue";

/// Something that happened in a queue, told after its commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(
    tag = "type",
    rename_all = "snake_case",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum QueueEvent {
    /// An item was taken into the queue.
    Enqueued {
        /// The item.
        id: String,
        /// Its holder.
        key: String,
        /// Its group.
        group: String,
    },
    /// The application has taken an item.
    Admitted {
        /// The item.
        id: String,
        /// Its holder.
        key: String,
        /// Its group.
        group: String,
        /// Where its permit comes from.
        via: Via,
    },
    /// The holder did not confirm a claim, so the item waits again, at its old place.
    Requeued {
        /// The item.
        id: String,
        /// Its holder.
        key: String,
        /// Its group.
        group: String,
        /// What the holder said.
        reason: RequeueReason,
    },
    /// An item's permit is on its way back.
    Released {
        /// The item.
        id: String,
        /// Its holder.
        key: String,
    },
    /// An item that was not admitted yet will not be.
    Cancelled {
        /// The item.
        id: String,
        /// Its holder.
        key: String,
    },
    /// Nothing is drawn from a lease any more that had permits left; they go back.
    LeaseStopped {
        /// The holder.
        key: String,
        /// The lease.
        lease_id: String,
        /// Its group.
        group: String,
        /// Why.
        reason: LeaseStop,
    },
    /// A holder that answered before, or was never asked, does not answer. Told once; its items wait
    /// and it is asked on and on.
    HolderUnreachable {
        /// The holder.
        key: String,
        /// The code of the first failure.
        error: String,
    },
}

/// Where an admitted item's permit comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(
    tag = "via",
    rename_all = "snake_case",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum Via {
    /// A grant whose claim the holder has confirmed.
    Grant {
        /// The grant.
        grant_id: String,
    },
    /// A lease, from which it was drawn.
    Lease {
        /// The lease.
        lease_id: String,
        /// Whether that was as the item was queued, so that nobody had to be asked; otherwise it had
        /// to wait for the lease, or for a place.
        at_once: bool,
    },
}

/// Why nothing is drawn from a lease any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseStop {
    /// Its time is over.
    Expired,
    /// The holder said so.
    Holder,
    /// Nothing waits in its group, and others want its permits or nobody used it for half its lifetime.
    Idle,
    /// The holder knows no such lease.
    Unknown,
}

/// Why an item went back to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequeueReason {
    /// The claim came after the deadline.
    Expired,
    /// The holder does not know the grant.
    NotFound,
    /// The holder confirmed fewer permits than were claimed.
    Fewer,
}

impl QueueEvent {
    /// Its name.
    pub fn r#type(&self) -> &'static str {
        match self {
            QueueEvent::Enqueued { .. } => "enqueued",
            QueueEvent::Admitted { .. } => "admitted",
            QueueEvent::Requeued { .. } => "requeued",
            QueueEvent::Released { .. } => "released",
            QueueEvent::Cancelled { .. } => "cancelled",
            QueueEvent::LeaseStopped { .. } => "lease_stopped",
            QueueEvent::HolderUnreachable { .. } => "holder_unreachable",
        }
    }

    /// Tells the event to whoever collects traces.
    pub(super) fn trace(&self) {
        match self {
            QueueEvent::Enqueued { id, key, group } => tracing::debug!(
                target: TARGET, id, key, group, "durability.semaphore_queue.enqueued"
            ),
            QueueEvent::Admitted {
                id,
                key,
                group,
                via,
            } => {
                let (grant_id, lease_id) = match via {
                    Via::Grant { grant_id } => (Some(grant_id), None),
                    Via::Lease { lease_id, .. } => (None, Some(lease_id)),
                };
                tracing::debug!(
                    target: TARGET, id, key, group, grant_id, lease_id,
                    "durability.semaphore_queue.admitted"
                );
            }
            QueueEvent::Requeued {
                id,
                key,
                group,
                reason,
            } => tracing::debug!(
                target: TARGET, id, key, group, ?reason, "durability.semaphore_queue.requeued"
            ),
            QueueEvent::Released { id, key } => tracing::debug!(
                target: TARGET, id, key, "durability.semaphore_queue.released"
            ),
            QueueEvent::Cancelled { id, key } => tracing::debug!(
                target: TARGET, id, key, "durability.semaphore_queue.cancelled"
            ),
            QueueEvent::LeaseStopped {
                key,
                lease_id,
                group,
                reason,
            } => tracing::debug!(
                target: TARGET, key, lease_id, group, ?reason,
                "durability.semaphore_queue.lease_stopped"
            ),
            QueueEvent::HolderUnreachable { key, error } => tracing::warn!(
                target: TARGET, key, error, "durability.semaphore_queue.holder_unreachable"
            ),
        }
    }
}
