//! Protocol v1 between a holder and those who ask it: the messages, their strict reading, and
//! what makes one malformed. What a holder does with a message is not decided here.
//!
//! JSON, camelCase, `v: 1`. Unknown fields are ignored; everything else that is not as described
//! is refused as a whole, naming the field.

use serde::de::{self, DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

use crate::time::{MAX_DURATION, MAX_SAFE_INTEGER, Timestamp};

/// The longest id (of a client, group, grant, lease, key or item), in bytes.
pub const MAX_ID_BYTES: usize = 256;

/// The longest list in a message.
pub const MAX_LIST_LENGTH: usize = 4_096;

/// Why a message was refused; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed semaphore message: {field}: {problem}")]
pub struct ProtocolError {
    /// The field to blame, as a path such as `demand[0].count`; `.` for the message itself.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl ProtocolError {
    fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        ProtocolError {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        "malformed"
    }
}

/// What a client wants in one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Demand {
    /// The group under the key.
    #[serde(deserialize_with = "id")]
    pub group: String,
    /// Permits wanted, from 1.
    #[serde(deserialize_with = "positive_count")]
    pub count: u64,
    /// When the oldest waiting item of the group was queued.
    #[serde(deserialize_with = "time")]
    pub oldest_at: Timestamp,
}

/// What became of a grant so far, as marks that only rise: reports may be lost, repeated and
/// reordered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantReport {
    /// The grant.
    #[serde(deserialize_with = "id")]
    pub grant_id: String,
    /// Permits ever claimed.
    #[serde(deserialize_with = "count")]
    pub claimed: u64,
    /// Claimed permits ever given back.
    #[serde(deserialize_with = "count")]
    pub released: u64,
}

/// What became of a lease so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseReport {
    /// The lease.
    #[serde(deserialize_with = "id")]
    pub lease_id: String,
    /// Permits ever drawn.
    #[serde(deserialize_with = "count")]
    pub drawn: u64,
    /// Drawn permits ever given back.
    #[serde(deserialize_with = "count")]
    pub released: u64,
    /// The client will draw no more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
}

/// Asks for permits; answered by the round that takes it up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermitRequest {
    /// Who asks; the same after every restart.
    #[serde(deserialize_with = "id")]
    pub client_id: String,
    /// What is waiting, by group.
    #[serde(deserialize_with = "list")]
    pub demand: Vec<Demand>,
    /// Reports of grants.
    #[serde(deserialize_with = "list")]
    pub grants: Vec<GrantReport>,
    /// Reports of leases; present, even empty, if the client can use leases.
    #[serde(
        default,
        deserialize_with = "optional_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub leases: Option<Vec<LeaseReport>>,
    /// The sender's clock, so that ages survive clocks that differ.
    #[serde(
        default,
        deserialize_with = "optional_time",
        skip_serializing_if = "Option::is_none"
    )]
    pub sent_at: Option<Timestamp>,
    /// Names the request among those of its client, so that one whose reply was lost can be
    /// repeated: as long as something lives that it was given, it is given nothing again.
    #[serde(
        default,
        deserialize_with = "optional_id",
        skip_serializing_if = "Option::is_none"
    )]
    pub request_id: Option<String>,
    /// Rises with every message that asks, also from one instance of the client to the next; only
    /// with `requestId`. What arrives late, after the holder has seen a higher one, is given nothing: the
    /// client would never hear of it.
    #[serde(
        default,
        deserialize_with = "optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub request_number: Option<u64>,
    /// How long the request may wait for a later round if the first one gives it nothing, in
    /// milliseconds; the holder cuts it to what it allows.
    #[serde(
        default,
        deserialize_with = "optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub wait_ms: Option<u64>,
    /// Registers a client that has no storage: once it has not been heard of for so long, in
    /// milliseconds, all its permits come back, whatever it still runs. For clients that come back
    /// and report after a crash, leave it away.
    #[serde(
        default,
        deserialize_with = "optional_ttl",
        skip_serializing_if = "Option::is_none"
    )]
    pub client_ttl_ms: Option<u64>,
}

/// Reports without asking; answered at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermitSync {
    /// Who reports.
    #[serde(deserialize_with = "id")]
    pub client_id: String,
    /// Reports of grants.
    #[serde(deserialize_with = "list")]
    pub grants: Vec<GrantReport>,
    /// Reports of leases.
    #[serde(
        default,
        deserialize_with = "optional_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub leases: Option<Vec<LeaseReport>>,
    /// The sender's clock.
    #[serde(
        default,
        deserialize_with = "optional_time",
        skip_serializing_if = "Option::is_none"
    )]
    pub sent_at: Option<Timestamp>,
    /// Registers a client that has no storage: once it has not been heard of for so long, in
    /// milliseconds, all its permits come back, whatever it still runs. For clients that come back
    /// and report after a crash, leave it away.
    #[serde(
        default,
        deserialize_with = "optional_ttl",
        skip_serializing_if = "Option::is_none"
    )]
    pub client_ttl_ms: Option<u64>,
}

/// A message to a holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Asks for permits.
    Request(PermitRequest),
    /// Reports only.
    Sync(PermitSync),
}

/// Permits given to one group of the client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Names the grant in reports.
    #[serde(deserialize_with = "id")]
    pub grant_id: String,
    /// The group that may use it.
    #[serde(deserialize_with = "id")]
    pub group: String,
    /// How many permits.
    #[serde(deserialize_with = "count")]
    pub permits: u64,
}

/// Why demand of a group was left waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockedReason {
    /// The group has nothing left under its own ceiling.
    GroupLimit,
    /// The key has nothing left.
    Limit,
    /// The application does not let the group have permits.
    NotPermitted,
    /// The group's gate or ceiling could not be read, so it stays closed.
    LimitResolutionError,
}

impl BlockedReason {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            BlockedReason::GroupLimit => "group_limit",
            BlockedReason::Limit => "limit",
            BlockedReason::NotPermitted => "not_permitted",
            BlockedReason::LimitResolutionError => "limit_resolution_error",
        }
    }
}

/// A group whose demand was not met in full.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blocked {
    /// The group.
    #[serde(deserialize_with = "id")]
    pub group: String,
    /// Why.
    pub reason: BlockedReason,
}

/// How a report of a grant was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantStatus {
    /// As it stands in `claimed`.
    Ok,
    /// Some of the claim came after the deadline.
    Expired,
    /// The client has no such grant (any more).
    NotFound,
}

/// The answer to a report of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantResult {
    /// The grant.
    #[serde(deserialize_with = "id")]
    pub grant_id: String,
    /// Permits that count as claimed.
    #[serde(deserialize_with = "count")]
    pub claimed: u64,
    /// How the report was taken.
    pub status: GrantStatus,
}

/// A lease as the holder sees it: new, refreshed, or stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseGrant {
    /// Names the lease in reports.
    #[serde(deserialize_with = "id")]
    pub lease_id: String,
    /// The group that may draw from it; empty for a lease that the holder does not know.
    pub group: String,
    /// Its permits.
    #[serde(deserialize_with = "count")]
    pub permits: u64,
    /// No permit is drawn from here on, on the holder's clock.
    #[serde(deserialize_with = "time")]
    pub expires_at: Timestamp,
}

/// The answer to a [`PermitRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantReply {
    /// New grants, in the order in which demand was served.
    #[serde(deserialize_with = "list")]
    pub grants: Vec<Grant>,
    /// Groups with demand left, in the same order.
    #[serde(deserialize_with = "list")]
    pub blocked: Vec<Blocked>,
    /// Answers to the reports, in their order.
    #[serde(deserialize_with = "list")]
    pub grant_results: Vec<GrantResult>,
    /// The client should not ask again before this time of the holder's clock.
    #[serde(deserialize_with = "time")]
    pub next_request_at: Timestamp,
    /// Leases; present exactly if the request had the field.
    #[serde(
        default,
        deserialize_with = "optional_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub leases: Option<Vec<LeaseGrant>>,
    /// Undrawn permits of groups with nothing queued are wanted back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contended: bool,
    /// The highest `requestNumber` that the holder has seen of the client; present exactly if the request
    /// had one. The next one must be higher.
    #[serde(
        default,
        deserialize_with = "optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub request_number: Option<u64>,
    /// What the holder's clock showed when this was decided; present exactly if the request said
    /// `sentAt`.
    #[serde(
        default,
        deserialize_with = "optional_time",
        skip_serializing_if = "Option::is_none"
    )]
    pub now: Option<Timestamp>,
}

/// The answer to a [`PermitSync`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncReply {
    /// Answers to the reports, in their order.
    #[serde(deserialize_with = "list")]
    pub grant_results: Vec<GrantResult>,
    /// Answers to reports of leases, if the holder has any to do with leases.
    #[serde(
        default,
        deserialize_with = "optional_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub leases: Option<Vec<LeaseGrant>>,
    /// Undrawn permits of groups with nothing queued are wanted back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contended: bool,
    /// What the holder's clock showed when this was decided; present exactly if the message said
    /// `sentAt`.
    #[serde(
        default,
        deserialize_with = "optional_time",
        skip_serializing_if = "Option::is_none"
    )]
    pub now: Option<Timestamp>,
}

/// A holder's answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// To a request.
    Grant(GrantReply),
    /// To a sync.
    Synced(SyncReply),
}

const VERSION: u64 = 1;

#[derive(Deserialize)]
#[serde(expecting = "a message, which is a JSON object")]
struct Head {
    r#type: String,
    v: u64,
}

/// A body with its `type` and `v` in front, for writing.
#[derive(Serialize)]
struct Tagged<'a, Body> {
    r#type: &'static str,
    v: u64,
    #[serde(flatten)]
    body: &'a Body,
}

fn tagged<S: Serializer, Body: Serialize>(
    r#type: &'static str,
    body: &Body,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    Tagged {
        r#type,
        v: VERSION,
        body,
    }
    .serialize(serializer)
}

fn head(json: &[u8]) -> Result<String, ProtocolError> {
    let head: Head = read(json)?;
    if head.v != VERSION {
        return Err(ProtocolError::new(
            "v",
            format!("version {} is not known, only {VERSION}", head.v),
        ));
    }
    Ok(head.r#type)
}

fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, ProtocolError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| blame(error.path().to_string(), error.inner().to_string()))?;
    deserializer
        .end()
        .map_err(|error| ProtocolError::new(".", error.to_string()))?;
    Ok(value)
}

/// A field that is missing is to blame itself, not the object that lacks it.
fn blame(path: String, problem: String) -> ProtocolError {
    let missing = problem
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split('`').next());
    match missing {
        Some(field) if path == "." => ProtocolError::new(field, "is missing"),
        Some(field) => ProtocolError::new(format!("{path}.{field}"), "is missing"),
        None => ProtocolError::new(path, problem),
    }
}

fn unknown_type(found: &str, known: &str) -> ProtocolError {
    let found: String = found.chars().take(64).collect();
    ProtocolError::new("type", format!("{found:?} is not known, only {known}"))
}

impl Message {
    /// Reads a message.
    ///
    /// ```
    /// use durably::semaphore::protocol::Message;
    ///
    /// let json = br#"{"type":"sync","v":1,"clientId":"c1","grants":[]}"#;
    /// assert!(matches!(Message::from_json(json), Ok(Message::Sync(_))));
    ///
    /// let json = br#"{"type":"sync","v":1,"clientId":"c1","grants":[{"grantId":"g","claimed":-1}]}"#;
    /// assert_eq!(Message::from_json(json).unwrap_err().field, "grants[0].claimed");
    /// ```
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] naming the field that is wrong.
    pub fn from_json(json: &[u8]) -> Result<Message, ProtocolError> {
        match head(json)?.as_str() {
            "request" => read(json).map(Message::Request),
            "sync" => read(json).map(Message::Sync),
            other => Err(unknown_type(other, "\"request\" and \"sync\"")),
        }
    }

    /// Who sent it.
    pub fn client_id(&self) -> &str {
        match self {
            Message::Request(request) => &request.client_id,
            Message::Sync(sync) => &sync.client_id,
        }
    }

    /// How long its sender may be silent, if it says so.
    pub fn client_ttl_ms(&self) -> Option<u64> {
        match self {
            Message::Request(request) => request.client_ttl_ms,
            Message::Sync(sync) => sync.client_ttl_ms,
        }
    }

    /// Checks a message that was built, not read, against the same rules.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] naming the field that is wrong.
    pub fn check(&self) -> Result<(), ProtocolError> {
        let (client_id, demand, grants, leases) = match self {
            Message::Request(message) => (
                &message.client_id,
                message.demand.as_slice(),
                &message.grants,
                &message.leases,
            ),
            Message::Sync(message) => (
                &message.client_id,
                [].as_slice(),
                &message.grants,
                &message.leases,
            ),
        };
        let leases = leases.as_deref().unwrap_or_default();
        check_id("clientId", client_id)?;
        for (field, length) in [
            ("demand", demand.len()),
            ("grants", grants.len()),
            ("leases", leases.len()),
        ] {
            if length > MAX_LIST_LENGTH {
                return Err(ProtocolError::new(field, too_long()));
            }
        }
        for (index, demand) in demand.iter().enumerate() {
            check_id(&format!("demand[{index}].group"), &demand.group)?;
            if demand.count == 0 {
                return Err(ProtocolError::new(
                    format!("demand[{index}].count"),
                    "must be at least 1",
                ));
            }
            check_counts(&format!("demand[{index}]"), [demand.count])?;
        }
        for (index, report) in grants.iter().enumerate() {
            check_id(&format!("grants[{index}].grantId"), &report.grant_id)?;
            check_counts(
                &format!("grants[{index}]"),
                [report.claimed, report.released],
            )?;
        }
        for (index, report) in leases.iter().enumerate() {
            check_id(&format!("leases[{index}].leaseId"), &report.lease_id)?;
            check_counts(&format!("leases[{index}]"), [report.drawn, report.released])?;
        }
        if let Some(problem) = self.client_ttl_ms().and_then(ttl_problem) {
            return Err(ProtocolError::new("clientTtlMs", problem));
        }
        if let Message::Request(request) = self {
            if let Some(request_id) = &request.request_id {
                check_id("requestId", request_id)?;
            }
            check_counts("requestNumber", request.request_number)?;
            if request.request_number.is_some() && request.request_id.is_none() {
                return Err(ProtocolError::new(
                    "requestNumber",
                    "needs a requestId beside it",
                ));
            }
            check_counts("waitMs", request.wait_ms)?;
        }
        Ok(())
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Message::Request(request) => tagged("request", request, serializer),
            Message::Sync(sync) => tagged("sync", sync, serializer),
        }
    }
}

impl Reply {
    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] naming the field that is wrong.
    pub fn from_json(json: &[u8]) -> Result<Reply, ProtocolError> {
        match head(json)?.as_str() {
            "grant" => read(json).map(Reply::Grant),
            "synced" => read(json).map(Reply::Synced),
            other => Err(unknown_type(other, "\"grant\" and \"synced\"")),
        }
    }
}

impl Serialize for Reply {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Reply::Grant(reply) => tagged("grant", reply, serializer),
            Reply::Synced(reply) => tagged("synced", reply, serializer),
        }
    }
}

/// Refuses an id that is empty or longer than [`MAX_ID_BYTES`].
///
/// # Errors
///
/// [`ProtocolError`] naming `field`.
pub fn check_id(field: &str, id: &str) -> Result<(), ProtocolError> {
    id_problem(id).map_or(Ok(()), |problem| Err(ProtocolError::new(field, problem)))
}

fn id_problem(id: &str) -> Option<String> {
    if id.is_empty() {
        Some("must not be empty".to_owned())
    } else if id.len() > MAX_ID_BYTES {
        Some(format!("must be at most {MAX_ID_BYTES} bytes long"))
    } else {
        None
    }
}

fn check_counts(field: &str, counts: impl IntoIterator<Item = u64>) -> Result<(), ProtocolError> {
    if counts.into_iter().any(|count| count > MAX_SAFE_INTEGER) {
        return Err(ProtocolError::new(field, too_large()));
    }
    Ok(())
}

fn too_large() -> String {
    format!("must be a whole number up to {MAX_SAFE_INTEGER}")
}

fn too_long() -> String {
    format!("must have at most {MAX_LIST_LENGTH} entries")
}

fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let id = String::deserialize(deserializer)?;
    id_problem(&id).map_or(Ok(id), |problem| Err(de::Error::custom(problem)))
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let count = u64::deserialize(deserializer)?;
    if count > MAX_SAFE_INTEGER {
        return Err(de::Error::custom(too_large()));
    }
    Ok(count)
}

fn positive_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match count(deserializer)? {
        0 => Err(de::Error::custom("must be at least 1")),
        positive => Ok(positive),
    }
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    count(deserializer).map(Timestamp::from_millis)
}

fn optional_time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Timestamp>, D::Error> {
    time(deserializer).map(Some)
}

fn optional_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    id(deserializer).map(Some)
}

fn optional_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    count(deserializer).map(Some)
}

fn optional_ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let ttl = count(deserializer)?;
    ttl_problem(ttl).map_or(Ok(Some(ttl)), |problem| Err(de::Error::custom(problem)))
}

fn ttl_problem(millis: u64) -> Option<String> {
    let longest = MAX_DURATION.as_millis();
    let fits = (1..=longest).contains(&u128::from(millis));
    (!fits).then(|| format!("must be 1 to {longest} ms"))
}

fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Bounded<T>(std::marker::PhantomData<T>);

    impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Bounded<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("a list")
        }

        // Refused while reading, so that a hostile list is never held in memory.
        fn visit_seq<A: de::SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(entry) = entries.next_element()? {
                if list.len() == MAX_LIST_LENGTH {
                    return Err(de::Error::custom(too_long()));
                }
                list.push(entry);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(Bounded(std::marker::PhantomData))
}

fn optional_list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    list(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn refused(message: serde_json::Value) -> ProtocolError {
        Message::from_json(message.to_string().as_bytes()).expect_err("must be refused")
    }

    #[test]
    fn names_the_field_to_blame() {
        let cases = [
            (json!(null), "."),
            (json!([]), "."),
            (json!({"v": 1, "clientId": "c", "grants": []}), "type"),
            (
                json!({"type": "sync", "v": 2, "clientId": "c", "grants": []}),
                "v",
            ),
            (
                json!({"type": "sync", "v": "1", "clientId": "c", "grants": []}),
                "v",
            ),
            (json!({"type": "x", "v": 1}), "type"),
            (
                json!({"type": "sync", "v": 1, "clientId": "", "grants": []}),
                "clientId",
            ),
            (
                json!({"type": "sync", "v": 1, "clientId": "c".repeat(257), "grants": []}),
                "clientId",
            ),
            (
                json!({"type": "sync", "v": 1, "clientId": "c", "grants": null}),
                "grants",
            ),
            (
                json!({"type": "sync", "v": 1, "clientId": "c", "grants": [], "leases": null}),
                "leases",
            ),
            (
                json!({"type": "request", "v": 1, "clientId": "c", "grants": [],
                       "demand": [{"group": "a", "count": 0, "oldestAt": 1}]}),
                "demand[0].count",
            ),
            (
                json!({"type": "request", "v": 1, "clientId": "c", "grants": [],
                       "demand": [{"group": "a", "count": 9007199254740992u64, "oldestAt": 1}]}),
                "demand[0].count",
            ),
            (
                json!({"type": "sync", "v": 1, "clientId": "c",
                       "grants": [{"grantId": "g", "claimed": 1.5, "released": 0}]}),
                "grants[0].claimed",
            ),
            (json!({"type": "sync", "v": 1, "grants": []}), "clientId"),
            (
                json!({"type": "request", "v": 1, "clientId": "c", "grants": [],
                       "demand": [{"group": "a", "count": 1}]}),
                "demand[0].oldestAt",
            ),
            (
                json!({"type": "sync", "v": 1, "clientId": "c", "grants": [], "sentAt": -1}),
                "sentAt",
            ),
            (
                json!({"type": "request", "v": 1, "clientId": "c", "grants": [], "demand": [],
                       "requestId": ""}),
                "requestId",
            ),
            (
                json!({"type": "request", "v": 1, "clientId": "c", "grants": [], "demand": [],
                       "waitMs": -5}),
                "waitMs",
            ),
            (
                json!({"type": "request", "v": 1, "clientId": "c", "grants": [], "demand": [],
                       "requestId": "r", "requestNumber": 0.5}),
                "requestNumber",
            ),
            (
                json!({"type": "sync", "v": 1, "clientId": "c", "grants": [], "clientTtlMs": 0}),
                "clientTtlMs",
            ),
            (
                json!({"type": "sync", "v": 1, "clientId": "c", "grants": [], "leases":
                       [{"leaseId": "l", "drawn": 0, "released": 0, "retired": "yes"}]}),
                "leases[0].retired",
            ),
        ];
        for (message, field) in cases {
            assert_eq!(refused(message.clone()).field, field, "{message}");
        }
    }

    #[test]
    fn refuses_a_list_that_is_too_long() {
        let reports = vec![json!({"grantId": "g", "claimed": 0, "released": 0}); 4_097];
        let message = json!({"type": "sync", "v": 1, "clientId": "c", "grants": reports});
        assert!(refused(message).problem.contains("at most 4096"));
    }

    #[test]
    fn ignores_unknown_fields() {
        let message = json!({"type": "sync", "v": 1, "clientId": "c", "grants": [], "later": {}});
        assert!(Message::from_json(message.to_string().as_bytes()).is_ok());
    }

    proptest! {
        #[test]
        fn never_panics_on_bytes(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = Message::from_json(&bytes);
            let _ = Reply::from_json(&bytes);
        }

        #[test]
        fn what_is_written_reads_the_same(
            client_id in "[a-z0-9-]{1,20}",
            demand in prop::collection::vec(("[a-z]{1,8}", 1..1_000u64, 0..1_000_000u64), 0..4),
            grants in prop::collection::vec(("[a-z]{1,8}", 0..9u64, 0..9u64), 0..4),
            sent_at in prop::option::of(0..1_000_000u64),
            request_id in prop::option::of("[a-z0-9]{1,9}"),
            wait_ms in prop::option::of(0..60_000u64),
        ) {
            let message = Message::Request(PermitRequest {
                client_id,
                demand: demand
                    .into_iter()
                    .map(|(group, count, oldest_at)| Demand {
                        group,
                        count,
                        oldest_at: Timestamp::from_millis(oldest_at),
                    })
                    .collect(),
                grants: grants
                    .into_iter()
                    .map(|(grant_id, claimed, released)| GrantReport { grant_id, claimed, released })
                    .collect(),
                leases: Some(Vec::new()),
                sent_at: sent_at.map(Timestamp::from_millis),
                request_number: request_id.as_ref().and(sent_at),
                request_id,
                wait_ms,
                client_ttl_ms: None,
            });
            let json = serde_json::to_vec(&message).unwrap();
            prop_assert_eq!(message.check(), Ok(()));
            prop_assert_eq!(Message::from_json(&json).unwrap(), message);
        }
    }
}
