//! The host of `durably` on Cloudflare: each object is a Durable Object with SQLite.
//!
//! A class of a worker holds a `DurableInstance` and hands it the calls and alarms that the platform
//! delivers; `docs/cloudflare.md` shows one, and how it is built and tested. What an object decides
//! and stores is the matter of `durably`; how commits reach a disk, and which machine an object is
//! on, is the platform's.
//!
//! All of it is there on wasm32 alone. Elsewhere only the plain functions that the host is made of
//! are, for their tests.

#[cfg(any(test, target_arch = "wasm32"))]
mod errors;
#[cfg(any(test, target_arch = "wasm32"))]
mod numbers;
#[cfg(any(test, target_arch = "wasm32"))]
mod parameters;

pub mod publishers;

#[cfg(target_arch = "wasm32")]
mod bindings;
#[cfg(target_arch = "wasm32")]
mod counters;
#[cfg(target_arch = "wasm32")]
mod host;
#[cfg(target_arch = "wasm32")]
mod instance;
#[cfg(target_arch = "wasm32")]
mod javascript;
#[cfg(target_arch = "wasm32")]
mod logs;
#[cfg(target_arch = "wasm32")]
mod object;
#[cfg(target_arch = "wasm32")]
mod storage;
#[cfg(target_arch = "wasm32")]
mod stubs;
#[cfg(target_arch = "wasm32")]
mod timer;

#[cfg(target_arch = "wasm32")]
pub use bindings::BindingError;
#[cfg(target_arch = "wasm32")]
pub use counters::Counters;
#[cfg(target_arch = "wasm32")]
pub use instance::CallError;
#[cfg(target_arch = "wasm32")]
pub use javascript::exception_text;
#[cfg(target_arch = "wasm32")]
pub use logs::log_to_console;
#[cfg(target_arch = "wasm32")]
pub use object::DurableInstance;
#[cfg(target_arch = "wasm32")]
pub use stubs::{ObjectStubs, StubError, holder_refusal, holder_stubs};
#[cfg(target_arch = "wasm32")]
pub use timer::WorkerTimer;
