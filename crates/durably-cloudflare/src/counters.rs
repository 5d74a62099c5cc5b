//! What an object costs, in the units of the platform's bill.

use std::cell::Cell;

/// What an object did since its JavaScript object was built; nothing of it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rows read, from the cursors' own counters: B-tree entries, those of indexes included.
    pub rows_read: u64,
    /// Rows written, from the same counters. Alarms are billed as rows too and counted in
    /// [`alarms_set`](Self::alarms_set).
    pub rows_written: u64,
    /// Calls that the object was given.
    pub requests: u64,
    /// Alarms that went off, repetitions included: each is billed as a request.
    pub alarms: u64,
    /// Alarms that were set: each is billed as a row written.
    pub alarms_set: u64,
}

/// Changes the counters in their cell.
pub(crate) fn count(counters: &Cell<Counters>, change: impl FnOnce(&mut Counters)) {
    let mut changed = counters.get();
    change(&mut changed);
    counters.set(changed);
}
