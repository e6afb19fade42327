//! Where a stage writes what is not published yet.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::{
    error::Result,
    hash::Digest,
    store::{Store, StoreError, aside},
};

/// A folder for one try at a stage, gone afterwards. Its own for each try, for a killed run may leave programs behind
/// that still write into theirs.
pub struct WorkDir(TempDir);

impl WorkDir {
    /// The caller holds the key's lease: what lies here is nobody's, or of one who was taken for dead.
    pub fn new(store: &Store, key: &Digest) -> Result<Self> {
        let folder = absolute(store.root().join("tmp/work").join(key.to_string()));
        if folder.exists() {
            // A program left behind may write at this moment; the rest is removed next time.
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
        // Nothing of it is wanted any more. What lies beside it is another's, who took this one for dead.
        _ = std::fs::remove_dir_all(self.0.path());
        if let Some(folder) = self.0.path().parent() {
            _ = std::fs::remove_dir(folder);
        }
    }
}

/// A path that holds in any working folder.
pub fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}
