//! Results from one store to another, every byte checked on the way.
//!
//! What is exported is a store of its own, with the same layout: it can be packed with any archiver, be a cache itself
//! (`--cache`), or be imported elsewhere. Artifacts arrive as they do from a stage: written aside, hashed, synced,
//! renamed; one whose hash is not its name does not arrive.

use std::path::Path;

use super::{CachedResult, Recorded, Store, StoreError, aside, tree};
use crate::hash::Digest;

/// What was copied.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct CopyReport {
    pub records: usize,
    pub artifacts: usize,
    pub bytes: u64,
    /// Artifacts that were there already.
    pub present: usize,
    /// Keys with other outputs on the other side. Those that were there first stand.
    pub differs: Vec<Digest>,
    /// Keys whose record or artifacts are not in the store they should come from.
    pub missing: Vec<Digest>,
}

impl Store {
    /// Opens what must be a store already.
    pub fn existing(root: impl Into<std::path::PathBuf>) -> Result<Self, StoreError> {
        let store = Self::open(root)?;
        if store.root().join("version").is_file() {
            Ok(store)
        } else {
            Err(StoreError::NotAStore { root: store.root })
        }
    }

    /// Copies what a run came to under these keys into another store: records, and the artifacts they name as outputs.
    /// Where it is not known what the run came to, what stands there now.
    pub fn copy_into(
        &self,
        other: &Store,
        results: &[(Digest, Option<&CachedResult>)],
    ) -> Result<CopyReport, StoreError> {
        other.prepare()?;
        let mut copied = CopyReport::default();
        for (key, came_to) in results {
            let found = self.result(key, *came_to).filter(|record| self.stands(&record.outputs));
            let Some(record) = found else {
                copied.missing.push(*key);
                continue;
            };
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
                // The run knows its own; one that was worked anew since stands there as it does here.
                Recorded::Differs { standing, .. }
                    if self.record(key).is_some_and(|here| here.outputs == standing.outputs) => {}
                Recorded::Differs { .. } => copied.differs.push(*key),
            }
        }
        Ok(copied)
    }

    /// Its size; none where it was there.
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
        // Asked before anything is published under a name that nobody knows.
        if tree::digest(&inner, &tree::list(&inner)?)? != *digest {
            let (root, digest) = (self.root().to_owned(), digest.short());
            return Err(StoreError::Corrupt { root, digest });
        }
        other.publish(&inner)?;
        Ok(Some(entries.iter().map(|entry| entry.stamp.size).sum()))
    }
}
