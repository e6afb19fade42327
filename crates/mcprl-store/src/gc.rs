//! Garbage collection: removes what no kept run needs, even while other runs are active.
//!
//! Live are: every record of a kept run, and every record that waits for its upload to a shared cache; every
//! artifact that such a record names as output or input, or that is a result of a kept run; and everything
//! younger than the grace window. While any run is active the window
//! is at least an hour, because no record names a newly published artifact yet. Ages are measured by the
//! clock that stamps the store's files.
//!
//! A run may come to need something between the scan and the sweep, even a run that starts in between. So
//! each side first announces what it is about to do, and then checks for the other:
//!
//! | | announces | then checks |
//! |---|---|---|
//! | sweep | that it is running | the journals, the seals and the active runs |
//! | run that found a result | writes its key to the journal | whether a sweep is running |
//! | run that publishes existing bytes | touches the seal | whether a sweep is running |
//! | run that starts or continues | that it is active | whether a sweep is running |
//!
//! In any order, one of the two sees the other: either the sweep spares what was requested, or the run waits
//! until the sweep is over and checks again. What is in use is never missing, not even briefly. A sweep only
//! renames, so the wait is short. The renamed files are deleted afterwards.
//!
//! Between hosts this requires that each sees the other's writes at once. NFS clients may see new names up to
//! a minute late: there, sweep only while no run starts on another host.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use mcprl_base::{error::if_found, hash::Digest};
use serde_json::Value;

use super::{
    ActionRecord, HeartbeatWatch, JOBS, Lease, LeaseOutcome, Store, StoreError, aside,
    files::LISTS,
    record::key_of,
    rows,
    tree::{self, FileStamp, entries, files, folders, modified},
    use_of,
};

/// The minimum grace while a run is active, and always for unfinished results.
const MIN_GRACE: Duration = Duration::from_secs(3600);

/// Name of the lease of a sweep.
const SWEEP: &str = "sweep";

/// One artifact in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub digest: Digest,
    pub files: usize,
    pub bytes: u64,
    /// When it was last published or sealed.
    pub used: Option<SystemTime>,
}

/// What kept runs need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveSet {
    /// Keys of their records. Everything these records name is live.
    pub keys: BTreeSet<Digest>,
    /// Their results. The current record of a key may belong to another run, with other outputs.
    pub artifacts: BTreeSet<Digest>,
}

/// What is not needed, at the time of the scan.
#[derive(Debug, Default)]
pub struct Unreferenced {
    records: Vec<Digest>,
    artifacts: Vec<(Stored, Option<FileStamp>)>,
    /// Withdrawn records, rows of stages that are no longer needed, work folders of dead processes, orphaned
    /// seals.
    leftovers: Vec<PathBuf>,
    runs: Vec<(String, Option<FileStamp>)>,
    /// What is not needed but younger than the grace window.
    young: Spared,
    /// Records that no run needs, and that a shared cache does not have yet.
    queued: usize,
}

/// What a sweep keeps because it is young.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Spared {
    pub records: usize,
    pub artifacts: usize,
    /// Total size of the artifacts.
    pub bytes: u64,
    /// The grace window: `--grace`, or longer while a run is active.
    pub seconds: u64,
}

impl Unreferenced {
    pub fn swept(&self) -> GcReport {
        GcReport {
            runs: self.runs.len(),
            records: self.records.len(),
            artifacts: self.artifacts.len(),
            bytes: self.artifacts.iter().map(|(stored, _)| stored.bytes).sum(),
            leftovers: self.leftovers.len(),
            young: self.young,
            queued: self.queued,
            spared: 0,
        }
    }
}

/// What a sweep removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct GcReport {
    pub runs: usize,
    pub records: usize,
    pub artifacts: usize,
    /// Total size of the artifacts.
    pub bytes: u64,
    pub leftovers: usize,
    /// What is kept although no run needs it.
    pub young: Spared,
    /// Records that are kept although no run needs them, because they wait for their upload to a shared cache.
    pub queued: usize,
    /// Artifacts, records and runs kept because a run requested them in the meantime.
    pub spared: usize,
}

impl Store {
    /// Every artifact, by digest.
    pub fn artifacts(&self) -> Vec<Stored> {
        let mut found: Vec<Stored> = folders(&self.root.join("cas"))
            .iter()
            .flat_map(|shard| folders(shard))
            .filter_map(|folder| {
                let digest: Digest = folder.file_name()?.to_str()?.parse().ok()?;
                let entries = tree::list(&folder).unwrap_or_default();
                let bytes = entries.iter().map(|entry| entry.stamp.size).sum();
                let used = modified(&self.seal_path(&digest)).or_else(|| modified(&folder));
                Some(Stored { digest, files: entries.len(), bytes, used })
            })
            .collect();
        found.sort_by_key(|stored| stored.digest);
        found
    }

    /// Finds what is neither reachable from `keep` nor within the grace window. `runs` are the runs to
    /// remove. Changes nothing.
    ///
    /// # Errors
    /// If a needed record, or the folder of records or of artifacts, cannot be read: what they name would look like
    /// garbage.
    pub fn garbage(
        &self,
        keep: &LiveSet,
        runs: Vec<String>,
        grace: Duration,
    ) -> Result<Unreferenced, StoreError> {
        self.readable()?;
        let live = !self.live_runs().is_empty();
        let window = if live { grace.max(MIN_GRACE) } else { grace };
        let now = self.clock()?;
        let young = |at: Option<SystemTime>, window: Duration| {
            // A timestamp in the future counts as young: a clock was set back.
            at.is_none_or(|at| now.duration_since(at).unwrap_or_default() < window)
        };
        let mut garbage = Unreferenced::default();
        garbage.young.seconds = window.as_secs();
        let queued = self.queued_keys();
        let mut named = keep.artifacts.clone();
        let mut named_by_young = BTreeSet::new();
        for path in files(&self.root.join("ac")) {
            let Some(key) = key_of(&path) else { continue };
            let is_kept = keep.keys.contains(&key);
            if !is_kept
                && queued.contains(&key)
                && let Some(record) = self.record(&key)
            {
                garbage.queued += 1;
                named.extend(references(&record));
                continue;
            }
            if is_kept || (!window.is_zero() && young(modified(&path), window)) {
                let record = self.record(&key);
                if is_kept && record.is_none() && path.exists() {
                    return Err(StoreError::Unreadable { path });
                }
                let references = record.iter().flat_map(references);
                match is_kept {
                    true => named.extend(references),
                    false => {
                        garbage.young.records += 1;
                        named_by_young.extend(references);
                    }
                }
            } else {
                garbage.records.push(key);
            }
        }
        for stored in self.artifacts() {
            if named.contains(&stored.digest) {
                continue;
            }
            let is_young = !window.is_zero() && young(stored.used, window);
            if is_young || named_by_young.contains(&stored.digest) {
                garbage.young.artifacts += 1;
                garbage.young.bytes += stored.bytes;
            } else {
                let seal = stamp(&self.seal_path(&stored.digest));
                garbage.artifacts.push((stored, seal));
            }
        }
        let old = files(&self.root.join("ac/old")).into_iter().filter(|path| !young(modified(path), window));
        garbage.leftovers.extend(old);
        let records: BTreeSet<&Digest> = garbage.records.iter().collect();
        let is_recorded = |key: &Digest| self.record_path(key).exists() && !records.contains(key);
        garbage.leftovers.extend(self.unfinished(&keep.keys, live, &is_recorded, &young));
        garbage.runs = runs.into_iter().map(|id| (id.clone(), stamp(&self.journal(&id)))).collect();
        Ok(garbage)
    }

    /// Checks that the folders of records and artifacts can be listed, if they are there.
    pub(super) fn readable(&self) -> Result<(), StoreError> {
        ["ac", "cas"].iter().try_for_each(|folder| {
            let folder = self.root.join(folder);
            if_found(std::fs::read_dir(&folder)).map(drop).map_err(|cause| StoreError::reading(folder, cause))
        })
    }

    fn unfinished(
        &self,
        keep: &BTreeSet<Digest>,
        live: bool,
        is_recorded: &dyn Fn(&Digest) -> bool,
        young: &dyn Fn(Option<SystemTime>, Duration) -> bool,
    ) -> Vec<PathBuf> {
        let rows = folders(&self.families()).into_iter().flat_map(|family| {
            let (gone, kept): (Vec<PathBuf>, Vec<PathBuf>) = files(&family).into_iter().partition(|path| {
                let needed = |key| {
                    let record = is_recorded(&key).then(|| modified(&self.record_path(&key))).flatten();
                    match path.extension().is_some_and(|extension| extension == "done") {
                        true => record.is_some(),
                        // Rows older than the result are in it.
                        false => {
                            keep.contains(&key) && record.is_none_or(|record| modified(path) > Some(record))
                        }
                    }
                };
                !rows::key(path).is_some_and(needed) && !young(modified(path), MIN_GRACE)
            });
            if kept.is_empty() && !young(modified(&family), MIN_GRACE) { vec![family] } else { gone }
        });
        // A stage may run for longer than any window without touching its folder.
        let work = folders(&self.tmp().join("work")).into_iter().filter(|_| !live);
        // A job may wait or run, or have finished, while no run follows it.
        let jobs = folders(&self.jobs()).into_iter().filter(|path| {
            let key = path.file_name().and_then(|name| name.to_str()?.split('-').next()?.parse().ok());
            let written = newest(path);
            let needed = |key: Digest| {
                let recorded = is_recorded(&key).then(|| modified(&self.record_path(&key))).flatten();
                keep.contains(&key) && recorded.is_none_or(|recorded| written > Some(recorded))
            };
            !live && !key.is_some_and(needed) && !young(written, MIN_GRACE)
        });
        let others = entries(&self.tmp()).into_iter().filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            !["work", JOBS].contains(&name) && !name.starts_with(LISTS) && !young(modified(path), MIN_GRACE)
        });
        rows.chain(work).chain(jobs).chain(others.filter(|_| !live)).chain(self.dead_leases()).collect()
    }

    /// Removes garbage, except for what was requested since the scan. `needed` returns what all runs need
    /// except those to be removed.
    ///
    /// # Errors
    /// The error of `needed`, before anything is removed; or if something cannot be moved.
    pub fn sweep(
        &self,
        garbage: Unreferenced,
        needed: &dyn Fn(&BTreeSet<String>) -> Result<LiveSet, StoreError>,
    ) -> Result<GcReport, StoreError> {
        let trash = aside(&self.tmp()).map_err(|cause| StoreError::writing(self.tmp(), cause))?;
        let mut watch = HeartbeatWatch::default();
        let lease = loop {
            match self.request_lease(SWEEP, "", "", &mut watch)? {
                LeaseOutcome::Mine(lease) => break lease,
                LeaseOutcome::Taken { .. } if self.is_leased(SWEEP) => return Err(StoreError::Sweeping),
                // Killed on another host. The watch says when it is sure.
                LeaseOutcome::Taken { .. } => std::thread::sleep(Duration::from_millis(250)),
            }
        };
        let path = self.announcement();
        std::fs::write(&path, b"").map_err(|cause| StoreError::writing(&path, cause))?;
        let announced = SweepAnnouncement { path, _lease: lease };

        let found = garbage.swept();
        let garbage = self.still_unneeded(garbage, needed)?;
        let mut swept = garbage.swept();
        swept.spared =
            found.runs + found.records + found.artifacts - swept.runs - swept.records - swept.artifacts;
        let mut count = 0;
        let mut away = |path: &Path| {
            count += 1;
            let moved = if_found(std::fs::rename(path, trash.path().join(count.to_string())));
            moved.map(drop).map_err(|cause| StoreError::writing(path, cause))
        };
        garbage.runs.iter().try_for_each(|(id, _)| away(&self.runs().join(id)))?;
        garbage.records.iter().try_for_each(|key| away(&self.record_path(key)))?;
        for (stored, _) in &garbage.artifacts {
            away(&self.artifact(&stored.digest))?;
            away(&self.seal_path(&stored.digest))?;
        }
        garbage.leftovers.iter().try_for_each(|path| away(path))?;
        drop(announced);

        let folder = trash.path().to_owned();
        trash.close().map_err(|cause| StoreError::writing(folder, cause))?;
        Ok(swept)
    }

    /// The part of the garbage that is still not needed.
    fn still_unneeded(
        &self,
        mut garbage: Unreferenced,
        needed: &dyn Fn(&BTreeSet<String>) -> Result<LiveSet, StoreError>,
    ) -> Result<Unreferenced, StoreError> {
        let live = self.live_runs();
        if !live.is_empty() {
            // Unfinished results that had no owner may belong to a new run by now.
            let (tmp, rows) = (self.tmp(), self.families());
            garbage.leftovers.retain(|path| !path.starts_with(&tmp) && !path.starts_with(&rows));
        }
        let is_live = |id: &String| live.contains(id) || live.contains(&use_of(id));
        garbage.runs.retain(|(id, before)| !is_live(id) && stamp(&self.journal(id)) == *before);
        let mut now = needed(&garbage.runs.iter().map(|(id, _)| id.clone()).collect())?;
        now.keys.extend(self.queued_keys());
        let (wanted, records): (Vec<_>, Vec<_>) =
            garbage.records.into_iter().partition(|key| now.keys.contains(key));
        garbage.records = records;
        let wanted = wanted.iter().filter_map(|key| self.record(key));
        let mut artifacts: BTreeSet<Digest> = wanted.flat_map(|record| references(&record)).collect();
        artifacts.extend(now.artifacts);
        garbage.artifacts.retain(|(stored, seal)| {
            !artifacts.contains(&stored.digest) && stamp(&self.seal_path(&stored.digest)) == *seal
        });
        Ok(garbage)
    }

    fn announcement(&self) -> PathBuf {
        self.root.join("leases").join("sweeping")
    }

    /// Waits until no sweep is running. Called after announcing what the caller needs.
    pub fn after_sweep(&self) {
        while self.announcement().exists() && self.is_leased(SWEEP) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn journal(&self, run: &str) -> PathBuf {
        self.runs().join(run).join("journal.jsonl")
    }
}

/// Announces a running sweep until dropped.
struct SweepAnnouncement {
    path: PathBuf,
    _lease: Lease,
}

impl Drop for SweepAnnouncement {
    fn drop(&mut self) {
        // A leftover file announces nothing: its lease has ended.
        _ = std::fs::remove_file(&self.path);
    }
}

/// Artifacts that a record names: its stage's outputs and inputs.
fn references(record: &ActionRecord) -> Vec<Digest> {
    let inputs = record.fields.get("inputs").and_then(Value::as_object).into_iter().flatten();
    let inputs = inputs.filter_map(|(_, inputs)| inputs.as_array()).flatten();
    let inputs = inputs.filter_map(|input| input.get("digest")?.as_str()?.parse().ok());
    inputs.chain(record.outputs.values().map(|output| output.digest)).collect()
}

/// When something in a folder was last written.
fn newest(folder: &Path) -> Option<SystemTime> {
    let inner = folders(folder).into_iter().filter_map(|folder| newest(&folder));
    inner.chain(entries(folder).iter().filter_map(|path| modified(path))).chain(modified(folder)).max()
}

fn stamp(path: &Path) -> Option<FileStamp> {
    path.metadata().ok().map(|metadata| FileStamp::from(&metadata))
}
