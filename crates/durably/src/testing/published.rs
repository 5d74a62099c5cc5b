//! Published texts for tests of stores and readers. Outside tests only a coordinator makes them.

use crate::time::Timestamp;
use crate::topology::{Edition, Incarnation, Member, Publication, Snapshot, encode};

/// What a coordinator publishes of `group`: its members, or the tombstone of a deleted group.
pub fn text(group: &str, edition: &Edition, members: Option<&[Member]>) -> String {
    encode(group, edition, members)
}

/// The edition of this version, of a coordinator whose incarnation began at `created_at`.
pub fn edition(coordinator: &str, created_at: Timestamp, version: u64) -> Edition {
    Edition {
        coordinator: coordinator.to_owned(),
        incarnation: Incarnation {
            created_at,
            nonce: "00".to_owned(),
        },
        version,
    }
}

/// What a coordinator hands a publisher when `group` has these members.
pub fn write(group: &str, edition: &Edition, members: Vec<Member>) -> Publication {
    let snapshot = Snapshot::new(group, edition.version, &edition.coordinator, members);
    Publication::Write {
        encoded: encode(group, edition, Some(&snapshot.members)),
        snapshot,
        edition: edition.clone(),
    }
}

/// What a coordinator hands a publisher when `group` was deleted.
pub fn deletion(group: &str, edition: &Edition) -> Publication {
    Publication::Deletion {
        group: group.to_owned(),
        edition: edition.clone(),
        tombstone: encode(group, edition, None),
    }
}
