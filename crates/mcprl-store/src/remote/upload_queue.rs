//! Results that a remote does not have yet: one file per key, `unpushed/<digest of the remote's name>/<key>`,
//! with the number of failed pushes; an empty file means none. The file `place` there holds the name itself.
//!
//! A key is queued before the push and removed once the remote has the result, so neither an unreachable
//! remote nor a kill loses one. A sweep keeps queued results (`gc.rs`). Losing an entry costs a push, no
//! result. There are never more entries than records.
//!
//! A result that cannot be pushed does not keep others from it: those with fewer failures come first, the one
//! whose last try is the longest ago first of all, and one failure does not end a drain. A failure counts
//! against a result if the same drain can push another one; otherwise it is the remote's. Runs then try the
//! result again only after a pause, which each failure doubles. `mcprl cache push` tries all.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use mcprl_base::{
    error::if_found,
    hash::{Digest, Encoder},
};

use super::{PushFailure, Pushed, Remote, RemoteLocation, Traffic};
use crate::{Lookup, Store, StoreError};

/// Pause after a failed push, of the result and for runs that have nothing else to do.
const PAUSE: Duration = Duration::from_secs(60);
/// Longest pause of a result.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);
/// This many failures in a row end a drain: then it is the remote that fails.
const FAILURES_IN_A_ROW: usize = 2;
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
    /// Why a result is still queued: the first failure.
    pub away: Option<StoreError>,
}

/// Which queued results to push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueScope {
    /// Those that did not fail recently.
    Due,
    All,
}

/// A queued result. In the order of pushing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueuedResult {
    pub failures: u32,
    /// When it was queued, or tried last.
    since: SystemTime,
    pub key: Digest,
}

impl QueuedResult {
    fn is_due(&self) -> bool {
        let pause = match self.failures {
            0 => Duration::ZERO,
            failures => PAUSE.saturating_mul(1 << (failures - 1).min(20)).min(LONGEST_PAUSE),
        };
        // A time in the future: a clock was set back.
        self.since.elapsed().map_or(true, |since| since >= pause)
    }
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

    /// The keys of all results that wait for their upload to any remote.
    pub(crate) fn queued_keys(&self) -> BTreeSet<Digest> {
        self.upload_queues().iter().flat_map(UploadQueue::keys).collect()
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
    /// Queues a result before it is pushed. One that is queued keeps its failures.
    pub fn add(&self, key: &Digest) -> Result<(), StoreError> {
        let path = self.path(key);
        let create = || std::fs::File::options().create(true).append(true).open(&path).map(drop);
        let first = || {
            std::fs::create_dir_all(&self.folder)?;
            std::fs::write(self.folder.join(PLACE), &self.place)?;
            create()
        };
        create().or_else(|_| first()).map_err(|cause| StoreError::writing(path, cause))
    }

    /// Removes a result that the remote has, or will never get.
    pub fn remove(&self, key: &Digest) {
        _ = std::fs::remove_file(self.path(key));
    }

    /// Records that a queued result was tried in vain: others come first now.
    pub(super) fn postpone(&self, key: &Digest) {
        self.write(key, self.failures(key));
    }

    /// Records that a queued result cannot be pushed although others can.
    pub(super) fn failed(&self, key: &Digest) {
        self.write(key, self.failures(key).saturating_add(1));
    }

    fn write(&self, key: &Digest, failures: u32) {
        _ = std::fs::write(self.path(key), failures.to_string());
    }

    fn failures(&self, key: &Digest) -> u32 {
        let text = std::fs::read_to_string(self.path(key)).ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn path(&self, key: &Digest) -> PathBuf {
        self.folder.join(key.to_string())
    }

    /// Deletes the queue, so that this store no longer knows the remote.
    ///
    /// # Errors
    /// If the folder cannot be removed.
    pub fn drop_all(&self) -> Result<(), StoreError> {
        let removed = if_found(std::fs::remove_dir_all(&self.folder));
        removed.map(drop).map_err(|cause| StoreError::writing(&self.folder, cause))
    }

    pub fn keys(&self) -> Vec<Digest> {
        let items = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut keys: Vec<Digest> =
            items.filter_map(|item| item.file_name().to_str()?.parse().ok()).collect();
        keys.sort();
        keys
    }

    /// The results to push, in this order.
    pub(super) fn queued(&self, scope: QueueScope) -> Vec<QueuedResult> {
        let queued = |key: Digest| {
            let since = std::fs::metadata(self.path(&key)).and_then(|file| file.modified()).ok()?;
            Some(QueuedResult { failures: self.failures(&key), since, key })
        };
        let mut queued: Vec<QueuedResult> = self.keys().into_iter().filter_map(queued).collect();
        queued.retain(|queued| scope == QueueScope::All || queued.is_due());
        queued.sort();
        queued
    }

    /// Whether a result is due and the remote did not fail recently.
    pub fn is_due(&self) -> bool {
        let failed = std::fs::metadata(self.folder.join("failed")).and_then(|failed| failed.modified());
        let since = failed.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        since.is_none_or(|since| since > PAUSE) && !self.queued(QueueScope::Due).is_empty()
    }

    /// Records that the remote failed.
    pub fn pause(&self) {
        _ = std::fs::write(self.folder.join("failed"), "");
    }
}

impl Remote {
    /// Pushes queued results until all were tried, the remote fails, or `stop` returns true.
    pub fn push_queued(&self, store: &Store, scope: QueueScope, stop: &dyn Fn() -> bool) -> DrainReport {
        let mut report = DrainReport::default();
        let queue = store.upload_queue(&self.spec.place);
        if !self.spec.push || !self.state().writing.allows() {
            return report;
        }
        let mut is_alive = false;
        // The newest failures in a row: of these results, or of the remote.
        let mut failed: Vec<Digest> = Vec::new();
        for QueuedResult { key, .. } in queue.queued(scope) {
            if stop() || failed.len() == FAILURES_IN_A_ROW {
                break;
            }
            let Lookup::Hit(record) = store.lookup(&key) else {
                // Removed since, or rerun.
                queue.remove(&key);
                continue;
            };
            let before = self.traffic().pushed_bytes;
            let pushed = self.try_push(store, &record, false);
            report.bytes += self.traffic().pushed_bytes - before;
            match pushed {
                Ok(pushed) => {
                    is_alive = true;
                    failed.drain(..).for_each(|key| queue.failed(&key));
                    match pushed {
                        Pushed::Done => report.pushed += 1,
                        Pushed::Differs { .. } => report.differs += 1,
                        Pushed::Nothing | Pushed::Away(_) => report.present += 1,
                    }
                }
                // A sweep removed it in the meantime, because nobody declared its use.
                Err(_) if !matches!(store.lookup(&key), Lookup::Hit(_)) => {}
                Err(PushFailure::Local(cause)) => {
                    queue.failed(&key);
                    report.away = report.away.or(Some(cause));
                }
                Err(PushFailure::Remote(cause)) => {
                    failed.push(key);
                    report.away = report.away.or(cause);
                }
            }
        }
        if is_alive {
            failed.iter().for_each(|key| queue.failed(key));
        }
        if !self.state().writing.allows() {
            queue.pause();
        }
        report
    }

    /// Whether pushing is enabled, a result is due, and the remote did not fail recently.
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
