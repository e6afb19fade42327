//! What a folder holds: its files in one order, their stamps, and one digest over names, lengths and bytes.
//!
//! The digest does not see owners, permissions, times or empty folders.

use std::{
    fs::{File, Metadata},
    os::unix::fs::MetadataExt,
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::hash::{Digest, Encoder};

/// What the file system says of a file without reading it. Changing the bytes changes the stamp: `ctime` cannot be set back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub size: u64,
    pub inode: u64,
    /// Nanoseconds since the epoch.
    pub mtime: i128,
    pub ctime: i128,
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            size: metadata.size(),
            inode: metadata.ino(),
            mtime: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            ctime: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// One file of a folder, by its path relative to the folder, with `/` between names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub path: String,
    pub stamp: Stamp,
}

/// All files under `folder`, sorted by path.
pub fn list(folder: &Path) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::new();
    descend(folder, "", &mut entries)?;
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

fn descend(folder: &Path, prefix: &str, entries: &mut Vec<Entry>) -> Result<(), StoreError> {
    let reading = |cause| StoreError::reading(folder, cause);
    for item in std::fs::read_dir(folder).map_err(reading)? {
        let item = item.map_err(reading)?;
        let name = item.file_name();
        let Some(name) = name.to_str() else { return Err(StoreError::Name { path: item.path() }) };
        let path = format!("{prefix}{name}");
        let metadata = item.metadata().map_err(|cause| StoreError::reading(item.path(), cause))?;
        if metadata.is_dir() {
            descend(&item.path(), &format!("{path}/"), entries)?;
        } else if metadata.is_file() {
            entries.push(Entry { path, stamp: Stamp::from(&metadata) });
        } else {
            return Err(StoreError::Special { path: item.path() });
        }
    }
    Ok(())
}

/// The digest of these files, read whole.
pub fn digest(folder: &Path, entries: &[Entry]) -> Result<Digest, StoreError> {
    let mut encoder = Encoder::new("mcprl artifact v1");
    encoder.number(entries.len() as u64);
    for entry in entries {
        let content = file_digest(&folder.join(&entry.path))?;
        encoder.text(&entry.path).number(entry.stamp.size).digest(&content);
    }
    Ok(encoder.finish())
}

/// The digest of one file's bytes.
pub fn file_digest(path: &Path) -> Result<Digest, StoreError> {
    let mut hasher = blake3::Hasher::new();
    File::open(path)
        .and_then(|file| hasher.update_reader(file).map(|_| ()))
        .map_err(|cause| StoreError::reading(path, cause))?;
    Ok(Digest::from_bytes(*hasher.finalize().as_bytes()))
}
