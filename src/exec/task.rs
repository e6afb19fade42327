//! What it takes to run a stage, as a value that another process can read: everything but the run's folder.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{error::ExecError, rows::StageRows};
use crate::{
    error::Result,
    hash::Digest,
    mcp::Servers,
    plan::{Job, NodeIndex, Plan, ReadyInputs, absolute},
    progress::Observer,
    stage::{self, Artifacts, Context, Metrics, Shard, SharedModels, card::Section},
    store::Store,
    usage::UsageMeter,
};

/// A stage to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageTask {
    /// Id of the node.
    pub node: String,
    pub key: Digest,
    pub ready: ReadyInputs,
    /// Number of the draw.
    pub draw: u64,
    /// Whether rows of earlier results do not count.
    pub is_rerun: bool,
    /// The run that wants it, if no other may use what comes of it.
    pub run: Option<String>,
    pub seed: u64,
    /// Play and record only this part of the episodes.
    pub shard: Option<Shard>,
    /// Devices of the stage's own; empty for those of the run.
    pub devices: Vec<String>,
    /// Sessions by server, of those that limit them.
    pub sessions: BTreeMap<String, usize>,
    /// What the program of a process elsewhere must be: of this version if the run file names it, else of this digest.
    pub build: String,
    /// Where outputs go.
    pub out: PathBuf,
    /// For temporary files.
    pub scratch: PathBuf,
}

/// What a process has of a run: that of the run itself, or a worker of it.
#[derive(Clone, Copy)]
pub struct ProcessContext<'p> {
    pub plan: &'p Plan,
    pub store: &'p Store,
    /// Kept in memory for several stages.
    pub models: &'p Arc<SharedModels>,
}

impl StageTask {
    /// What decides its result, and where it may be used.
    pub fn result(&self) -> impl PartialEq + '_ {
        (self.key, self.draw, self.shard, self.is_rerun, &self.run, self.seed, &self.build)
    }

    /// The node and its rows, as this process plans them. Rows are recorded into a log of this part, if it has a name.
    ///
    /// # Errors
    /// If the key is another one here: a file or a variable has changed.
    pub fn planned(&self, place: ProcessContext<'_>, part: &str) -> Result<(NodeIndex, StageRows)> {
        let ProcessContext { plan, store, .. } = place;
        let other = || ExecError::OtherKey { stage: self.node.clone() };
        let node = plan.order().iter().copied().find(|index| plan.node(*index).id == self.node);
        let index = node.ok_or_else(other)?;
        let job = Job::new(plan, index, self.ready.clone(), &[]);
        if job.key != self.key {
            return Err(other().into());
        }
        let card = &plan.node(index).stage.card;
        let rows = StageRows::new(store, card, (&job.fields, &job.key), self.draw, (self.is_rerun, part))?;
        Ok((index, rows))
    }

    /// The parts that as many processes play. None if one plays all.
    pub fn shards(&self, of: usize) -> Vec<Self> {
        let sessions: BTreeMap<String, usize> =
            self.sessions.iter().map(|(server, all)| (server.clone(), all / of.max(1))).collect();
        let shard =
            |index| Self { shard: Some(Shard { index, of }), sessions: sessions.clone(), ..self.clone() };
        if of > 1 { (0..of).map(shard).collect() } else { Vec::new() }
    }

    /// Runs the stage of this node.
    ///
    /// # Errors
    /// Those of the stage.
    pub async fn run(
        &self,
        place: ProcessContext<'_>,
        index: NodeIndex,
        rows: Arc<StageRows>,
        observer: Arc<dyn Observer>,
        meter: Arc<UsageMeter>,
        cancel: CancellationToken,
    ) -> Result<Metrics> {
        let ProcessContext { plan, store, models } = place;
        let stage = &plan.node(index).stage;

        let mut servers = plan.servers.clone();
        for (name, server) in servers.iter_mut().flat_map(Servers::iter_mut) {
            if let Some(own) = self.sessions.get(name) {
                server.limits.sessions = Some(*own);
            }
        }
        let engine = match self.devices.is_empty() {
            true => plan.engine.clone(),
            false => plan.engine.on(&self.devices),
        };
        let context = Context {
            stage: self.node.clone(),
            card: stage.card.clone(),
            params: stage.params.clone(),
            inputs: self.ready.of_stage(store),
            output_folder: self.out.clone(),
            scratch: self.scratch.clone(),
            seed: self.seed,
            servers: servers.filter(|_| stage.uses.contains(&Section::Server)),
            engine,
            artifacts: Arc::new(StageArtifacts(store.clone())),
            rows,
            observer,
            models: models.clone(),
            prices: stage.prices,
            meter,
            shard: self.shard,
            cancel,
        };
        stage::parse(&stage.card, &context.params)?.run(&context).await
    }
}

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Digest of the file of this program. None if it cannot be read.
pub fn own_build() -> Option<Digest> {
    static BUILD: OnceLock<Option<Digest>> = OnceLock::new();
    *BUILD.get_or_init(|| {
        let mut hasher = blake3::Hasher::new();
        // Also if the file has been replaced since.
        hasher.update_reader(std::fs::File::open("/proc/self/exe").ok()?).ok()?;
        Some(Digest::from_bytes(*hasher.finalize().as_bytes()))
    })
}

/// The artifacts of a store.
pub struct StageArtifacts(pub Store);

impl Artifacts for StageArtifacts {
    fn folder(&self, digest: &Digest) -> Result<PathBuf> {
        Ok(absolute(&self.0.intact(digest)?))
    }
}
