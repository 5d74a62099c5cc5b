//! An object that is nothing but a shelf.

use std::rc::Rc;

use super::Shelf;
use crate::error::BoxError;
use crate::host::{Host, LocalFuture, Object};
use crate::scheduler::{Scheduler, SchedulerConfig};

/// An object that keeps published groups and does nothing else.
pub struct ShelfObject {
    scheduler: Scheduler,
    shelf: Shelf,
}

impl Object for ShelfObject {
    const CLASS: &'static str = "topology-shelf";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

impl ShelfObject {
    /// Opens the object of `host`.
    ///
    /// # Errors
    ///
    /// What [`Scheduler::open`] answers.
    pub async fn open(host: Rc<dyn Host>) -> Result<Self, BoxError> {
        let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
        let shelf = Shelf::new(&scheduler)?;
        scheduler.open().await?;
        Ok(ShelfObject { scheduler, shelf })
    }

    /// What it keeps.
    pub fn shelf(&self) -> Shelf {
        self.shelf.clone()
    }
}
