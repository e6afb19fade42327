//! The results of a run file's stages, in one file per run name. A run that is up to date makes one `stat`
//! per file instead of reading a record and a seal per stage.
//!
//! Each result has one digest over the stamps of its record and of its artifacts' files. The record's stamp
//! is taken just before it is read; the others come from the seals. So an entry is valid under the same
//! conditions as a seal. If anything changed since, the record is read again. Losing the file costs
//! milliseconds, no result.

use std::{
    collections::{BTreeMap, HashMap},
    fs::Metadata,
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ActionRecord, Cost, Lookup, Output, Store, StoreError, record::numbers, tree::FileStamp, write};
use crate::hash::{Digest, Encoder};

/// The result of the stage with some key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachedResult {
    pub outputs: BTreeMap<String, Output>,
    #[serde(deserialize_with = "numbers")]
    pub metrics: BTreeMap<String, f64>,
    pub cost: Cost,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The value of the record's [`TOLD`] field.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub told: Value,
}

/// Name of an entry in a record's fields that is not part of its key. It holds what the keys of later stages
/// contain of its result.
pub const TOLD: &str = "told";

impl From<ActionRecord> for CachedResult {
    fn from(mut record: ActionRecord) -> Self {
        let told = record.fields.get_mut(TOLD).map(Value::take).unwrap_or_default();
        let ActionRecord { outputs, metrics, cost, notes, .. } = record;
        Self { outputs, metrics, cost, notes, told }
    }
}

/// A result and the state of its files.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    known: CachedResult,
    /// For each output in order: its folders (its own has an empty path), then its files.
    paths: Vec<Vec<String>>,
    /// Digest over the stamps of the record and of all these paths.
    stamps: Digest,
}

/// The finished results of one run name at the last lookup.
#[derive(Debug, Default)]
pub struct StatCache {
    before: HashMap<Digest, Seen>,
    /// Entries of this process.
    now: HashMap<Digest, Seen>,
    /// Whether an entry was added, so that the file has to be saved.
    news: bool,
}

impl Store {
    fn stat_cache_path(&self, run: &str) -> std::path::PathBuf {
        self.root.join("ac/last").join(format!("{run}.stat_cache"))
    }

    /// Loads the cache of this run name. It is empty if the file cannot be read.
    pub fn stat_cache(&self, run: &str) -> StatCache {
        let bytes = std::fs::read(self.stat_cache_path(run)).ok();
        let before = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        StatCache { before: before.unwrap_or_default(), ..StatCache::default() }
    }

    /// Saves the cache for the next run.
    pub fn save_stat_cache(&self, run: &str, stat_cache: &StatCache) -> Result<(), StoreError> {
        if !stat_cache.news {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&stat_cache.now).unwrap_or_default();
        write::replace(self, &self.stat_cache_path(run), &bytes)
    }
}

impl StatCache {
    /// The finished result under this key, and those of its artifacts whose seals do not fit, as in
    /// [`Store::lookup_sealed`]. If there is no usable result, the error is the other lookup outcome.
    pub fn lookup(
        &mut self,
        store: &Store,
        key: &Digest,
    ) -> Result<(CachedResult, Vec<Digest>), Box<Lookup>> {
        if let Some(seen) = self.before.remove(key).filter(|seen| seen.stands(store, key)) {
            let known = seen.known.clone();
            self.now.insert(*key, seen);
            return Ok((known, Vec::new()));
        }
        // The stamp is taken before the record is read, so the next lookup detects a change in between.
        let record = store.record_path(key).symlink_metadata().map(|metadata| FileStamp::from(&metadata));
        let (known, unsealed) = match store.lookup_sealed(key) {
            (Lookup::Hit(record), unsealed) => (CachedResult::from(record), unsealed),
            (other, _) => return Err(Box::new(other)),
        };
        let sealed = record.ok().filter(|_| unsealed.is_empty());
        if let Some(seen) = sealed.and_then(|record| Seen::sealed(store, &record, &known)) {
            self.now.insert(*key, seen);
            self.news = true;
        }
        Ok((known, unsealed))
    }
}

impl Seen {
    /// Takes the stamps of the artifacts' files from their seals.
    fn sealed(store: &Store, record: &FileStamp, known: &CachedResult) -> Option<Self> {
        let mut encoder = begin(record);
        let mut paths = Vec::new();
        for output in known.outputs.values() {
            let entries = store.sealed(&output.digest)?;
            entries.iter().for_each(|(entry, is_folder)| add(&mut encoder, &entry.stamp, *is_folder));
            paths.push(entries.into_iter().map(|(entry, _)| entry.path).collect());
        }
        Some(Self { known: known.clone(), paths, stamps: encoder.finish() })
    }

    /// Whether every file is unchanged.
    fn stands(&self, store: &Store, key: &Digest) -> bool {
        let look = |path: &Path| path.symlink_metadata().ok();
        let stamps = || -> Option<Digest> {
            let mut encoder = begin(&FileStamp::from(&look(&store.record_path(key))?));
            for (output, paths) in self.known.outputs.values().zip(&self.paths) {
                let folder = store.artifact(&output.digest);
                for path in paths {
                    let metadata: Metadata =
                        if path.is_empty() { look(&folder) } else { look(&folder.join(path)) }?;
                    add(&mut encoder, &FileStamp::from(&metadata), metadata.is_dir());
                }
            }
            Some(encoder.finish())
        };
        self.paths.len() == self.known.outputs.len() && stamps() == Some(self.stamps)
    }
}

fn begin(record: &FileStamp) -> Encoder {
    let mut encoder = Encoder::new("mcprl stat_cache v1");
    add(&mut encoder, record, false);
    encoder
}

/// A folder's ctime changes when it is moved into place. A file's ctime changes with its bytes.
fn add(encoder: &mut Encoder, stamp: &FileStamp, is_folder: bool) {
    encoder.number(u64::from(is_folder)).number(stamp.inode).bytes(&stamp.mtime.to_le_bytes());
    if !is_folder {
        encoder.number(stamp.size).bytes(&stamp.ctime.to_le_bytes());
    }
}
