//! Digests of files outside the store: parameters of type `file`, scripts in a server command.
//!
//! A file is read again only when its stamp changes: inode, size, mtime and ctime. The ctime cannot be set,
//! so a changed byte is detected even if size and mtime are restored. Two kinds of stamps are not trusted:
//! one younger than the granularity of its clock, because the file could change twice within it, and one from
//! the future, because a clock was set back. Each host has its own list, because a path and its inode may differ
//! between hosts. On a file system that hosts share they are the same, so a large file that another host has read is not read
//! again if its stamp is the same.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use mcprl_base::hash::{Digest, Encoder};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreError,
    lease::host,
    tree::{FileStamp, entries, file_digest},
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
    known: Mutex<List>,
    loaded: List,
    /// Folder of the lists.
    folder: PathBuf,
    own: PathBuf,
    elsewhere: OnceLock<BTreeMap<PathBuf, Vec<DigestEntry>>>,
}

/// A file of fewer bytes is read rather than looked up in the lists of other hosts.
const LARGE: u64 = 1 << 20;

type List = BTreeMap<PathBuf, DigestEntry>;

fn list(path: &Path) -> List {
    let bytes = std::fs::read(path).ok();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

impl FileDigests {
    /// Loads the digests of earlier runs. Empty if they cannot be read.
    pub fn load(store: &Store) -> Self {
        let own = path(store);
        let loaded = list(&own);
        let known = Mutex::new(loaded.clone());
        Self { known, loaded, folder: store.tmp(), own, elsewhere: OnceLock::new() }
    }

    /// What another host has found for this stamp. A stamp of whole seconds may be set by whoever builds a read-only image.
    fn elsewhere(&self, path: &Path, stamp: &FileStamp) -> Option<Digest> {
        if stamp.size < LARGE || stamp.ctime % 1_000_000_000 == 0 {
            return None;
        }
        let lists = self.elsewhere.get_or_init(|| {
            let is_list = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                name.starts_with(LISTS) && *path != self.own
            };
            let mut all = BTreeMap::<_, Vec<_>>::new();
            for (path, entry) in
                entries(&self.folder).into_iter().filter(is_list).flat_map(|path| list(&path))
            {
                all.entry(path).or_default().push(entry);
            }
            all
        });
        lists.get(path)?.iter().find(|known| known.stamp == *stamp).map(|known| known.digest)
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
        let digest = self.elsewhere(path, &stamp).map_or_else(|| file_digest(path), Ok)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A store, and a large file that another host has read, with a digest that is not its own.
    fn read_elsewhere() -> (tempfile::TempDir, Store, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("cache")).unwrap();
        store.prepare().unwrap();
        let model = folder.path().join("model");
        std::fs::write(&model, vec![1; 2 << 20]).unwrap();
        let stamp = FileStamp::from(&model.metadata().unwrap());
        let entry = DigestEntry { stamp, digest: Digest::of(b"read elsewhere") };
        let list = serde_json::to_vec(&List::from([(model.clone(), entry)])).unwrap();
        std::fs::write(store.tmp().join(format!("{LISTS}another-host.json")), list).unwrap();
        (folder, store, model)
    }

    #[test]
    fn a_large_file_that_another_host_has_read_is_not_read_again() {
        let (_folder, store, model) = read_elsewhere();
        let digest = || FileDigests::load(&store).digest(&model).unwrap();
        assert_eq!(digest(), Digest::of(b"read elsewhere"));
        std::fs::write(&model, vec![2; 2 << 20]).unwrap();
        assert_eq!(digest(), file_digest(&model).unwrap(), "its stamp is another one");
    }
}
