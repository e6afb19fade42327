//! The DAG: loops unrolled, references resolved, checked for cycles.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use petgraph::{
    algo::tarjan_scc,
    graph::{DiGraph, NodeIndex},
};

use super::{
    best::{Flat, Measured, MetricOf},
    layers::{Entry, EntryPart},
    parse::{Best, ParsedInput, ParsedLoop, ParsedRun, ParsedStage, Stage},
    reader::Reader,
    references::{ReferenceTarget, Resolver, carried_name, carried_type, yields},
};
use crate::{
    error::suggest,
    stage::{TRUST, TRUST_WINDOW, card::Role},
};

/// One execution of a stage: one node outside loops, one per iteration within.
pub struct Node {
    /// `rollout`, or `train[0003]/rollout`.
    pub id: String,
    pub stage: Arc<Stage>,
    /// None outside loops.
    pub iteration: Option<Iteration>,
    pub inputs: Vec<InputEdge>,
    /// Skipped if one of these holds.
    pub stop_conditions: Vec<StopCondition>,
    /// Skipped also if its loop's measurements have not risen for long.
    pub flat: Option<Flat>,
    /// The metric that decides whether later iterations run.
    pub awaited: Option<String>,
}

/// An iteration of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Iteration {
    pub loop_index: usize,
    /// From 1.
    pub number: u32,
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
    /// The one of these that ran which measures best ([`best`](super::best::best)).
    Best(Vec<Measured>),
}

impl InputSource {
    /// The node that writes the artifact; the last of several.
    pub fn writer(&self) -> Option<NodeIndex> {
        self.output().map(|(node, _)| node)
    }

    /// The node that writes the artifact, and its port; the last of several.
    pub fn output(&self) -> Option<(NodeIndex, &str)> {
        match self {
            Self::Output { node, port } => Some((*node, port)),
            Self::Last(nodes) => nodes.last().map(|(node, port)| (*node, port.as_str())),
            Self::Best(all) => all.last().map(|one| (one.node, one.port.as_str())),
        }
    }

    /// The nodes that decide which artifact it is, and those that may write it.
    pub fn nodes(&self) -> Vec<NodeIndex> {
        match self {
            Self::Output { node, .. } => vec![*node],
            Self::Last(nodes) => nodes.iter().map(|(node, _)| *node).collect(),
            Self::Best(all) => all.iter().flat_map(|one| [one.node, one.metric.node]).collect(),
        }
    }
}

/// Ends the loop once a metric of earlier iterations passes a bound.
#[derive(Debug, Clone, PartialEq)]
pub struct StopCondition {
    /// The stage that reports the metric, in the iterations that decide.
    pub nodes: Vec<NodeIndex>,
    pub metric: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    /// The consecutive iterations that must pass the bound.
    pub in_a_row: u32,
    /// Whether it holds where the metric does not pass the bound.
    pub is_negated: bool,
    /// Whether the run file names it as the loop's goal.
    pub is_goal: bool,
    /// Whether the trust that all these iterations measured together decides, of which there have to be `in_a_row`.
    pub is_pooled: bool,
}

impl StopCondition {
    pub fn met(&self, value: f64) -> bool {
        let passes = self.at_least.is_none_or(|bound| value >= bound)
            && self.at_most.is_none_or(|bound| value <= bound);
        passes != self.is_negated
    }
}

impl Node {
    /// Whether its loop may end, or not begin, before it.
    pub fn may_be_skipped(&self) -> bool {
        self.flat.is_some()
            || self.stop_conditions.iter().any(|condition| condition.is_goal || condition.is_negated)
    }
}

/// A loop of the run file.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopPlan {
    pub name: String,
    pub iterations: u32,
    /// Consecutive iterations without [`SIGNAL`] that end the loop; 0 if none do.
    pub patience: u32,
    /// Its measurements by iteration, that of its start first as 0, where the result is the best of them.
    pub measured: Vec<(u32, MetricOf)>,
    /// What decides that it does not begin.
    pub begins: Option<StopCondition>,
}

/// The metric that is 0 where an update had nothing to learn from.
pub const SIGNAL: &str = "signal";

/// The nodes, an edge from each to its dependents, and a topological order.
pub struct Graph {
    pub nodes: DiGraph<Node, ()>,
    pub order: Vec<NodeIndex>,
    pub loops: Vec<LoopPlan>,
}

/// Unrolls loops and resolves references. `None` if the reader has noted a mistake.
pub fn graph(reader: &Reader, parsed: &ParsedRun<'_>) -> Option<Graph> {
    let outer = Resolver { reader, parsed, within: None };
    let loops = parsed.loops.iter().enumerate();
    let loops: Vec<_> = loops.map(|(index, each)| loop_links(reader, parsed, index, each)).collect();
    let stages: Vec<_> = parsed.stages.iter().map(|stage| links(outer, stage)).collect();
    let loops: Vec<_> = loops.into_iter().collect::<Option<_>>()?;
    let stages: Vec<_> = stages.into_iter().collect::<Option<_>>()?;
    if !reader.clean() {
        return None;
    }
    let unrolled = Unrolled::new(parsed, &loops);
    let nodes = unrolled.nodes(&stages);
    let mut order = topological(&nodes);
    if order.len() < nodes.node_count() {
        return cycle(reader, parsed, &nodes);
    }
    order.retain(|index| !unrolled.is_left_out(&nodes[*index]));
    let loops = parsed.loops.iter().enumerate().map(|(index, each)| LoopPlan {
        name: each.name.clone(),
        iterations: each.iterations,
        patience: each.patience,
        measured: unrolled.measurements(index),
        begins: unrolled.begins(Iteration { loop_index: index, number: 1 }),
    });
    let loops = loops.collect();
    Some(Graph { nodes, order, loops })
}

type Targets = Vec<(String, String, ReferenceTarget)>;

struct LoopTargets {
    stages: Vec<Targets>,
    /// Carried name to its initial artifact, if there is one, and the stage and port that renew it.
    carry: BTreeMap<String, (Option<ReferenceTarget>, usize, String)>,
    /// Stage and metric that end the loop.
    until: Option<(usize, String)>,
    /// Stage outside the loop, and metric, that decide whether it begins.
    begins: Option<(usize, String)>,
    best: Option<BestTargets>,
    /// The largest lag of any reader of a carried value, in iterations.
    lag: u32,
}

/// Where a loop's measurements are.
struct BestTargets {
    /// Stage of the loop, and metric.
    measured: (usize, String),
    /// Stage outside the loop, and metric, of what it starts from.
    start: (usize, String),
    /// The measuring stage runs in each iteration whose number this divides, and in the last.
    every: u32,
    patience: u32,
}

fn links(resolver: Resolver<'_>, stage: &ParsedStage<'_>) -> Option<Targets> {
    let link = |input: &ParsedInput<'_>| {
        Some((input.role.clone(), input.name.clone(), resolver.link(&input.entry, &input.artifact)?))
    };
    let links: Vec<_> = stage.inputs.iter().map(link).collect();
    links.into_iter().collect()
}

fn loop_links(
    reader: &Reader,
    parsed: &ParsedRun<'_>,
    index: usize,
    parsed_loop: &ParsedLoop<'_>,
) -> Option<LoopTargets> {
    let outer = Resolver { reader, parsed, within: None };
    let inner = Resolver { within: Some(index), ..outer };
    let stages: Vec<_> = parsed_loop.stages.iter().map(|stage| links(inner, stage)).collect();
    let place = format!("of loop \"{}\"", parsed_loop.name);
    let until = parsed_loop
        .until
        .as_ref()
        .map(|(until, entry)| metric((reader, parsed), (&parsed_loop.stages, &place), &until.metric, entry));
    let begins = parsed_loop.begins.as_ref().map(|(begins, entry)| {
        metric((reader, parsed), (&parsed.stages, "outside loops"), &begins.metric, entry)
    });
    let best = parsed_loop.best.as_ref().map(|given| best(reader, parsed, parsed_loop, given));
    let stray =
        parsed_loop.stages.iter().filter(|stage| yields_nothing_carried(reader, parsed_loop, stage)).count();
    if stray > 0 {
        // Otherwise carried values would wrongly be reported as never renewed.
        return None;
    }
    let carried = parsed_loop.carry.iter().map(|(name, entry)| {
        let Some(artifact) = carried_type(parsed, index, name) else {
            if !parsed.is_whole {
                return None;
            }
            let message = format!("no stage of loop \"{}\" reads \"@{name}\"", parsed_loop.name);
            return reader.wrong(entry, EntryPart::Key, message, None);
        };
        let start = match entry.text() {
            Some("") => starts_empty(reader, parsed_loop, name, entry).then_some(None),
            _ => outer.link(entry, &artifact).map(Some),
        };
        let renewer = renewer(outer, parsed_loop, name, entry, &artifact);
        let (stage, port) = renewer?;
        Some(((*name).to_owned(), (start?, stage, port)))
    });
    let carried: Vec<_> = carried.collect();
    let carry: BTreeMap<String, (Option<ReferenceTarget>, usize, String)> =
        carried.into_iter().collect::<Option<_>>()?;
    let (until, begins, best) = (all_or_none(until)?, all_or_none(begins)?, all_or_none(best)?);
    let stages: Vec<Targets> = stages.into_iter().collect::<Option<_>>()?;
    let lags = stages.iter().flatten().filter_map(|(_, _, link)| match link {
        ReferenceTarget::Carried { lag, .. } => Some(*lag),
        _ => None,
    });
    let lag = lags.max().unwrap_or(0);
    let from_loop = |(start, _, _): &(Option<ReferenceTarget>, usize, String)| {
        matches!(start, Some(ReferenceTarget::Result { .. }))
    };
    if (begins.is_some() || best.is_some()) && carry.values().any(from_loop) {
        let message = format!("loop \"{}\" starts from another loop's result", parsed_loop.name);
        let hint =
            "`if` and `best` need a stage to fall back to: start the loop from a stage's output".to_owned();
        return reader.wrong(&parsed_loop.entry, EntryPart::Key, message, Some(hint));
    }
    if let Some(BestTargets { measured: (stage, _), every: 2.., .. }) = &best {
        let reads = |links: &Targets| {
            links.iter().any(
                |(_, _, link)| matches!(link, ReferenceTarget::Inner { stage: read, .. } if read == stage),
            )
        };
        if let Some(reader_of) = stages.iter().position(reads) {
            let [name, by] = [*stage, reader_of].map(|index| &parsed_loop.stages[index].name);
            let message = format!("stage \"{by}\" reads \"{name}\", which does not run in every iteration");
            let hint = format!("set `every = 1` in `best` of loop \"{}\"", parsed_loop.name);
            return reader.wrong(&parsed_loop.stages[reader_of].entry, EntryPart::Key, message, Some(hint));
        }
    }
    Some(LoopTargets { stages, carry, until, begins, best, lag })
}

/// None if the value is wrong, and has been noted.
fn all_or_none<T>(found: Option<Option<T>>) -> Option<Option<T>> {
    match found {
        Some(found) => Some(Some(found?)),
        None => Some(None),
    }
}

/// Whether every reader of a carried value that starts empty can do without it.
fn starts_empty(reader: &Reader, parsed_loop: &ParsedLoop<'_>, name: &str, entry: &Entry<'_>) -> bool {
    let reads = |input: &&ParsedInput<'_>| carried_name(&input.entry) == Some(name);
    for stage in &parsed_loop.stages {
        let needs = |input: &&ParsedInput<'_>| {
            !stage.stage.card.inputs.get(&input.role).is_some_and(|input| input.optional)
        };
        if let Some(input) = stage.inputs.iter().filter(reads).find(needs) {
            let message = format!(
                "\"{name}\" starts empty, and `{}` of stage \"{}\" is not optional",
                input.role, stage.name
            );
            let hint = Some("start it from the output of a stage".to_owned());
            reader.wrong::<()>(entry, EntryPart::Value, message, hint);
            return false;
        }
    }
    true
}

/// Notes a stage whose `yields` names a value that its loop does not carry.
fn yields_nothing_carried(reader: &Reader, parsed_loop: &ParsedLoop<'_>, stage: &ParsedStage<'_>) -> bool {
    let Some((name, entry)) = yields(stage).zip(stage.yields.as_ref()) else { return false };
    if parsed_loop.carry.contains_key(name) {
        return false;
    }
    let hint = suggest(name, parsed_loop.carry.keys().copied());
    let message = format!("loop \"{}\" has no carried value \"{name}\"", parsed_loop.name);
    reader.wrong::<()>(entry, EntryPart::Value, message, hint);
    true
}

/// The one stage that renews a carried value, and its port.
fn renewer(
    Resolver { reader, parsed, .. }: Resolver<'_>,
    parsed_loop: &ParsedLoop<'_>,
    name: &str,
    entry: &Entry<'_>,
    artifact: &str,
) -> Option<(usize, String)> {
    let mut found = parsed_loop.stages.iter().enumerate().filter(|(_, stage)| yields(stage) == Some(name));
    let Some((index, stage)) = found.next() else {
        if !parsed.is_whole {
            return None;
        }
        let message = format!("no stage of loop \"{}\" renews \"{name}\"", parsed_loop.name);
        let hint = format!("add `yields = \"{name}\"` to the stage that renews it");
        return reader.wrong(entry, EntryPart::Key, message, Some(hint));
    };
    let declared = stage.yields.as_ref()?;
    if let Some((_, other)) = found.next() {
        let message = format!("two stages of loop \"{}\" yield \"{name}\"", parsed_loop.name);
        return reader.wrong(other.yields.as_ref()?, EntryPart::Value, message, None);
    }
    match stage.stage.card.output_of_type(artifact) {
        Some(port) => Some((index, port.to_owned())),
        None => {
            let message = format!("stage \"{}\" does not write one artifact of type {artifact}", stage.name);
            reader.wrong(declared, EntryPart::Value, message, None)
        }
    }
}

/// The stage that reports `stage.metric`, among `stages`, which are those of `place`.
fn metric(
    (reader, parsed): (&Reader, &ParsedRun<'_>),
    (stages, place): (&[ParsedStage<'_>], &str),
    text: &str,
    entry: &Entry<'_>,
) -> Option<(usize, String)> {
    if text.split_once('.').is_some_and(|(stage, _)| parsed.broken.contains(stage)) {
        return None;
    }
    let metrics = |stage: &ParsedStage<'_>| {
        let of = |metric: &String| format!("{}.{metric}", stage.name);
        stage.stage.card.metrics.keys().map(of).collect::<Vec<_>>()
    };
    let known = text.split_once('.').and_then(|(stage, metric)| {
        let index = stages.iter().position(|candidate| candidate.name == stage)?;
        stages.get(index)?.stage.card.reports(metric).then(|| (index, metric.to_owned()))
    });
    known.or_else(|| {
        let names: Vec<String> = stages.iter().flat_map(metrics).collect();
        let message = format!("`{}`: no stage {place} reports \"{text}\"", entry.path);
        let hint = suggest(text, names.iter().map(String::as_str));
        let hint = hint.unwrap_or_else(|| format!("metrics: {}", names.join(", ")));
        reader.wrong(entry, EntryPart::Value, message, Some(hint))
    })
}

/// Of a loop's `best`: who measures, what the measurement of its start is, and how often.
fn best(
    reader: &Reader,
    parsed: &ParsedRun<'_>,
    parsed_loop: &ParsedLoop<'_>,
    (best, entry): &(Best, Entry<'_>),
) -> Option<BestTargets> {
    let place = format!("of loop \"{}\"", parsed_loop.name);
    let at = |key: &str| entry.field(key).unwrap_or_else(|| entry.clone());
    let measured = metric((reader, parsed), (&parsed_loop.stages, &place), &best.metric, &at("metric"));
    let outside = (parsed.stages.as_slice(), "outside loops");
    let start = metric((reader, parsed), outside, &best.start, &at("start"));
    let (measured, start) = (measured?, start?);
    let measuring = &parsed_loop.stages[measured.0];
    if measuring.yields.is_some() && best.every > 1 {
        let message = format!("`{}`: stage \"{}\" renews a carried value", entry.path, measuring.name);
        let hint = "it has to run in every iteration: measure with a stage of its own".to_owned();
        return reader.wrong(&at("every"), EntryPart::Value, message, Some(hint));
    }
    Some(BestTargets { measured, start, every: best.every, patience: best.patience })
}

/// Node indices after unrolling: outer stages first, then loop by loop, iteration by iteration.
struct Unrolled<'a> {
    parsed: &'a ParsedRun<'a>,
    loops: &'a [LoopTargets],
    /// Index of each loop's first node.
    starts: Vec<usize>,
}

impl<'a> Unrolled<'a> {
    fn new(parsed: &'a ParsedRun<'a>, loops: &'a [LoopTargets]) -> Self {
        let mut next = parsed.stages.len();
        let mut starts = Vec::new();
        for parsed_loop in &parsed.loops {
            starts.push(next);
            next += parsed_loop.iterations as usize * parsed_loop.stages.len();
        }
        Self { parsed, loops, starts }
    }

    fn inner(&self, loop_index: usize, iteration: u32, stage: usize) -> NodeIndex {
        let per_iteration = self.parsed.loops[loop_index].stages.len();
        NodeIndex::new(self.starts[loop_index] + (iteration as usize - 1) * per_iteration + stage)
    }

    /// None for a carried value that starts empty, in the iterations before its first renewal.
    fn from(&self, link: &ReferenceTarget, iteration: Option<Iteration>) -> Option<InputSource> {
        Some(match (link, iteration) {
            (ReferenceTarget::Inner { stage, port }, Some(Iteration { loop_index, number })) => {
                InputSource::Output { node: self.inner(loop_index, number, *stage), port: port.clone() }
            }
            (ReferenceTarget::Carried { name, lag }, Some(Iteration { loop_index, number })) => {
                let (start, stage, port) = &self.loops[loop_index].carry[name];
                match number.checked_sub(1 + lag) {
                    None | Some(0) => self.from(start.as_ref()?, None)?,
                    Some(earlier) => InputSource::Output {
                        node: self.inner(loop_index, earlier, *stage),
                        port: port.clone(),
                    },
                }
            }
            (ReferenceTarget::Result { loop_index, name }, _) => self.result(*loop_index, name),
            // The resolver returns inner and carried targets only within loops.
            (ReferenceTarget::Outer { stage, port } | ReferenceTarget::Inner { stage, port }, _) => {
                InputSource::Output { node: NodeIndex::new(*stage), port: port.clone() }
            }
            (ReferenceTarget::Carried { .. }, None) => InputSource::Last(Vec::new()),
        })
    }

    /// What a loop leaves in a carried value.
    fn result(&self, loop_index: usize, name: &str) -> InputSource {
        let LoopTargets { carry, begins, best, .. } = &self.loops[loop_index];
        let (start, stage, port) = &carry[name];
        let start = start.as_ref().and_then(|start| self.from(start, None));
        if self.parsed.loops[loop_index].iterations == 0 {
            return start.unwrap_or_else(|| InputSource::Last(Vec::new()));
        }
        let start = start.as_ref().and_then(InputSource::output).map(|(node, port)| (node, port.to_owned()));
        let of = |number: u32| (self.inner(loop_index, number, *stage), port.clone());
        match best {
            Some(_) => {
                let of = |(number, metric): (u32, MetricOf)| {
                    let (node, port) = if number == 0 { start.clone()? } else { of(number) };
                    Some(Measured { node, port, metric })
                };
                InputSource::Best(self.measurements(loop_index).into_iter().filter_map(of).collect())
            }
            None => {
                let start = start.filter(|_| begins.is_some());
                let all = 1..=self.parsed.loops[loop_index].iterations;
                InputSource::Last(start.into_iter().chain(all.map(of)).collect())
            }
        }
    }

    /// The iterations in which the measuring stage runs.
    fn measured<'b>(&'b self, loop_index: usize, best: &'b BestTargets) -> impl Iterator<Item = u32> + 'b {
        let last = self.parsed.loops[loop_index].iterations;
        (1..=last).filter(move |number| number.is_multiple_of(best.every) || *number == last)
    }

    /// Whether a stage does not run in this iteration.
    fn is_left_out(&self, node: &Node) -> bool {
        let Some(Iteration { loop_index, number }) = node.iteration else { return false };
        let Some(best) = &self.loops[loop_index].best else { return false };
        let measuring = &self.parsed.loops[loop_index].stages[best.measured.0];
        Arc::ptr_eq(&measuring.stage, &node.stage)
            && !self.measured(loop_index, best).any(|measured| measured == number)
    }

    /// The measurements of a loop by iteration, that of its start first as 0.
    fn measurements(&self, loop_index: usize) -> Vec<(u32, MetricOf)> {
        let Some(best) = &self.loops[loop_index].best else { return Vec::new() };
        let ((stage, metric), (start, of_start)) = (&best.measured, &best.start);
        let of = |number| MetricOf { node: self.inner(loop_index, number, *stage), name: metric.clone() };
        let start = MetricOf { node: NodeIndex::new(*start), name: of_start.clone() };
        let iterations = self.measured(loop_index, best).map(|number| (number, of(number)));
        std::iter::once((0, start)).chain(iterations).collect()
    }

    /// Ends the loop where its measurements have not risen.
    fn flat(&self, Iteration { loop_index, number }: Iteration) -> Option<Flat> {
        let LoopTargets { best, lag, .. } = &self.loops[loop_index];
        let patience = best.as_ref()?.patience;
        let decided = number.checked_sub(1 + lag).filter(|decided| *decided > 0 && patience > 0)?;
        let all = self.measurements(loop_index).into_iter();
        let metrics = all.filter(|(measured, _)| *measured <= decided).map(|(_, metric)| metric).collect();
        Some(Flat { metrics, patience: patience as usize })
    }

    fn node(&self, stage: &ParsedStage<'_>, links: &Targets, iteration: Option<Iteration>) -> Node {
        let edge = |(role, name, link): &(String, String, ReferenceTarget)| {
            Some(InputEdge { role: role.clone(), name: name.clone(), from: self.from(link, iteration)? })
        };
        let id = match iteration {
            Some(Iteration { loop_index, number }) => {
                format!("{}[{number:04}]/{}", self.parsed.loops[loop_index].name, stage.name)
            }
            None => stage.name.clone(),
        };
        Node {
            id,
            stage: stage.stage.clone(),
            iteration,
            inputs: links
                .iter()
                .filter_map(edge)
                .chain(iteration.into_iter().flat_map(|iteration| self.previous(stage, iteration)))
                .collect(),
            stop_conditions: iteration.map_or_else(Vec::new, |iteration| {
                let begins = self.begins(iteration).into_iter();
                begins.chain(self.goal(iteration)).chain(self.idle(iteration)).collect()
            }),
            flat: iteration.and_then(|iteration| self.flat(iteration)),
            awaited: iteration.and_then(|iteration| self.awaited(stage, iteration)),
        }
    }

    /// What a stage reads of its own in the iteration before, without being told to.
    fn previous(
        &self,
        ParsedStage { name, stage, inputs, .. }: &ParsedStage<'_>,
        Iteration { loop_index, number }: Iteration,
    ) -> Vec<InputEdge> {
        let position = self.parsed.loops[loop_index].stages.iter().position(|other| other.name == *name);
        let best = self.loops[loop_index].best.as_ref().filter(|best| position == Some(best.measured.0));
        let earlier = match best {
            Some(best) => self.measured(loop_index, best).take_while(|measured| *measured < number).last(),
            None => number.checked_sub(1).filter(|earlier| *earlier > 0),
        };
        let (Some(at), Some(earlier)) = (position, earlier) else { return Vec::new() };
        let node = self.inner(loop_index, earlier, at);
        let is_open = |role: &String| !inputs.iter().any(|given| given.role == *role);
        let roles = stage.card.inputs.iter().filter(|(role, input)| input.previous && is_open(role));
        let edge = |(role, input): (&String, &Role)| {
            let port = stage.card.output_of_type(&input.artifact)?.to_owned();
            Some(InputEdge {
                role: role.clone(),
                name: role.clone(),
                from: InputSource::Output { node, port },
            })
        };
        roles.filter_map(edge).collect()
    }

    fn awaited(
        &self,
        stage: &ParsedStage<'_>,
        Iteration { loop_index, number }: Iteration,
    ) -> Option<String> {
        let (parsed, links) = (&self.parsed.loops[loop_index], &self.loops[loop_index]);
        let (until, metric) = links.until.as_ref()?;
        let decides = parsed.stages.get(*until)?.name == stage.name && number + links.lag < parsed.iterations;
        decides.then(|| metric.clone())
    }

    fn goal(&self, iteration: Iteration) -> Option<StopCondition> {
        let loop_index = iteration.loop_index;
        let links = &self.loops[loop_index];
        let (stage, metric) = links.until.as_ref()?;
        let (until, _) = self.parsed.loops[loop_index].until.as_ref()?;
        Some(StopCondition {
            nodes: self.deciders(iteration, *stage, 1)?,
            metric: metric.clone(),
            at_least: until.at_least,
            at_most: until.at_most,
            in_a_row: 1,
            is_negated: false,
            is_goal: true,
            is_pooled: false,
        })
    }

    /// No iteration runs unless the loop's `if` holds.
    fn begins(&self, iteration: Iteration) -> Option<StopCondition> {
        let (stage, metric) = self.loops[iteration.loop_index].begins.as_ref()?;
        let (begins, _) = self.parsed.loops[iteration.loop_index].begins.as_ref()?;
        Some(StopCondition {
            nodes: vec![NodeIndex::new(*stage)],
            metric: metric.clone(),
            at_least: begins.at_least,
            at_most: begins.at_most,
            in_a_row: 1,
            is_negated: true,
            is_goal: false,
            is_pooled: false,
        })
    }

    /// Iterations in which a stage had nothing to learn from end the loop, and those whose judges cannot be trusted.
    fn idle(&self, iteration: Iteration) -> Vec<StopCondition> {
        let ParsedLoop { stages, patience, .. } = &self.parsed.loops[iteration.loop_index];
        if *patience == 0 {
            return Vec::new();
        }
        let of = |metric: &str, nodes: Vec<NodeIndex>| StopCondition {
            nodes,
            metric: metric.to_owned(),
            at_least: None,
            at_most: Some(0.0),
            in_a_row: *patience,
            is_negated: false,
            is_goal: false,
            is_pooled: metric == TRUST,
        };
        let mut conditions = Vec::new();
        for (stage, parsed) in stages.iter().enumerate() {
            let reports = |metric| parsed.stage.card.reports(metric);
            if reports(SIGNAL) {
                conditions.extend(self.deciders(iteration, stage, *patience).map(|nodes| of(SIGNAL, nodes)));
            }
            if reports(TRUST) {
                let window = TRUST_WINDOW.max(*patience as usize);
                let ran = self.decided(iteration, stage);
                // One window for each of the newest iterations that may have ended the loop.
                let ends = (0..=self.loops[iteration.loop_index].lag as usize)
                    .filter_map(|back| ran.len().checked_sub(back));
                let windows =
                    ends.map(|end| &ran[end.saturating_sub(window)..end]).filter(|ran| !ran.is_empty());
                let nodes = |ran: &[u32]| {
                    ran.iter().map(|number| self.inner(iteration.loop_index, *number, stage)).collect()
                };
                conditions.extend(windows.map(|ran| of(TRUST, nodes(ran))));
            }
        }
        conditions
    }

    /// The iterations up to the newest that may decide whether this one runs, without those in which the stage does not run.
    fn decided(&self, Iteration { loop_index, number }: Iteration, stage: usize) -> Vec<u32> {
        let LoopTargets { lag, best, .. } = &self.loops[loop_index];
        let newest = number.saturating_sub(1 + lag);
        match best.as_ref().filter(|best| best.measured.0 == stage) {
            Some(best) => self.measured(loop_index, best).filter(|ran| *ran <= newest).collect(),
            None => (1..=newest).collect(),
        }
    }

    /// The stage in the iterations that decide whether this one runs. Iteration k is skipped if the condition held in any up
    /// to k-1-lag; newer ones may still be running. The newest lag+1 of these are enough: if it held in an older one,
    /// iteration k-1-lag was itself skipped.
    fn deciders(&self, iteration: Iteration, stage: usize, in_a_row: u32) -> Option<Vec<NodeIndex>> {
        let all = self.decided(iteration, stage);
        let Iteration { loop_index, .. } = iteration;
        let decide = all.rchunks((self.loops[loop_index].lag + in_a_row) as usize).next()?;
        let nodes = decide.iter().map(|iteration| self.inner(loop_index, *iteration, stage));
        (all.len() >= in_a_row as usize).then(|| nodes.collect())
    }

    fn nodes(&self, stages: &[Targets]) -> DiGraph<Node, ()> {
        let mut graph = DiGraph::new();
        for (stage, links) in self.parsed.stages.iter().zip(stages) {
            graph.add_node(self.node(stage, links, None));
        }
        for (loop_index, (parsed, links)) in self.parsed.loops.iter().zip(self.loops).enumerate() {
            for number in 1..=parsed.iterations {
                for (stage, links) in parsed.stages.iter().zip(&links.stages) {
                    graph.add_node(self.node(stage, links, Some(Iteration { loop_index, number })));
                }
            }
        }
        for index in graph.node_indices() {
            let mut before: Vec<NodeIndex> = Vec::new();
            for edge in &graph[index].inputs {
                before.extend(edge.from.nodes());
            }
            before.extend(graph[index].stop_conditions.iter().flat_map(|condition| &condition.nodes));
            before.extend(graph[index].flat.iter().flat_map(|flat| &flat.metrics).map(|of| of.node));
            before.sort_unstable();
            before.dedup();
            for earlier in before {
                graph.add_edge(earlier, index, ());
            }
        }
        graph
    }
}

/// The topological order in which each node comes as early as its index and its dependencies allow. Nodes that wait for each
/// other, and their dependents, are not in it.
fn topological(nodes: &DiGraph<Node, ()>) -> Vec<NodeIndex> {
    let mut waiting: Vec<usize> =
        nodes.node_indices().map(|node| nodes.edges_directed(node, petgraph::Incoming).count()).collect();
    let mut ready: BTreeSet<NodeIndex> =
        nodes.node_indices().filter(|node| waiting[node.index()] == 0).collect();
    let mut order = Vec::new();
    while let Some(node) = ready.pop_first() {
        order.push(node);
        for next in nodes.neighbors(node) {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.insert(next);
            }
        }
    }
    order
}

fn cycle<T>(reader: &Reader, parsed: &ParsedRun<'_>, nodes: &DiGraph<Node, ()>) -> Option<T> {
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
    let all = parsed.stages.iter().chain(parsed.loops.iter().flat_map(|parsed_loop| &parsed_loop.stages));
    let entry = all.clone().find(|stage| Arc::ptr_eq(&stage.stage, first))?;
    let before = nodes[*path.last()?].stage.name.rsplit('/').next()?.to_owned();
    let input = entry.inputs.iter().find(|input| {
        reader.text(&input.entry).is_some_and(|text| text.split('.').next() == Some(before.as_str()))
    });
    let message = format!("stages wait for each other: {}", names.join(" → "));
    let hint =
        "to pass an artifact to the next iteration of a loop, use `carry`, `@name` and `yields`".to_owned();
    reader.wrong(input.map_or(&entry.entry, |input| &input.entry), EntryPart::Value, message, Some(hint))
}
