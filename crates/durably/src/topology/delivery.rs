//! State channels: brings the current value of a channel to each of its members.
//!
//! An entry of the outbox names the member; the value and the member are read when the call is made.
//! Whatever changes a value stages it for everybody again, so an entry that is pending always stands
//! for the current one.

use std::panic::AssertUnwindSafe;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::draft::Role;
use super::driver::Driver;
use super::error::TopologyError;
use super::snapshot::{Incarnation, Member};
use super::store;
use crate::bugs::{self, Bug};
use crate::error::{BoxError, StorageError, error_text, panic_text};
use crate::host::{LocalFuture, Transaction};
use crate::outbox::{Channel, Entry, Outcome};

/// What a member is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StateUpdate {
    /// The group.
    pub group: String,
    /// The channel.
    pub channel: String,
    /// Rises with every value that this member is sent on this channel by one incarnation of its
    /// coordinator. A member applies only what is newer than what it has.
    pub version: u64,
    /// The version of the group when the value was set, or the member joined.
    pub topology_version: u64,
    /// Who sends it. Versions compare only within one coordinator.
    pub coordinator: String,
    /// The coordinator's incarnation; a later one goes before every version of an earlier.
    pub incarnation: Incarnation,
    /// The value.
    pub value: Value,
}

/// An application's way to its members.
pub(super) type Deliver = Rc<dyn Fn(Member, StateUpdate) -> LocalFuture<Result<(), BoxError>>>;

/// A configured channel.
pub(super) struct StateChannel {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) attempt_timeout: Duration,
    pub(super) channel: Channel,
    pub(super) deliver: Deliver,
}

impl StateChannel {
    /// Stages what every member in its role is to have.
    pub(super) fn stage_all(&self, transaction: &dyn Transaction) -> Result<(), TopologyError> {
        let sql = transaction.sql();
        for (group, digest) in store::groups_with_state(sql, &self.name)? {
            let Some(row) = store::group(sql, &group)? else {
                continue;
            };
            let members = store::members(sql, &group)?;
            for id in self.role.ids(&members) {
                let (key, value) = (key(&group, id), delivery_value(row.version));
                self.channel
                    .stage_marked(transaction, &key, &value, Some(&digest))?;
            }
        }
        Ok(())
    }
}

/// The key of a delivery.
pub(super) fn key(group: &str, member: &str) -> String {
    json!([group, member]).to_string()
}

/// What the keys of all deliveries of a group begin with, and the least that sorts after them.
pub(super) fn keys_of(group: &str) -> (String, String) {
    let mut from = json!([group]).to_string();
    // The bracket at the end is where the comma of a longer list would be.
    from.pop();
    (format!("{from},"), format!("{from}-"))
}

/// The group and the member that a delivery's key names.
pub(super) fn target_of(key: &str) -> Option<(String, String)> {
    serde_json::from_str(key).ok()
}

/// The group that the key of a publication or a delivery is about.
pub(super) fn group_of(key: &str) -> String {
    target_of(key).map_or_else(|| key.to_owned(), |(group, _)| group)
}

/// The value of a delivery's entry.
pub(super) fn delivery_value(topology_version: u64) -> Value {
    json!({ "topologyVersion": topology_version })
}

impl Driver {
    /// Delivers what an entry stands for, if its member is still to have it.
    pub(super) async fn deliver(
        driver: Weak<Driver>,
        place: usize,
        entry: Entry,
    ) -> Result<Outcome, BoxError> {
        let driver = driver.upgrade().ok_or("the object is closing")?;
        let channel = driver.channels().get(place).ok_or("no such channel")?;
        let (group, id) = target_of(&entry.key).ok_or("the key names no member")?;
        let (of, name, role) = (group.clone(), channel.name.clone(), channel.role);
        let host = driver.scheduler.host();
        let read = host.transaction(move |transaction| {
            let sql = transaction.sql();
            let is_in =
                |member: &Member| role.includes(member) || bugs::is_on(Bug::LeavingGetsValues);
            let member = store::member(sql, &of, &id)?.filter(is_in);
            let value = store::state(sql, &of, &name)?;
            Ok::<_, StorageError>(member.zip(value))
        });
        let Some((member, value)) = read.await? else {
            return Ok(Outcome::Dropped);
        };
        let edition = driver.edition(0);
        let update = StateUpdate {
            group: group.clone(),
            channel: channel.name.clone(),
            version: entry.version,
            topology_version: entry.value["topologyVersion"].as_u64().unwrap_or(0),
            coordinator: edition.coordinator,
            incarnation: edition.incarnation,
            value,
        };
        let to = member.id.clone();
        let deliver = channel.deliver.clone();
        let call = async move { deliver(member, update).await };
        let call = Box::pin(AssertUnwindSafe(call).catch_unwind());
        let error = match driver.within(channel.attempt_timeout, call).await {
            Some(Ok(Ok(()))) => return Ok(Outcome::Done),
            Some(Ok(Err(error))) => error_text(&*error),
            Some(Err(panic)) => panic_text("the deliver callback", &*panic),
            // It may still arrive; members pass over what is older than what they have.
            None => took_too_long("delivery", channel.attempt_timeout),
        };
        tracing::error!(
            group,
            channel = channel.name,
            member = to,
            attempt = entry.attempt,
            error,
            "durability.topology.delivery_failed"
        );
        Ok(Outcome::Retry {
            after: None,
            error: Some(error),
        })
    }
}

pub(super) fn took_too_long(what: &str, timeout: Duration) -> String {
    format!("the {what} took longer than {} ms", timeout.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_group_are_a_range() {
        let (from, before) = keys_of("t1");
        for member in ["", "a", "\u{10ffff}", "\"]"] {
            let key = key("t1", member);
            assert!(from <= key && key < before, "{key}");
            assert_eq!(target_of(&key), Some(("t1".to_owned(), member.to_owned())));
            assert_eq!(group_of(&key), "t1");
        }
        for group in ["t", "t10", "t1\"", "t1,", "t2", "T1"] {
            let key = key(group, "a");
            assert!(!(from <= key && key < before), "{key}");
        }
        assert_eq!(group_of("t1"), "t1");
    }
}
