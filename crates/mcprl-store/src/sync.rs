//! Makes results durable: syncs the files and folders of several results together, then writes their seals.
//!
//! A sync costs one journal commit, some milliseconds, for one file or for many: concurrent syncs share a
//! commit. So a run does not wait for the five syncs of each result. A background thread syncs results in
//! batches, and the run ends when the last batch is done. Consequences:
//!
//! - A killed process loses nothing: the kernel has the names and bytes.
//! - After a power failure, results that were not synced may be lost, torn, or present without the artifacts
//!   they name. They have no seal, so the next lookup hashes them, and a torn one is a miss.
//! - A run reports that it finished once everything is synced. Until then the stages it reports as done may
//!   be a few results ahead of the disk.

use std::{
    collections::BTreeSet,
    fs::File,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};

use mcprl_base::hash::Digest;
use parking_lot::Mutex;

use super::{ActionRecord, Remainder, RowLog, Store, StoreError, UnsyncedArtifact, failpoint};

/// Concurrent syncs. The file system may serve them with one commit.
const AT_ONCE: usize = 16;

impl Store {
    /// Syncs artifacts and records, and seals the artifacts.
    pub fn sync(&self, placed: &[UnsyncedArtifact], records: &[Digest]) -> Result<(), StoreError> {
        let mut paths = BTreeSet::new();
        for UnsyncedArtifact { digest, seal } in placed {
            let Some(seal) = seal else { continue };
            let folder = self.artifact(digest);
            paths.extend(seal.paths(&folder));
            // The directory entries of the artifact and of the folder it is in.
            paths.extend(folder.ancestors().skip(1).take(2).map(Path::to_owned));
        }
        // A record may be missing: another run withdrew it.
        let records: Vec<PathBuf> = records.iter().map(|key| self.record_path(key)).collect();
        paths.extend(records.iter().filter_map(|path| Some(path.parent()?.to_owned())));
        let certain = paths.into_iter().map(|path| (path, Presence::Certain));
        let likely = records.into_iter().map(|path| (path, Presence::Likely));
        sync_all(&certain.chain(likely).collect::<Vec<_>>())?;
        for UnsyncedArtifact { digest, seal } in placed {
            if let Some(seal) = seal {
                failpoint("sync::synced");
                self.write_seal(digest, seal)?;
            }
        }
        Ok(())
    }
}

/// Whether a file must exist when it is synced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Certain,
    Likely,
}

fn sync_all(paths: &[(PathBuf, Presence)]) -> Result<(), StoreError> {
    let sync =
        |(path, presence): &(PathBuf, Presence)| match File::open(path).and_then(|file| file.sync_all()) {
            Err(cause) if cause.kind() == ErrorKind::NotFound && *presence == Presence::Likely => Ok(()),
            synced => synced.map_err(|cause| StoreError::writing(path, cause)),
        };
    if let [path] = paths {
        return sync(path);
    }
    let crashed = || StoreError::writing("the cache", std::io::Error::other("a thread that synced crashed"));
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), StoreError> {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            sync(path)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE.min(paths.len())).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(crashed())))
    })
}

/// A finished stage whose result is not durable yet.
struct PendingSync {
    stage: String,
    record: ActionRecord,
    placed: Vec<UnsyncedArtifact>,
    rows: Option<Ending>,
}

/// The row log of a stage, and what to keep of it once the result is durable.
type Ending = (Arc<RowLog>, Remainder);

type SyncTask = JoinHandle<Vec<SyncFailure>>;

/// Syncs the results of a run on a background thread, which starts with the first result.
pub struct Syncer {
    store: Store,
    task: Mutex<Option<(mpsc::Sender<PendingSync>, SyncTask)>>,
}

/// A stage whose result could not be made durable, and why.
pub type SyncFailure = (String, StoreError);

impl Syncer {
    pub fn new(store: &Store) -> Self {
        Self { store: store.clone(), task: Mutex::default() }
    }

    /// Queues a result that is in place, with its record as it was entered or found. Returns at once.
    pub fn submit(
        &self,
        stage: &str,
        record: &ActionRecord,
        placed: Vec<UnsyncedArtifact>,
        rows: Option<Ending>,
    ) {
        let mut task = self.task.lock();
        let (queue, _) = task.get_or_insert_with(|| {
            let (queue, results) = mpsc::channel();
            let store = self.store.clone();
            (queue, std::thread::spawn(move || sync_queued(&store, &results)))
        });
        _ = queue.send(PendingSync { stage: stage.to_owned(), record: record.clone(), placed, rows });
    }

    /// Waits until every queued result is synced. Returns the failed ones, whose records were set aside.
    pub fn finish(&self) -> Vec<SyncFailure> {
        let task = self.task.lock().take();
        let Some((queue, thread)) = task else { return Vec::new() };
        drop(queue);
        thread.join().unwrap_or_default()
    }
}

fn sync_queued(store: &Store, results: &mpsc::Receiver<PendingSync>) -> Vec<SyncFailure> {
    let mut failed = Vec::new();
    while let Ok(first) = results.recv() {
        let mut round = vec![first];
        // All results queued during the round before.
        round.extend(results.try_iter());
        let keys: Vec<Digest> = round.iter().map(|result| result.record.key).collect();
        let (mut placed, mut stages) = (Vec::new(), Vec::new());
        for result in round {
            placed.extend(result.placed);
            stages.push((result.stage, result.record, result.rows));
        }
        if store.sync(&placed, &keys).is_ok() {
            stages.into_iter().for_each(|(_, _, rows)| end(rows));
            continue;
        }
        // Sync one by one to find which failed.
        for (stage, record, rows) in stages {
            let outputs: BTreeSet<Digest> = record.outputs.values().map(|output| output.digest).collect();
            let own = |placed: &&UnsyncedArtifact| outputs.contains(&placed.digest);
            let one = placed.iter().filter(own);
            let synced = one.map(std::slice::from_ref).try_for_each(|placed| store.sync(placed, &[]));
            match synced.and_then(|()| store.sync(&[], &[record.key])) {
                Ok(()) => end(rows),
                Err(cause) => {
                    _ = store.withdraw_own(&record);
                    failed.push((stage, cause));
                }
            }
        }
    }
    failed
}

/// A failure is ignored: leftover rows do no harm and the next sweep removes them.
fn end(rows: Option<Ending>) {
    if let Some((log, remainder)) = rows {
        _ = log.end(remainder);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::{Condition, Cost, Lookup, Output, Recorded};

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("cache")).unwrap();
        store.prepare().unwrap();
        (folder, store)
    }

    fn placed(store: &Store, text: &str) -> (UnsyncedArtifact, ActionRecord) {
        let staged = tempfile::tempdir_in(store.tmp()).unwrap().keep();
        std::fs::write(staged.join("a"), text).unwrap();
        let placed = store.place(&staged).unwrap();
        let record = ActionRecord {
            key: Digest::of(text.as_bytes()),
            stage: "stage".into(),
            fields: json!({}),
            outputs: BTreeMap::from([("out".into(), Output { digest: placed.digest, file: None })]),
            metrics: BTreeMap::new(),
            cost: Cost::default(),
            notes: Vec::new(),
            run: None,
            withheld: false,
        };
        assert_eq!(store.enter(&record).unwrap(), Recorded::New);
        (placed, record)
    }

    #[test]
    fn a_result_is_found_at_once_and_sealed_once_it_is_durable() {
        let (_folder, store) = store();
        let syncer = Syncer::new(&store);
        let results: Vec<_> = (0..40).map(|number| placed(&store, &number.to_string())).collect();
        let mut records = Vec::new();
        for (placed, record) in results {
            assert_eq!(store.lookup(&record.key), Lookup::Hit(record.clone()));
            assert_eq!(store.inspect(&placed.digest), Condition::Unsealed);
            syncer.submit("stage", &record, vec![placed], None);
            records.push(record);
        }
        assert!(syncer.finish().is_empty());
        for record in records {
            assert_eq!(store.inspect(&record.outputs["out"].digest), Condition::Sealed);
        }
    }

    #[test]
    fn a_result_torn_by_a_power_failure_before_it_was_synced_is_a_miss() {
        let (_folder, store) = store();
        let (placed, record) = placed(&store, "whole");
        // A file system may truncate bytes that were never synced.
        let path = store.artifact(&placed.digest).join("a");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(matches!(store.lookup(&record.key), Lookup::Damaged { .. }));
    }

    #[test]
    fn only_a_result_that_cannot_be_synced_is_reported_and_withdrawn() {
        let (_folder, store) = store();
        let syncer = Syncer::new(&store);
        let (lost, lost_record) = placed(&store, "lost");
        let (kept, kept_record) = placed(&store, "kept");
        std::fs::remove_dir_all(store.artifact(&lost.digest)).unwrap();
        syncer.submit("lost", &lost_record, vec![lost], None);
        syncer.submit("kept", &kept_record, vec![kept], None);
        let failed: Vec<_> = syncer.finish().into_iter().map(|(stage, _)| stage).collect();
        assert_eq!(failed, ["lost"]);
        assert_eq!(store.lookup(&lost_record.key), Lookup::Miss);
        assert_eq!(store.lookup(&kept_record.key), Lookup::Hit(kept_record));
    }

    #[test]
    fn a_record_that_another_run_withdrew_is_no_failure_and_its_replacement_is_kept() {
        let (_folder, store) = store();
        let syncer = Syncer::new(&store);
        let (withdrawn, record) = placed(&store, "withdrawn");
        store.withdraw(&record.key).unwrap();
        syncer.submit("withdrawn", &record, vec![withdrawn], None);

        let (lost, lost_record) = placed(&store, "lost");
        let (_, other) = placed(&store, "other");
        store.withdraw(&lost_record.key).unwrap();
        let replacement = ActionRecord { key: lost_record.key, ..other };
        store.enter(&replacement).unwrap();
        std::fs::remove_dir_all(store.artifact(&lost.digest)).unwrap();
        syncer.submit("lost", &lost_record, vec![lost], None);

        let failed: Vec<_> = syncer.finish().into_iter().map(|(stage, _)| stage).collect();
        assert_eq!(failed, ["lost"]);
        assert_eq!(store.lookup(&replacement.key), Lookup::Hit(replacement));
    }
}
