//! *Sums in memory equal a full scan of the rows.*

use durably::semaphore::Semaphore;
use durably::semaphore::queue::SemaphoreQueue;

use crate::host::VirtualStorage;
use crate::simulation::run::Run;

const NAME: &str = "sums equal a full scan";

/// Compares the sums of an open holder with its rows.
pub fn check_holder(run: &Run, storage: &VirtualStorage, semaphore: Semaphore, key: &str) {
    let sums = semaphore.sums();
    match storage.read(move |sql| semaphore.scan(sql)) {
        Ok(scanned) if scanned == sums => {}
        Ok(scanned) => run.fail(NAME, key, format!("{sums:?}, by the rows {scanned:?}")),
        Err(error) => run.fail(NAME, key, format!("the rows cannot be read: {error}")),
    }
}

/// Compares the sums of an open queue with its rows.
pub fn check_queue(run: &Run, storage: &VirtualStorage, queue: SemaphoreQueue, shard: &str) {
    let sums = queue.sums();
    match storage.read(move |sql| queue.scan(sql)) {
        Ok(scanned) if scanned == sums => {}
        Ok(scanned) => run.fail(NAME, shard, format!("{sums:?}, by the rows {scanned:?}")),
        Err(error) => run.fail(NAME, shard, format!("the rows cannot be read: {error}")),
    }
}
