//! The holder on the virtual host.

mod arbitrary;
mod limits;
mod messages;
mod setup;
mod waiting;
