//! Topologies: coordinators and members as objects, and what is published, for everybody.
//!
//! [`classes`] are the halves of the classes; [`asked`] which requests a coordinator takes, [`coordinator`] the
//! object behind them, [`way`] its way to members; [`member`] an object that applies what it is told; [`entry`]
//! the stateless half, which reads what is published without asking a coordinator; [`store`] where that
//! is. Their half in JavaScript is `worker/topology.js`.

mod asked;
mod classes;
mod coordinator;
pub mod entry;
mod member;
mod settings;
mod store;
mod watch;
mod way;
