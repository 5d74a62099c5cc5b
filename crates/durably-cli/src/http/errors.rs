//! Failures of what the API serves, as clients see them.

use durably_http::ApiError;
use durably_native::topology::TopologiesError;

/// What a failure of a topology is to a client.
pub(super) fn of_topologies(error: impl Into<TopologiesError>) -> ApiError {
    let error = error.into();
    ApiError::new(error.code(), error.to_string())
}
