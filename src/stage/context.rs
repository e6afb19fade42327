//! What a stage sees: its parameters and inputs, where it writes, and what it shares with other stages of the run.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{card::Card, error::StageError, shared_models::SharedModels};
use crate::{
    data::{self, Table},
    engine::EngineSpec,
    error::Result,
    hash::Digest,
    json,
    mcp::Servers,
    progress::Observer,
    usage::{Prices, UsageMeter},
};

/// An input of a stage: a folder with one output of an earlier stage, read-only.
#[derive(Debug, Clone)]
pub struct Input {
    /// The name in the run file if the role takes several (`policies = { base = … }`); otherwise the role.
    pub name: String,
    /// Digest of the artifact.
    pub digest: Digest,
    /// The file, or the folder for folder types.
    pub path: PathBuf,
}

/// Finds stored artifacts by digest, for artifacts that refer to others (such as an adapter to its base).
pub trait Artifacts: Send + Sync {
    fn folder(&self, digest: &Digest) -> Result<PathBuf>;
}

/// A stage's finished rows, and where to record more. The caller names rows. A row's content depends on its
/// name but not on the parameters and inputs that a card marks with `rows`.
pub trait Rows: Send + Sync {
    /// Rows recorded by interrupted stages: this one, and others that differ only in those parameters and
    /// inputs.
    fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>>;
    /// A sentence for each damaged file among those that were read since the last call.
    fn damage(&self) -> Vec<String> {
        Vec::new()
    }
    /// Records one finished row so that it survives a kill -9. An empty row was found in an earlier result.
    fn record(&self, name: &str, row: &[u8]) -> Result<()>;
    /// The file of this stage's last checkpoint, if an interrupted one left some.
    fn checkpoint(&self) -> Option<PathBuf> {
        None
    }
    /// Makes the file that `write` writes the checkpoint, so that it survives a kill -9. It may have any size.
    fn replace_checkpoint(&self, write: &dyn Fn(&Path) -> Result<()>) -> Result<()>;
    /// Results of such stages.
    fn earlier(&self) -> Result<Vec<EarlierResult>> {
        Ok(Vec::new())
    }
}

/// A result whose rows can be reused.
#[derive(Debug)]
pub struct EarlierResult {
    /// The output marked with `rows` on the card.
    pub path: PathBuf,
    /// Names of its rows.
    pub names: BTreeSet<String>,
}

/// One of the parts that the episodes of a stage are divided into, each played by a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    pub index: usize,
    pub of: usize,
}

/// Everything a stage may use.
pub struct Context {
    /// Path of the stage: `rollout`, or `train[0003]/rollout` within a loop.
    pub stage: String,
    /// With its prompts and other files, including overrides from disk.
    pub card: Arc<Card>,
    /// Parameters with the card's defaults, types checked.
    pub params: Map<String, Value>,
    pub inputs: BTreeMap<String, Vec<Input>>,
    /// An empty folder. Each output goes to the path its card declares.
    pub output_folder: PathBuf,
    /// Another folder, for temporary files.
    pub scratch: PathBuf,
    pub seed: u64,
    pub servers: Option<Servers>,
    pub engine: EngineSpec,
    pub artifacts: Arc<dyn Artifacts>,
    pub rows: Arc<dyn Rows>,
    pub observer: Arc<dyn Observer>,
    /// Shared in memory between the stages of a run.
    pub models: Arc<SharedModels>,
    /// Of judge tokens, if they are known.
    pub prices: Option<Prices>,
    /// Counts the stage's resource usage.
    pub meter: Arc<UsageMeter>,
    /// Play these of the episodes that are known from the start, and record them; write no output. The stage itself finds them
    /// recorded.
    pub shard: Option<Shard>,
    pub cancel: CancellationToken,
}

impl Context {
    /// The single artifact in this role.
    pub fn input(&self, role: &str) -> Result<&Input> {
        match self.inputs.get(role).map(Vec::as_slice) {
            Some([input]) => Ok(input),
            None | Some([]) => Err(StageError::NoInput { role: role.into() }.into()),
            Some(_) => Err(StageError::ManyInputs { role: role.into() }.into()),
        }
    }

    /// Reads the table in this role.
    pub fn read<T: Table>(&self, role: &str) -> Result<Vec<T>> {
        Ok(data::read(&self.input(role)?.path)?)
    }

    /// Reads the table in a role that may be empty.
    pub fn read_optional<T: Table>(&self, role: &str) -> Result<Option<Vec<T>>> {
        self.has(role).then(|| self.read(role)).transpose()
    }

    /// Whether the role is given.
    pub fn has(&self, role: &str) -> bool {
        self.inputs.contains_key(role)
    }

    /// Rows recorded by interrupted stages. Notes damaged ones.
    pub fn finished_rows(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let rows = self.rows.finished()?;
        self.rows.damage().iter().for_each(|damage| self.observer.note(damage));
        Ok(rows)
    }

    /// Where the card puts this output.
    ///
    /// # Errors
    /// If the card, which a user may have edited, declares no output of this name and type.
    pub fn output(&self, port: &str, artifact: &str) -> Result<PathBuf> {
        match self.card.outputs.get(port).filter(|output| output.artifact == artifact) {
            Some(output) => Ok(self.output_folder.join(&output.path)),
            None => Err(StageError::NoPort { port: port.into(), artifact: artifact.into() }.into()),
        }
    }

    /// Writes a table to this output.
    pub fn write<T: Table>(&self, port: &str, rows: &[T]) -> Result<()> {
        Ok(data::write(&self.output(port, T::NAME)?, rows)?)
    }

    /// Text of the card's file of this name.
    pub fn text(&self, file: &str) -> &str {
        self.card.texts.get(file).map_or("", String::as_str)
    }
}

/// Parameters as a stage's own struct.
pub fn typed<P: DeserializeOwned>(params: &Map<String, Value>) -> Result<P, StageError> {
    json::typed(params).map_err(|mistake| StageError::Param { name: mistake.path, problem: mistake.problem })
}
