//! Stages: each reads artifacts, calls the rooms below, and writes artifacts. One file per kind.
//!
//! A stage sees its [`Context`] and nothing else: no store, no run file, no other stage. What it writes depends on its
//! parameters, inputs, prompts and seed alone (and on the server, for those that use one).

mod adapter;
pub mod card;
pub mod command;
pub mod discover;
mod error;
pub mod eval;
pub mod grpo;
pub mod judge;
pub mod memory;
pub mod model;
mod parts;
pub mod policy;
pub mod prospect;
pub mod registry;
pub mod rollout;
pub mod scenarios;
mod shared_models;
pub mod warmup;
mod workload;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod testing;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

pub use card::{Card, Cards};
pub use error::StageError;
pub use parts::{CardFile, CardParts};
pub use shared_models::SharedModels;
pub use workload::{policy_shape, rows_needed, shape, workload};

use crate::{
    engine::EngineSpec, error::Result, hash::Digest, mcp::ServerSpec, progress::Observer, usage::UsageMeter,
};

/// An artifact handed to a stage: a folder that holds one output of an earlier stage, read-only.
#[derive(Debug, Clone)]
pub struct Input {
    /// The name given in the run file where a role takes several (`policies = { base = … }`); the role otherwise.
    pub name: String,
    /// Digest of the artifact.
    pub digest: Digest,
    /// The file, or for folder types the folder.
    pub path: PathBuf,
}

/// Finds stored artifacts by digest, for artifacts that refer to others (an adapter to its base).
pub trait Artifacts: Send + Sync {
    fn folder(&self, digest: &Digest) -> Result<PathBuf>;
}

/// Finished rows of a stage, and the place to record more. Rows are named by the caller: whatever the parameters and
/// inputs are that a card marks with `rows`, what is in a row with a name is the same.
pub trait Rows: Send + Sync {
    /// Rows recorded by interrupted stages, this one and others that differ in those parameters and inputs alone.
    fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>>;
    /// Records one finished row durably enough to survive a kill -9. An empty row was found in an earlier result.
    fn record(&self, name: &str, row: &[u8]) -> Result<()>;
    /// EarlierResult results of such stages.
    fn earlier(&self) -> Result<Vec<EarlierResult>> {
        Ok(Vec::new())
    }
}

/// A result whose rows can be taken over.
#[derive(Debug)]
pub struct EarlierResult {
    /// The output that the card marks with `rows`.
    pub path: PathBuf,
    /// Names of its rows.
    pub names: BTreeSet<String>,
}

/// Everything a stage may use.
pub struct Context {
    /// Where it stands: `rollout`, or `train[0003]/rollout` within a loop.
    pub stage: String,
    /// Parameters, the card's defaults filled in and types checked.
    pub params: Map<String, Value>,
    pub inputs: BTreeMap<String, Vec<Input>>,
    /// An empty folder. Each output is written at the path its card declares.
    pub output: PathBuf,
    /// Prompts and other files of the card, by name, with any override from disk applied.
    pub files: BTreeMap<String, String>,
    pub seed: u64,
    pub server: Option<ServerSpec>,
    pub engine: EngineSpec,
    pub artifacts: Arc<dyn Artifacts>,
    pub rows: Arc<dyn Rows>,
    pub observer: Arc<dyn Observer>,
    /// What the run's stages keep in memory for each other.
    pub held: Arc<SharedModels>,
    /// Counts what the stage consumes.
    pub meter: Arc<UsageMeter>,
    pub cancel: CancellationToken,
}

impl Context {
    /// The parameters as the stage's own struct.
    pub fn params<P: DeserializeOwned>(&self) -> Result<P> {
        Ok(typed(&self.params)?)
    }

    /// The one artifact in this role.
    pub fn input(&self, role: &str) -> Result<&Input> {
        match self.inputs.get(role).map(Vec::as_slice) {
            Some([input]) => Ok(input),
            None | Some([]) => Err(StageError::NoInput { role: role.into() }.into()),
            Some(_) => Err(StageError::ManyInputs { role: role.into() }.into()),
        }
    }
}

/// Parameters as a stage's own struct.
fn typed<P: DeserializeOwned>(params: &Map<String, Value>) -> Result<P, StageError> {
    // figment and not serde_json, for its errors name the key.
    let params = figment::Figment::from(figment::providers::Serialized::defaults(params));
    params
        .extract()
        .map_err(|cause| StageError::Param { name: cause.path.join("."), problem: cause.kind.to_string() })
}

/// What a finished stage says of itself beside its artifacts: numbers for `until` and for people.
pub type Metrics = BTreeMap<String, f64>;
