//! *No permit is lost: when all work has ended, every permit comes back in bounded time, also those
//! whose reply was lost.*

use durably::StorageError;
use durably::host::Sql;

use crate::host::VirtualStorage;

/// What a holder still has out.
pub fn left_at_holder(storage: &VirtualStorage) -> Option<String> {
    left(
        storage,
        &[
            ("durability_semaphore_grants", "grants"),
            ("durability_semaphore_leases", "leases"),
        ],
    )
}

/// What a queue has not settled. The name of a request that gave nothing may stay until the object is
/// busy again; whatever it was given is seen at the holder.
pub fn left_at_queue(storage: &VirtualStorage) -> Option<String> {
    left(
        storage,
        &[
            ("durability_semaphore_queue_grants", "grants"),
            ("durability_semaphore_queue_leases", "leases"),
        ],
    )
}

fn left(storage: &VirtualStorage, tables: &'static [(&str, &str)]) -> Option<String> {
    let left = storage.read(move |sql| {
        let mut left = Vec::new();
        for (table, what) in tables {
            let rows = count(sql, table)?;
            if rows > 0 {
                left.push(format!("{rows} {what}"));
            }
        }
        Ok(left)
    });
    // Without tables nothing was ever out.
    let left = left.unwrap_or_default();
    (!left.is_empty()).then(|| format!("{} are still stored", left.join(" and ")))
}

fn count(sql: &dyn Sql, table: &str) -> Result<u64, StorageError> {
    let statement = format!("SELECT count(*) FROM {table}");
    let rows = sql.first(&statement, &[], |row| row.count(0))?;
    Ok(rows.unwrap_or(0))
}
