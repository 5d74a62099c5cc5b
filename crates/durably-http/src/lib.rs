//! What requests and answers of the HTTP API look like: `docs/http.md`, as types and functions of texts.
//!
//! Decided here: how bodies and queries are read, how they are refused, and how outcomes are told. Who serves
//! them - `durably serve`, or a worker on Cloudflare - and what becomes of them is not known here, so
//! that both answer alike by the same code.

mod body;
pub mod budget;
pub mod endpoint;
mod error;
pub mod job;
pub mod topology;

pub use body::{BodyKind, body_too_large, kind, not_json_kind, parse, parse_object, parse_query};
pub use error::ApiError;
