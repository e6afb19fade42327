//! The newest key of each stage of a run file, for explaining what changed since. Losing it costs an
//! explanation, no result.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{Store, StoreError, write};
use crate::hash::Digest;

/// Stage name to its newest key, for one run name.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyIndex {
    path: PathBuf,
    keys: BTreeMap<String, Digest>,
}

impl Store {
    /// `run` is the run file's name. An unreadable index is an empty one.
    pub fn last_keys(&self, run: &str) -> KeyIndex {
        let path = self.root.join("ac/last").join(format!("{run}.json"));
        let keys = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        KeyIndex { path, keys: keys.unwrap_or_default() }
    }

    /// Adds these keys to what is on disk now.
    pub fn remember(&self, run: &str, news: &BTreeMap<String, Digest>) -> Result<(), StoreError> {
        let mut last = self.last_keys(run);
        let before = last.keys.clone();
        last.keys.extend(news.iter().map(|(stage, key)| (stage.clone(), *key)));
        if last.keys == before {
            return Ok(());
        }
        let bytes = serde_json::to_vec_pretty(&last.keys)
            .map_err(|cause| StoreError::writing(&last.path, std::io::Error::other(cause)))?;
        write::replace(self, &last.path, &bytes)
    }
}

/// The last finished run of a name, and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    pub id: String,
    /// Digest over the keys of all its stages and their results.
    pub result: Digest,
}

impl Store {
    fn last_run_path(&self, name: &str) -> PathBuf {
        self.root.join("ac/last").join(format!("{name}.run"))
    }

    pub fn last_run(&self, name: &str) -> Option<LastRun> {
        let bytes = std::fs::read(self.last_run_path(name)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    pub fn remember_run(&self, name: &str, run: &LastRun) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(run).unwrap_or_default();
        write::replace(self, &self.last_run_path(name), &bytes)
    }
}

impl KeyIndex {
    pub fn get(&self, stage: &str) -> Option<&Digest> {
        self.keys.get(stage)
    }
}
