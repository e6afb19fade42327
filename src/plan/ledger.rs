//! Which nodes are complete, and which are therefore ready. Planning and running use the same rules.

use std::{collections::BTreeMap, sync::Arc};

use petgraph::graph::NodeIndex;

use super::{
    Node, Plan, PlanError,
    graph::{InputEdge, InputSource},
    identity::ServerName,
};
use crate::{
    stage::card::Section,
    store::{CachedResult, Output},
};

/// How a node ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Completion {
    Done {
        outputs: BTreeMap<String, Output>,
        metrics: BTreeMap<String, f64>,
    },
    /// Its loop has reached its goal.
    Skipped,
}

/// The resolved inputs of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadyInputs {
    /// By role.
    pub inputs: BTreeMap<String, Vec<ResolvedInput>>,
    /// The server's name and version when it listed the tools that the node reads.
    pub server: Option<Arc<ServerName>>,
}

/// An artifact that a node reads.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedInput {
    pub name: String,
    pub output: Output,
    pub writer: NodeIndex,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    Ready(ReadyInputs),
    /// Its loop has reached its goal.
    Skipped,
    /// These nodes are not complete.
    Waits(Vec<NodeIndex>),
}

/// The state of a plan's nodes.
pub struct Ledger<'p> {
    plan: &'p Plan,
    settled: Vec<Option<Completion>>,
    /// The server's reported name and version, by the node that asked.
    servers: BTreeMap<NodeIndex, Arc<ServerName>>,
}

impl<'p> Ledger<'p> {
    pub fn new(plan: &'p Plan) -> Self {
        Self { plan, settled: vec![None; plan.graph.nodes.node_count()], servers: BTreeMap::new() }
    }

    pub fn plan(&self) -> &'p Plan {
        self.plan
    }

    pub fn complete(&mut self, node: NodeIndex, how: Completion) {
        if let Some(slot) = self.settled.get_mut(node.index()) {
            *slot = Some(how);
        }
    }

    /// Completes a node whose result exists.
    pub fn done(&mut self, node: NodeIndex, known: CachedResult) {
        let CachedResult { outputs, metrics, told, .. } = known;
        if let Ok(server) = serde_json::from_value(told) {
            self.servers.insert(node, Arc::new(server));
        }
        self.complete(node, Completion::Done { outputs, metrics });
    }

    /// The server's name and version when it listed the tools that this node reads.
    fn server(&self, node: NodeIndex) -> Option<&Arc<ServerName>> {
        let Node { stage, inputs, .. } = self.plan.node(node);
        let is_tools = |edge: &&InputEdge| {
            stage.card.inputs.get(&edge.role).is_some_and(|role| role.artifact == "tools")
        };
        let writer = inputs.iter().find(is_tools)?.from.writer()?;
        // A stage in between may have selected some of the tools.
        self.servers.get(&writer).or_else(|| self.server(writer))
    }

    pub fn get(&self, node: NodeIndex) -> Option<&Completion> {
        self.settled.get(node.index())?.as_ref()
    }

    /// Whether a node can run now. Depends only on recorded metrics and outputs, so that a cached run decides
    /// the same.
    pub fn readiness(&self, index: NodeIndex) -> Result<Readiness, PlanError> {
        let node = self.plan.node(index);
        let mut waits = Vec::new();
        if let Some(stop_condition) = &node.stop_condition {
            for decider in &stop_condition.nodes {
                match self.get(*decider) {
                    Some(Completion::Skipped) => return Ok(Readiness::Skipped),
                    Some(Completion::Done { metrics, .. }) => {
                        let value = metrics.get(&stop_condition.metric);
                        if stop_condition
                            .met(*value.ok_or_else(|| self.no_metric(*decider, &stop_condition.metric))?)
                        {
                            return Ok(Readiness::Skipped);
                        }
                    }
                    None => waits.push(*decider),
                }
            }
        }
        let mut ready = ReadyInputs::default();
        for edge in &node.inputs {
            match self.output(&edge.from) {
                Ok(Some((output, writer))) => {
                    let input = ResolvedInput { name: edge.name.clone(), output, writer };
                    ready.inputs.entry(edge.role.clone()).or_default().push(input);
                }
                // If an earlier stage was skipped, or wrote less than its card declares, its readers are
                // skipped too.
                Ok(None) => return Ok(Readiness::Skipped),
                Err(mut open) => waits.append(&mut open),
            }
        }
        waits.sort_unstable();
        waits.dedup();
        if waits.is_empty() && node.stage.card.uses.contains(&Section::Server) {
            ready.server = self.server(index).cloned();
        }
        Ok(if waits.is_empty() { Readiness::Ready(ready) } else { Readiness::Waits(waits) })
    }

    fn no_metric(&self, index: NodeIndex, metric: &str) -> PlanError {
        let node = self.plan.node(index);
        let in_loop = node.iteration.map(|iteration| self.plan.loop_name(iteration).to_owned());
        let in_loop = in_loop.unwrap_or_default();
        PlanError::NoMetric { stage: node.id.clone(), metric: metric.to_owned(), in_loop }
    }

    fn output(&self, from: &InputSource) -> Result<Option<(Output, NodeIndex)>, Vec<NodeIndex>> {
        let of = |node: &NodeIndex, port: &str| match self.get(*node) {
            Some(Completion::Done { outputs, .. }) => {
                Ok(outputs.get(port).map(|output| (output.clone(), *node)))
            }
            Some(Completion::Skipped) => Ok(None),
            None => Err(*node),
        };
        match from {
            InputSource::Output { node, port } => of(node, port).map_err(|open| vec![open]),
            InputSource::Last(nodes) => {
                let all: Vec<_> = nodes.iter().map(|(node, port)| of(node, port)).collect();
                let open: Vec<_> = all.iter().filter_map(|found| found.as_ref().err().copied()).collect();
                if !open.is_empty() {
                    return Err(open);
                }
                Ok(all.into_iter().filter_map(Result::ok).flatten().next_back())
            }
        }
    }
}
