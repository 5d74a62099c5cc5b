//! The optional bearer token.

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

use super::Api;
use durably_http::ApiError;

/// Lets a request pass if no token is asked for, or if it carries the right one.
pub(super) async fn check(
    State(api): State<Api>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Some(token) = &api.config.token {
        let given = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()));
        // Compared in constant time: how long it takes says nothing about where they differ.
        if !given.is_some_and(|given| bool::from(given.ct_eq(token.as_bytes()))) {
            return Err(ApiError::new(
                "unauthorized",
                "send the server's token in the header \"Authorization: Bearer …\"",
            ));
        }
    }
    Ok(next.run(request).await)
}

/// The token of a header's value; the scheme's name is not case-sensitive.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bearer_tokens_only() {
        assert_eq!(bearer(b"Bearer abc"), Some(b"abc".as_slice()));
        assert_eq!(bearer(b"bearer abc"), Some(b"abc".as_slice()));
        for wrong in [b"".as_slice(), b"Bearer", b"Basic abc", b"abc"] {
            assert_eq!(bearer(wrong), None);
        }
    }
}
