//! What the endpoint that runs jobs gets, and what its answer means.
//!
//! A 2xx ends the job; a 4xx but 408, 425 and 429 ends it as failed; everything else, broken
//! connections included, is tried again. Redirects are not followed and so are tried again.

use durably::error::BoxError;
use durably::jobs::{RunError, RunJob};
use serde::Serialize;
use serde_json::Value;

/// Kept of an answer: a longer one counts as no result.
pub const MAX_RESULT_BYTES: usize = 64 << 10;

/// Shown of the answer to a run that failed.
pub const MAX_ERROR_BYTES: usize = 1 << 10;

/// The header that is the same for all runs of a job.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The header that says how the job came to its permit.
pub const ADMISSION: &str = "durably-admission";

#[derive(Serialize)]
struct Run<'a> {
    account: &'a str,
    id: &'a str,
    group: &'a str,
    attempt: u64,
    body: &'a Value,
}

/// The body of the request.
///
/// # Errors
///
/// [`RunError::Permanent`] for a job that cannot be written.
pub fn body(job: &RunJob) -> Result<Vec<u8>, RunError> {
    let run = Run {
        account: &job.account,
        id: &job.id,
        group: &job.group,
        attempt: job.attempt,
        body: &job.body,
    };
    serde_json::to_vec(&run).map_err(|error| RunError::Permanent(error.into()))
}

/// The job's result by an answer of success; `body` is `None` if it was too long.
pub fn result(content_type: Option<&[u8]>, body: Option<&[u8]>) -> Value {
    let is_json = content_type.is_some_and(|kind| kind.starts_with(b"application/json"));
    body.filter(|_| is_json)
        .and_then(|body| serde_json::from_slice(body).ok())
        .unwrap_or(Value::Null)
}

/// What another answer means; `text` is what it says.
pub fn failure(status: u16, shown: &str, text: &str) -> RunError {
    let error: BoxError = format!("the job endpoint answered {shown}: {text}").into();
    match is_final(status) {
        true => RunError::Permanent(error),
        false => RunError::Retry(error),
    }
}

/// Whether another attempt would be answered alike.
fn is_final(status: u16) -> bool {
    (400..500).contains(&status) && ![408, 425, 429].contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_client_errors_that_stay_are_final() {
        for (status, expected) in [
            (400, true),
            (404, true),
            (410, true),
            (422, true),
            (408, false),
            (425, false),
            (429, false),
            (301, false),
            (500, false),
            (503, false),
        ] {
            assert_eq!(is_final(status), expected, "{status}");
        }
    }
}
