//! A group as it is published: its members, its version, and the text in which stores keep it.
//!
//! Decided here: what a published text looks like, which of two is newer, and that a damaged one is
//! told from a good one. The encoder is the coordinator's alone, so that nobody else publishes;
//! applications store the text as it is.

use std::cmp::Ordering;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use crate::time::Timestamp;

/// The schema of published texts that this build writes and reads.
pub const SCHEMA: u64 = 1;

/// What a member is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It takes new work and is read.
    Active,
    /// It takes no new work and is read for as long as it is there.
    Draining,
}

impl MemberState {
    /// Its name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            MemberState::Active => "active",
            MemberState::Draining => "draining",
        }
    }
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Member {
    /// Its id, unique in its group.
    pub id: String,
    /// Whether it takes new work.
    pub state: MemberState,
    /// Where it would best live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location_hint: Option<String>,
    /// What the application wants to know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
    /// When it joined its group, on the coordinator's clock. One that leaves and comes back joins
    /// anew.
    pub joined_at: Timestamp,
}

impl Member {
    /// A member, as the coordinator makes them, and whoever seeds a reader.
    pub fn new(id: impl Into<String>, state: MemberState, joined_at: Timestamp) -> Self {
        Member {
            id: id.into(),
            state,
            location_hint: None,
            meta: None,
            joined_at,
        }
    }

    /// The application's metadata as its own type; `null` stands for none.
    ///
    /// # Errors
    ///
    /// What serde says of metadata that does not fit.
    pub fn meta_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(self.meta.as_ref().unwrap_or(&Value::Null))
    }
}

/// A group at one version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Snapshot {
    /// The group's name.
    pub group: String,
    /// Rises with every change of the members. Compares only with versions of the same coordinator.
    pub version: u64,
    /// The id of the coordinator that published it.
    pub coordinator: String,
    /// The members, by the bytes of their ids.
    pub members: Vec<Member>,
}

impl Snapshot {
    /// A snapshot, as the coordinator makes them, and whoever seeds a reader. The members are sorted.
    pub fn new(
        group: impl Into<String>,
        version: u64,
        coordinator: impl Into<String>,
        mut members: Vec<Member>,
    ) -> Self {
        members.sort_by(|one, other| one.id.cmp(&other.id));
        Snapshot {
            group: group.into(),
            version,
            coordinator: coordinator.into(),
            members,
        }
    }
}

/// Which life of its storage a coordinator is in. A coordinator whose storage was restored from an
/// older copy counts versions again that readers have seen; a new incarnation lets them tell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incarnation {
    /// When it began, on the coordinator's clock. The later one is the newer one.
    pub created_at: Timestamp,
    /// Random, for two that began at once.
    pub nonce: String,
}

/// What is newer than what: the coordinator, its incarnation and the version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edition {
    /// The coordinator's id.
    pub coordinator: String,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The group's version.
    pub version: u64,
}

impl Edition {
    /// How this compares to another edition of the same coordinator; `None` if that is another
    /// coordinator's.
    pub fn compare(&self, other: &Edition) -> Option<Ordering> {
        (self.coordinator == other.coordinator)
            .then(|| (&self.incarnation, self.version).cmp(&(&other.incarnation, other.version)))
    }
}

impl fmt::Display for Edition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "version {} of {}, incarnation of {}",
            self.version, self.coordinator, self.incarnation.created_at
        )
    }
}

/// A published text, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The group's name.
    pub group: String,
    /// Which edition it is.
    pub edition: Edition,
    /// The members; `None` for a group that was deleted.
    pub members: Option<Vec<Member>>,
}

impl Published {
    /// The snapshot, unless the group was deleted.
    pub fn into_snapshot(self) -> Option<Snapshot> {
        let members = self.members?;
        let Edition {
            coordinator,
            version,
            ..
        } = self.edition;
        Some(Snapshot::new(self.group, version, coordinator, members))
    }
}

/// Why a published text cannot be used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It is cut off, or was never a published text.
    #[error("it is not a published snapshot: {0}")]
    Malformed(String),
    /// A newer build published it.
    #[error("its schema is {found}, and this build reads up to {SCHEMA}: update the reader")]
    NewerSchema {
        /// The schema of the text.
        found: u64,
    },
    /// Its content is not what its checksum says.
    #[error("its checksum does not fit: it was changed after it was published")]
    Checksum,
    /// It is about another group.
    #[error("it is about the group {found:?}")]
    OtherGroup {
        /// The group that it is about.
        found: String,
    },
}

impl SnapshotError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            SnapshotError::Malformed(_) => "snapshot_malformed",
            SnapshotError::NewerSchema { .. } => "snapshot_newer_schema",
            SnapshotError::Checksum => "snapshot_checksum",
            SnapshotError::OtherGroup { .. } => "snapshot_other_group",
        }
    }
}

/// What of an envelope must be readable whatever its schema is.
#[derive(Deserialize)]
struct Schema {
    schema: u64,
}

/// The outer layer: the checksum is of the inner text as it stands.
#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    schema: u64,
    checksum: String,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Writing<'a> {
    group: &'a str,
    version: u64,
    coordinator: &'a str,
    incarnation: &'a Incarnation,
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<&'a [Member]>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reading {
    group: String,
    version: u64,
    coordinator: String,
    incarnation: Incarnation,
    #[serde(default)]
    members: Option<Vec<Member>>,
}

/// How many bytes the text has that is published.
pub(super) fn encoded_len(group: &str, edition: &Edition, members: &[Member]) -> usize {
    let empty = encode(group, edition, Some(&[])).len();
    let mut counted = Counted(0);
    // Writing into it does not fail, and members always have a text.
    let _ = serde_json::to_writer(&mut counted, members);
    empty - "[]".len() + counted.0
}

/// Counts what is written.
struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The text that is published: of a snapshot, or without `members` the tombstone of a deleted group.
pub(crate) fn encode(group: &str, edition: &Edition, members: Option<&[Member]>) -> String {
    let content = Writing {
        group,
        version: edition.version,
        coordinator: &edition.coordinator,
        incarnation: &edition.incarnation,
        members,
    };
    // Strings, numbers and JSON values always have a text.
    let content =
        serde_json::value::to_raw_value(&content).unwrap_or_else(|_| RawValue::NULL.to_owned());
    let envelope = Envelope {
        schema: SCHEMA,
        checksum: checksum(content.get()),
        content: &content,
    };
    serde_json::to_string(&envelope).unwrap_or_default()
}

/// Reads a published text of `group`.
///
/// # Errors
///
/// [`SnapshotError`]: of a text that is damaged, of a newer schema, or about another group.
pub fn decode(group: &str, text: &[u8]) -> Result<Published, SnapshotError> {
    let malformed = |error: serde_json::Error| SnapshotError::Malformed(error.to_string());
    let Schema { schema } = serde_json::from_slice(text).map_err(malformed)?;
    if schema > SCHEMA {
        return Err(SnapshotError::NewerSchema { found: schema });
    }
    let envelope: Envelope<'_> = serde_json::from_slice(text).map_err(malformed)?;
    let content = envelope.content.get();
    if checksum(content) != envelope.checksum {
        return Err(SnapshotError::Checksum);
    }
    let read: Reading = serde_json::from_str(content).map_err(malformed)?;
    if read.group != group {
        return Err(SnapshotError::OtherGroup { found: read.group });
    }
    Ok(Published {
        group: read.group,
        edition: Edition {
            coordinator: read.coordinator,
            incarnation: read.incarnation,
            version: read.version,
        },
        members: read.members,
    })
}

/// Not against forgery, only against damage.
fn checksum(content: &str) -> String {
    format!("{:016x}", xxh3_64(content.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn edition(coordinator: &str, created_at: u64, version: u64) -> Edition {
        Edition {
            coordinator: coordinator.to_owned(),
            incarnation: Incarnation {
                created_at: Timestamp::from_millis(created_at),
                nonce: "0f".to_owned(),
            },
            version,
        }
    }

    fn sample() -> (Edition, Vec<Member>) {
        let mut member = Member::new("t1-a", MemberState::Draining, Timestamp::from_millis(7));
        member.meta = Some(json!({"url": "https://a.example/\u{7f}ü"}));
        member.location_hint = Some("weur".to_owned());
        let other = Member::new("t1-b", MemberState::Active, Timestamp::from_millis(8));
        (edition("coordinator-1", 5, 3), vec![member, other])
    }

    #[test]
    fn the_length_of_a_text_is_known_without_it() {
        let (edition, members) = sample();
        for members in [&members[..], &[]] {
            let text = encode("t1", &edition, Some(members));
            assert_eq!(encoded_len("t1", &edition, members), text.len());
        }
    }

    #[test]
    fn what_is_encoded_reads_back() {
        let (edition, members) = sample();
        for members in [Some(members), None] {
            let text = encode("t1", &edition, members.as_deref());
            let read = decode("t1", text.as_bytes()).expect("a good text");
            assert_eq!(read.group, "t1");
            assert_eq!(read.edition, edition);
            assert_eq!(read.members, members);
        }
    }

    #[test]
    fn a_newer_schema_is_told_before_anything_else() {
        let text = br#"{"schema":2,"whatever":{"newer":"builds write"}}"#;
        assert_eq!(
            decode("t1", text),
            Err(SnapshotError::NewerSchema { found: 2 })
        );
    }

    #[test]
    fn another_group_is_told() {
        let (edition, members) = sample();
        let text = encode("t1", &edition, Some(&members));
        let found = "t1".to_owned();
        assert_eq!(
            decode("t2", text.as_bytes()),
            Err(SnapshotError::OtherGroup { found })
        );
    }

    proptest! {
        /// Neither a cut nor a changed byte passes for a snapshot, nor does either panic.
        #[test]
        fn damage_is_told(place in any::<prop::sample::Index>(), byte: u8) {
            let (edition, members) = sample();
            let text = encode("t1", &edition, Some(&members)).into_bytes();
            let place = place.index(text.len());
            prop_assert!(decode("t1", &text[..place]).is_err());
            let mut changed = text.clone();
            changed[place] = byte;
            if changed != text {
                match decode("t1", &changed) {
                    Err(_) => {}
                    // Space where JSON allows it changes nothing.
                    Ok(read) => prop_assert_eq!(read, decode("t1", &text).expect("a good text")),
                }
            }
        }
    }

    #[test]
    fn editions_compare_within_their_coordinator() {
        let old = edition("a", 5, 9);
        assert_eq!(edition("b", 5, 9).compare(&old), None);
        assert_eq!(edition("a", 5, 10).compare(&old), Some(Ordering::Greater));
        assert_eq!(edition("a", 6, 1).compare(&old), Some(Ordering::Greater));
        assert_eq!(edition("a", 4, 99).compare(&old), Some(Ordering::Less));
    }
}
