//! Which nodes are complete, and which are therefore ready. Planning and running use the same rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use petgraph::graph::NodeIndex;
use serde::{Deserialize, Serialize};

use super::{
    CacheMode, KeyFields, Node, Plan, RerunReason, Resample, absolute,
    best::{self, Flat, MetricOf},
    graph::{InputEdge, InputSource, Iteration, LoopPlan, StopCondition},
    identity::ServerName,
};
use crate::{
    error::Result,
    hash::Digest,
    model::{Weights, kernels::Format},
    stage::{Input, Metrics, card::Section, is_trust_lost, model_folder},
    store::{ActionRecord, CachedResult, Lookup, Output, Store},
};

/// The type of artifact that is a model or an adapter.
pub const POLICY: &str = "policy";

/// How a node ended.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few nodes are skipped")]
pub enum Completion {
    Done(CachedResult),
    /// Its loop has ended.
    Skipped,
}

/// Where a loop's result comes from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopResult {
    /// It did not begin, because a metric of a stage has this value.
    Start { name: String, metric: String, value: f64 },
    /// This iteration measured best; 0 is what the loop starts from. All measurements, by iteration.
    Best { name: String, metric: String, iteration: u32, measured: Vec<(u32, f64)> },
}

impl LoopResult {
    pub fn name(&self) -> &str {
        let (Self::Start { name, .. } | Self::Best { name, .. }) = self;
        name
    }

    /// Of which iteration it is; 0 is what the loop starts from.
    pub fn iteration(&self) -> u32 {
        match self {
            Self::Start { .. } => 0,
            Self::Best { iteration, .. } => *iteration,
        }
    }
}

impl std::fmt::Display for LoopResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start { name, metric, value } => {
                write!(
                    f,
                    "loop \"{name}\" did not begin, because `{metric}` is {value}: its result is what it starts from"
                )
            }
            Self::Best { name, metric, iteration, measured } => {
                let of = |(number, value): &(u32, f64)| match number {
                    0 => format!("start {value:.3}"),
                    number => format!("{number}: {value:.3}"),
                };
                let all: Vec<String> = measured.iter().map(of).collect();
                match iteration {
                    0 => write!(
                        f,
                        "loop \"{name}\": no iteration is better than its start, which is its result"
                    )?,
                    best => write!(f, "loop \"{name}\": its result is that of iteration {best}")?,
                }
                write!(f, " ({metric} by iteration: {})", all.join(", "))
            }
        }
    }
}

/// The resolved inputs of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadyInputs {
    /// By role.
    pub inputs: BTreeMap<String, Vec<ResolvedInput>>,
    /// The server's name and version when it listed the tools that the node reads.
    pub server: Option<ServerName>,
    /// The types of the weights of the models that the node reads, as their files have them: each once, ascending.
    pub formats: Vec<Format>,
}

impl ReadyInputs {
    /// The inputs as a stage gets them, by role.
    pub fn of_stage(&self, store: &Store) -> BTreeMap<String, Vec<Input>> {
        let input = |fed: &ResolvedInput| Input {
            name: fed.name.clone(),
            digest: fed.output.digest,
            path: absolute(&store.path(&fed.output)),
        };
        let inputs = self.inputs.iter();
        inputs.map(|(role, fed)| (role.clone(), fed.iter().map(input).collect())).collect()
    }
}

/// An artifact that a node reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResolvedInput {
    pub name: String,
    pub output: Output,
    /// Index of the node that wrote it.
    pub writer: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    Ready(ReadyInputs),
    /// Its loop has ended.
    Skipped,
    /// These nodes are not complete.
    Waits(Vec<NodeIndex>),
}

/// A node whose inputs and key are known.
pub struct Job {
    pub index: NodeIndex,
    pub ready: ReadyInputs,
    pub fields: KeyFields,
    pub key: Digest,
    /// Why the stage runs even if its result is in the store.
    pub forced: Option<RerunReason>,
}

impl Job {
    pub fn new(plan: &Plan, index: NodeIndex, ready: ReadyInputs, resample: &[Resample]) -> Self {
        let fields = plan.fields(index, &ready);
        Self { index, key: fields.key(), fields, ready, forced: forced(plan, index, resample) }
    }

    /// What the store has under its key, with those of its artifacts whose seals do not fit. A record that lacks an output is
    /// damaged.
    pub fn lookup(&self, plan: &Plan, store: &Store) -> (Lookup, Vec<Digest>) {
        let (found, unsealed) = store.lookup_sealed(&self.key);
        let lacking = match &found {
            Lookup::Hit(record) | Lookup::Withheld(record) => {
                plan.lacking_output(self.index, &record.outputs)
            }
            Lookup::Miss | Lookup::Damaged { .. } => None,
        };
        match lacking {
            Some(output) => {
                let problem = "its record does not have it".to_owned();
                (Lookup::Damaged { output: Some(output.to_owned()), problem }, Vec::new())
            }
            None => (found, unsealed),
        }
    }

    /// The usable result in the store, with those of its artifacts whose seals do not fit.
    pub fn stored(&self, plan: &Plan, store: &Store) -> Option<(ActionRecord, Vec<Digest>)> {
        match self.lookup(plan, store) {
            (Lookup::Hit(record), unsealed) => {
                plan.lacking(self.index, &record.metrics).is_none().then_some((record, unsealed))
            }
            _ => None,
        }
    }

    /// Like [`Job::stored`]; none if the stage must rerun.
    pub fn cached(&self, plan: &Plan, store: &Store) -> Option<(ActionRecord, Vec<Digest>)> {
        if self.forced.is_some() { None } else { self.stored(plan, store) }
    }
}

/// What a node needs, given the results in the store.
#[expect(clippy::large_enum_variant, reason = "one exists at a time")]
pub enum Resolution {
    Cached(Digest, CachedResult),
    /// It has no usable result, or must rerun.
    Run(Job),
    /// Its loop has ended.
    Skipped,
    /// These nodes are not complete.
    Waits(Vec<NodeIndex>),
}

/// The state of a plan's nodes.
pub struct Ledger<'p> {
    plan: &'p Plan,
    store: Store,
    completed: Vec<Option<Completion>>,

    /// The type of the weights in the files of a policy's model, by the policy's digest.
    formats: BTreeMap<Digest, Format>,
    /// The same by the model's folder, which most policies share.
    by_folder: BTreeMap<PathBuf, Option<Format>>,
}

impl<'p> Ledger<'p> {
    pub fn new(plan: &'p Plan, store: &Store) -> Self {
        Self {
            plan,
            store: store.clone(),
            completed: vec![None; plan.graph.nodes.node_count()],

            formats: BTreeMap::new(),
            by_folder: BTreeMap::new(),
        }
    }

    pub fn plan(&self) -> &'p Plan {
        self.plan
    }

    pub fn complete(&mut self, node: NodeIndex, how: Completion) {
        // Keys depend on it only without `dtype`.
        if let Completion::Done(CachedResult { outputs, .. }) = &how
            && self.plan.engine.dtype.is_none()
        {
            let ports = &self.plan.node(node).stage.card.outputs;
            let is_policy = |port: &String| ports.get(port).is_some_and(|port| port.artifact == POLICY);
            for (_, policy) in outputs.iter().filter(|(port, _)| is_policy(port)) {
                if let Some(format) = self.stored_format(policy) {
                    self.formats.insert(policy.digest, format);
                }
            }
        }
        if let Some(slot) = self.completed.get_mut(node.index()) {
            *slot = Some(how);
        }
    }

    /// The type of the weights of a policy's model in its files.
    fn stored_format(&mut self, policy: &Output) -> Option<Format> {
        let store = &self.store;
        let folder = model_folder(&store.path(policy), |digest| Some(store.artifact(digest)))?;
        let read = |folder: &PathBuf| Weights::open(folder).ok().map(|weights| weights.format());
        *self.by_folder.entry(folder).or_insert_with_key(read)
    }

    /// Completes a node if `lookup` finds its result, or if its loop has ended. Resolve nodes in the
    /// plan's order, because each completed one may make others ready.
    pub fn resolve(
        &mut self,
        index: NodeIndex,
        resample: &[Resample],
        lookup: impl FnOnce(&Job) -> Result<Option<CachedResult>>,
    ) -> Result<Resolution> {
        Ok(match self.readiness(index) {
            Readiness::Waits(on) => Resolution::Waits(on),
            Readiness::Skipped => {
                self.complete(index, Completion::Skipped);
                Resolution::Skipped
            }
            Readiness::Ready(ready) => {
                let job = Job::new(self.plan, index, ready, resample);
                match lookup(&job)? {
                    Some(result) => {
                        self.complete(index, Completion::Done(result.clone()));
                        Resolution::Cached(job.key, result)
                    }
                    None => Resolution::Run(job),
                }
            }
        })
    }

    /// The server's name and version when it listed the tools that this node reads.
    fn server(&self, node: NodeIndex) -> Option<ServerName> {
        let Node { stage, inputs, .. } = self.plan.node(node);
        let is_tools = |edge: &&InputEdge| stage.reads(&edge.role, "tools");
        let writer = inputs.iter().find(is_tools)?.from.writer()?;
        let reported = match self.get(writer) {
            Some(Completion::Done(result)) => ServerName::deserialize(&result.server_name).ok(),
            _ => None,
        };
        // A stage in between may have selected some of the tools.
        reported.or_else(|| self.server(writer))
    }

    pub fn get(&self, node: NodeIndex) -> Option<&Completion> {
        self.completed.get(node.index())?.as_ref()
    }

    /// Whether a node can run now. Depends only on recorded metrics and outputs, so that a cached run decides
    /// the same.
    pub fn readiness(&self, index: NodeIndex) -> Readiness {
        let node = self.plan.node(index);
        let mut waits = Vec::new();
        for condition in &node.stop_conditions {
            if condition.is_pooled && self.has_lost_trust(condition) {
                return Readiness::Skipped;
            }
            let mut in_a_row = 0;
            for decider in &condition.nodes {
                match self.get(*decider) {
                    Some(Completion::Skipped) => return Readiness::Skipped,
                    // No node completes without the metric of its loop's goal.
                    Some(Completion::Done(CachedResult { metrics, .. }))
                        if !condition.is_pooled
                            && metrics.get(&condition.metric).is_some_and(|value| condition.met(*value)) =>
                    {
                        in_a_row += 1;
                    }
                    Some(Completion::Done(_)) => in_a_row = 0,
                    None => {
                        in_a_row = 0;
                        waits.push(*decider);
                    }
                }
                if in_a_row == condition.in_a_row {
                    return Readiness::Skipped;
                }
            }
        }
        let flat = node.flat.as_ref().map(|flat| self.is_flat(flat));
        if flat == Some(Ok(true)) {
            return Readiness::Skipped;
        }
        let mut ready = ReadyInputs::default();
        for edge in &node.inputs {
            match self.output(&edge.from) {
                Ok(Some((output, writer))) => {
                    let input = ResolvedInput { name: edge.name.clone(), output, writer: writer.index() };
                    ready.inputs.entry(edge.role.clone()).or_default().push(input);
                }
                // If an earlier stage was skipped, or wrote less than its card declares, its readers are
                // skipped too.
                Ok(None) => return Readiness::Skipped,
                Err(mut open) => waits.append(&mut open),
            }
        }
        // Said alone: it would be named beside every input of every iteration.
        if let Some(Err(open)) = flat
            && waits.is_empty()
        {
            waits = open;
        }
        waits.sort_unstable();
        waits.dedup();
        if waits.is_empty() && node.stage.uses.contains(&Section::Server) {
            ready.server = self.server(index);
        }
        let policies = ready.inputs.iter().filter(|(role, _)| node.stage.reads(role, POLICY));
        let policies = policies.flat_map(|(_, fed)| fed);
        let formats: BTreeSet<Format> =
            policies.filter_map(|policy| self.formats.get(&policy.output.digest).copied()).collect();
        ready.formats = formats.into_iter().collect();
        if waits.is_empty() { Readiness::Ready(ready) } else { Readiness::Waits(waits) }
    }

    /// Whether the judges of these iterations cannot be trusted. False while one of them is not complete.
    fn has_lost_trust(&self, condition: &StopCondition) -> bool {
        let metrics = condition.nodes.iter().map(|node| match self.get(*node) {
            Some(Completion::Done(result)) => Some(&result.metrics),
            Some(Completion::Skipped) | None => None,
        });
        let metrics: Option<Vec<&Metrics>> = metrics.collect();
        metrics.is_some_and(|metrics| is_trust_lost(metrics.into_iter(), condition.in_a_row as usize))
    }

    /// Whether all of these are complete; those that are not are the error.
    fn all_complete(&self, nodes: impl IntoIterator<Item = NodeIndex>) -> Result<(), Vec<NodeIndex>> {
        let open: Vec<NodeIndex> = nodes.into_iter().filter(|node| self.get(*node).is_none()).collect();
        if open.is_empty() { Ok(()) } else { Err(open) }
    }

    /// What a node that ran reports.
    fn metric(&self, of: &MetricOf) -> Option<f64> {
        match self.get(of.node)? {
            Completion::Done(done) => done.metrics.get(&of.name).copied(),
            Completion::Skipped => None,
        }
    }

    /// Where the results of loops come from that have a choice.
    pub fn loop_results(&self) -> Vec<LoopResult> {
        let of = |each: &LoopPlan| {
            let name = each.name.clone();
            // A part of a run has no result of the loop.
            let mut iterations =
                self.plan.order().iter().filter_map(|index| self.plan.node(*index).iteration);
            let is_last =
                |at: Iteration| self.plan.loops()[at.loop_index].name == name && at.number == each.iterations;
            if !iterations.any(is_last) {
                return None;
            }
            if let Some(condition) = &each.begins
                && let Some(decider) = condition.nodes.first()
                && let of = (MetricOf { node: *decider, name: condition.metric.clone() })
                && let Some(value) = self.metric(&of).filter(|value| condition.met(*value))
            {
                let metric = format!("{}.{}", self.plan.node(*decider).id, condition.metric);
                return Some(LoopResult::Start { name, metric, value });
            }
            let ran = |(number, of): &(u32, MetricOf)| Some((*number, self.metric(of)?));
            let (iterations, values): (Vec<u32>, Vec<f64>) = each.measured.iter().filter_map(ran).unzip();
            let best = best::best(&values)?;
            let metric = each.measured.last()?.1.name.clone();
            let iteration = iterations[best];
            let measured = iterations.into_iter().zip(values).collect();
            Some(LoopResult::Best { name, metric, iteration, measured })
        };
        self.plan.loops().iter().filter_map(of).collect()
    }

    /// Whether a loop's measurements have not risen for so long that it ends; or the nodes that this waits for.
    fn is_flat(&self, flat: &Flat) -> Result<bool, Vec<NodeIndex>> {
        self.all_complete(flat.metrics.iter().map(|of| of.node))?;
        let values: Vec<f64> = flat.metrics.iter().filter_map(|of| self.metric(of)).collect();
        Ok(best::is_flat(&values, flat.patience))
    }

    /// The artifact that an edge brings, if its writer is complete.
    pub fn read(&self, edge: &InputEdge) -> Option<Output> {
        self.output(&edge.from).ok().flatten().map(|(output, _)| output)
    }

    /// The node whose artifact an edge brings, if it is complete.
    pub fn read_from(&self, edge: &InputEdge) -> Option<NodeIndex> {
        self.output(&edge.from).ok().flatten().map(|(_, writer)| writer)
    }

    fn output(&self, from: &InputSource) -> Result<Option<(Output, NodeIndex)>, Vec<NodeIndex>> {
        let of = |node: &NodeIndex, port: &str| match self.get(*node) {
            Some(Completion::Done(done)) => Ok(done.outputs.get(port).map(|output| (output.clone(), *node))),
            Some(Completion::Skipped) => Ok(None),
            None => Err(*node),
        };
        match from {
            InputSource::Output { node, port } => of(node, port).map_err(|open| vec![open]),
            InputSource::Last(nodes) => {
                self.all_complete(from.nodes())?;
                Ok(nodes.iter().filter_map(|(node, port)| of(node, port).ok()).flatten().next_back())
            }
            InputSource::Best(all) => {
                self.all_complete(from.nodes())?;
                let ran = all.iter().filter_map(|one| Some((of(&one.node, &one.port).ok()??, &one.metric)));
                let ran: Vec<_> = ran.map(|(output, metric)| (output, self.metric(metric))).collect();
                let measured: Vec<usize> = (0..ran.len()).filter(|at| ran[*at].1.is_some()).collect();
                let values: Vec<f64> = ran.iter().filter_map(|(_, value)| *value).collect();
                // Where no iteration can be compared, because no answer is known, the last counts.
                let found = best::best(&values).map_or(ran.len().checked_sub(1), |best| Some(measured[best]));
                Ok(found.map(|found| ran[found].0.clone()))
            }
        }
    }
}

/// Why a node runs even if its result is in the store.
pub fn forced(plan: &Plan, index: NodeIndex, resample: &[Resample]) -> Option<RerunReason> {
    let node = plan.node(index);
    if node.stage.cache != CacheMode::Use {
        return Some(RerunReason::NotCached);
    }
    if resample.iter().any(|resample| resample.means(node)) {
        return Some(RerunReason::Resample);
    }
    plan.queries_server(index).then_some(RerunReason::ServerQueried)
}
