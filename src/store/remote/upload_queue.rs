//! Results that a remote does not have yet: one empty file per key, `unpushed/<digest of the remote's
//! name>/<key>`. The file `place` there holds the name itself.
//!
//! A key is queued before the push and removed once the remote has the result, so neither an unreachable
//! remote nor a kill loses one. Losing an entry costs a push, no result. There are never more entries than
//! records.

use std::{
    io::ErrorKind,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use super::{Pushed, Remote, RemotePlace};
use crate::{
    hash::{Digest, Encoder},
    store::{Lookup, Store, StoreError},
};

/// Pause after a failed push, for runs that have nothing else to do.
const REST: Duration = Duration::from_secs(60);
const PLACE: &str = "place";

/// The outcome of pushing the queue.
#[derive(Debug, Default)]
pub struct DrainReport {
    pub given: usize,
    pub bytes: u64,
    /// The remote already had the same results.
    pub there: usize,
    /// The remote has other results under these keys. Both sides keep theirs.
    pub differing: usize,
    /// Why the rest is still queued.
    pub away: Option<StoreError>,
}

/// The queue of one remote.
pub struct UploadQueue {
    folder: PathBuf,
    /// The remote's name from the run file.
    pub place: String,
}

impl Store {
    pub fn waiting(&self, place: &RemotePlace) -> UploadQueue {
        self.waiting_for(place.to_string())
    }

    fn waiting_for(&self, place: String) -> UploadQueue {
        let id = Encoder::new("mcprl remote name v1").text(&place).finish().short();
        UploadQueue { folder: self.root().join("unpushed").join(id), place }
    }

    /// The queue of every remote that results were to be pushed to, even if it is empty.
    pub fn all_waiting(&self) -> Vec<UploadQueue> {
        let items = std::fs::read_dir(self.root().join("unpushed")).into_iter().flatten().flatten();
        let places = items.filter_map(|item| std::fs::read_to_string(item.path().join(PLACE)).ok());
        let mut all: Vec<UploadQueue> = places.map(|place| self.waiting_for(place)).collect();
        all.sort_by(|one, other| one.place.cmp(&other.place));
        all
    }
}

impl UploadQueue {
    /// Queues a result before it is pushed.
    pub fn note(&self, key: &Digest) -> Result<(), StoreError> {
        let path = self.folder.join(key.to_string());
        let create = || std::fs::File::create(&path).map(drop);
        let first = || {
            std::fs::create_dir_all(&self.folder)?;
            std::fs::write(self.folder.join(PLACE), &self.place)?;
            create()
        };
        create().or_else(|_| first()).map_err(|cause| StoreError::writing(path, cause))
    }

    /// Removes a result that the remote has, or will never get.
    pub fn forget(&self, key: &Digest) {
        _ = std::fs::remove_file(self.folder.join(key.to_string()));
    }

    /// Deletes the queue, so that this store no longer knows the remote.
    ///
    /// # Errors
    /// If the folder cannot be removed.
    pub fn drop_all(&self) -> Result<(), StoreError> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                Err(StoreError::writing(&self.folder, cause))
            }
            _ => Ok(()),
        }
    }

    pub fn keys(&self) -> Vec<Digest> {
        let items = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut keys: Vec<Digest> =
            items.filter_map(|item| item.file_name().to_str()?.parse().ok()).collect();
        keys.sort();
        keys
    }

    /// Whether the queue has entries and no push failed recently.
    pub fn is_due(&self) -> bool {
        let failed = std::fs::metadata(self.folder.join("failed")).and_then(|failed| failed.modified());
        let since = failed.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        since.is_none_or(|since| since > REST) && !self.keys().is_empty()
    }

    /// Records a failed push.
    pub fn rest(&self) {
        _ = std::fs::write(self.folder.join("failed"), "");
    }
}

impl Remote {
    /// Pushes queued results until all are pushed, the remote is unavailable, or `stop` returns true.
    pub fn push_waiting(&self, store: &Store, stop: &dyn Fn() -> bool) -> Result<DrainReport, StoreError> {
        let mut handed = DrainReport::default();
        let waiting = store.waiting(&self.spec.place);
        for key in waiting.keys() {
            if stop() || !self.spec.push || !self.state().writing.is_open() {
                break;
            }
            let Lookup::Hit(record) = store.lookup(&key) else {
                // Removed since, or rerun.
                waiting.forget(&key);
                continue;
            };
            let before = self.traffic().pushed_bytes;
            let pushed = match self.push(store, &record, false) {
                // A sweep removed it in the meantime, because nobody declared its use.
                Err(_) if !matches!(store.lookup(&key), Lookup::Hit(_)) => continue,
                pushed => pushed?,
            };
            handed.bytes += self.traffic().pushed_bytes - before;
            match pushed {
                Pushed::Done => handed.given += 1,
                Pushed::Differs { .. } => handed.differing += 1,
                Pushed::Nothing if self.state().writing.is_open() => handed.there += 1,
                Pushed::Nothing => {}
                Pushed::Away(cause) => handed.away = Some(cause),
            }
        }
        if !self.state().writing.is_open() {
            waiting.rest();
        }
        Ok(handed)
    }

    /// Whether pushing is enabled, results are queued, and no push failed recently.
    pub fn is_due(&self, store: &Store) -> bool {
        self.spec.push && store.waiting(&self.spec.place).is_due()
    }

    /// The number of queued results.
    pub fn count_waiting(&self, store: &Store) -> usize {
        if self.spec.push { store.waiting(&self.spec.place).keys().len() } else { 0 }
    }
}
