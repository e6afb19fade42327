//! The local store: artifacts by content, action records by key, leases, and half-done work.
//!
//! | folder | holds |
//! |---|---|
//! | `cas/ab/<digest>/` | one artifact: the file, or the folder's content, that one output of a stage wrote |
//! | `cas/ab/<digest>.seal` | size, inode and times of its files when they were last hashed |
//! | `ac/<key>.json` | what the stage with this key wrote: digests of its outputs, its metrics, the fields of the key |
//! | `ac/old/` | records set aside because their stage was worked anew |
//! | `ac/last/<run name>.json` | the newest key of each stage, for explaining reruns; nothing else depends on it |
//! | `ac/last/<run name>.run` | the newest finished run, and the keys it came to |
//! | `ac/last/<run name>.stat_cache` | its results with the stamps of their files, so that a look at them reads nothing else |
//! | `leases/<key>.<epoch>.json` | who works on this key now |
//! | `leases/run-*.json` | which runs are at work |
//! | `runs/` | journals, one folder per run |
//! | `unpushed/` | which results the shared caches do not have yet |
//! | `quarantine/` | damaged artifacts and records that `verify` took out of use |
//! | `rows/<family>/` | finished rows of interrupted stages, and what later ones may take over |
//! | `tmp/` | work in progress, digests of files outside the store |
//!
//! Invariants:
//! - Nothing under `cas/` or `ac/` is ever seen half-written: it is written under `tmp/`, then renamed. Sealed is what is
//!   durable as well; what a power cut may have torn has no seal, and is hashed before it is believed.
//! - A record is created if absent and never overwritten; a second writer with other outputs is told so.
//! - An artifact is trusted by its seal and hashed again when the seal does not fit; a damaged one is a miss, not an error.
//! - PromptTokens a store and looking into it writes nothing.

mod cas;
mod error;
mod failpoint;
mod files;
mod gc;
mod last;
mod lease;
mod record;
mod remote;
mod rows;
mod stat_cache;
mod sync;
#[cfg(test)]
mod tests;
mod transfer;
mod tree;
mod verify;
mod write;

use std::path::{Path, PathBuf};

pub use cas::{Condition, UnsyncedArtifact};
pub use error::StoreError;
pub use failpoint::{die, failpoint, reached};
pub use files::FileDigests;
pub use gc::{GcReport, LiveSet, Stored, Unreferenced, Young};
pub use last::{KeyIndex, LastRun};
pub use lease::{HeartbeatWatch, Holder, Lease, LeaseAttempt};
pub use record::{ActionRecord, Cost, Lookup, Output, Recorded};
pub use remote::{
    DrainReport, Fetched, NotAPlace, Pushed, Remote, RemotePlace, RemoteSpec, Traffic, UploadQueue,
};
pub use rows::{FamilyRows, Remainder, RowLog};
pub use stat_cache::{CachedResult, StatCache, TOLD};
pub use sync::Syncer;
pub use transfer::CopyReport;
pub use verify::{Damage, VerifyReport};
pub use write::aside;

/// Layout of the folders above. A store with a higher number is left alone.
const VERSION: u32 = 1;

/// A store at a folder that may not exist yet.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Looks at the store under `root` without writing to it. An absent folder is an empty store.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        let path = root.join("version");
        match std::fs::read_to_string(&path) {
            // As a power cut may leave it that came soon after.
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

    /// Creates the folders, so that work can begin.
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

    /// Whether nothing speaks against writing to the store, as far as that can be told without doing so.
    ///
    /// # Errors
    /// As [`Store::prepare`] would give.
    pub fn check_writable(&self) -> Result<(), StoreError> {
        [self.root.clone(), self.tmp()].iter().try_for_each(|folder| write::check(folder))
    }

    /// Whether the store can be written.
    pub fn probe(&self) -> Result<(), StoreError> {
        let file = tempfile::tempfile_in(self.tmp());
        file.map(drop).map_err(|cause| StoreError::writing(self.tmp(), cause))
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the journals are.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }
}

fn is_blank(text: &str) -> bool {
    text.chars().all(|letter| letter.is_whitespace() || letter == '\0')
}
