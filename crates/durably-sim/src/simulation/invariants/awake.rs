//! *No wake-up is lost: an object with something pending has an alarm, by the time it is due or within
//! the longest time that an alarm is put off.*

use std::time::Duration;

use durably::host::Sql;
use durably::{StorageError, Timestamp};

use crate::host::VirtualStorage;
use crate::node::Node;
use crate::simulation::run::Run;

const NAME: &str = "what is pending has an alarm";

/// The longest time that an alarm is put off.
const LATEST: Duration = Duration::from_secs(15);

/// Checks the alarm of a holder: claims run out, leases and clients without storage end.
pub fn check_holder(run: &Run, node: &Node, storage: &VirtualStorage, key: &str) {
    let pending = storage.read(|sql| {
        earliest(
            sql,
            "SELECT MIN(expires_at) FROM (
                 SELECT MIN(expires_at) AS expires_at FROM durability_semaphore_grants
                     WHERE claimed < permits
                 UNION ALL SELECT MIN(expires_at) FROM durability_semaphore_clients)",
        )
    });
    check(run, node, storage, key, pending.ok().flatten());
}

/// Checks the alarm of a queue: items that wait, are claimed or run are looked after.
pub fn check_queue(run: &Run, storage: &VirtualStorage, shard: &str) {
    let waits = storage.read(|sql| {
        let waits = sql.first(
            "SELECT 1 FROM durability_semaphore_queue_items WHERE state < 3 LIMIT 1",
            &[],
            |_| Ok(()),
        )?;
        Ok(waits.is_some())
    });
    if waits.unwrap_or(false) && storage.alarm().is_none() {
        run.fail(
            NAME,
            shard,
            "items are stored and nothing will wake it".to_owned(),
        );
    }
}

/// Checks the alarm of an object that runs calls: those that wait for an attempt, or make one.
pub fn check_operations(run: &Run, node: &Node, storage: &VirtualStorage) {
    let pending = storage.read(|sql| {
        earliest(
            sql,
            "SELECT MIN(due_at) FROM durability_operations WHERE due_at IS NOT NULL",
        )
    });
    check(run, node, storage, node.name(), pending.ok().flatten());
}

/// Checks the alarm of an object with an outbox.
pub fn check_outbox(run: &Run, node: &Node, storage: &VirtualStorage, name: &str) {
    let pending = storage.read(|sql| {
        earliest(
            sql,
            "SELECT MIN(due_at) FROM durability_outbox WHERE due_at IS NOT NULL",
        )
    });
    check(run, node, storage, name, pending.ok().flatten());
}

/// Checks the alarm of a coordinator: publications, deliveries and ends of draining.
pub fn check_coordinator(run: &Run, node: &Node, storage: &VirtualStorage, name: &str) {
    let pending = storage.read(|sql| {
        earliest(
            sql,
            "SELECT MIN(at) FROM (
                 SELECT MIN(due_at) AS at FROM durability_outbox WHERE due_at IS NOT NULL
                 UNION ALL SELECT MIN(check_at) FROM durability_topology_drains)",
        )
    });
    check(run, node, storage, name, pending.ok().flatten());
}

fn check(
    run: &Run,
    node: &Node,
    storage: &VirtualStorage,
    subject: &str,
    pending: Option<Timestamp>,
) {
    let Some(pending) = pending else { return };
    match storage.alarm() {
        None => run.fail(
            NAME,
            subject,
            format!("{pending} is pending, and nothing wakes it"),
        ),
        // A clock that steps back leaves the alarm where it was.
        Some(_) if run.knob("clock-steps") > 0 => {}
        Some(alarm) => {
            let latest = pending.max(node.now()) + LATEST;
            if alarm > latest {
                let message = format!("{pending} is pending, and the alarm is set for {alarm}");
                run.fail(NAME, subject, message);
            }
        }
    }
}

fn earliest(sql: &dyn Sql, statement: &str) -> Result<Option<Timestamp>, StorageError> {
    let earliest = sql.first(statement, &[], |row| row.optional_time(0))?;
    Ok(earliest.flatten())
}
