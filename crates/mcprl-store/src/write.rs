//! Atomic file creation: a killed process never leaves a partial file. Nothing here is synced, and a file
//! system may make a new name durable before its bytes. So files that must survive a power failure are synced
//! in `sync.rs`, and readers validate what they find.

use std::{
    fs::{File, Permissions},
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use rustix::fs::{Access, access};
use tempfile::NamedTempFile;

use super::{Store, StoreError};

/// The outcome of creating a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Created {
    New,
    Exists,
}

/// Checks write permission for a folder without writing. If the folder does not exist, checks its nearest
/// existing ancestor.
pub(super) fn check(folder: &Path) -> Result<(), StoreError> {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let there = absolute.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    access(there, Access::WRITE_OK).map_err(|cause| StoreError::writing(folder, cause.into()))
}

fn staged(store: &Store, bytes: &[u8]) -> Result<NamedTempFile, StoreError> {
    let folder = store.tmp();
    // Default permissions: the folder and the umask decide who may read and write a store.
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(&folder)
        .map_err(|cause| StoreError::writing(&folder, cause))?;
    file.write_all(bytes).map_err(|cause| StoreError::writing(file.path(), cause))?;
    Ok(file)
}

/// A temporary folder, deleted when dropped. Other users may read and clean it up as far as they may the
/// store.
pub fn aside(folder: &Path) -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o777)).tempdir_in(folder)
}

/// Atomically creates `path` with these bytes unless it exists. Not synced.
pub(super) fn create(store: &Store, path: &Path, bytes: &[u8]) -> Result<Created, StoreError> {
    link(&staged(store, bytes)?, path).map_err(|cause| StoreError::writing(path, cause))
}

/// Gives a file this name too, unless the name is taken. Uses a hard link: on NFS, too, exactly one of several concurrent
/// callers succeeds.
pub(super) fn link(file: &NamedTempFile, path: &Path) -> std::io::Result<Created> {
    match std::fs::hard_link(file.path(), path) {
        Ok(()) => Ok(Created::New),
        Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
            // An NFS client that missed the first reply retries, and finds its own link.
            let links = file.as_file().metadata().map_or(1, |metadata| metadata.nlink());
            Ok(if links == 2 { Created::New } else { Created::Exists })
        }
        Err(cause) => Err(cause),
    }
}

/// Makes copies of those files of a folder, or of this file, that have other names elsewhere: they are not to change with them.
pub fn own_files(path: &Path) -> std::io::Result<()> {
    let metadata = path.symlink_metadata()?;
    if metadata.is_dir() {
        return std::fs::read_dir(path)?.try_for_each(|entry| own_files(&entry?.path()));
    }
    if metadata.is_file() && metadata.nlink() > 1 {
        let mut file = tempfile::Builder::new().tempfile_in(path.parent().unwrap_or(path))?;
        std::io::copy(&mut File::open(path)?, &mut file)?;
        file.persist(path)?;
    }
    Ok(())
}

/// Makes a folder's content appear in another one, without copying where the file system has hard links.
pub fn link_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            std::fs::create_dir(&to)?;
            link_tree(&from, &to)?;
        } else if std::fs::hard_link(&from, &to).is_err() {
            std::fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

/// Atomically writes a file with this mode, less the umask: nobody reads a part of it. Not synced.
pub fn replace_file(path: &Path, mode: u32, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(mode)).tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// Atomically writes these bytes to `path`. Not synced: for files that a power failure may lose.
pub(super) fn replace(store: &Store, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let placed = staged(store, bytes)?.persist(path);
    placed.map(drop).map_err(|cause| StoreError::writing(path, cause.error))
}
