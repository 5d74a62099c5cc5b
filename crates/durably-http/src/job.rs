//! Jobs as clients write them, and what they are told became of each.

use durably::jobs::{CancelOutcome, DEFAULT_GROUP, JobState, JobStatus, NewJob, SubmitOutcome};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{ApiError, parse_object};

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
///
/// # Errors
///
/// [`ApiError`] naming what is wrong.
pub fn read(json: &[u8]) -> Result<NewJob, ApiError> {
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

/// A job, or why it could not be read.
pub type Item = Result<NewJob, ApiError>;

/// Reads a list of at most `limit` jobs, each by itself.
///
/// # Errors
///
/// [`ApiError`] for what is no list, or too long a one.
pub fn read_list(json: &[u8], limit: usize) -> Result<Vec<Item>, ApiError> {
    let items: Vec<&RawValue> = serde_json::from_slice(json)
        .map_err(|error| ApiError::new("malformed_json", format!("this is not JSON: {error}")))?;
    if items.len() > limit {
        return Err(ApiError::new(
            "too_many_jobs",
            format!(
                "a list may have at most {limit} jobs, this one has {}: send several, or a stream \
                 of lines",
                items.len()
            ),
        ));
    }
    let items = items.into_iter();
    Ok(items.map(|item| read(item.get().as_bytes())).collect())
}

/// Whether a body in JSON is a list of jobs.
pub fn is_list(json: &[u8]) -> bool {
    json.trim_ascii_start().first() == Some(&b'[')
}

/// The refusal of a line of more than `limit` bytes.
pub fn line_too_large(limit: usize) -> ApiError {
    ApiError::new(
        "line_too_large",
        format!("the line must be at most {limit} bytes long"),
    )
}

/// The refusal of a body that is neither JSON nor lines of it.
pub fn not_jobs_kind() -> ApiError {
    ApiError::new(
        "unsupported_media_type",
        "send a job or a list of jobs with the header \"content-type: application/json\", or \
         one job a line with \"content-type: application/x-ndjson\"",
    )
}

/// What became of one submitted job.
#[derive(Debug, Serialize)]
pub struct ItemResult {
    /// Its line, from 1, if it came as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// What it is now.
    pub outcome: Outcome,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
}

/// What a submitted job is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It waits for a permit.
    Queued,
    /// It is known already.
    Duplicate,
    /// It was not taken.
    Refused,
}

/// What became of all jobs of a submission.
#[derive(Debug, Serialize)]
pub struct Results {
    /// In the order of the jobs.
    pub results: Vec<ItemResult>,
}

/// Answers for all items, in order, when those that could be read were submitted by `submit`.
pub async fn submit(
    items: Vec<Item>,
    submit: impl AsyncFnOnce(Vec<NewJob>) -> Vec<SubmitOutcome>,
) -> Vec<ItemResult> {
    let good: Vec<NewJob> = items.iter().filter_map(|item| item.clone().ok()).collect();
    let outcomes = match good.is_empty() {
        true => Vec::new(),
        false => submit(good).await,
    };
    settled(items, outcomes)
}

fn settled(items: Vec<Item>, outcomes: Vec<SubmitOutcome>) -> Vec<ItemResult> {
    let mut outcomes = outcomes.into_iter();
    let results = items.into_iter().map(|item| match item {
        Ok(job) => ItemResult::of(Some(job), outcomes.next()),
        Err(error) => ItemResult {
            outcome: Outcome::Refused,
            error: Some(error),
            ..ItemResult::of(None, None)
        },
    });
    results.collect()
}

/// The answer to a single job: its status, and what is told.
///
/// # Errors
///
/// The job's refusal.
pub fn answer_one(results: Vec<ItemResult>) -> Result<(u16, Results), ApiError> {
    let status = match results.first() {
        Some(ItemResult {
            error: Some(error), ..
        }) => return Err(error.clone()),
        Some(result) if result.outcome == Outcome::Duplicate => 200,
        _ => 202,
    };
    Ok((status, Results { results }))
}

/// The answer to a list of jobs.
///
/// # Errors
///
/// If nothing went in and none of the jobs is at fault, that is said where clients look first.
pub fn answer_list(results: Vec<ItemResult>) -> Result<(u16, Results), ApiError> {
    let failed = |result: &ItemResult| {
        let error = result.error.as_ref();
        error.filter(|error| error.is_about_the_server()).cloned()
    };
    let failures: Option<Vec<ApiError>> = results.iter().map(failed).collect();
    match failures.and_then(|failures| failures.into_iter().next()) {
        Some(error) => Err(error),
        None => Ok((202, Results { results })),
    }
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

/// The status of a job.
///
/// # Errors
///
/// `unknown_job` for one that nobody knows.
pub fn known(status: JobStatus) -> Result<JobStatus, ApiError> {
    match status.state {
        JobState::Unknown => Err(unknown()),
        _ => Ok(status),
    }
}

fn unknown() -> ApiError {
    ApiError::new(
        "unknown_job",
        "no such job is known: it was never submitted, was cancelled while it waited, or ended \
         longer ago than jobs are kept",
    )
}

/// How a job is to be cancelled.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct CancelQuery {
    /// Also if it runs.
    #[serde(default)]
    pub running: bool,
}

/// What became of a wish to cancel a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cancelled {
    outcome: CancelOutcome,
}

/// The answer to a wish to cancel a job: its status, and what is told.
///
/// # Errors
///
/// Why the job was not cancelled.
pub fn cancelled(outcome: CancelOutcome) -> Result<(u16, Cancelled), ApiError> {
    let status = match outcome {
        CancelOutcome::Cancelled => 200,
        CancelOutcome::Stopping => 202,
        CancelOutcome::Running => {
            return Err(ApiError::new(
                "job_running",
                "the job runs: cancel it all the same with ?running=true",
            ));
        }
        CancelOutcome::Ended => return Err(ApiError::new("job_ended", "the job has ended")),
        CancelOutcome::Unknown => return Err(unknown()),
    };
    Ok((status, Cancelled { outcome }))
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
                (error.code.as_ref(), error.field.as_deref()),
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
