//! The outbox on the virtual host.

mod channels;
mod deliveries;
mod refusals;
mod support;
