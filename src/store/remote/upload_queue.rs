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

use super::{Pushed, Remote, RemoteLocation, Traffic};
use crate::{
    hash::{Digest, Encoder},
    store::{Lookup, Store, StoreError},
};

/// Pause after a failed push, for runs that have nothing else to do.
const PAUSE: Duration = Duration::from_secs(60);
const PLACE: &str = "place";

/// The outcome of pushing the queue.
#[derive(Debug, Default)]
pub struct DrainReport {
    pub pushed: usize,
    pub bytes: u64,
    /// The remote already had the same results.
    pub present: usize,
    /// The remote has other results under these keys. Both sides keep theirs.
    pub differs: usize,
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
    pub fn upload_queue(&self, place: &RemoteLocation) -> UploadQueue {
        self.queue_for(place.to_string())
    }

    fn queue_for(&self, place: String) -> UploadQueue {
        let id = Encoder::new("mcprl remote name v1").text(&place).finish().short();
        UploadQueue { folder: self.root().join("unpushed").join(id), place }
    }

    /// The queue of every remote that results were to be pushed to, even if it is empty.
    pub fn upload_queues(&self) -> Vec<UploadQueue> {
        let items = std::fs::read_dir(self.root().join("unpushed")).into_iter().flatten().flatten();
        let places = items.filter_map(|item| std::fs::read_to_string(item.path().join(PLACE)).ok());
        let mut all: Vec<UploadQueue> = places.map(|place| self.queue_for(place)).collect();
        all.sort_by(|one, other| one.place.cmp(&other.place));
        all
    }
}

impl UploadQueue {
    /// Queues a result before it is pushed.
    pub fn add(&self, key: &Digest) -> Result<(), StoreError> {
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
    pub fn remove(&self, key: &Digest) {
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
        since.is_none_or(|since| since > PAUSE) && !self.keys().is_empty()
    }

    /// Records a failed push.
    pub fn pause(&self) {
        _ = std::fs::write(self.folder.join("failed"), "");
    }
}

impl Remote {
    /// Pushes queued results until all are pushed, the remote is unavailable, or `stop` returns true.
    pub fn push_queued(&self, store: &Store, stop: &dyn Fn() -> bool) -> Result<DrainReport, StoreError> {
        let mut report = DrainReport::default();
        let queue = store.upload_queue(&self.spec.place);
        for key in queue.keys() {
            if stop() || !self.spec.push || !self.state().writing.is_open() {
                break;
            }
            let Lookup::Hit(record) = store.lookup(&key) else {
                // Removed since, or rerun.
                queue.remove(&key);
                continue;
            };
            let before = self.traffic().pushed_bytes;
            let pushed = match self.push(store, &record, false) {
                // A sweep removed it in the meantime, because nobody declared its use.
                Err(_) if !matches!(store.lookup(&key), Lookup::Hit(_)) => continue,
                pushed => pushed?,
            };
            report.bytes += self.traffic().pushed_bytes - before;
            match pushed {
                Pushed::Done => report.pushed += 1,
                Pushed::Differs { .. } => report.differs += 1,
                Pushed::Nothing if self.state().writing.is_open() => report.present += 1,
                Pushed::Nothing => {}
                Pushed::Away(cause) => report.away = Some(cause),
            }
        }
        if !self.state().writing.is_open() {
            queue.pause();
        }
        Ok(report)
    }

    /// Whether pushing is enabled, results are queued, and no push failed recently.
    pub fn is_due(&self, store: &Store) -> bool {
        self.spec.push && store.upload_queue(&self.spec.place).is_due()
    }

    pub fn traffic_and_queue(&self, store: &Store) -> Traffic {
        Traffic { queued: self.count_queued(store), ..self.traffic() }
    }

    /// The number of queued results.
    pub fn count_queued(&self, store: &Store) -> usize {
        if self.spec.push { store.upload_queue(&self.spec.place).keys().len() } else { 0 }
    }
}
