//! The DAG: loops unrolled, references resolved, checked for cycles.

use std::{collections::BTreeMap, sync::Arc};

use petgraph::{
    algo::{tarjan_scc, toposort},
    graph::{DiGraph, NodeIndex},
};

use super::{
    parse::{ParsedLoop, ParsedRun, ParsedStage, Stage},
    reader::{Part, Reader},
    references::{Resolver, Target, carried_type, yields},
};
use crate::error::did_you_mean;

/// One execution of a stage: one node outside loops, one per iteration within.
pub struct Node {
    /// `rollout`, or `train[0003]/rollout`.
    pub id: String,
    pub stage: Arc<Stage>,
    /// Index of the loop and iteration (from 1), if it is in a loop.
    pub turn: Option<Turn>,
    pub inputs: Vec<InputEdge>,
    /// Skipped if this condition holds.
    pub stop_condition: Option<StopCondition>,
    /// The metric that decides whether later iterations run.
    pub awaited: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub turns: usize,
    pub iteration: u32,
}

/// An artifact that a node reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputEdge {
    pub role: String,
    pub name: String,
    pub from: InputSource,
}

/// Where an artifact comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputSource {
    Output {
        node: NodeIndex,
        port: String,
    },
    /// The output of the last of these that ran; later ones may be skipped.
    Last(Vec<(NodeIndex, String)>),
}

impl InputSource {
    /// The node that writes the artifact; the last of several.
    pub fn writer(&self) -> Option<NodeIndex> {
        match self {
            Self::Output { node, .. } => Some(*node),
            Self::Last(nodes) => nodes.last().map(|(node, _)| *node),
        }
    }
}

/// Ends the loop once a metric of an earlier iteration passes a bound.
#[derive(Debug, Clone, PartialEq)]
pub struct StopCondition {
    /// The stage that reports the metric, in the iterations that decide.
    pub nodes: Vec<NodeIndex>,
    pub metric: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
}

impl StopCondition {
    pub fn met(&self, value: f64) -> bool {
        self.at_least.is_none_or(|bound| value >= bound) && self.at_most.is_none_or(|bound| value <= bound)
    }
}

/// The nodes, an edge from each to its dependents, and a topological order.
pub struct Graph {
    pub nodes: DiGraph<Node, ()>,
    pub order: Vec<NodeIndex>,
    /// Name and iterations of each loop.
    pub loops: Vec<(String, u32)>,
}

/// Unrolls loops and resolves references. `None` if the reader has noted a mistake.
pub fn graph(reader: &Reader<'_>, parsed: &ParsedRun) -> Option<Graph> {
    let outer = Resolver { reader, parsed, within: None };
    let mut loops = Vec::new();
    for (index, turns) in parsed.loops.iter().enumerate() {
        loops.push(loop_links(reader, parsed, index, turns));
    }
    let stages: Vec<_> = parsed.stages.iter().map(|stage| links(outer, stage)).collect();
    let loops: Vec<_> = loops.into_iter().collect::<Option<_>>()?;
    let stages: Vec<_> = stages.into_iter().collect::<Option<_>>()?;
    if !reader.clean() {
        return None;
    }
    let unrolled = Unrolled::new(parsed, &loops);
    let nodes = unrolled.nodes(&stages);
    match toposort(&nodes, None) {
        Ok(mut order) => {
            // Of all topological orders, use the one closest to the file's order.
            stable(&nodes, &mut order);
            let loops = parsed.loops.iter().map(|turns| (turns.name.clone(), turns.iterations)).collect();
            Some(Graph { nodes, order, loops })
        }
        Err(_) => cycle(reader, parsed, &nodes),
    }
}

type Targets = Vec<(String, String, Target)>;

struct LoopTargets {
    stages: Vec<Targets>,
    /// Carried name to its initial artifact, and the stage and port that renew it.
    carry: BTreeMap<String, (Target, usize, String)>,
    /// Stage and metric that end the loop.
    until: Option<(usize, String)>,
    /// The largest lag of any reader of a carried value, in iterations.
    lag: u32,
}

fn links(resolver: Resolver<'_>, stage: &ParsedStage) -> Option<Targets> {
    let link = |input: &super::parse::ParsedInput| {
        Some((input.role.clone(), input.name.clone(), resolver.link(&input.entry, &input.artifact)?))
    };
    let links: Vec<_> = stage.inputs.iter().map(link).collect();
    links.into_iter().collect()
}

fn loop_links(
    reader: &Reader<'_>,
    parsed: &ParsedRun,
    index: usize,
    turns: &ParsedLoop,
) -> Option<LoopTargets> {
    let outer = Resolver { reader, parsed, within: None };
    let inner = Resolver { within: Some(index), ..outer };
    let stages: Vec<_> = turns.stages.iter().map(|stage| links(inner, stage)).collect();
    let until = turns.until.as_ref().map(|_| until(reader, parsed, turns));
    let stray = turns.stages.iter().filter(|stage| yields_nothing_carried(reader, turns, stage)).count();
    if stray > 0 {
        // Otherwise carried values would wrongly be reported as never renewed.
        return None;
    }
    let carried = turns.carry.iter().map(|(name, entry)| {
        let Some(artifact) = carried_type(parsed, index, name) else {
            if !parsed.is_whole {
                return None;
            }
            let message = format!("no stage of loop \"{}\" reads \"@{name}\"", turns.name);
            return reader.wrong(entry, Part::Key, message, None);
        };
        let (start, renewer) = (outer.link(entry, &artifact), renewer(outer, turns, name, entry, &artifact));
        let (stage, port) = renewer?;
        Some((name.clone(), (start?, stage, port)))
    });
    let carried: Vec<_> = carried.collect();
    let carry = carried.into_iter().collect::<Option<_>>()?;
    let until = match until {
        Some(until) => Some(until?),
        None => None,
    };
    let stages: Vec<Targets> = stages.into_iter().collect::<Option<_>>()?;
    let lags = stages.iter().flatten().filter_map(|(_, _, link)| match link {
        Target::Carried { lag, .. } => Some(*lag),
        _ => None,
    });
    let lag = lags.max().unwrap_or(0);
    Some(LoopTargets { stages, carry, until, lag })
}

/// Notes a stage whose `yields` names a value that its loop does not carry.
fn yields_nothing_carried(reader: &Reader<'_>, turns: &ParsedLoop, stage: &ParsedStage) -> bool {
    let Some((name, entry)) = yields(stage).zip(stage.yields.as_ref()) else { return false };
    if turns.carry.contains_key(name) {
        return false;
    }
    let near = did_you_mean(name, turns.carry.keys().map(String::as_str));
    let hint = near.map(|near| format!("did you mean \"{near}\"?"));
    let message = format!("loop \"{}\" carries no \"{name}\"", turns.name);
    reader.wrong::<()>(entry, Part::Value, message, hint);
    true
}

/// The one stage that renews a carried value, and its port.
fn renewer(
    Resolver { reader, parsed, .. }: Resolver<'_>,
    turns: &ParsedLoop,
    name: &str,
    entry: &super::layers::Entry,
    artifact: &str,
) -> Option<(usize, String)> {
    let mut found = turns.stages.iter().enumerate().filter(|(_, stage)| yields(stage) == Some(name));
    let Some((index, stage)) = found.next() else {
        if !parsed.is_whole {
            return None;
        }
        let message = format!("no stage of loop \"{}\" renews \"{name}\"", turns.name);
        let hint = format!("the stage that does says `yields = \"{name}\"`");
        return reader.wrong(entry, Part::Key, message, Some(hint));
    };
    let declared = stage.yields.as_ref()?;
    if let Some((_, other)) = found.next() {
        let message = format!("two stages of loop \"{}\" yield \"{name}\"", turns.name);
        return reader.wrong(other.yields.as_ref()?, Part::Value, message, None);
    }
    match stage.stage.card.output_of_type(artifact) {
        Some(port) => Some((index, port.to_owned())),
        None => {
            let message = format!("stage \"{}\" does not write one artifact of type {artifact}", stage.name);
            reader.wrong(declared, Part::Value, message, None)
        }
    }
}

fn until(reader: &Reader<'_>, parsed: &ParsedRun, turns: &ParsedLoop) -> Option<(usize, String)> {
    let entry = &turns.until.as_ref()?.metric;
    let text = reader.text(entry)?;
    if text.split_once('.').is_some_and(|(stage, _)| parsed.broken.contains(stage)) {
        return None;
    }
    let names: Vec<String> = turns
        .stages
        .iter()
        .flat_map(|stage| stage.stage.card.metrics.keys().map(|metric| format!("{}.{metric}", stage.name)))
        .collect();
    let known = text.split_once('.').and_then(|(stage, metric)| {
        let index = turns.stages.iter().position(|candidate| candidate.name == stage)?;
        turns.stages.get(index)?.stage.card.reports(metric).then(|| (index, metric.to_owned()))
    });
    known.or_else(|| {
        let message = format!("`{}`: no stage of loop \"{}\" reports \"{text}\"", entry.path, turns.name);
        let hint = match did_you_mean(text, names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("metrics: {}", names.join(", ")),
        };
        reader.wrong(entry, Part::Value, message, Some(hint))
    })
}

/// Node indices after unrolling: outer stages first, then loop by loop, iteration by iteration.
struct Unrolled<'a> {
    parsed: &'a ParsedRun,
    loops: &'a [LoopTargets],
    /// Index of each loop's first node.
    starts: Vec<usize>,
}

impl<'a> Unrolled<'a> {
    fn new(parsed: &'a ParsedRun, loops: &'a [LoopTargets]) -> Self {
        let mut next = parsed.stages.len();
        let mut starts = Vec::new();
        for turns in &parsed.loops {
            starts.push(next);
            next += turns.iterations as usize * turns.stages.len();
        }
        Self { parsed, loops, starts }
    }

    fn inner(&self, turns: usize, iteration: u32, stage: usize) -> NodeIndex {
        let per_iteration = self.parsed.loops[turns].stages.len();
        NodeIndex::new(self.starts[turns] + (iteration as usize - 1) * per_iteration + stage)
    }

    fn from(&self, link: &Target, turn: Option<Turn>) -> InputSource {
        match (link, turn) {
            (Target::Inner { stage, port }, Some(Turn { turns, iteration })) => {
                InputSource::Output { node: self.inner(turns, iteration, *stage), port: port.clone() }
            }
            (Target::Carried { name, lag }, Some(Turn { turns, iteration })) => {
                let (start, stage, port) = &self.loops[turns].carry[name];
                match iteration.checked_sub(1 + lag) {
                    None | Some(0) => self.from(start, None),
                    Some(earlier) => {
                        InputSource::Output { node: self.inner(turns, earlier, *stage), port: port.clone() }
                    }
                }
            }
            (Target::Result { turns, name }, _) => {
                let (_, stage, port) = &self.loops[*turns].carry[name];
                let all = 1..=self.parsed.loops[*turns].iterations;
                InputSource::Last(all.map(|k| (self.inner(*turns, k, *stage), port.clone())).collect())
            }
            // The resolver returns inner and carried targets only within loops.
            (Target::Outer { stage, port } | Target::Inner { stage, port }, _) => {
                InputSource::Output { node: NodeIndex::new(*stage), port: port.clone() }
            }
            (Target::Carried { .. }, None) => InputSource::Last(Vec::new()),
        }
    }

    fn node(&self, stage: &ParsedStage, links: &Targets, turn: Option<Turn>) -> Node {
        let edge = |(role, name, link): &(String, String, Target)| InputEdge {
            role: role.clone(),
            name: name.clone(),
            from: self.from(link, turn),
        };
        let id = match turn {
            Some(Turn { turns, iteration }) => {
                format!("{}[{iteration:04}]/{}", self.parsed.loops[turns].name, stage.name)
            }
            None => stage.name.clone(),
        };
        Node {
            id,
            stage: stage.stage.clone(),
            turn,
            inputs: links.iter().map(edge).collect(),
            stop_condition: turn.and_then(|turn| self.stop_condition(turn)),
            awaited: turn.and_then(|turn| self.awaited(stage, turn)),
        }
    }

    fn awaited(&self, stage: &ParsedStage, Turn { turns, iteration }: Turn) -> Option<String> {
        let (parsed, links) = (&self.parsed.loops[turns], &self.loops[turns]);
        let (until, metric) = links.until.as_ref()?;
        let decides =
            parsed.stages.get(*until)?.name == stage.name && iteration + links.lag < parsed.iterations;
        decides.then(|| metric.clone())
    }

    /// Iteration k is skipped if any iteration up to k-1-lag reached the goal; newer ones may still be
    /// running. Checking the newest lag+1 of these is enough: if an older one reached it, iteration k-1-lag
    /// was itself skipped.
    fn stop_condition(&self, Turn { turns, iteration }: Turn) -> Option<StopCondition> {
        let links = &self.loops[turns];
        let (stage, metric) = links.until.as_ref()?;
        let until = self.parsed.loops[turns].until.as_ref()?;
        let newest = iteration.checked_sub(1 + links.lag).filter(|newest| *newest > 0)?;
        let oldest = newest.saturating_sub(links.lag).max(1);
        Some(StopCondition {
            nodes: (oldest..=newest).map(|iteration| self.inner(turns, iteration, *stage)).collect(),
            metric: metric.clone(),
            at_least: until.at_least,
            at_most: until.at_most,
        })
    }

    fn nodes(&self, stages: &[Targets]) -> DiGraph<Node, ()> {
        let mut graph = DiGraph::new();
        for (stage, links) in self.parsed.stages.iter().zip(stages) {
            graph.add_node(self.node(stage, links, None));
        }
        for (turns, (parsed, links)) in self.parsed.loops.iter().zip(self.loops).enumerate() {
            for iteration in 1..=parsed.iterations {
                for (stage, links) in parsed.stages.iter().zip(&links.stages) {
                    graph.add_node(self.node(stage, links, Some(Turn { turns, iteration })));
                }
            }
        }
        for index in graph.node_indices() {
            let mut before: Vec<NodeIndex> = Vec::new();
            for edge in &graph[index].inputs {
                match &edge.from {
                    InputSource::Output { node, .. } => before.push(*node),
                    InputSource::Last(nodes) => before.extend(nodes.iter().map(|(node, _)| *node)),
                }
            }
            before
                .extend(graph[index].stop_condition.iter().flat_map(|stop_condition| &stop_condition.nodes));
            before.sort_unstable();
            before.dedup();
            for earlier in before {
                graph.add_edge(earlier, index, ());
            }
        }
        graph
    }
}

/// Reorders so that each node comes as early as its index and its dependencies allow.
fn stable(nodes: &DiGraph<Node, ()>, order: &mut Vec<NodeIndex>) {
    let mut waiting: Vec<usize> =
        nodes.node_indices().map(|node| nodes.edges_directed(node, petgraph::Incoming).count()).collect();
    let mut ready: std::collections::BTreeSet<NodeIndex> =
        nodes.node_indices().filter(|node| waiting[node.index()] == 0).collect();
    order.clear();
    while let Some(node) = ready.pop_first() {
        order.push(node);
        for next in nodes.neighbors(node) {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.insert(next);
            }
        }
    }
}

fn cycle<T>(reader: &Reader<'_>, parsed: &ParsedRun, nodes: &DiGraph<Node, ()>) -> Option<T> {
    let knot = tarjan_scc(nodes)
        .into_iter()
        .find(|knot| knot.len() > 1 || knot.iter().any(|node| nodes.contains_edge(*node, *node)))?;
    // Follow edges within the cycle until a node repeats.
    let mut path = vec![*knot.iter().min()?];
    let start = loop {
        let next = nodes.neighbors(*path.last()?).filter(|node| knot.contains(node)).min()?;
        if let Some(at) = path.iter().position(|node| *node == next) {
            break at;
        }
        path.push(next);
    };
    let mut names: Vec<&str> = path[start..].iter().map(|node| nodes[*node].stage.name.as_str()).collect();
    names.push(names.first()?);
    let first = &nodes[path[start]].stage;
    let all = parsed.stages.iter().chain(parsed.loops.iter().flat_map(|turns| &turns.stages));
    let entry = all.clone().find(|stage| Arc::ptr_eq(&stage.stage, first))?;
    let before = nodes[*path.last()?].stage.name.rsplit('/').next()?.to_owned();
    let input = entry.inputs.iter().find(|input| {
        reader.text(&input.entry).is_some_and(|text| text.split('.').next() == Some(before.as_str()))
    });
    let message = format!("stages wait for each other: {}", names.join(" → "));
    let hint =
        "what one iteration hands to the next is a carried value: `carry`, `@name`, `yields`".to_owned();
    reader.wrong(input.map_or(&entry.entry, |input| &input.entry), Part::Value, message, Some(hint))
}
