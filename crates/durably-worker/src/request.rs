//! A request as JavaScript hands it over: texts.

use durably_http::{ApiError, BodyKind, body_too_large, kind, not_json_kind};
/// The longest body of a request that sets something.
const MAX_BODY_BYTES: usize = 128 << 10;

/// A request, or what of it concerns the object that it is for.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Decoded parts of the path.
    pub(crate) path: Vec<String>,
    /// What follows the question mark.
    pub(crate) query: String,
    /// `content-type`; what the worker's own objects ask has none.
    pub(crate) content_type: Option<String>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn path(&self) -> Vec<&str> {
        self.path.iter().map(String::as_str).collect()
    }

    /// The body of a request that sets something.
    pub(crate) fn json(&self) -> Result<&[u8], ApiError> {
        if kind(self.content_type.as_deref()) != Some(BodyKind::Json) {
            return Err(not_json_kind());
        }
        if self.body.len() > MAX_BODY_BYTES {
            return Err(body_too_large(MAX_BODY_BYTES));
        }
        Ok(self.body.as_bytes())
    }
}
