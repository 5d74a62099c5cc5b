//! The holder on the virtual host.

mod limits;
mod messages;
mod setup;
