//! The DAG: loops unrolled, references followed, checked for cycles.

use std::{collections::BTreeMap, sync::Arc};

use petgraph::{
    algo::{tarjan_scc, toposort},
    graph::{DiGraph, NodeIndex},
};

use super::{
    draft::{Draft, DraftLoop, DraftStage, Stage},
    link::{Link, Linker, carried_type, yields},
    reader::{Part, Reader},
};
use crate::error::did_you_mean;

/// One stage at one place: once outside loops, once per iteration within.
pub struct Node {
    /// `rollout`, or `train[0003]/rollout`.
    pub id: String,
    pub stage: Arc<Stage>,
    /// Index of the loop and iteration (from 1), where it is in one.
    pub turn: Option<Turn>,
    pub feeds: Vec<Feed>,
    /// Not worked if this condition holds.
    pub gate: Option<Gate>,
    /// The metric by which it is decided whether later iterations are worked.
    pub awaited: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub turns: usize,
    pub iteration: u32,
}

/// One artifact a node reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feed {
    pub role: String,
    pub name: String,
    pub from: From,
}

/// Where an artifact comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    Output {
        node: NodeIndex,
        port: String,
    },
    /// The output of the last of these that was worked; later ones may be skipped.
    Last(Vec<(NodeIndex, String)>),
}

impl From {
    /// The node an artifact comes from; the last of several.
    pub fn writer(&self) -> Option<NodeIndex> {
        match self {
            Self::Output { node, .. } => Some(*node),
            Self::Last(nodes) => nodes.last().map(|(node, _)| *node),
        }
    }
}

/// The loop ends once a metric of an earlier iteration is past a bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// The stage that reports the metric, in the iterations that decide.
    pub nodes: Vec<NodeIndex>,
    pub metric: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
}

impl Gate {
    pub fn met(&self, value: f64) -> bool {
        self.at_least.is_none_or(|bound| value >= bound) && self.at_most.is_none_or(|bound| value <= bound)
    }
}

/// The nodes, an edge from each to those that wait for it, and an order in which none comes before what it waits for.
pub struct Graph {
    pub nodes: DiGraph<Node, ()>,
    pub order: Vec<NodeIndex>,
    /// Name and iterations of each loop.
    pub loops: Vec<(String, u32)>,
}

/// Unrolls and links. `None` where the reader has noted why not.
pub fn graph(reader: &Reader<'_>, draft: &Draft) -> Option<Graph> {
    let outer = Linker { reader, draft, within: None };
    let mut loops = Vec::new();
    for (index, turns) in draft.loops.iter().enumerate() {
        loops.push(loop_links(reader, draft, index, turns));
    }
    let stages: Vec<_> = draft.stages.iter().map(|stage| links(outer, stage)).collect();
    let loops: Vec<_> = loops.into_iter().collect::<Option<_>>()?;
    let stages: Vec<_> = stages.into_iter().collect::<Option<_>>()?;
    if !reader.clean() {
        return None;
    }
    let unrolled = Unrolled::new(draft, &loops);
    let nodes = unrolled.nodes(&stages);
    match toposort(&nodes, None) {
        Ok(mut order) => {
            // Among orders that work, the file's reads best.
            stable(&nodes, &mut order);
            let loops = draft.loops.iter().map(|turns| (turns.name.clone(), turns.iterations)).collect();
            Some(Graph { nodes, order, loops })
        }
        Err(_) => cycle(reader, draft, &nodes),
    }
}

type Links = Vec<(String, String, Link)>;

struct LoopLinks {
    stages: Vec<Links>,
    /// Carried name to its start, and the stage and port that renew it.
    carry: BTreeMap<String, (Link, usize, String)>,
    /// Stage and metric that end the loop.
    until: Option<(usize, String)>,
    /// Iterations by which the slowest reader of a carried value is behind.
    lag: u32,
}

fn links(linker: Linker<'_>, stage: &DraftStage) -> Option<Links> {
    let link = |wire: &super::draft::Wire| {
        Some((wire.role.clone(), wire.name.clone(), linker.link(&wire.entry, &wire.artifact)?))
    };
    let links: Vec<_> = stage.wires.iter().map(link).collect();
    links.into_iter().collect()
}

fn loop_links(reader: &Reader<'_>, draft: &Draft, index: usize, turns: &DraftLoop) -> Option<LoopLinks> {
    let outer = Linker { reader, draft, within: None };
    let inner = Linker { within: Some(index), ..outer };
    let stages: Vec<_> = turns.stages.iter().map(|stage| links(inner, stage)).collect();
    let until = turns.until.as_ref().map(|_| until(reader, draft, turns));
    let stray = turns.stages.iter().filter(|stage| yields_nothing_carried(reader, turns, stage)).count();
    if stray > 0 {
        // What is carried would seem to be renewed by nobody.
        return None;
    }
    let carried = turns.carry.iter().map(|(name, entry)| {
        let Some(artifact) = carried_type(draft, index, name) else {
            if !draft.is_whole {
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
    let stages: Vec<Links> = stages.into_iter().collect::<Option<_>>()?;
    let lags = stages.iter().flatten().filter_map(|(_, _, link)| match link {
        Link::Carried { lag, .. } => Some(*lag),
        _ => None,
    });
    let lag = lags.max().unwrap_or(0);
    Some(LoopLinks { stages, carry, until, lag })
}

/// Notes a stage that renews what its loop does not carry.
fn yields_nothing_carried(reader: &Reader<'_>, turns: &DraftLoop, stage: &DraftStage) -> bool {
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

/// The one stage, and its port, that renews a carried value.
fn renewer(
    Linker { reader, draft, .. }: Linker<'_>,
    turns: &DraftLoop,
    name: &str,
    entry: &super::overlay::Entry,
    artifact: &str,
) -> Option<(usize, String)> {
    let mut found = turns.stages.iter().enumerate().filter(|(_, stage)| yields(stage) == Some(name));
    let Some((index, stage)) = found.next() else {
        if !draft.is_whole {
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

fn until(reader: &Reader<'_>, draft: &Draft, turns: &DraftLoop) -> Option<(usize, String)> {
    let entry = &turns.until.as_ref()?.metric;
    let text = reader.text(entry)?;
    if text.split_once('.').is_some_and(|(stage, _)| draft.broken.contains(stage)) {
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

/// Where each node will be: outer stages first, then loop by loop, iteration by iteration.
struct Unrolled<'a> {
    draft: &'a Draft,
    loops: &'a [LoopLinks],
    /// Index of each loop's first node.
    starts: Vec<usize>,
}

impl<'a> Unrolled<'a> {
    fn new(draft: &'a Draft, loops: &'a [LoopLinks]) -> Self {
        let mut next = draft.stages.len();
        let mut starts = Vec::new();
        for turns in &draft.loops {
            starts.push(next);
            next += turns.iterations as usize * turns.stages.len();
        }
        Self { draft, loops, starts }
    }

    fn inner(&self, turns: usize, iteration: u32, stage: usize) -> NodeIndex {
        let per_iteration = self.draft.loops[turns].stages.len();
        NodeIndex::new(self.starts[turns] + (iteration as usize - 1) * per_iteration + stage)
    }

    fn from(&self, link: &Link, turn: Option<Turn>) -> From {
        match (link, turn) {
            (Link::Inner { stage, port }, Some(Turn { turns, iteration })) => {
                From::Output { node: self.inner(turns, iteration, *stage), port: port.clone() }
            }
            (Link::Carried { name, lag }, Some(Turn { turns, iteration })) => {
                let (start, stage, port) = &self.loops[turns].carry[name];
                match iteration.checked_sub(1 + lag) {
                    None | Some(0) => self.from(start, None),
                    Some(earlier) => {
                        From::Output { node: self.inner(turns, earlier, *stage), port: port.clone() }
                    }
                }
            }
            (Link::Result { turns, name }, _) => {
                let (_, stage, port) = &self.loops[*turns].carry[name];
                let all = 1..=self.draft.loops[*turns].iterations;
                From::Last(all.map(|k| (self.inner(*turns, k, *stage), port.clone())).collect())
            }
            // The linker gives inner and carried links within loops only.
            (Link::Outer { stage, port } | Link::Inner { stage, port }, _) => {
                From::Output { node: NodeIndex::new(*stage), port: port.clone() }
            }
            (Link::Carried { .. }, None) => From::Last(Vec::new()),
        }
    }

    fn node(&self, stage: &DraftStage, links: &Links, turn: Option<Turn>) -> Node {
        let feed = |(role, name, link): &(String, String, Link)| Feed {
            role: role.clone(),
            name: name.clone(),
            from: self.from(link, turn),
        };
        let id = match turn {
            Some(Turn { turns, iteration }) => {
                format!("{}[{iteration:04}]/{}", self.draft.loops[turns].name, stage.name)
            }
            None => stage.name.clone(),
        };
        Node {
            id,
            stage: stage.stage.clone(),
            turn,
            feeds: links.iter().map(feed).collect(),
            gate: turn.and_then(|turn| self.gate(turn)),
            awaited: turn.and_then(|turn| self.awaited(stage, turn)),
        }
    }

    fn awaited(&self, stage: &DraftStage, Turn { turns, iteration }: Turn) -> Option<String> {
        let (draft, links) = (&self.draft.loops[turns], &self.loops[turns]);
        let (until, metric) = links.until.as_ref()?;
        let decides =
            draft.stages.get(*until)?.name == stage.name && iteration + links.lag < draft.iterations;
        decides.then(|| metric.clone())
    }

    /// Iteration k ends the loop if any iteration up to k-1-lag reached the goal; newer ones may still be at work.
    /// The newest lag+1 of these decide: if an older one did, the iteration k-1-lag was itself skipped.
    fn gate(&self, Turn { turns, iteration }: Turn) -> Option<Gate> {
        let links = &self.loops[turns];
        let (stage, metric) = links.until.as_ref()?;
        let until = self.draft.loops[turns].until.as_ref()?;
        let newest = iteration.checked_sub(1 + links.lag).filter(|newest| *newest > 0)?;
        let oldest = newest.saturating_sub(links.lag).max(1);
        Some(Gate {
            nodes: (oldest..=newest).map(|iteration| self.inner(turns, iteration, *stage)).collect(),
            metric: metric.clone(),
            at_least: until.at_least,
            at_most: until.at_most,
        })
    }

    fn nodes(&self, stages: &[Links]) -> DiGraph<Node, ()> {
        let mut graph = DiGraph::new();
        for (stage, links) in self.draft.stages.iter().zip(stages) {
            graph.add_node(self.node(stage, links, None));
        }
        for (turns, (draft, links)) in self.draft.loops.iter().zip(self.loops).enumerate() {
            for iteration in 1..=draft.iterations {
                for (stage, links) in draft.stages.iter().zip(&links.stages) {
                    graph.add_node(self.node(stage, links, Some(Turn { turns, iteration })));
                }
            }
        }
        for index in graph.node_indices() {
            let mut before: Vec<NodeIndex> = Vec::new();
            for feed in &graph[index].feeds {
                match &feed.from {
                    From::Output { node, .. } => before.push(*node),
                    From::Last(nodes) => before.extend(nodes.iter().map(|(node, _)| *node)),
                }
            }
            before.extend(graph[index].gate.iter().flat_map(|gate| &gate.nodes));
            before.sort_unstable();
            before.dedup();
            for earlier in before {
                graph.add_edge(earlier, index, ());
            }
        }
        graph
    }
}

/// Reorders so that each node stands as early as its index and its dependencies allow.
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

fn cycle<T>(reader: &Reader<'_>, draft: &Draft, nodes: &DiGraph<Node, ()>) -> Option<T> {
    let knot = tarjan_scc(nodes)
        .into_iter()
        .find(|knot| knot.len() > 1 || knot.iter().any(|node| nodes.contains_edge(*node, *node)))?;
    // Walk along edges within the knot until a node comes again.
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
    let all = draft.stages.iter().chain(draft.loops.iter().flat_map(|turns| &turns.stages));
    let entry = all.clone().find(|stage| Arc::ptr_eq(&stage.stage, first))?;
    let before = nodes[*path.last()?].stage.name.rsplit('/').next()?.to_owned();
    let wire = entry.wires.iter().find(|wire| {
        reader.text(&wire.entry).is_some_and(|text| text.split('.').next() == Some(before.as_str()))
    });
    let message = format!("stages wait for each other: {}", names.join(" → "));
    let hint =
        "what one iteration hands to the next is a carried value: `carry`, `@name`, `yields`".to_owned();
    reader.wrong(wire.map_or(&entry.entry, |wire| &wire.entry), Part::Value, message, Some(hint))
}
