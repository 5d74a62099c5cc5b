//! The samples that the TypeScript package checks its types against are what the Rust types read and
//! write: all fields of each, each optional one present and absent, and every value of an enum.
//!
//! What a type has is asked of its `Deserialize`, so a field or a value that is added in Rust is missed
//! here at once. `packages/durably/test/run` then holds the TypeScript types against the same file.

use std::any::type_name;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;

use durably::jobs::{AccountJobs, CancelOutcome, JobState, JobStatus, NewJob};
use durably::semaphore::protocol::{
    Blocked, BlockedReason, Demand, Grant, GrantReply, GrantReport, GrantResult, GrantStatus,
    LeaseGrant, LeaseReport, Message, PermitRequest, PermitSync, Reply, SyncReply,
};
use durably::semaphore::queue::WaitReason;
use durably::semaphore::{GroupStanding, GroupUsage, Standing, Usage};
use durably::testing::published;
use durably::topology::{Edition, Incarnation, Member, MemberState, Snapshot, StateUpdate, decode};
use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::{Serialize, forward_to_deserialize_any};
use serde_json::{Map, Value, json};

const SAMPLES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../packages/durably/test/samples.json"
);

/// The samples that no test has looked at yet.
struct Samples(RefCell<Map<String, Value>>);

impl Samples {
    fn read() -> Samples {
        let text = fs::read_to_string(SAMPLES).expect(SAMPLES);
        Samples(RefCell::new(
            serde_json::from_str(&text).expect("a map of samples"),
        ))
    }

    fn take(&self, name: &str) -> Vec<Value> {
        let found = self.0.borrow_mut().remove(name);
        let Some(Value::Array(samples)) = found else {
            panic!("samples.json has no list {name:?}")
        };
        assert!(!samples.is_empty(), "{name}");
        samples
    }

    /// A type that serde reads and writes as it is.
    fn plain<T: Serialize + DeserializeOwned>(&self) {
        self.fields::<T>(&[], &through::<T>, true);
    }

    fn message<T: DeserializeOwned>(&self) {
        let through = |value: &Value| {
            let read = Message::from_json(value.to_string().as_bytes()).ok()?;
            serde_json::to_value(read).ok()
        };
        self.fields::<T>(&["type", "v"], &through, true);
    }

    fn reply<T: DeserializeOwned>(&self) {
        let through = |value: &Value| {
            let read = Reply::from_json(value.to_string().as_bytes()).ok()?;
            serde_json::to_value(read).ok()
        };
        self.fields::<T>(&["type", "v"], &through, true);
    }

    /// Each sample has fields of `T` and `more` only, all of which occur; whatever may be absent is
    /// absent in one. `through` reads a sample and writes it again, which changes nothing if the type
    /// is `exact`, and answers `None` for what cannot be read.
    fn fields<T: DeserializeOwned>(
        &self,
        more: &[&str],
        through: &dyn Fn(&Value) -> Option<Value>,
        exact: bool,
    ) {
        let name = short_name::<T>();
        let samples = self.take(name);
        let mut fields: BTreeSet<&str> = declared::<T>().iter().copied().collect();
        fields.extend(more);
        for sample in &samples {
            let sample = sample.as_object().expect("an object");
            for field in sample.keys() {
                assert!(fields.contains(field.as_str()), "{name} has no {field}");
            }
            for at in 0..=sample.len() {
                // Without each of its fields, and whole.
                let mut sample = sample.clone();
                let without = sample.keys().nth(at).cloned();
                let is_whole = without.is_none();
                if let Some(without) = without {
                    sample.remove(&without);
                }
                let sample = Value::Object(sample);
                match through(&sample) {
                    Some(written) if exact => assert_eq!(written, sample, "{name}"),
                    None => assert!(!is_whole, "{name} cannot be read: {sample}"),
                    Some(_) => {}
                }
            }
        }
        for field in fields {
            let present = samples.iter().find(|sample| sample.get(field).is_some());
            let present = present.unwrap_or_else(|| panic!("{name}.{field} is in no sample"));
            let mut without = present.clone();
            without.as_object_mut().expect("an object").remove(field);
            let is_optional = through(&without).is_some();
            let is_absent = samples.iter().any(|sample| sample.get(field).is_none());
            assert_eq!(
                is_optional, is_absent,
                "{name}.{field}: exactly what may be absent is absent in a sample"
            );
        }
    }

    /// An enum of names: the samples are all of them.
    fn names<T: Serialize + DeserializeOwned>(&self) {
        let name = short_name::<T>();
        let samples = self.take(name);
        for sample in &samples {
            assert_eq!(through::<T>(sample).as_ref(), Some(sample), "{name}");
        }
        let samples: BTreeSet<&str> = samples.iter().filter_map(Value::as_str).collect();
        let declared: BTreeSet<&str> = declared::<T>().iter().copied().collect();
        assert_eq!(samples, declared, "{name}");
    }
}

fn through<T: Serialize + DeserializeOwned>(value: &Value) -> Option<Value> {
    let read: T = serde_json::from_value(value.clone()).ok()?;
    serde_json::to_value(read).ok()
}

fn short_name<T>() -> &'static str {
    let name = type_name::<T>();
    name.rsplit("::").next().unwrap_or(name)
}

/// The fields of a struct or the values of an enum, by their names on the wire.
fn declared<T: DeserializeOwned>() -> &'static [&'static str] {
    let names = RefCell::new(None);
    let _ = T::deserialize(Declared(&names));
    names
        .take()
        .unwrap_or_else(|| panic!("{} names nothing", short_name::<T>()))
}

/// Notes what a type says that it consists of, and reads nothing.
struct Declared<'a>(&'a RefCell<Option<&'static [&'static str]>>);

impl<'de> Deserializer<'de> for Declared<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("neither a struct nor an enum"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.0.replace(Some(fields));
        Err(Error::custom("noted"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.0.replace(Some(variants));
        Err(Error::custom("noted"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// A queue's reason is written only, so its values are told apart by a match that must name all.
fn wait_reasons() -> BTreeSet<String> {
    let next = |reason| match reason {
        WaitReason::GroupLimit => Some(WaitReason::Limit),
        WaitReason::Limit => Some(WaitReason::NotPermitted),
        WaitReason::NotPermitted => Some(WaitReason::LimitResolutionError),
        WaitReason::LimitResolutionError => Some(WaitReason::Unreachable),
        WaitReason::Unreachable => None,
    };
    let all = std::iter::successors(Some(WaitReason::GroupLimit), |reason| next(*reason));
    all.filter_map(|reason| json!(reason).as_str().map(str::to_owned))
        .collect()
}

/// Published texts: a coordinator writes these very ones.
fn published_texts(samples: &Samples) {
    let contents = samples.take("PublishedContent");
    for content in &contents {
        let of = |field: &str| content[field].as_str().expect(field).to_owned();
        let edition = Edition {
            coordinator: of("coordinator"),
            incarnation: serde_json::from_value(content["incarnation"].clone()).expect("one"),
            version: content["version"].as_u64().expect("a number"),
        };
        let members: Option<Vec<Member>> = content
            .get("members")
            .map(|members| serde_json::from_value(members.clone()).expect("members"));
        let text = published::text(&of("group"), &edition, members.as_deref());
        let read = decode(&of("group"), text.as_bytes()).expect("a good text");
        assert_eq!((read.edition, read.members), (edition, members));
        let written: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(&written["content"], content);
        let envelope = json!({
            "schema": 1, "checksum": written["checksum"], "content": content,
        });
        assert_eq!(written, envelope);
    }
    assert!(contents.iter().any(|one| one.get("members").is_none()));
    for envelope in samples.take("PublishedEnvelope") {
        let names: Vec<&String> = envelope.as_object().expect("an object").keys().collect();
        assert_eq!(names, ["checksum", "content", "schema"]);
        assert_eq!(envelope["checksum"].as_str().map(str::len), Some(16));
        assert!(contents.contains(&envelope["content"]));
    }
}

#[test]
fn the_samples_of_the_typescript_package_are_what_rust_reads_and_writes() {
    let samples = Samples::read();

    samples.message::<PermitRequest>();
    samples.message::<PermitSync>();
    samples.reply::<GrantReply>();
    samples.reply::<SyncReply>();
    samples.plain::<Demand>();
    samples.plain::<GrantReport>();
    samples.plain::<LeaseReport>();
    samples.plain::<Grant>();
    samples.plain::<Blocked>();
    samples.names::<BlockedReason>();
    samples.plain::<GrantResult>();
    samples.names::<GrantStatus>();
    samples.plain::<LeaseGrant>();

    published_texts(&samples);
    samples.plain::<Snapshot>();
    samples.plain::<Member>();
    samples.names::<MemberState>();
    samples.plain::<Incarnation>();
    samples.plain::<StateUpdate>();

    // Applications write jobs; what they leave away has a default.
    samples.fields::<NewJob>(&[], &through::<NewJob>, false);
    samples.plain::<JobStatus>();
    samples.names::<JobState>();
    samples.names::<CancelOutcome>();
    let reasons = samples.take("WaitReason");
    let reasons: BTreeSet<String> = reasons
        .iter()
        .filter_map(|reason| reason.as_str().map(str::to_owned))
        .collect();
    assert_eq!(reasons, wait_reasons());
    samples.plain::<AccountJobs>();
    samples.plain::<Standing>();
    samples.plain::<GroupStanding>();
    samples.plain::<Usage>();
    samples.plain::<GroupUsage>();

    let left: Vec<String> = samples.0.take().into_iter().map(|(name, _)| name).collect();
    assert!(left.is_empty(), "no type of Rust is held against {left:?}");
}
