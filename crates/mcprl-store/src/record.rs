//! Action records: what the stage with a given key wrote.
//!
//! A record's file is a JSON object whose last entry, `checksum`, is the digest of the file without that entry. Records of
//! earlier versions have none: they are read as far as they are records. A record that fails its check is none.

use std::{
    collections::BTreeMap,
    ops::AddAssign,
    path::{Path, PathBuf},
};

use mcprl_base::{error::if_found, hash::Digest, usage::Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Condition, Output, Store, StoreError, failpoint,
    tree::entries,
    write::{self, Created},
};

/// Cost of a result. Never part of a key or an artifact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Wall-clock seconds the stage took.
    pub seconds: f64,
    #[serde(default)]
    pub spent: Usage,
    /// Price of judge tokens, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars: Option<f64>,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, more: Self) {
        self.seconds += more.seconds;
        self.spent += more.spent;
        self.dollars = match (self.dollars, more.dollars) {
            (None, other) | (other, None) => other,
            (Some(one), Some(other)) => Some(one + other),
        };
    }
}

/// The result of the stage with this key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionRecord {
    pub key: Digest,
    /// Name of the stage in the run that created the record.
    pub stage: String,
    /// The fields of the key, for explaining later reruns.
    pub fields: Value,
    pub outputs: BTreeMap<String, Output>,
    pub metrics: BTreeMap<String, f64>,
    pub cost: Cost,
    /// Notes from the stage for the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The run that created the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Other runs must not use this result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withheld: bool,
}

impl ActionRecord {
    /// The number of the sample's draw: 0 for the first one.
    pub fn draw(&self) -> u64 {
        self.fields.get(DRAW).and_then(Value::as_u64).unwrap_or(0)
    }

    /// The content of its file.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        let checksum = Digest::of(&bytes);
        bytes.truncate(bytes.len() - END.len());
        bytes.extend(format!("{CHECKSUM}{checksum}{CHECKSUM_END}").into_bytes());
        Ok(bytes)
    }

    /// The record in a file of this key.
    pub(super) fn decode(bytes: &[u8], key: &Digest) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok()?;
        let is_right = match split(bytes) {
            Some((mut content, checksum)) => {
                content.extend(END.bytes());
                Digest::of(&content).to_string().as_bytes() == checksum
            }
            // Of an earlier version. A damaged checksum is an entry that no version has.
            None => {
                let known = serde_json::to_value(&record).ok()?;
                let found: Map<String, Value> = serde_json::from_slice(bytes).ok()?;
                found.keys().all(|name| known.get(name).is_some())
            }
        };
        (is_right && record.key == *key).then_some(record)
    }

    /// Names of outputs of another record of the same key that differ from this one's.
    pub(super) fn other_outputs(&self, other: &Self) -> Vec<String> {
        let differs = |(port, output): &(&String, &Output)| self.outputs.get(*port) != Some(*output);
        other.outputs.iter().filter(differs).map(|(port, _)| port.clone()).collect()
    }
}

/// The end of a record as it is formatted.
const END: &str = "\n}";
const CHECKSUM: &str = ",\n  \"checksum\": \"";
const CHECKSUM_END: &str = "\"\n}";

/// A record's file before its checksum, and the checksum.
fn split(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let length = CHECKSUM.len() + Digest::of(b"").to_string().len() + CHECKSUM_END.len();
    let (content, rest) = bytes.split_at_checked(bytes.len().checked_sub(length)?)?;
    let checksum = rest.strip_prefix(CHECKSUM.as_bytes())?.strip_suffix(CHECKSUM_END.as_bytes())?;
    Some((content.to_vec(), checksum))
}

/// The result in a record, without the fields of its key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CachedResult {
    pub outputs: BTreeMap<String, Output>,
    pub metrics: BTreeMap<String, f64>,
    pub cost: Cost,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The value of the record's field [`SERVER_NAME`].
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub server_name: Value,
}

/// Name of an entry in a record's fields that is not part of its key: the name and version that the server
/// reported. The keys of stages that read its tools contain them.
pub const SERVER_NAME: &str = "server_name";

/// Name of an entry in a record's fields that is not part of its key: the number of the draw, if it is not the first.
pub const DRAW: &str = "draw";

impl From<ActionRecord> for CachedResult {
    fn from(mut record: ActionRecord) -> Self {
        let server_name = record.fields.get_mut(SERVER_NAME).map(Value::take).unwrap_or_default();
        let ActionRecord { outputs, metrics, cost, notes, .. } = record;
        Self { outputs, metrics, cost, notes, server_name }
    }
}

/// The outcome of looking up a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Lookup {
    Hit(ActionRecord),
    /// Only the run that created this record may use it.
    Withheld(ActionRecord),
    Miss,
    /// The record, or an artifact that it names, is unusable.
    Damaged {
        output: Option<String>,
        problem: String,
    },
}

/// The outcome of creating a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Recorded {
    New,
    /// Another writer was first, with the same outputs.
    Same,
    /// Another writer was first, with other outputs (named here). Its record is kept.
    Differs {
        outputs: Vec<String>,
        existing: Box<ActionRecord>,
    },
}

impl Store {
    pub fn record_path(&self, key: &Digest) -> PathBuf {
        self.root.join("ac").join(format!("{key}.json"))
    }

    /// The record under this key, without a check of its outputs. An unreadable record counts as none.
    pub fn record(&self, key: &Digest) -> Option<ActionRecord> {
        let bytes = std::fs::read(self.record_path(key)).ok()?;
        ActionRecord::decode(&bytes, key)
    }

    /// The finished result under this key, every output checked. Writes nothing.
    pub fn lookup(&self, key: &Digest) -> Lookup {
        self.lookup_sealed(key).0
    }

    /// Like [`Store::lookup`], with those of its artifacts whose seals do not fit.
    pub fn lookup_sealed(&self, key: &Digest) -> (Lookup, Vec<Digest>) {
        let Some(record) = self.record(key) else {
            let is_unreadable = self.record_path(key).exists();
            let damaged = || Lookup::Damaged { output: None, problem: "its record is damaged".into() };
            return (if is_unreadable { damaged() } else { Lookup::Miss }, Vec::new());
        };
        match self.inspect_all(&record.outputs) {
            Err((port, problem)) => (Lookup::Damaged { output: Some(port), problem }, Vec::new()),
            Ok(unsealed) if record.withheld => (Lookup::Withheld(record), unsealed),
            Ok(unsealed) => (Lookup::Hit(record), unsealed),
        }
    }

    /// Returns the artifacts whose seals do not fit. The error names the first unusable output and its
    /// problem.
    pub fn inspect_all(&self, outputs: &BTreeMap<String, Output>) -> Result<Vec<Digest>, (String, String)> {
        let mut unsealed = Vec::new();
        for (port, output) in outputs {
            match self.inspect(&output.digest) {
                Condition::Sealed => {}
                Condition::Unsealed => unsealed.push(output.digest),
                Condition::Absent => return Err((port.clone(), "it is gone".into())),
                Condition::Damaged(problem) => return Err((port.clone(), problem)),
            }
        }
        Ok(unsealed)
    }

    /// The result of a run under this key, as a record. It can differ from the current record, because the
    /// stage may have rerun since.
    pub fn result(&self, key: &Digest, result: &CachedResult) -> ActionRecord {
        let CachedResult { outputs, metrics, cost, notes, server_name } = result.clone();
        // All records of a key have the same fields.
        let (stage, mut fields, run, withheld) = match self.record(key).or_else(|| self.withdrawn(key)) {
            Some(record) => (record.stage, record.fields, record.run, record.withheld),
            None => (String::new(), Value::Null, None, false),
        };
        if !server_name.is_null() {
            fields[SERVER_NAME] = server_name;
        }
        ActionRecord { key: *key, stage, fields, outputs, metrics, cost, notes, run, withheld }
    }

    /// A record of this key that was withdrawn.
    fn withdrawn(&self, key: &Digest) -> Option<ActionRecord> {
        let items = std::fs::read_dir(self.root.join("ac/old")).ok()?.flatten();
        let prefix = key.to_string();
        items
            .filter(|item| item.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)))
            .find_map(|item| ActionRecord::decode(&std::fs::read(item.path()).ok()?, key))
    }

    /// Whether every artifact named here exists. Does not read them. For callers that have already declared
    /// their use.
    pub fn has_artifacts(&self, outputs: &BTreeMap<String, Output>) -> bool {
        outputs.values().all(|output| self.artifact(&output.digest).is_dir())
    }

    /// Every readable record, by key.
    pub fn records(&self) -> Vec<ActionRecord> {
        let mut keys: Vec<Digest> =
            entries(&self.root.join("ac")).iter().filter_map(|path| key_of(path)).collect();
        keys.sort();
        keys.iter().filter_map(|key| self.record(key)).collect()
    }

    /// Like [`Store::enter`], and makes the record durable.
    pub fn commit(&self, record: &ActionRecord) -> Result<Recorded, StoreError> {
        let recorded = self.enter(record)?;
        self.sync(&[], &[record.key])?;
        Ok(recorded)
    }

    /// Creates the record if its key has none yet. It is not durable until [`Store::sync`].
    pub fn enter(&self, record: &ActionRecord) -> Result<Recorded, StoreError> {
        let path = self.record_path(&record.key);
        let bytes =
            record.encode().map_err(|cause| StoreError::writing(&path, std::io::Error::other(cause)))?;
        failpoint("commit::before");
        if write::create(self, &path, &bytes)? == Created::Exists {
            if let Some(existing) = self.record(&record.key) {
                let outputs = existing.other_outputs(record);
                return Ok(match outputs.is_empty() {
                    true => Recorded::Same,
                    false => Recorded::Differs { outputs, existing: Box::new(existing) },
                });
            }
            if path.is_dir() {
                self.quarantine(&path, &format!("{}.json", record.key))?;
            }
            write::replace(self, &path, &bytes)?;
        }
        failpoint("commit::after");
        self.remember_draw(record)?;
        Ok(Recorded::New)
    }

    fn draw_path(&self, key: &Digest) -> PathBuf {
        self.root.join("ac/draws").join(key.to_string())
    }

    /// Remembers the number of a later draw, which outlives the record.
    fn remember_draw(&self, record: &ActionRecord) -> Result<(), StoreError> {
        if record.draw() <= self.remembered_draw(&record.key).unwrap_or(0) {
            return Ok(());
        }
        let path = self.draw_path(&record.key);
        let folder = self.root.join("ac/draws");
        std::fs::create_dir_all(&folder).map_err(|cause| StoreError::writing(folder, cause))?;
        write::replace(self, &path, record.draw().to_string().as_bytes())
    }

    fn remembered_draw(&self, key: &Digest) -> Option<u64> {
        std::fs::read_to_string(self.draw_path(key)).ok()?.trim().parse().ok()
    }

    /// The number of the newest draw under this key that this store has seen, even if its record was removed since. None
    /// if it knows of none.
    pub fn last_draw(&self, key: &Digest) -> Option<u64> {
        let record = self.record(key).map(|record| record.draw());
        record.max(self.remembered_draw(key))
    }

    /// Moves a record to `ac/old/`, so that the stage reruns. Its artifacts are kept.
    pub fn withdraw(&self, key: &Digest) -> Result<(), StoreError> {
        let path = self.record_path(key);
        let Ok(bytes) = std::fs::read(&path) else { return Ok(()) };
        let folder = self.root.join("ac/old");
        std::fs::create_dir_all(&folder).map_err(|cause| StoreError::writing(&folder, cause))?;
        let aside = folder.join(format!("{key}.{}.json", Digest::of(&bytes).short()));
        // Another process may have withdrawn it first.
        let moved = if_found(std::fs::rename(&path, aside));
        moved.map(drop).map_err(|cause| StoreError::writing(path, cause))
    }

    /// Withdraws the record only if it is this one, not another run's.
    pub(super) fn withdraw_own(&self, record: &ActionRecord) -> Result<(), StoreError> {
        let own = |found: &ActionRecord| {
            (&found.run, &found.stage, &found.outputs) == (&record.run, &record.stage, &record.outputs)
        };
        if self.record(&record.key).as_ref().is_some_and(own) { self.withdraw(&record.key) } else { Ok(()) }
    }
}

/// The key a record's file is named after.
pub(super) fn key_of(path: &Path) -> Option<Digest> {
    path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok()
}
