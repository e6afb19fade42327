//! Verifies the whole store: artifacts and records that do not match their name are moved to `quarantine/`,
//! where no run finds them.
//!
//! A record whose artifact is missing is a miss, so the next run that needs a damaged result reruns its
//! stage.

use std::path::{Path, PathBuf};

use mcprl_base::{error::if_found, hash::Digest};

use super::{ActionRecord, Condition, Store, StoreError, record::key_of, tree::entries};

/// Something damaged that was moved to `quarantine/`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "flaw", rename_all = "kebab-case")]
pub enum Damage {
    Artifact { digest: Digest, problem: String },
    Record { key: Digest },
}

/// The result of [`Store::verify`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct VerifyReport {
    pub artifacts: usize,
    pub records: usize,
    pub bytes: u64,
    pub flaws: Vec<Damage>,
    /// Records that name missing artifacts. Their stages rerun when needed.
    pub incomplete: Vec<Digest>,
}

impl Store {
    /// Hashes every artifact and reads every record. `each` is called with the size of an artifact before it
    /// is read.
    pub fn verify(&self, each: &mut dyn FnMut(u64)) -> Result<VerifyReport, StoreError> {
        self.readable()?;
        let mut checked = VerifyReport::default();
        for stored in self.artifacts() {
            each(stored.bytes);
            checked.artifacts += 1;
            checked.bytes += stored.bytes;
            let folder = self.artifact(&stored.digest);
            let Condition::Damaged(problem) = Condition::of(&folder, &stored.digest) else {
                // A seal that fits is not rewritten: its time also says when the artifact was last used.
                if !self.is_sealed(&stored.digest)
                    && let Err(cause) = self.seal(&stored.digest)
                    && folder.exists()
                {
                    return Err(cause);
                }
                continue;
            };
            // A sweep may remove a listed artifact at any moment.
            let Some(aside) = self.quarantine(&folder, &stored.digest.to_string())? else { continue };
            // A run may have replaced it since it was read.
            if Condition::of(&aside, &stored.digest).is_intact() {
                _ = std::fs::rename(&aside, &folder);
                continue;
            }
            checked.flaws.push(Damage::Artifact { digest: stored.digest, problem });
        }
        let mut records = entries(&self.root().join("ac"));
        records.sort();
        for path in records {
            let Some(key) = key_of(&path) else { continue };
            if path.is_dir() {
                if self.quarantine(&path, &format!("{key}.json"))?.is_some() {
                    checked.flaws.push(Damage::Record { key });
                }
                continue;
            }
            let read = if_found(std::fs::read(&path)).map_err(|cause| StoreError::reading(&path, cause))?;
            let Some(bytes) = read else { continue };
            checked.records += 1;
            match ActionRecord::decode(&bytes, &key) {
                Some(record) => {
                    if !self.has_artifacts(&record.outputs) {
                        checked.incomplete.push(key);
                    }
                }
                None => {
                    if self.quarantine(&path, &format!("{key}.json"))?.is_some() {
                        checked.flaws.push(Damage::Record { key });
                    }
                }
            }
        }
        Ok(checked)
    }

    /// Returns the new path, or none if the file no longer exists.
    pub(super) fn quarantine(&self, path: &Path, name: &str) -> Result<Option<PathBuf>, StoreError> {
        let folder = self.root().join("quarantine");
        std::fs::create_dir_all(&folder).map_err(|cause| StoreError::writing(&folder, cause))?;
        let mut target = folder.join(name);
        let mut again = 1;
        while target.exists() {
            again += 1;
            target = folder.join(format!("{name}.{again}"));
        }
        let moved =
            if_found(std::fs::rename(path, &target)).map_err(|cause| StoreError::writing(path, cause))?;
        Ok(moved.map(|()| target))
    }
}
