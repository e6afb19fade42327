//! What it takes to run a stage, as a value that another process can read: everything but the run's folder.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{error::ExecError, rows::StageRows, work_dir::absolute};
use crate::{
    error::Result,
    hash::Digest,
    mcp::Servers,
    model::kernels::Format,
    plan::{Job, NodeIndex, Plan, ReadyInputs, ResolvedInput, ServerName},
    progress::Observer,
    stage::{self, Artifacts, Context, Input, Metrics, SharedModels, card::Section},
    store::{Output, Store, StoreError},
    usage::UsageMeter,
};

/// A stage to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Id of the node.
    pub node: String,
    pub key: Digest,
    /// By role.
    pub inputs: BTreeMap<String, Vec<TaskInput>>,
    pub server: Option<ServerName>,
    pub formats: Vec<Format>,
    /// Number of the draw.
    pub draw: u64,
    /// Whether rows of earlier results do not count.
    pub is_rerun: bool,
    pub seed: u64,
    /// Devices of the stage's own; empty for those of the run.
    pub devices: Vec<String>,
    /// Sessions by server, of those that limit them.
    pub sessions: BTreeMap<String, usize>,
    /// Where outputs go.
    pub out: PathBuf,
    /// For temporary files.
    pub scratch: PathBuf,
}

/// An artifact that the stage reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskInput {
    pub name: String,
    pub output: Output,
    /// Number of the node that wrote it.
    pub writer: usize,
}

/// What a process has of a run: that of the run itself, or a worker of it.
#[derive(Clone, Copy)]
pub struct Place<'p> {
    pub plan: &'p Plan,
    pub store: &'p Store,
    /// Kept in memory for several stages.
    pub models: &'p Arc<SharedModels>,
}

impl Task {
    /// The node and its rows, as this process plans them.
    ///
    /// # Errors
    /// If the key is another one here: a file or a variable has changed.
    pub fn planned(&self, place: Place<'_>) -> Result<(NodeIndex, StageRows)> {
        let Place { plan, store, .. } = place;
        let other = || ExecError::OtherKey { stage: self.node.clone() };
        let node = plan.order().iter().copied().find(|index| plan.node(*index).id == self.node);
        let index = node.ok_or_else(other)?;
        let input = |input: &TaskInput| ResolvedInput {
            name: input.name.clone(),
            output: input.output.clone(),
            writer: NodeIndex::new(input.writer),
        };
        let inputs = self.inputs.iter();
        let ready = ReadyInputs {
            inputs: inputs.map(|(role, all)| (role.clone(), all.iter().map(input).collect())).collect(),
            server: self.server.clone().map(Arc::new),
            formats: self.formats.clone(),
        };
        let job = Job::new(plan, index, ready, &[]);
        if job.key != self.key {
            return Err(other().into());
        }
        let card = &plan.node(index).stage.card;
        let rows = StageRows::new(store, card, (&job.fields, &job.key), self.draw, self.is_rerun)?;
        Ok((index, rows))
    }

    /// Runs the stage of this node.
    ///
    /// # Errors
    /// Those of the stage.
    pub async fn run(
        &self,
        place: Place<'_>,
        index: NodeIndex,
        rows: Arc<StageRows>,
        observer: Arc<dyn Observer>,
        meter: Arc<UsageMeter>,
        cancel: CancellationToken,
    ) -> Result<Metrics> {
        let Place { plan, store, models } = place;
        let stage = &plan.node(index).stage;
        let input = |fed: &TaskInput| Input {
            name: fed.name.clone(),
            digest: fed.output.digest,
            path: absolute(store.path(&fed.output)),
        };
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
        let inputs = self.inputs.iter();
        let context = Context {
            stage: self.node.clone(),
            card: stage.card.clone(),
            params: stage.params.clone(),
            inputs: inputs.map(|(role, inputs)| (role.clone(), inputs.iter().map(input).collect())).collect(),
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
            cancel,
        };
        stage::parse(&stage.card, &context.params)?.run(&context).await
    }
}

/// The artifacts of a store.
pub struct StageArtifacts(pub Store);

impl Artifacts for StageArtifacts {
    fn folder(&self, digest: &Digest) -> Result<PathBuf> {
        if !self.0.inspect(digest).is_intact() {
            return Err(StoreError::Absent { digest: digest.short() }.into());
        }
        Ok(absolute(self.0.artifact(digest)))
    }
}
