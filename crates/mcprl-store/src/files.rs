//! Digests of files outside the store: parameters of type `file`, scripts in a server command.
//!
//! A file is read again only when its stamp changes: inode, size, mtime and ctime. The ctime cannot be set,
//! so a changed byte is detected even if size and mtime are restored. Two kinds of stamps are not trusted:
//! one younger than the granularity of its clock, because the file could change twice within it, and one from
//! the future, because a clock was set back. Each host has its own list, because a path and its inode differ
//! between hosts.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use mcprl_base::hash::{Digest, Encoder};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreError,
    lease::host,
    tree::{FileStamp, file_digest},
    write,
};

/// Timestamp granularity: `COARSE` for file systems that store whole seconds or milliseconds, `FINE` for
/// others, whose timestamps advance with a timer tick.
const COARSE: Duration = Duration::from_secs(2);
const FINE: Duration = Duration::from_millis(25);

/// Minimum age of a stamp so that a later change gets a different one.
fn grain(stamp: &FileStamp) -> Duration {
    if stamp.ctime % 1_000_000 == 0 { COARSE } else { FINE }
}

/// File name prefix of the lists of all hosts.
pub(super) const LISTS: &str = "files-";

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct DigestEntry {
    stamp: FileStamp,
    digest: Digest,
}

/// Digests by path, remembered between runs.
pub struct FileDigests {
    known: Mutex<BTreeMap<PathBuf, DigestEntry>>,
    loaded: BTreeMap<PathBuf, DigestEntry>,
}

impl FileDigests {
    /// Loads the digests of earlier runs. Empty if they cannot be read.
    pub fn load(store: &Store) -> Self {
        let bytes = std::fs::read(path(store)).ok();
        let loaded: BTreeMap<_, _> =
            bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { known: Mutex::new(loaded.clone()), loaded }
    }

    /// The digest of the file's bytes now.
    pub fn digest(&self, path: &Path) -> Result<Digest, StoreError> {
        let reading = |cause| StoreError::reading(path, cause);
        let metadata = std::fs::metadata(path).map_err(reading)?;
        let stamp = FileStamp::from(&metadata);
        let mut known = self.known.lock();
        if let Some(known) = known.get(path).filter(|known| known.stamp == stamp) {
            return Ok(known.digest);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let digest = file_digest(path)?;
        let changed = u64::try_from(stamp.ctime).map(Duration::from_nanos).unwrap_or_default();
        if now.checked_sub(changed).is_some_and(|age| age > grain(&stamp)) {
            known.insert(path.to_owned(), DigestEntry { stamp, digest });
        }
        Ok(digest)
    }

    /// The digest of the wanted files directly in a folder and one level below. Names of subfolders end with
    /// `/` when passed to `wanted`.
    pub fn folder(&self, folder: &Path, wanted: fn(&str) -> bool) -> Result<Digest, StoreError> {
        let mut names = Vec::new();
        let mut open = vec![String::new()];
        while let Some(prefix) = open.pop() {
            let place = folder.join(&prefix);
            let reading = |cause| StoreError::reading(&place, cause);
            for item in std::fs::read_dir(&place).map_err(reading)? {
                let item = item.map_err(reading)?;
                let name = format!("{prefix}{}", item.file_name().to_string_lossy());
                if wanted(&name) && item.path().is_file() {
                    names.push(name);
                } else if prefix.is_empty() && wanted(&format!("{name}/")) && item.path().is_dir() {
                    open.push(format!("{name}/"));
                }
            }
        }
        names.sort();
        let mut encoder = Encoder::new("mcprl outside folder v1");
        for name in &names {
            let digest = self.digest(&folder.join(name))?;
            encoder.text(name).text(&digest.to_string());
        }
        Ok(encoder.finish())
    }

    /// Saves the digests for the next run.
    pub fn save(&self, store: &Store) -> Result<(), StoreError> {
        let known = self.known.lock();
        if *known == self.loaded {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&*known).unwrap_or_default();
        write::replace(store, &path(store), &bytes)
    }
}

pub(super) fn path(store: &Store) -> PathBuf {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let host: String = host().chars().map(plain).collect();
    store.tmp().join(format!("{LISTS}{host}.json"))
}
