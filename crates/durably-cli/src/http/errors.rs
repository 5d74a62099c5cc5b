//! Failures as clients see them. Their HTTP statuses are in one table, `durably::error::http_status`.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use durably::jobs::JobError;
use durably_native::topology::TopologiesError;
use serde::Serialize;

/// A failure: written as `{"error":{"code","message","field"?}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ApiError {
    /// A stable name for programs.
    pub(super) code: &'static str,
    /// What happened and what to do, for people.
    pub(super) message: String,
    /// The field to blame, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) field: Option<String>,
}

/// The status of each failure, by the table that all doors share.
fn status_of(code: &str) -> StatusCode {
    let status = durably::error::http_status(code);
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl ApiError {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        ApiError {
            code,
            message: message.into(),
            field: None,
        }
    }

    /// A refusal of `field`; `problem` completes the sentence "*field* …".
    pub(super) fn invalid(field: impl Into<String>, problem: impl AsRef<str>) -> Self {
        let field = field.into();
        ApiError {
            code: "invalid",
            message: format!("{field} {}", problem.as_ref()),
            field: Some(field),
        }
    }

    /// Whether the same request may do better later, or the server is at fault: nobody need change it.
    pub(super) fn is_about_the_server(&self) -> bool {
        let status = self.status();
        status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
    }

    pub(super) fn status(&self) -> StatusCode {
        status_of(self.code)
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        ApiError {
            code: error.code(),
            message: error.to_string(),
            field: error.field().map(str::to_owned),
        }
    }
}

impl From<TopologiesError> for ApiError {
    fn from(error: TopologiesError) -> Self {
        ApiError::new(error.code(), error.to_string())
    }
}

impl From<serde_path_to_error::Error<serde_json::Error>> for ApiError {
    fn from(error: serde_path_to_error::Error<serde_json::Error>) -> Self {
        let path = error.path().to_string();
        let cause = error.inner();
        match cause.classify() {
            serde_json::error::Category::Data if path != "." => {
                ApiError::invalid(path, format!("is wrong: {cause}"))
            }
            serde_json::error::Category::Data => ApiError::new("invalid", cause.to_string()),
            _ => ApiError::new("malformed_json", format!("this is not JSON: {cause}")),
        }
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        ApiError::new("malformed_request", rejection.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        ApiError::new("malformed_request", rejection.body_text())
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: &'a ApiError,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        if status.is_server_error() {
            tracing::warn!(code = self.code, message = %self.message, "request failed");
        }
        let mut response = (status, Json(Envelope { error: &self })).into_response();
        let header = match status {
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer")),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                Some((header::RETRY_AFTER, "1"))
            }
            _ => None,
        };
        if let Some((name, value)) = header {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use durably::StorageError;
    use durably::semaphore::SemaphoreError;

    use super::*;

    #[test]
    fn failures_of_the_library_have_statuses() {
        let full = JobError::Storage(StorageError::Full("disk".to_owned()));
        let overloaded = JobError::Semaphore(SemaphoreError::Overloaded { waiting: 9 });
        for (error, status) in [
            (JobError::invalid("id", "must not be empty"), 400),
            (JobError::BodyTooLarge { found: 2, limit: 1 }, 413),
            (JobError::QueueFull { limit: 1_000 }, 429),
            (overloaded, 503),
            (full, 507),
            (
                JobError::Storage(StorageError::Damaged("x".to_owned())),
                500,
            ),
        ] {
            assert_eq!(ApiError::from(error.clone()).status(), status, "{error}");
        }
    }

    #[test]
    fn a_field_is_named_as_it_is_in_the_message() {
        let error = ApiError::from(JobError::invalid("id", "must not be empty"));
        let written = serde_json::to_value(Envelope { error: &error }).unwrap();
        let expected = serde_json::json!({"error": {
            "code": "invalid", "message": "id must not be empty", "field": "id",
        }});
        assert_eq!(written, expected);
    }
}
