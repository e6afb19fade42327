//! Copies results between stores and verifies every byte.
//!
//! An export is a store with the same layout: it can be packed with any archiver, used as a cache
//! (`--cache`), or imported elsewhere. Artifacts are published like those of a stage: written to a temporary
//! folder, hashed, synced, renamed. One whose hash does not match its name is rejected.

use std::path::Path;

use mcprl_base::hash::Digest;

use super::{CachedResult, Recorded, Store, StoreError, aside, tree};

/// The outcome of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct CopyReport {
    pub records: usize,
    pub artifacts: usize,
    pub bytes: u64,
    /// Artifacts that already existed.
    pub present: usize,
    /// Keys with other outputs in the target, which are kept.
    pub differs: Vec<Digest>,
    /// Keys whose record or artifacts are missing in the source.
    pub missing: Vec<Digest>,
}

impl Store {
    /// Opens an existing store.
    pub fn existing(root: impl Into<std::path::PathBuf>) -> Result<Self, StoreError> {
        let store = Self::open(root)?;
        if store.root().join("version").is_file() {
            Ok(store)
        } else {
            Err(StoreError::NotAStore { root: store.root })
        }
    }

    /// Copies the results of a run under these keys into another store: records, and the artifacts they name
    /// as outputs.
    pub fn copy_into(
        &self,
        other: &Store,
        results: &[(Digest, &CachedResult)],
    ) -> Result<CopyReport, StoreError> {
        other.prepare()?;
        let mut copied = CopyReport::default();
        for (key, result) in results {
            if !self.has_artifacts(&result.outputs) {
                copied.missing.push(*key);
                continue;
            }
            let record = self.result(key, result);
            for output in record.outputs.values() {
                match self.copy_artifact(other, &output.digest)? {
                    Some(bytes) => {
                        copied.artifacts += 1;
                        copied.bytes += bytes;
                    }
                    None => copied.present += 1,
                }
            }
            match other.commit(&record)? {
                Recorded::New | Recorded::Same => copied.records += 1,
                // The run has its own result. The stage has rerun since, and both stores have the new one.
                Recorded::Differs { existing, .. }
                    if self.record(key).is_some_and(|here| here.outputs == existing.outputs) => {}
                Recorded::Differs { .. } => copied.differs.push(*key),
            }
        }
        Ok(copied)
    }

    /// Returns its size, or none if it already existed.
    pub fn copy_artifact(&self, other: &Store, digest: &Digest) -> Result<Option<u64>, StoreError> {
        if other.retain(digest)? {
            return Ok(None);
        }
        let folder = self.artifact(digest);
        let entries = match tree::list(&folder) {
            Ok(entries) => entries,
            Err(_) if !folder.exists() => return Err(StoreError::Absent { digest: digest.short() }),
            Err(cause) => return Err(cause),
        };
        let writing = |path: &Path, cause| StoreError::writing(path, cause);
        let staged = aside(&other.tmp()).map_err(|cause| writing(&other.tmp(), cause))?;
        let inner = staged.path().join("artifact");
        std::fs::create_dir(&inner).map_err(|cause| writing(&inner, cause))?;
        for entry in &entries {
            let (from, to) = (folder.join(&entry.path), inner.join(&entry.path));
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent).map_err(|cause| writing(parent, cause))?;
            }
            std::fs::copy(&from, &to).map_err(|cause| writing(&to, cause))?;
        }
        // Checked before anything is published under an unknown name.
        if tree::digest(&inner, &tree::list(&inner)?)? != *digest {
            let (root, digest) = (self.root().to_owned(), digest.short());
            return Err(StoreError::Corrupt { root, digest });
        }
        other.publish(&inner)?;
        Ok(Some(entries.iter().map(|entry| entry.stamp.size).sum()))
    }
}
