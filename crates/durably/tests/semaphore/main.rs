//! The holder on the virtual host.

mod arbitrary;
mod ephemeral;
mod limits;
mod messages;
mod operators;
mod setup;
mod waiting;
