//! Where a stage writes its unpublished files.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::{
    error::Result,
    hash::Digest,
    plan::absolute,
    store::{Store, StoreError, aside},
};

/// A temporary folder for one try at a stage. Each try has its own, since programs left by a killed run may
/// still write into theirs.
pub struct WorkDir(TempDir);

impl WorkDir {
    /// The caller holds the key's lease, so any files here are abandoned, or belong to a run whose lease
    /// expired.
    pub fn new(store: &Store, key: &Digest) -> Result<Self> {
        let folder = absolute(&store.root().join("tmp/work").join(key.to_string()));
        if folder.exists() {
            // A leftover program may be writing right now; the next try removes the rest.
            _ = std::fs::remove_dir_all(&folder);
        }
        let writing = |cause| StoreError::writing(&folder, cause);
        std::fs::create_dir_all(&folder).map_err(writing)?;
        let work_dir = Self(aside(&folder).map_err(writing)?);
        for folder in [work_dir.out(), work_dir.scratch()] {
            std::fs::create_dir(&folder).map_err(|cause| StoreError::writing(folder, cause))?;
        }
        Ok(work_dir)
    }

    pub fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    pub fn scratch(&self) -> PathBuf {
        self.0.path().join("scratch")
    }

    pub fn port(&self, port: &str) -> Result<PathBuf> {
        let folder = self.0.path().join("ports").join(port);
        std::fs::create_dir_all(&folder).map_err(|cause| StoreError::writing(&folder, cause))?;
        Ok(folder)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // Nothing in it is needed. Sibling folders belong to a run that took over after this one's lease
        // expired.
        _ = std::fs::remove_dir_all(self.0.path());
        if let Some(folder) = self.0.path().parent() {
            _ = std::fs::remove_dir(folder);
        }
    }
}
