//! Failures as clients see them. Their HTTP statuses are in one table, [`durably::error::http_status`].

use std::borrow::Cow;

use durably::jobs::JobError;
use serde::{Deserialize, Serialize};

/// A failure: written as `{"error":{"code","message","field"?}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    /// A stable name for programs.
    pub code: Cow<'static, str>,
    /// What happened and what to do, for people.
    pub message: String,
    /// The field to blame, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

#[derive(Serialize)]
struct Written<'a> {
    error: &'a ApiError,
}

#[derive(Deserialize)]
struct Read {
    error: ApiError,
}

impl ApiError {
    /// A failure that no field is to blame for.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        ApiError {
            code: code.into(),
            message: message.into(),
            field: None,
        }
    }

    /// A refusal of `field`; `problem` completes the sentence "*field* …".
    pub fn invalid(field: impl Into<String>, problem: impl AsRef<str>) -> Self {
        let field = field.into();
        ApiError {
            code: "invalid".into(),
            message: format!("{field} {}", problem.as_ref()),
            field: Some(field),
        }
    }

    /// The status that it is answered with.
    pub fn status(&self) -> u16 {
        durably::error::http_status(&self.code)
    }

    /// Whether the same request may do better later, or the server is at fault: nobody need change it.
    pub fn is_about_the_server(&self) -> bool {
        let status = self.status();
        status >= 500 || status == 429
    }

    /// The header that goes with its status, if there is one.
    pub fn header(&self) -> Option<(&'static str, &'static str)> {
        match self.status() {
            401 => Some(("www-authenticate", "Bearer")),
            503 | 429 => Some(("retry-after", "1")),
            _ => None,
        }
    }

    /// The body of its answer.
    pub fn to_json(&self) -> String {
        // Three texts: nothing of it can fail to be written.
        serde_json::to_string(&Written { error: self }).unwrap_or_default()
    }

    /// Reads the body of such an answer; `None` for another one.
    pub fn from_json(body: &str) -> Option<ApiError> {
        let Read { error } = serde_json::from_str(body).ok()?;
        Some(error)
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        ApiError {
            code: error.code().to_owned().into(),
            message: error.to_string(),
            field: error.field().map(str::to_owned),
        }
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

#[cfg(feature = "axum")]
mod responses {
    use axum::Json;
    use axum::extract::rejection::{PathRejection, QueryRejection};
    use axum::http::{HeaderName, HeaderValue, StatusCode};
    use axum::response::{IntoResponse, Response};

    use super::{ApiError, Written};

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

    impl IntoResponse for ApiError {
        fn into_response(self) -> Response {
            let status = StatusCode::from_u16(self.status());
            let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            if status.is_server_error() {
                tracing::warn!(code = %self.code, message = %self.message, "request failed");
            }
            let mut response = (status, Json(Written { error: &self })).into_response();
            if let Some((name, value)) = self.header() {
                response.headers_mut().insert(
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                );
            }
            response
        }
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
        let written: serde_json::Value = serde_json::from_str(&error.to_json()).unwrap();
        let expected = serde_json::json!({"error": {
            "code": "invalid", "message": "id must not be empty", "field": "id",
        }});
        assert_eq!(written, expected);
        assert_eq!(ApiError::from_json(&error.to_json()), Some(error));
        assert_eq!(ApiError::from_json("{}"), None);
    }
}
