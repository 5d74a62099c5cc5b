//! Copies of a whole database in memory, and going back to one: what restoring a file from an older
//! copy does to an object on disk.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use durably::StorageError;
use rusqlite::{Connection, MAIN_DB};

use super::errors::storage_error;
use super::{Alarm, Database, Settings};

impl Database {
    /// What is committed, as the bytes of a file, for [`restored`](Self::restored).
    ///
    /// # Errors
    ///
    /// What SQLite answers.
    pub fn image(&mut self) -> Result<Vec<u8>, StorageError> {
        // SQLite counts its pages with a statement of its own.
        self.host_speaks.store(true, Relaxed);
        let image = self.connection.serialize(MAIN_DB).map(|data| data.to_vec());
        self.host_speaks.store(false, Relaxed);
        image.map_err(storage_error)
    }

    /// A database in memory with what this one held when `image` was made; what came since is gone.
    ///
    /// # Errors
    ///
    /// What SQLite answers.
    pub fn restored(self, image: &[u8], settings: &Settings) -> Result<Database, StorageError> {
        let open = || {
            let mut connection = Connection::open_in_memory()?;
            connection.deserialize_read_exact(MAIN_DB, image, image.len(), false)?;
            Ok(connection)
        };
        let connection = open().map_err(storage_error)?;
        let mut database = Database::set_up(connection, None, &self.class, &self.name, settings)?;
        // An alarm that went off before is none of those that are set from now on.
        let alarm = Alarm {
            at: database.alarm(),
            setting: self.committed.get().setting + 1,
        };
        database.committed = Cell::new(alarm);
        database.staged.set(alarm);
        Ok(database)
    }
}
