//! The data folder: one process owns it, and the file limit allows what is asked of it.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::Path;

use crate::error::SystemError;

/// Files per open object: the database and its write-ahead log, and a folder while it is created.
const FILES_PER_OBJECT: usize = 3;

/// Files that the process needs besides objects.
const OTHER_FILES: usize = 256;

/// Creates the folder if need be and locks it for as long as the returned file lives. The operating
/// system lets go of the lock when the process dies, however it dies.
pub(crate) fn lock(folder: &Path) -> Result<File, SystemError> {
    let unusable = |source| SystemError::Folder {
        folder: folder.to_owned(),
        source,
    };
    fs::create_dir_all(folder).map_err(unusable)?;
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join("lock"))
        .map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(SystemError::FolderLocked(folder.to_owned()));
        }
        Err(TryLockError::Error(source)) => return Err(unusable(source)),
    }
    // For people who look for the owner; nothing depends on it.
    let owner = format!("{}\n", std::process::id());
    file.set_len(0)
        .and_then(|()| file.write_all(owner.as_bytes()))
        .map_err(unusable)?;
    Ok(file)
}

/// Raises the limit on open files and returns how many objects may then be open, at most `wanted`.
pub(crate) fn objects_within_file_limit(wanted: usize) -> usize {
    let Some(files) = raise_file_limit() else {
        return wanted;
    };
    let allowed = (files.saturating_sub(OTHER_FILES) / FILES_PER_OBJECT).max(1);
    if allowed < wanted {
        tracing::warn!(
            wanted,
            allowed,
            files,
            "the limit on open files allows fewer open objects than configured: raise it (ulimit -n)"
        );
    }
    allowed.min(wanted)
}

/// The limit on open files after raising it as far as it goes; none if there is no limit.
#[cfg(unix)]
fn raise_file_limit() -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(_) => limit.current,
    };
    current.map(|files| usize::try_from(files).unwrap_or(usize::MAX))
}

#[cfg(not(unix))]
fn raise_file_limit() -> Option<usize> {
    None
}
