//! A host of durable objects for tests: virtual time, storage in memory, crashes on demand, and the
//! same run every time.
//!
//! A [`World`] is a clock and an executor; a [`VirtualObject`] is an object in it, with storage that
//! outlives its instances. Nothing happens but by the world's own methods, and nothing sleeps:
//! [`World::block_on`] moves the clock to the next timer when nothing else is left to do,
//! [`World::advance`] moves it by a given time.
//!
//! ```
//! use std::rc::Rc;
//! use std::time::Duration;
//!
//! use durably::error::BoxError;
//! use durably::host::{Host, LocalFuture, Object};
//! use durably::StorageError;
//! use durably_sim::{Alarms, World};
//!
//! struct Counter {
//!     host: Rc<dyn Host>,
//! }
//!
//! impl Counter {
//!     async fn open(host: Rc<dyn Host>) -> Result<Rc<Self>, BoxError> {
//!         host.transaction(|transaction| {
//!             transaction.script("CREATE TABLE IF NOT EXISTS counted (at INTEGER NOT NULL) STRICT")
//!         })
//!         .await?;
//!         Ok(Rc::new(Counter { host }))
//!     }
//!
//!     /// Counts now, and again in a second by the alarm.
//!     async fn count(self: Rc<Self>) -> Result<u64, StorageError> {
//!         let now = self.host.now();
//!         let counted = self.host.transaction(move |transaction| {
//!             transaction.execute("INSERT INTO counted VALUES (?)", &[now.into()])?;
//!             transaction.set_alarm(Some(now + Duration::from_secs(1)))?;
//!             let sql = transaction.sql();
//!             sql.first("SELECT count(*) FROM counted", &[], |row| row.count(0))
//!         });
//!         Ok(counted.await?.unwrap_or(0))
//!     }
//! }
//!
//! impl Object for Counter {
//!     const CLASS: &'static str = "counter";
//!
//!     fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
//!         Box::pin(async move {
//!             self.count().await?;
//!             Ok(())
//!         })
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let world = World::new(1_000_000);
//! let counter = world.object("a", Alarms::Automatic, Counter::open);
//! assert_eq!(world.block_on(counter.call(Counter::count))??, 1);
//! counter.crash();
//! world.advance(Duration::from_secs(10));
//! assert_eq!(world.block_on(counter.call(Counter::count))??, 12);
//! assert_eq!(counter.alarm(), Some(world.now() + Duration::from_secs(1)));
//! # Ok(())
//! # }
//! ```
//!
//! Tests that drive the alarm themselves say [`Alarms::Manual`] and use
//! [`VirtualObject::fire_alarm`].

mod chaos;
mod clock;
mod executor;
pub mod fuzz;
mod host;
mod node;
mod object;
#[cfg(feature = "deliberate-bugs")]
pub mod proof;
mod random;
pub mod replay;
pub mod simulation;

pub use clock::Sleep;
pub use executor::{Step, World};
pub use host::{VirtualHost, VirtualStorage};
pub use node::Node;
pub use object::{Alarms, CallError, VirtualObject};
