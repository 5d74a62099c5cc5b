//! Reading bodies and queries.

use serde::de::{DeserializeOwned, IgnoredAny};

use crate::ApiError;

/// What a body is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// One JSON value.
    Json,
    /// A JSON value a line.
    Ndjson,
}

/// The kind of a body by its content type.
pub fn kind(content_type: Option<&str>) -> Option<BodyKind> {
    let essence = content_type?.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        Some(BodyKind::Json)
    } else if essence.eq_ignore_ascii_case("application/x-ndjson") {
        Some(BodyKind::Ndjson)
    } else {
        None
    }
}

/// The refusal of a body that is not said to be JSON.
pub fn not_json_kind() -> ApiError {
    ApiError::new(
        "unsupported_media_type",
        "send JSON, with the header \"content-type: application/json\"",
    )
}

/// The refusal of a body of more than `limit` bytes.
pub fn body_too_large(limit: usize) -> ApiError {
    ApiError::new(
        "body_too_large",
        format!("the body must be at most {limit} bytes long"),
    )
}

/// Reads one JSON value.
///
/// # Errors
///
/// [`ApiError`], naming the field that is wrong.
pub fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut deserializer)?;
    deserializer
        .end()
        .map_err(|error| ApiError::new("malformed_json", format!("this is not JSON: {error}")))?;
    Ok(value)
}

/// Reads one JSON object. (serde alone would take a list of the fields' values for it.)
///
/// # Errors
///
/// [`ApiError`], naming the field that is wrong.
pub fn parse_object<T: DeserializeOwned>(json: &[u8]) -> Result<T, ApiError> {
    if json.trim_ascii_start().first() == Some(&b'{') {
        return parse(json);
    }
    parse::<IgnoredAny>(json)?;
    Err(ApiError::new("invalid", "this must be a JSON object"))
}

/// Reads what follows the question mark of a URL.
///
/// # Errors
///
/// `malformed_request`.
pub fn parse_query<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    serde_urlencoded::from_str(query).map_err(|error| {
        let problem = format!("Failed to deserialize query string: {error}");
        ApiError::new("malformed_request", problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_may_have_parameters_and_any_case() {
        for (given, found) in [
            (Some("application/json"), Some(BodyKind::Json)),
            (
                Some("Application/JSON; charset=utf-8"),
                Some(BodyKind::Json),
            ),
            (Some("application/x-ndjson"), Some(BodyKind::Ndjson)),
            (Some("text/plain"), None),
            (None, None),
        ] {
            assert_eq!(kind(given), found, "{given:?}");
        }
    }
}
