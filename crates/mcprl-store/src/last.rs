//! The newest key of each stage of a run file, for explaining what changed since, and its last finished run.
//! Losing them costs an explanation, no result.

use std::{collections::BTreeMap, path::PathBuf};

use mcprl_base::hash::Digest;

use super::{Store, StoreError, write};

/// Stage name to its newest key, for one run name.
pub type KeyIndex = BTreeMap<String, Digest>;

impl Store {
    fn key_index_path(&self, run: &str) -> PathBuf {
        self.root.join("ac/last").join(format!("{run}.json"))
    }

    /// `run` is the run file's name. An unreadable index is an empty one.
    pub fn last_keys(&self, run: &str) -> KeyIndex {
        let bytes = std::fs::read(self.key_index_path(run)).ok();
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Adds these keys to what is on disk now.
    pub fn remember(&self, run: &str, new: &KeyIndex) -> Result<(), StoreError> {
        let mut keys = self.last_keys(run);
        if new.iter().all(|(stage, key)| keys.get(stage) == Some(key)) {
            return Ok(());
        }
        keys.extend(new.iter().map(|(stage, key)| (stage.clone(), *key)));
        write::replace(self, &self.key_index_path(run), &serde_json::to_vec_pretty(&keys).unwrap_or_default())
    }

    fn last_run_path(&self, name: &str) -> PathBuf {
        self.root.join("ac/last").join(format!("{name}.run"))
    }

    /// Id of the last finished run of this name.
    pub fn last_run(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.last_run_path(name)).ok()
    }

    pub fn remember_run(&self, name: &str, id: &str) -> Result<(), StoreError> {
        write::replace(self, &self.last_run_path(name), id.as_bytes())
    }
}
