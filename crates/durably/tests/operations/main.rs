//! Durable calls on the virtual host.

mod attempts;
mod chaos;
mod deaths;
mod endings;
mod running;
mod support;
