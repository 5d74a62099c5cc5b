//! Reading bodies: of the right kind, within bounds of size and time.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use durably_http::{ApiError, BodyKind, body_too_large, not_json_kind};

/// How long a body may take to arrive, so that slow senders cannot hold requests open for ever.
const ARRIVAL: Duration = Duration::from_secs(30);

/// How much more of a body that is too large is taken in, and for how long: a client that is still
/// sending when the connection closes does not see the answer.
const LINGER_BYTES: usize = 1 << 20;
const LINGER: Duration = Duration::from_millis(500);

/// The kind of a body by its content type.
pub(super) fn kind(headers: &HeaderMap) -> Option<BodyKind> {
    let value = headers.get(header::CONTENT_TYPE);
    durably_http::kind(value.and_then(|value| value.to_str().ok()))
}

/// Reads a whole JSON body of at most `limit` bytes.
pub(super) async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, ApiError> {
    if kind(headers) != Some(BodyKind::Json) {
        return Err(not_json_kind());
    }
    collect(headers, body, |_| limit).await
}

/// Reads a body that may have `limit_for(first byte that is no white space)` bytes.
pub(super) async fn collect(
    headers: &HeaderMap,
    body: Body,
    limit_for: impl Fn(u8) -> usize,
) -> Result<Bytes, ApiError> {
    let declared = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<usize>().ok());
    let mut chunks = body.into_data_stream();
    let gathering = gather(&mut chunks, declared, limit_for);
    match tokio::time::timeout(ARRIVAL, gathering).await {
        Ok(Err(error)) if error.code == "body_too_large" => {
            // Whatever comes of it, the answer is the same.
            let _ = tokio::time::timeout(LINGER, discard(&mut chunks)).await;
            Err(error)
        }
        Ok(gathered) => gathered,
        Err(_) => Err(ApiError::new(
            "body_too_slow",
            format!(
                "the body took longer than {} s to arrive",
                ARRIVAL.as_secs()
            ),
        )),
    }
}

async fn gather(
    chunks: &mut BodyDataStream,
    declared: Option<usize>,
    limit_for: impl Fn(u8) -> usize,
) -> Result<Bytes, ApiError> {
    let mut limit = None;
    let mut collected = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::new("malformed_request", format!("the body broke off: {error}"))
        })?;
        collected.extend_from_slice(&chunk);
        if limit.is_none() {
            let first = collected.iter().find(|byte| !byte.is_ascii_whitespace());
            limit = first.map(|byte| limit_for(*byte));
        }
        // White space alone is bounded like anything else.
        let bound = limit.unwrap_or_else(|| limit_for(b' '));
        if collected.len().max(declared.unwrap_or(0)) > bound {
            return Err(body_too_large(bound));
        }
    }
    Ok(collected.freeze())
}

async fn discard(chunks: &mut BodyDataStream) {
    let mut discarded = 0;
    while discarded < LINGER_BYTES
        && let Some(Ok(chunk)) = chunks.next().await
    {
        discarded += chunk.len();
    }
}
