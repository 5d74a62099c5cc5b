//! The same work by others: a table behind an `arc-swap`, and `moka`.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use durably::Timestamp;
use durably::error::BoxError;
use durably::layers::Timer;
use durably::topology::{MemoryPublisher, Snapshot};
use durably_native::reading::{Reader, ReaderClock};

use super::{Contestant, TTL};

struct Copy {
    snapshot: Arc<Snapshot>,
    expires: Timestamp,
}

/// The others, with the snapshots that `reader` has.
pub(super) async fn contestants(
    reader: &Reader<MemoryPublisher>,
    names: &[String],
) -> Result<[Contestant; 4], BoxError> {
    let mut table = HashMap::new();
    for name in names {
        let copy = Copy {
            snapshot: reader.get(name).await?.snapshot().clone(),
            expires: ReaderClock.now() + TTL,
        };
        table.insert(name.clone(), Arc::new(copy));
    }
    let young = |copy: &Copy| {
        if ReaderClock.now() < copy.expires {
            copy.snapshot.version
        } else {
            0
        }
    };
    let plain = moka::sync::Cache::new(10_000);
    let expiring = moka::sync::Cache::builder()
        .max_capacity(10_000)
        .time_to_live(TTL)
        .build();
    for (name, copy) in &table {
        plain.insert(name.clone(), copy.clone());
        expiring.insert(name.clone(), copy.clone());
    }
    let borrowed = ArcSwap::from_pointee(table.clone());
    let cloned = ArcSwap::from_pointee(table);
    Ok([
        Contestant::new("arc-swap + HashMap, borrowed", move |group| {
            borrowed.load().get(group).map_or(0, |copy| young(copy))
        }),
        Contestant::new("arc-swap + HashMap, cloned", move |group| {
            let copy = cloned.load().get(group).cloned();
            copy.map_or(0, |copy| young(&copy))
        }),
        Contestant::new("moka, expiry checked by the caller", move |group| {
            plain.get(group).map_or(0, |copy| young(&copy))
        }),
        Contestant::new("moka, with time_to_live", move |group| {
            expiring.get(group).map_or(0, |copy| copy.snapshot.version)
        }),
    ])
}
