//! How an object's file comes into being: as a copy of an empty database, put in place whole.
//!
//! Building it with SQLite itself takes some fifteen flushes; this takes two.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use durably::StorageError;
use rusqlite::{Connection, MAIN_DB};

use super::SCHEMA;
use super::errors::{file_error, storage_error};

/// Where the header of a database file says how it is written and read: 2 is a write-ahead log.
const WRITE_VERSION: usize = 18;
const READ_VERSION: usize = 19;
const WAL: u8 = 2;

/// Puts an empty object's file at `path`, durably, unless there is a file already. A crash leaves
/// either none or a whole one.
pub(super) fn create(path: &Path) -> Result<(), StorageError> {
    if path.exists() {
        return Ok(());
    }
    let image = empty_database()?;
    put(path, image).map_err(|error| file_error(&error, path))
}

fn put(path: &Path, image: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    create_folder(folder)?;
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    let mut file = File::create(&fresh)?;
    file.write_all(image)?;
    file.sync_data()?;
    drop(file);
    fs::rename(&fresh, path)?;
    sync_folder(folder)
}

/// Creates a folder and those above it, each durably.
fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent()
        && !above.as_os_str().is_empty()
    {
        create_folder(above)?;
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match folder.parent() {
        Some(above) if !above.as_os_str().is_empty() => sync_folder(above),
        _ => Ok(()),
    }
}

/// Makes the names in a folder durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    // Elsewhere a folder cannot be opened, and renames are durable by themselves.
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// The bytes of a database that holds the host's table and nothing else.
fn empty_database() -> Result<&'static [u8], StorageError> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(image) = IMAGE.get() {
        return Ok(image);
    }
    let build = || -> rusqlite::Result<Vec<u8>> {
        let mut connection = Connection::open_in_memory()?;
        connection.execute_batch("PRAGMA page_size = 4096")?;
        connection.execute_batch(SCHEMA)?;
        let mut image = connection.serialize(MAIN_DB)?.to_vec();
        // A database in memory has no write-ahead log; the header is where a file says that it has.
        image[WRITE_VERSION] = WAL;
        image[READ_VERSION] = WAL;
        Ok(image)
    };
    let image = build().map_err(storage_error)?;
    Ok(IMAGE.get_or_init(|| image))
}
