//! Ordered ids: the UUIDv7 layout from the host's clock and randomness.

use std::cell::Cell;

use uuid::Uuid;

use crate::host::Host;

/// Makes ids that rise within one instance of an object, also when its clock steps back, so that
/// rows keyed by them are appended.
#[derive(Debug, Default)]
pub struct Ids {
    last: Cell<u128>,
}

/// The bits of a UUID that hold its version and variant; a carry must not touch them.
const RANDOM_LOW_BITS: u32 = 62;

impl Ids {
    /// The next id, as hyphenated text.
    pub fn next(&self, host: &dyn Host) -> String {
        let mut random = [0; 10];
        host.random(&mut random);
        let fresh =
            uuid::Builder::from_unix_timestamp_millis(host.now().as_millis(), &random).into_uuid();
        let last = Uuid::from_u128(self.last.get());
        let id = if fresh > last {
            fresh
        } else {
            successor(last, &random)
        };
        self.last.set(id.as_u128());
        id.hyphenated().to_string()
    }
}

/// The id a random step after `last` in the same millisecond, or in the next if its tail is used up.
fn successor(last: Uuid, random: &[u8; 10]) -> Uuid {
    let step = u128::from(u32::from_be_bytes([0, random[0], random[1], random[2]])) + 1;
    let bits = last.as_u128();
    let low_mask = (1u128 << RANDOM_LOW_BITS) - 1;
    let low = (bits & low_mask) + step;
    if low <= low_mask {
        return Uuid::from_u128((bits & !low_mask) | low);
    }
    let millis = (bits >> 80) as u64 + 1;
    uuid::Builder::from_unix_timestamp_millis(millis, random).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successors_rise_and_keep_version_and_variant() {
        let mut id = uuid::Builder::from_unix_timestamp_millis(5, &[0xff; 10]).into_uuid();
        for round in 0..1_000u32 {
            let next = successor(id, &[(round % 251) as u8; 10]);
            assert!(next > id);
            assert_eq!(next.get_version_num(), 7);
            assert_eq!(next.get_variant(), uuid::Variant::RFC4122);
            id = next;
        }
    }
}
