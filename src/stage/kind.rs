//! What a stage kind is to the rest of the program.
//!
//! A stage is a value: its parameters, parsed. Everything that differs from kind to kind is a method of
//! [`StageKind`], implemented next to the parameters in `stage/<kind>/`. No other module compares the names of kinds
//! (`tests/integration/house/layering.rs` checks it).

use std::{collections::BTreeMap, future::Future, path::PathBuf, pin::Pin};

use super::{
    context::{Context, Input},
    memory::Load,
    metrics::Metrics,
    preflight::{ExpectedOutputs, Preflight, PreflightContext},
    scored_by::ScoredBy,
};
use crate::{
    data::Tool,
    engine::Footprint,
    error::{Failure, Result},
    mcp::Servers,
    offered::Offered,
};

pub type StageFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A stage with its parameters.
pub trait StageKind: Send + Sync {
    /// Reads the inputs and writes every output.
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>>;

    /// Finds out, before any stage runs, why this one would fail and what it will write.
    fn preflight(&self, _: &PreflightContext<'_>) -> Preflight {
        Preflight::default()
    }

    /// What the stage needs from outside the run, for `doctor`. `expected`: its outputs as far as known.
    fn requirements<'a>(&'a self, _: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Amount of work, in a unit of the kind. Time and tokens grow roughly with it. None if unknown.
    fn workload(&self) -> Option<f64> {
        None
    }

    /// The engine's peak memory on the CPU. None if the stage neither samples nor trains.
    fn memory(&self, _: &Load<'_>) -> Option<Footprint> {
        None
    }

    /// Names of rows that the stage certainly needs (see [`super::Rows`]); more may follow. None if it has no
    /// such rows, or its inputs do not tell.
    fn rows_needed(&self, _seed: u64, _: &BTreeMap<String, Vec<Input>>) -> Option<Vec<String>> {
        None
    }

    /// Whether the stage follows [`Context::shard`].
    fn has_shards(&self) -> bool {
        false
    }

    /// Whether the stage uses the frozen model of the policy in this role, and so shares it with other stages.
    fn shares_model(&self, _role: &str) -> bool {
        false
    }

    /// What decides about the rewards that the stage writes. `Both` if it writes none, or they are another program's.
    fn scored_by(&self) -> ScoredBy {
        ScoredBy::Both
    }

    /// The role of the policy whose model the written adapter belongs to. None if the stage writes no adapter.
    fn adapter_base(&self) -> Option<&'static str> {
        None
    }

    /// What the stage would write of what the servers offer. None if it does not choose tools.
    fn offers(&self, _offered: Offered, _: &Servers) -> Option<Offered> {
        None
    }

    /// Whether it tries tools out, which takes calls and time.
    fn explores(&self) -> bool {
        false
    }

    /// What the stage needs to know about the tools that the servers list.
    fn about_tools(&self, _listed: &[Tool], _: &Servers) -> Vec<Requirement> {
        Vec::new()
    }

    /// A folder that the stage copies into the cache, and its size in bytes.
    fn copies(&self) -> Option<(PathBuf, u64)> {
        None
    }
}

/// Something that a stage needs from outside the run.
#[derive(Debug)]
pub enum Requirement {
    Met(String),
    /// The stage runs, but the user should know this.
    Doubtful {
        text: String,
        hint: String,
    },
    Missing(Failure),
}
