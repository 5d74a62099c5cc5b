//! Jobs as clients write them, and what they are told became of each.

use durably::jobs::{DEFAULT_GROUP, NewJob, SubmitOutcome};
use durably_native::jobs::Jobs;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::body::parse_object;
use super::errors::ApiError;

/// What a job may say. Fields that this version does not know are ignored.
#[derive(Deserialize)]
struct JobText {
    #[serde(default, deserialize_with = "given")]
    account: Option<String>,
    #[serde(default, deserialize_with = "given")]
    id: Option<String>,
    #[serde(default, deserialize_with = "given")]
    group: Option<String>,
    #[serde(default)]
    body: Value,
}

/// A text that may be missing, but not null.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

/// Reads one job.
pub(super) fn read(json: &[u8]) -> Result<NewJob, ApiError> {
    let text: JobText = parse_object(json)?;
    Ok(NewJob {
        account: text.account.ok_or_else(|| missing("account"))?,
        id: text.id.ok_or_else(|| missing("id"))?,
        group: text.group.unwrap_or_else(|| DEFAULT_GROUP.to_owned()),
        body: text.body,
    })
}

fn missing(field: &str) -> ApiError {
    ApiError::invalid(field, "is missing")
}

/// What became of one submitted job.
#[derive(Debug, Serialize)]
pub(super) struct ItemResult {
    /// Its line, from 1, if it came as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    pub(super) outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<ApiError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Queued,
    Duplicate,
    Refused,
}

/// Submits the jobs that could be read; answers for all, in order.
pub(super) async fn submit(jobs: &Jobs, items: Vec<Result<NewJob, ApiError>>) -> Vec<ItemResult> {
    let good: Vec<NewJob> = items.iter().filter_map(|item| item.clone().ok()).collect();
    let mut outcomes = if good.is_empty() {
        Vec::new()
    } else {
        jobs.submit(good).await
    }
    .into_iter();
    items
        .into_iter()
        .map(|item| match item {
            Ok(job) => ItemResult::of(Some(job), outcomes.next()),
            Err(error) => ItemResult {
                outcome: Outcome::Refused,
                error: Some(error),
                ..ItemResult::of(None, None)
            },
        })
        .collect()
}

impl ItemResult {
    fn of(job: Option<NewJob>, outcome: Option<SubmitOutcome>) -> ItemResult {
        let (outcome, error) = match outcome {
            Some(SubmitOutcome::Queued) => (Outcome::Queued, None),
            Some(SubmitOutcome::Duplicate) => (Outcome::Duplicate, None),
            Some(SubmitOutcome::Refused(error)) => (Outcome::Refused, Some(error.into())),
            None => {
                let error = ApiError::new("no_outcome", "nothing is known: submit it again");
                (Outcome::Refused, Some(error))
            }
        };
        let (account, id) = job.map(|job| (job.account, job.id)).unzip();
        ItemResult {
            line: None,
            account,
            id,
            outcome,
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_job_is_blamed_by_field() {
        for (json, code, field) in [
            (r#"{"id":"1"}"#, "invalid", Some("account")),
            (r#"{"account":"a"}"#, "invalid", Some("id")),
            (r#"{"account":null,"id":"1"}"#, "invalid", Some("account")),
            (r#"{"account":"a","id":7}"#, "invalid", Some("id")),
            (
                r#"{"account":"a","id":"1","group":[]}"#,
                "invalid",
                Some("group"),
            ),
            (
                r#"{"account":"a","id":"1","body":1e999}"#,
                "malformed_json",
                None,
            ),
            (r#"["a","1","g",null]"#, "invalid", None),
            (r#"7"#, "invalid", None),
            (r#"{"account":"a","id":"1"} x"#, "malformed_json", None),
            (r#"{"account":"a","#, "malformed_json", None),
            ("\u{0}", "malformed_json", None),
        ] {
            let error = read(json.as_bytes()).expect_err(json);
            assert_eq!(
                (error.code, error.field.as_deref()),
                (code, field),
                "{json}"
            );
        }
    }

    #[test]
    fn group_and_body_have_defaults_and_other_fields_are_ignored() {
        let job = read(br#"{"account":"a","id":"1","later":{}}"#).unwrap();
        assert_eq!((job.group.as_str(), job.body), (DEFAULT_GROUP, Value::Null));
    }
}
