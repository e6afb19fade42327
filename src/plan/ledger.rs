//! What is settled so far, and what that makes ready. The same rules for planning and for running.

use std::{collections::BTreeMap, sync::Arc};

use petgraph::graph::NodeIndex;

use super::{
    Node, Plan, PlanError,
    graph::{Feed, From},
    identity::ServerName,
};
use crate::{
    stage::card::Section,
    store::{Known, Output},
};

/// How a node ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Settled {
    Done {
        outputs: BTreeMap<String, Output>,
        metrics: BTreeMap<String, f64>,
    },
    /// Its loop had reached its goal.
    Skipped,
}

/// What a node is worked with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ready {
    /// By role.
    pub inputs: BTreeMap<String, Vec<Fed>>,
    /// What the server called itself when it listed the tools that the node's stage knows.
    pub server: Option<Arc<ServerName>>,
}

/// One artifact that a node reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Fed {
    pub name: String,
    pub output: Output,
    pub writer: NodeIndex,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    Ready(Ready),
    /// Its loop has reached its goal.
    Skipped,
    /// These nodes are not settled.
    Waits(Vec<NodeIndex>),
}

/// The state of a plan's nodes.
pub struct Ledger<'p> {
    plan: &'p Plan,
    settled: Vec<Option<Settled>>,
    /// What servers called themselves, by the node that asked.
    servers: BTreeMap<NodeIndex, Arc<ServerName>>,
}

impl<'p> Ledger<'p> {
    pub fn new(plan: &'p Plan) -> Self {
        Self { plan, settled: vec![None; plan.graph.nodes.node_count()], servers: BTreeMap::new() }
    }

    pub fn plan(&self) -> &'p Plan {
        self.plan
    }

    pub fn settle(&mut self, node: NodeIndex, how: Settled) {
        if let Some(slot) = self.settled.get_mut(node.index()) {
            *slot = Some(how);
        }
    }

    /// Settles a node whose result is there.
    pub fn done(&mut self, node: NodeIndex, known: Known) {
        let Known { outputs, metrics, told, .. } = known;
        if let Ok(server) = serde_json::from_value(told) {
            self.servers.insert(node, Arc::new(server));
        }
        self.settle(node, Settled::Done { outputs, metrics });
    }

    /// What the server called itself when it listed the tools that this node reads.
    fn server(&self, node: NodeIndex) -> Option<&Arc<ServerName>> {
        let Node { stage, feeds, .. } = self.plan.node(node);
        let is_tools =
            |feed: &&Feed| stage.card.inputs.get(&feed.role).is_some_and(|role| role.artifact == "tools");
        let writer = feeds.iter().find(is_tools)?.from.writer()?;
        // A stage between may have chosen among them.
        self.servers.get(&writer).or_else(|| self.server(writer))
    }

    pub fn get(&self, node: NodeIndex) -> Option<&Settled> {
        self.settled.get(node.index())?.as_ref()
    }

    /// Whether a node can be worked now. Decided by recorded metrics and outputs alone, so that it is the same in a
    /// cached run.
    pub fn readiness(&self, index: NodeIndex) -> Result<Readiness, PlanError> {
        let node = self.plan.node(index);
        let mut waits = Vec::new();
        if let Some(gate) = &node.gate {
            for decider in &gate.nodes {
                match self.get(*decider) {
                    Some(Settled::Skipped) => return Ok(Readiness::Skipped),
                    Some(Settled::Done { metrics, .. }) => {
                        let value = metrics.get(&gate.metric);
                        if gate.met(*value.ok_or_else(|| self.no_metric(*decider, &gate.metric))?) {
                            return Ok(Readiness::Skipped);
                        }
                    }
                    None => waits.push(*decider),
                }
            }
        }
        let mut ready = Ready::default();
        for feed in &node.feeds {
            match self.output(&feed.from) {
                Ok(Some((output, writer))) => {
                    let fed = Fed { name: feed.name.clone(), output, writer };
                    ready.inputs.entry(feed.role.clone()).or_default().push(fed);
                }
                // An earlier stage that was skipped, or wrote less than its card says, takes its readers with it.
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
        let turns = node.turn.map(|turn| self.plan.loop_name(turn).to_owned()).unwrap_or_default();
        PlanError::NoMetric { stage: node.id.clone(), metric: metric.to_owned(), turns }
    }

    fn output(&self, from: &From) -> Result<Option<(Output, NodeIndex)>, Vec<NodeIndex>> {
        let of = |node: &NodeIndex, port: &str| match self.get(*node) {
            Some(Settled::Done { outputs, .. }) => {
                Ok(outputs.get(port).map(|output| (output.clone(), *node)))
            }
            Some(Settled::Skipped) => Ok(None),
            None => Err(*node),
        };
        match from {
            From::Output { node, port } => of(node, port).map_err(|open| vec![open]),
            From::Last(nodes) => {
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
