//! Files that appear whole or not at all, whatever kills the process. Nothing here is synced: a file system may make a
//! new name durable before the bytes it names, so what must outlive a power cut is settled (`settle.rs`), and what is
//! read after one is checked.

use std::{
    fs::Permissions,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use rustix::fs::{Access, access};

use super::{Store, StoreError};

/// What became of a file that should be created.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Created {
    New,
    Exists,
}

/// Whether nothing speaks against writing to a folder, as far as that can be told without doing so: to the nearest above
/// it, where it is not there yet.
pub(super) fn check(folder: &Path) -> Result<(), StoreError> {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let there = absolute.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    access(there, Access::WRITE_OK).map_err(|cause| StoreError::writing(folder, cause.into()))
}

fn staged(store: &Store, bytes: &[u8]) -> Result<tempfile::NamedTempFile, StoreError> {
    let folder = store.tmp();
    // What other files get: who may read and write a store is decided by its folder and the umask.
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(&folder)
        .map_err(|cause| StoreError::writing(&folder, cause))?;
    file.write_all(bytes).map_err(|cause| StoreError::writing(file.path(), cause))?;
    Ok(file)
}

/// A folder aside, gone when dropped, that others may look into and clean up as far as they may the store.
pub fn aside(folder: &Path) -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o777)).tempdir_in(folder)
}

/// Creates `path` with these bytes, whole, unless it exists. Not synced.
pub(super) fn create(store: &Store, path: &Path, bytes: &[u8]) -> Result<Created, StoreError> {
    let file = staged(store, bytes)?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(Created::New),
        Err(cause) if cause.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(Created::Exists),
        Err(cause) => Err(StoreError::writing(path, cause.error)),
    }
}

/// Creates `path` with these bytes, whole, unless it exists. Not synced. By a hard link, which an NFS server, too, makes
/// for one of several askers alone.
pub(super) fn link(store: &Store, path: &Path, bytes: &[u8]) -> Result<Created, StoreError> {
    let file = staged(store, bytes)?;
    match std::fs::hard_link(file.path(), path) {
        Ok(()) => Ok(Created::New),
        Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
            // An NFS client that missed the first answer asks again, and finds its own link.
            let links = file.as_file().metadata().map_or(1, |metadata| metadata.nlink());
            Ok(if links == 2 { Created::New } else { Created::Exists })
        }
        Err(cause) => Err(StoreError::writing(path, cause)),
    }
}

/// Puts these bytes at `path`, whole. Not synced: for what may be lost with the power, never torn by a kill.
pub(super) fn replace(store: &Store, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let file = staged(store, bytes)?;
    file.persist(path).map_err(|cause| StoreError::writing(path, cause.error))?;
    Ok(())
}
