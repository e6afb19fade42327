//! What runs leave on disk: the tables of a run ([`data`]), and the local store of all results. It knows neither stages nor servers, and
//! not what an artifact means.
//!
//! The store has artifacts by content, action records by key, leases, and unfinished results.
//!
//! | folder | holds |
//! |---|---|
//! | `cas/ab/<digest>/` | one artifact: the file, or the folder's content, that one output of a stage wrote |
//! | `cas/ab/<digest>.seal` | size, inode and times of its files when they were last hashed |
//! | `ac/<key>.json` | result of the stage with this key: output digests, metrics, fields of the key |
//! | `ac/old/` | records set aside because their stage reran |
//! | `ac/last/<run name>.json` | newest key of each stage, only for explaining reruns |
//! | `ac/last/<run name>.run` | id of the last finished run |
//! | `ac/draws/<key>` | number of the newest draw of a sample that was drawn again; no sweep removes it |
//! | `leases/<key>.<epoch>.json` | which process executes this key now |
//! | `leases/run-*.json` | which runs are active |
//! | `runs/` | journals, one folder per run |
//! | `labels/` | what people say about episodes, one table per run; no sweep removes it |
//! | `unpushed/` | which results the shared caches do not have yet |
//! | `quarantine/` | damaged artifacts and records that `verify` removed |
//! | `rows/<family>/` | rows of interrupted stages, and rows that later stages can reuse |
//! | `submitted/` | scripts and logs of whole runs that are jobs; no sweep removes them |
//! | `tmp/` | temporary files, digests of files outside the store; `tmp/jobs/` has those of jobs |
//!
//! Invariants:
//! - Files under `cas/` and `ac/` are never visible half-written: they are written under `tmp/`, then
//!   renamed. A sealed artifact is also durable. One that a power failure may have torn has no seal, and is
//!   hashed before use.
//! - A record is created if absent and never overwritten. A second writer with other outputs gets
//!   [`Recorded::Differs`].
//! - An artifact is trusted if its seal fits, and hashed again otherwise. A damaged one is a miss, not an
//!   error.
//! - Opening or reading a store writes nothing.

mod cas;
pub mod data;
mod error;
mod failpoint;
mod file_lock;
mod files;
mod gc;
mod last;
mod lease;
mod record;
mod remote;
mod rows;
mod sync;
#[cfg(test)]
mod tests;
mod transfer;
mod tree;
mod verify;
mod write;

use std::path::{Path, PathBuf};

pub use cas::{Condition, Output, UnsyncedArtifact};
pub use error::StoreError;
pub use failpoint::{die, failpoint, reached};
pub use file_lock::FileLock;
pub use files::FileDigests;
pub use gc::{GcReport, LiveSet};
pub use last::KeyIndex;
pub use lease::{HeartbeatWatch, Holder, Lease, LeaseOutcome, token, use_of};
pub use record::{ActionRecord, CachedResult, Cost, DRAW, Lookup, Recorded, SERVER_NAME};
pub use remote::{
    DrainReport, Fetched, InvalidRemote, Pushed, QueueScope, Remote, RemoteLocation, RemoteSpec, Traffic,
    UploadQueue,
};
pub use rows::{Remainder, RowLog};
pub use sync::Syncer;
pub use transfer::CopyReport;
pub use tree::tree_digest;
pub use verify::Damage;
pub use write::{aside, link_tree, own_files, replace_file};

/// Version of the folder layout. A store with a higher number is not opened.
const VERSION: u32 = 1;

const JOBS: &str = "jobs";

/// A store at a folder that may not exist yet.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Opens the store under `root` without writing to it. An absent folder is an empty store.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        let path = root.join("version");
        match std::fs::read_to_string(&path) {
            // A power failure soon after creation can leave the file blank.
            Ok(text) if is_blank(&text) => {}
            Ok(text) => match text.trim().parse::<u32>() {
                Ok(found) if found <= VERSION => {}
                _ => return Err(StoreError::Version { root, found: text.trim().into(), known: VERSION }),
            },
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
            Err(cause) if cause.kind() == std::io::ErrorKind::NotADirectory => {
                return Err(StoreError::NotAFolder { root });
            }
            Err(cause) => return Err(StoreError::reading(path, cause)),
        }
        Ok(Self { root })
    }

    /// Creates the folders of the store.
    pub fn prepare(&self) -> Result<(), StoreError> {
        for folder in ["cas", "ac/last", "leases", "runs", "tmp"] {
            let folder = self.root.join(folder);
            std::fs::create_dir_all(&folder).map_err(|cause| StoreError::writing(folder, cause))?;
        }
        let ignore = self.root.join(".gitignore");
        if !ignore.exists() {
            write::replace(self, &ignore, b"*\n!.gitignore\n")?;
        }
        let version = self.root.join("version");
        if std::fs::read_to_string(&version).is_ok_and(|text| is_blank(&text)) || !version.exists() {
            write::replace(self, &version, format!("{VERSION}\n").as_bytes())?;
        }
        Ok(())
    }

    /// Checks permissions without writing. A later write can still fail.
    ///
    /// # Errors
    /// The error that [`Store::prepare`] would return.
    pub fn check_writable(&self) -> Result<(), StoreError> {
        [self.root.clone(), self.tmp()].iter().try_for_each(|folder| write::check(folder))
    }

    /// Checks that the store can be written, by creating a temporary file.
    pub fn probe(&self) -> Result<(), StoreError> {
        let file = tempfile::tempfile_in(self.tmp());
        file.map(drop).map_err(|cause| StoreError::writing(self.tmp(), cause))
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the journals.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// The folders of jobs that run stages elsewhere.
    pub fn jobs(&self) -> PathBuf {
        self.tmp().join(JOBS)
    }

    /// The folders of whole runs that are jobs.
    pub fn submitted(&self) -> PathBuf {
        self.root.join("submitted")
    }

    fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }
}

fn is_blank(text: &str) -> bool {
    text.chars().all(|letter| letter.is_whitespace() || letter == '\0')
}
