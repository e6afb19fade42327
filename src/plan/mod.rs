//! Run file → plan: the DAG of stages with loops unrolled, their keys, and why each would run.
//!
//! Planning writes nothing and uses neither the network nor a GPU. The same run file, overrides, cards and
//! store give the same plan. If a stage depends on one that is not finished, its key is not known yet.
//!
//! ```text
//! Source     text, raw values and their spans         source.rs
//! Layers     card < extended < file < variables < --set   layers.rs, expand.rs, practice.rs
//! ParsedRun  checked and typed                        parse.rs, reader.rs, section.rs, server.rs, track.rs, upkeep.rs,
//!                                                     executor.rs
//! Graph      references resolved, loops unrolled      references.rs, graph.rs
//! Ledger     which nodes are complete, which ready    ledger.rs, best.rs
//! PlanPreflight  how pending stages would fail            preflight.rs
//! PlanReport cached / run and why / waits, and costs  report.rs, estimate.rs, memory.rs, models.rs
//! ```

mod best;
mod engine;
mod error;
mod estimate;
mod executor;
mod expand;
mod graph;
mod identity;
mod infer;
mod key;
mod layers;
mod ledger;
mod memory;
mod models;
mod name;
mod named_files;
mod parse;
mod practice;
mod preflight;
mod reader;
mod reason;
mod references;
mod report;
mod resample;
mod schema;
mod scored;
mod section;
mod server;
mod source;
mod tool_list;
mod track;
mod until;
mod upkeep;

pub use error::{Location, PlanError, Problem, Subject};
pub use estimate::{CostHistory, Estimate, NoEstimate, Reused, Unknown, Uses};
pub use executor::{Action, Executor, JobsSpec, OnInterrupt, TEMPLATES, Template};
pub use expand::expanded;
pub use graph::{InputEdge, Iteration, LoopPlan, Node, SIGNAL};
pub use identity::ServerName;
pub use key::{KeyFields, KeyInput};
pub use layers::{Overrides, top_level};
pub use ledger::{
    Completion, Job, Ledger, LoopResult, Readiness, ReadyInputs, Resolution, ResolvedInput, forced,
};
pub use models::Models;
pub use name::{InLoop, NodeName, stage_name};
pub use parse::Stage;
pub use petgraph::graph::NodeIndex;
pub use practice::Practice;
pub use preflight::{Findings, PlanPreflight};
pub use reason::{KeyMetadata, RerunReason, differences, stored, stored_parts};
pub use report::{NodeStatus, PlanReport, Rerun, ServerStarts, Status, rerun_reasons, rollouts, will_run};
pub use resample::Resample;
pub use schema::schema;
pub use source::{ExtendedFile, RunFile};
pub use tool_list::{ToolChanges, outputs_path};
pub use track::{TensorBoardSpec, TrackSpec, TrackioSpec, WandbSpec};
pub use upkeep::CacheMode;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use self::{
    graph::Graph, identity::ServerIdentity, key::KeyEnvironment, layers::Layers, reader::Reader,
    scored::with_scored_by, source::join,
};
use crate::{
    engine::EngineSpec,
    error::Result,
    hash::Digest,
    mcp::{ServerSpec, Servers, State},
    model::kernels::Format,
    stage::{Cards, card::Section},
    store::{FileDigests, Output, RemoteSpec},
};

/// A path that is valid in any working directory.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The trackers of a run file. Nothing else of it is checked, so the files that it names may be gone.
///
/// # Errors
/// If `[track]` has mistakes.
pub fn track_spec(source: &RunFile, overrides: &Overrides) -> Result<TrackSpec> {
    let (layers, mistakes) = Layers::new(source, overrides);
    let reader = Reader::new(mistakes);
    let entry = layers.top().field("track");
    let spec = entry.map(|entry| track::track(&reader, &entry)).unwrap_or_default();
    Ok(reader.finish(Some(spec))?)
}

/// The section `[engine]` of a run file, with overrides and defaults. Nothing else is checked.
///
/// # Errors
/// If the section has mistakes.
pub fn engine_spec(source: &RunFile, overrides: &Overrides) -> Result<EngineSpec> {
    let (layers, mistakes) = Layers::new(source, overrides);
    let reader = Reader::new(mistakes);
    let spec = match layers.top().field("engine") {
        Some(entry) => engine::engine(&reader, &entry),
        None => Some(EngineSpec::default()),
    };
    Ok(reader.finish(spec)?)
}

/// A stage of a run file as it is written there, with the defaults of its card.
#[derive(Debug, Clone, PartialEq)]
pub struct StageSettings {
    /// With the loop's name if it is in one: `tasks`, `train/rollout`.
    pub name: String,
    pub kind: String,
    /// Its parameters and its seed.
    pub params: serde_json::Map<String, serde_json::Value>,
}

/// The settings of all stages, those in loops last. Nothing is checked, so the files that the run file names may be gone; a
/// stage whose card is gone has no parameters.
pub fn stage_settings(source: &RunFile, overrides: &Overrides, cards: &Cards) -> Vec<StageSettings> {
    let (mut layers, _) = Layers::new(source, overrides);
    let kinds = parse::kinds(&layers, cards).unwrap_or_default();
    layers.add_defaults(&kinds, infer::inputs(&layers.top(), &kinds));
    let mut all = Vec::new();
    let mut add = |prefix: &str, stages: Option<layers::Entry<'_>>| {
        for (name, stage) in stages.iter().flat_map(|stages| stages.fields().unwrap_or_default()) {
            let Some(kind) = stage.kind() else { continue };
            let is_param = |name: &str| {
                name == "seed" || kinds.get(kind).is_some_and(|card| card.params.contains_key(name))
            };
            let fields = stage.fields().unwrap_or_default().into_iter().filter(|(name, _)| is_param(name));
            let params = fields.map(|(name, value)| (name.to_owned(), value.json())).collect();
            all.push(StageSettings { name: format!("{prefix}{name}"), kind: kind.to_owned(), params });
        }
    };
    let top = layers.top();
    add("", top.field("stages"));
    for (name, each) in top.field("loop").iter().flat_map(|loops| loops.fields().unwrap_or_default()) {
        add(&format!("{name}/"), each.field("stages"));
    }
    all
}

/// A fully resolved run.
pub struct Plan {
    pub name: String,
    pub servers: Option<Servers>,
    pub engine: EngineSpec,
    /// Where results are shared with other machines. Not part of any key.
    pub remote: Option<RemoteSpec>,
    /// Batch systems that stages run on, by name. Not part of any key.
    pub executors: BTreeMap<String, JobsSpec>,
    /// Trackers that the run reports to. Not part of any key.
    pub track: TrackSpec,
    graph: Graph,
    identity: Option<ServerIdentity>,
    layers: Layers,
}

impl Plan {
    pub fn new(source: &RunFile, overrides: &Overrides, cards: &Cards, files: &FileDigests) -> Result<Self> {
        let (mut layers, mistakes) = Layers::new(source, overrides);
        let kinds = parse::kinds(&layers, cards)?;
        layers.add_defaults(&kinds, infer::inputs(&layers.top(), &kinds));
        let reader = Reader::new(mistakes);
        let parsed = parse::parse(&reader, &layers, &kinds, cards, files);
        // Runs even if parsing found mistakes, so that all of them are reported at once.
        let graph = parsed.as_ref().and_then(|parsed| graph::graph(&reader, parsed)).map(with_scored_by);
        let (parsed, graph) = reader.finish(parsed.zip(graph))?;
        let identity = match &parsed.servers {
            Some(servers) => Some(ServerIdentity::of_all(servers, &absolute(source.folder()), files)?),
            None => None,
        };
        let parse::ParsedRun { name, servers, engine, remote, executors, track, .. } = parsed;
        Ok(Self { name, servers, engine, remote, executors, track, graph, identity, layers })
    }

    /// Servers whose `state` is not confirmed.
    fn unconfirmed(&self) -> Vec<Problem> {
        let servers = self.servers.iter().flat_map(Servers::iter);
        let unconfirmed = servers.filter(|(_, spec)| spec.state == State::Unconfirmed);
        let problem = |(name, _): (&str, &ServerSpec)| {
            let section = if name.is_empty() { "server".to_owned() } else { format!("servers.{name}") };
            let path = format!("{section}.state");
            let place = self.section(&path).or_else(|| self.section(&section));
            let cause = PlanError::Unconfirmed { path }.into();
            Problem { stage: None, subject: Subject::Section, place, cause }
        };
        unconfirmed.map(problem).collect()
    }

    /// Whether a run of this plan may use its servers.
    ///
    /// # Errors
    /// If the user has not confirmed how episodes are isolated on one that a stage uses.
    pub fn check_confirmed(&self) -> Result<(), PlanError> {
        let uses_server = |index: &NodeIndex| self.node(*index).stage.uses.contains(&Section::Server);
        match self.unconfirmed() {
            problems if !problems.is_empty() && self.order().iter().any(uses_server) => {
                Err(PlanError::Refused(problems))
            }
            _ => Ok(()),
        }
    }

    /// The location of a stage's parameter or input in the run file; of the stage itself if `about` is empty.
    fn place_of(&self, stage: &Stage, about: &str) -> Option<Location> {
        self.layers.location(&if about.is_empty() { stage.path.clone() } else { join(&stage.path, about) })
    }

    /// The location of `[server]`, `[servers]` or `[engine]`, or of a key in it.
    fn section(&self, path: &str) -> Option<Location> {
        let is_section = ["server", "servers", "engine"].contains(&path.split('.').next()?);
        is_section.then(|| self.layers.location(path))?
    }

    /// All nodes in topological order.
    pub fn order(&self) -> &[NodeIndex] {
        &self.graph.order
    }

    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.graph.nodes[index]
    }

    /// The server's files whose content is in the keys of stages that use it, with the digests used.
    pub fn server_files(&self) -> impl Iterator<Item = (&Path, &Digest)> {
        let files = self.identity.iter().flat_map(|server| &server.files);
        files.map(|(path, digest)| (path.as_path(), digest))
    }

    /// Databases of servers that may write to them. Their content is in no key.
    pub fn uncounted_files(&self) -> impl Iterator<Item = &Path> {
        self.identity.iter().flat_map(|server| &server.uncounted).map(PathBuf::as_path)
    }

    /// Takes the servers' last answers, where there are any, instead of asking again.
    #[must_use]
    pub fn offline(mut self) -> Self {
        self.identity.iter_mut().for_each(|identity| identity.is_known = true);
        self
    }

    /// The stages that read this node's results or what follows from them, by their names in the run file.
    pub fn followers(&self, index: NodeIndex) -> Vec<String> {
        let (mut found, mut names) = (vec![index], Vec::new());
        for node in self.order() {
            let reads = self.node(*node).inputs.iter().flat_map(|edge| edge.from.nodes());
            if reads.into_iter().any(|read| found.contains(&read)) {
                found.push(*node);
                let name = stage_name(&self.node(*node).id);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }

    /// Whether the node lists the tools of a server that the key cannot identify.
    pub fn queries_server(&self, index: NodeIndex) -> bool {
        let Stage { card, uses, .. } = &*self.node(index).stage;
        self.identity.as_ref().is_some_and(|server| !server.is_known)
            && uses.contains(&Section::Server)
            && card.outputs.values().any(|port| port.artifact == "server")
    }

    /// The error if these metrics lack the one that the node's loop waits for.
    pub fn lacking(&self, index: NodeIndex, metrics: &BTreeMap<String, f64>) -> Option<PlanError> {
        let node = self.node(index);
        let metric = node.awaited.as_ref().filter(|metric| !metrics.contains_key(*metric))?.clone();
        let in_loop = node.iteration.map(|iteration| self.loop_name(iteration).to_owned());
        Some(PlanError::NoMetric { stage: node.id.clone(), metric, in_loop: in_loop.unwrap_or_default() })
    }

    /// The name of an output of the node's card that these outputs lack.
    pub fn lacking_output(&self, index: NodeIndex, outputs: &BTreeMap<String, Output>) -> Option<&str> {
        let mut names = self.node(index).stage.card.outputs.keys();
        names.find(|name| !outputs.contains_key(*name)).map(String::as_str)
    }

    /// The loops, in the file's order.
    pub fn loops(&self) -> &[LoopPlan] {
        &self.graph.loops
    }

    pub fn loop_name(&self, iteration: Iteration) -> &str {
        self.graph.loops.get(iteration.loop_index).map_or("", |found| &found.name)
    }

    /// The engine's arithmetic with models of these types in their files. A stage that reads none trains one in `f32`.
    fn numerics(&self, stored: &[Format]) -> String {
        let stored = if stored.is_empty() { &[Format::F32] } else { stored };
        let of = |stored: &Format| identity::numerics(&self.engine.devices, self.engine.format(*stored));
        let mut all: Vec<String> = stored.iter().map(of).collect();
        all.dedup();
        all.join(", ")
    }

    /// Whether a key of a node with other models could have these numerics.
    fn may_have_numerics(&self, numerics: &str) -> bool {
        let possible = [Format::F32, Format::F16, Format::Bf16].map(|stored| self.numerics(&[stored]));
        numerics.split(", ").all(|one| possible.iter().any(|possible| possible == one))
    }

    /// The fields of a node's key, given its inputs.
    pub fn fields(&self, index: NodeIndex, ready: &ReadyInputs) -> KeyFields {
        let node = self.node(index);
        let key_input = |fed: &ResolvedInput| KeyInput { name: fed.name.clone(), digest: fed.output.digest };
        let inputs =
            ready.inputs.iter().map(|(role, inputs)| (role.clone(), inputs.iter().map(key_input).collect()));
        let around = KeyEnvironment {
            server: self.identity.as_ref(),
            name: ready.server.as_ref(),
            numerics: &self.numerics(&ready.formats),
        };
        KeyFields::new(
            &node.stage,
            node.iteration.map(|iteration| iteration.number),
            inputs.collect(),
            &around,
        )
    }
}
