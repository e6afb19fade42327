//! What a run would do with each node.

use std::collections::BTreeSet;

use petgraph::Direction;
use serde::Serialize;

use super::{
    Completion, Estimate, Executor, Findings, Job, KeyFields, Ledger, NodeIndex, Plan, PlanPreflight,
    Problem, Readiness, ReadyInputs, RerunReason, Resample, Resolution, Reused, Stage, Subject, Unknown,
    estimate::CostHistory,
    forced,
    memory::{MemoryEstimate, held, memory},
    reason,
    tool_list::ToolChanges,
};
use crate::{
    engine::available,
    error::Result,
    hash::Digest,
    mcp::{ServerSpec, Servers, State, Transport},
    stage::card::Section,
    store::{Cost, KeyIndex, Lookup, Store},
};

/// What a run would do with one node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Status {
    Cached {
        key: Digest,
    },
    Run {
        key: Digest,
        reasons: Vec<RerunReason>,
    },
    /// Other nodes must run first.
    Waits {
        on: Vec<String>,
        rerun: Rerun,
        /// Reasons to run that do not depend on those nodes' outputs.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reasons: Vec<RerunReason>,
    },
    /// Its loop has reached its goal.
    Skipped,
}

/// Whether a waiting node will run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rerun {
    Will,
    /// If the nodes it waits for write something else than before.
    IfInputsChange,
    /// If its loop does not reach its goal earlier.
    UnlessLoopEnds,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeStatus {
    pub id: String,
    pub kind: String,
    /// Loop name and iteration.
    pub turn: Option<(String, u32)>,
    #[serde(flatten)]
    pub status: Status,
    /// Its expected cost; the recorded cost if its result is in the store.
    pub cost: Option<Estimate>,
    /// Rows that it reuses from earlier results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reused: Option<Reused>,
    /// Its peak memory, if it samples or trains and will run here.
    pub memory: Option<MemoryEstimate>,
    /// Where it will run, if not in the process of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Jobs that its episodes are divided among, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<usize>,
}

/// All nodes in order.
#[derive(Debug, Default, Serialize)]
pub struct PlanReport {
    pub name: String,
    pub nodes: Vec<NodeStatus>,
    /// Known cost of all stages that will run. A waiting stage may turn out to be cached or skipped.
    pub ahead: Cost,
    /// Wall time of all that, in seconds. Independent stages run in parallel; those that use the engine take
    /// turns.
    pub clock: f64,
    /// Stages that will run and have no estimate.
    pub unknown: Vec<Unknown>,
    /// Recorded cost of the results in the store.
    pub saved: Cost,
    /// The shared cache. Planning does not query it, so it may have results that this report counts as
    /// missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unqueried: Option<String>,
    /// The cost of restarting the server in each rollout without an estimate, if it is high.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_starts: Option<ServerStarts>,
    /// Why stages that will run would fail.
    pub problems: Vec<Problem>,
    /// Warnings about stages that can run.
    pub notes: Vec<Problem>,
    /// What else there is to know of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<Problem>,
}

/// The cost of a server that starts in each rollout that calls a tool.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServerStarts {
    /// Seconds of one start.
    pub seconds: f64,
    pub rollouts: u64,
}

impl ServerStarts {
    /// `None` if rollouts do not restart the server, or all starts take less than two minutes.
    pub fn of(spec: &ServerSpec, seconds: f64, rollouts: u64) -> Option<Self> {
        const MUCH: f64 = 120.0;
        let is_started = matches!(spec.state, State::FreshProcess | State::SnapshotDir(_))
            && matches!(spec.transport, Transport::Stdio { .. });
        let starts = Self { seconds, rollouts };
        (is_started && starts.total() > MUCH).then_some(starts)
    }

    /// Seconds of all starts, one after the other.
    pub fn total(self) -> f64 {
        self.seconds * self.rollouts as f64
    }
}

impl std::fmt::Display for ServerStarts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seconds, rollouts } = self;
        write!(
            f,
            "each rollout that calls a tool starts the server: {seconds:.1} s x {rollouts} rollouts is up to {:.0} min",
            self.total() / 60.0
        )
    }
}

/// Number of rollouts of a stage, where its parameters give it.
pub fn rollouts(stage: &Stage) -> u64 {
    let number = |name: &str| stage.params.get(name).and_then(serde_json::Value::as_u64);
    number("prompts").zip(number("group_size")).map_or(0, |(prompts, size)| prompts.saturating_mul(size))
}

impl PlanReport {
    pub fn new(plan: &Plan, store: &Store, resample: &[Resample]) -> Result<Self> {
        let last = store.last_keys(&plan.name);
        let mut ledger = Ledger::new(plan, store);
        let mut found = Vec::new();
        for index in plan.order() {
            let resolution = ledger.resolve(*index, resample, |job| {
                Ok(job.cached(plan, store).map(|(record, _)| record.into()))
            })?;
            found.push(NodeState::new(&mut ledger, (store, &last), *index, resolution, resample));
        }
        // The shared cache was not queried, so no node is sure to run here.
        let is_sure = |index| plan.remote.is_none() && will_run(&ledger, store, &last, index);
        let preflight = PlanPreflight::new(&ledger, store, &is_sure);
        // The history reads every record, so it is loaded only if there is something to estimate.
        let ahead = found.iter().any(|found| found.status.is_ahead());
        let history = ahead.then(|| CostHistory::of(store));
        let left = ahead.then(available).flatten();
        let unqueried = plan.remote.as_ref().map(|remote| remote.place.to_string());
        let mut report = Self { name: plan.name.clone(), unqueried, ..Self::default() };
        let mut clock = Clock::new(plan);
        let (mut start, mut rollouts_ahead) = (None, 0_u64);
        for (index, NodeState { status, cached, reused }) in plan.order().iter().zip(found) {
            let node = plan.node(*index);
            let is_ahead = status.is_ahead();
            // A stage that lists the tools does little but start the server.
            if node.stage.card.output_of_type("server").is_some() {
                start = cached.map(|cost| cost.seconds);
            }
            let estimate = history.as_ref().filter(|_| is_ahead);
            let estimate = estimate.map(|known| known.estimate(&node.stage, preflight.uses(*index), reused));
            if let Some(Err(why)) = estimate {
                let unknown = Unknown { stage: node.stage.name.clone(), why };
                if !report.unknown.contains(&unknown) {
                    report.unknown.push(unknown);
                }
            }
            let estimate = estimate.and_then(Result::ok);
            // What was measured has the starts in it.
            if is_ahead && estimate.is_none() {
                rollouts_ahead = rollouts_ahead.saturating_add(rollouts(&node.stage));
            }
            match (&cached, &estimate) {
                (Some(cost), _) => report.saved += *cost,
                (None, Some(estimate)) => report.ahead += estimate.cost,
                (None, None) => {}
            }
            clock.run(*index, estimate.map_or(0.0, |estimate| estimate.cost.seconds));
            let Stage { executor, shards, .. } = &*node.stage;
            let memory = (is_ahead && !executor.is_job())
                .then(|| memory(plan, &preflight, *index, estimate.as_ref(), left))
                .flatten();
            report.nodes.push(NodeStatus {
                id: node.id.clone(),
                kind: node.stage.card.kind.clone(),
                turn: node.iteration.map(|at| (plan.loop_name(at).to_owned(), at.number)),
                status,
                cost: cached.map(Estimate::of).or(estimate),
                reused,
                memory,
                executor: (is_ahead && *executor != Executor::Local).then(|| executor.name().to_owned()),
                shards: Some(*shards).filter(|shards| is_ahead && *shards > 1),
            });
        }
        report.clock = clock.last();
        report.server_starts = start
            .zip(plan.servers.as_ref().and_then(Servers::single))
            .and_then(|(seconds, spec)| ServerStarts::of(spec, seconds, rollouts_ahead));
        let nodes = plan.order().iter().copied().zip(&mut report.nodes);
        let (running, memories): (Vec<_>, Vec<_>) =
            nodes.filter_map(|(index, node)| Some((index, node.memory.as_mut()?))).unzip();
        for (memory, held) in memories.into_iter().zip(held(plan, &preflight, &ledger, &running)) {
            // Its own weights are part of its peak.
            memory.held = memory.parts.map_or(0, |parts| held.saturating_sub(parts.weights));
        }
        let Findings { problems, notes, remarks, .. } = preflight.into_findings();
        (report.problems, report.notes, report.remarks) = (problems, notes, remarks);
        if let Some(Err(cause)) = ahead.then(|| store.check_writable()) {
            let cause = cause.into();
            report.notes.push(Problem { stage: None, subject: Subject::Section, place: None, cause });
        }
        Ok(report)
    }
}

/// A node's state before the run.
struct NodeState {
    status: Status,
    /// Its recorded cost, if its result is in the store.
    cached: Option<Cost>,
    reused: Option<Reused>,
}

impl NodeState {
    fn new(
        ledger: &mut Ledger<'_>,
        (store, last): (&Store, &KeyIndex),
        index: NodeIndex,
        resolution: Resolution,
        resample: &[Resample],
    ) -> Self {
        let plan = ledger.plan();
        let (mut cached, mut reused) = (None, None);
        let status = match resolution {
            Resolution::Cached(key, result) => {
                cached = Some(result.cost);
                Status::Cached { key }
            }
            Resolution::Skipped => Status::Skipped,
            Resolution::Run(job) => {
                let (stored, _) = job.lookup(plan, store);
                let reasons = rerun_reasons(plan, (store, last), &job, &stored);
                match stored {
                    // Later nodes are planned as if the server answered as it did last time.
                    Lookup::Hit(record) if job.forced == Some(RerunReason::ServerQueried) => {
                        ledger.complete(index, Completion::Done(record.into()));
                    }
                    Lookup::Hit(_) => {}
                    _ if job.forced.is_none() => reused = count_reused(plan, store, &job),
                    _ => {}
                }
                Status::Run { key: job.key, reasons }
            }
            Resolution::Waits(on) => {
                let reasons = match forced(plan, index, resample) {
                    Some(reason) => vec![reason],
                    None => own_changes(plan, (store, last), index),
                };
                let rerun = match plan.node(index).may_be_skipped() {
                    true => Rerun::UnlessLoopEnds,
                    false if reasons.is_empty() && has_earlier_result(plan, (store, last), index) => {
                        Rerun::IfInputsChange
                    }
                    false => Rerun::Will,
                };
                let on = on.iter().map(|index| plan.node(*index).id.clone()).collect();
                Status::Waits { on, rerun, reasons }
            }
        };
        Self { status, cached, reused }
    }
}

/// Whether the node's newest result is usable under the key it had then.
fn has_earlier_result(plan: &Plan, (store, last): (&Store, &KeyIndex), index: NodeIndex) -> bool {
    last.get(&plan.node(index).id).is_some_and(|key| matches!(store.lookup(key), Lookup::Hit(_)))
}

/// What changed in a waiting node since its last run, its inputs excepted.
fn own_changes(plan: &Plan, (store, last): (&Store, &KeyIndex), index: NodeIndex) -> Vec<RerunReason> {
    let node = plan.node(index);
    let Some(record) = last.get(&node.id).and_then(|key| store.record(key)) else { return Vec::new() };
    let mut fields = plan.fields(index, &ReadyInputs::default());
    // Copied from the last run: their new values are not known yet.
    if let Ok(old) = serde_json::from_value::<KeyFields>(record.fields.clone()) {
        fields.inputs = old.inputs;
        if old.numerics.as_ref().is_some_and(|numerics| plan.may_have_numerics(numerics)) {
            fields.numerics = old.numerics;
        }
        if let (Some(now), Some(then)) = (&mut fields.server, &old.server) {
            for name in ["name", "version"] {
                if let Some(value) = then.get(name) {
                    now[name] = value.clone();
                }
            }
        }
    }
    reason::differences(&record.fields, &fields, || Some(node.stage.card.parts()))
}

/// Counts the rows that a node can reuse from earlier results, out of those it is sure to need.
fn count_reused(plan: &Plan, store: &Store, Job { index, ready, fields, key, .. }: &Job) -> Option<Reused> {
    let stage = &plan.node(*index).stage;
    let draw = store.record(key).map_or(0, |record| record.draw());
    let log = store.rows(&fields.family(&stage.card), key, draw);
    let (own, relatives) = (log.finished().ok()?, log.relatives().ok()?);
    let is_shared = |key: &Digest| store.record(key).is_some_and(|record| !record.withheld);
    let finished = relatives.finished.iter().filter(|(key, _)| is_shared(key)).flat_map(|(_, names)| names);
    let known: BTreeSet<&String> = own.keys().chain(relatives.rows.keys()).chain(finished).collect();
    if known.is_empty() {
        return None;
    }
    let needed = stage.kind.as_ref()?.rows_needed(fields.stage_seed(0), &ready.of_stage(store))?;
    let rows = needed.iter().filter(|name| known.contains(name)).count();
    (rows > 0).then_some(Reused { rows, of: needed.len() })
}

impl Status {
    /// Whether the node will or may run.
    fn is_ahead(&self) -> bool {
        matches!(self, Self::Run { .. } | Self::Waits { .. })
    }
}

/// For a node not known to be in the store: whether its inputs are known, or it has neither an earlier result
/// that could be reused nor a loop goal that could skip it.
pub fn will_run(ledger: &Ledger<'_>, store: &Store, last: &KeyIndex, index: NodeIndex) -> bool {
    let plan = ledger.plan();
    match ledger.readiness(index) {
        Readiness::Ready(_) => true,
        Readiness::Skipped => false,
        Readiness::Waits(_) => {
            !plan.node(index).may_be_skipped() && !has_earlier_result(plan, (store, last), index)
        }
    }
}

/// When each node would end if the plan ran now.
struct Clock<'p> {
    plan: &'p Plan,
    ends: Vec<f64>,
    engine_free: f64,
}

impl<'p> Clock<'p> {
    fn new(plan: &'p Plan) -> Self {
        Self { plan, ends: vec![0.0; plan.graph.nodes.node_count()], engine_free: 0.0 }
    }

    /// Call in the plan's topological order.
    fn run(&mut self, index: NodeIndex, seconds: f64) {
        let before = self.plan.graph.nodes.neighbors_directed(index, Direction::Incoming);
        let ready = before.map(|node| self.ends[node.index()]).fold(0.0, f64::max);
        let engine = seconds > 0.0 && self.plan.node(index).stage.uses.contains(&Section::Engine);
        let end = seconds + if engine { ready.max(self.engine_free) } else { ready };
        if engine {
            self.engine_free = end;
        }
        self.ends[index.index()] = end;
    }

    fn last(&self) -> f64 {
        self.ends.iter().copied().fold(0.0, f64::max)
    }
}

/// Why a node runs, given what the store has under its key.
pub fn rerun_reasons(
    plan: &Plan,
    (store, last): (&Store, &KeyIndex),
    job: &Job,
    stored: &Lookup,
) -> Vec<RerunReason> {
    let node = plan.node(job.index);
    // A server that has not answered under this key is not asked again.
    let is_first = |reason: &RerunReason| *reason == RerunReason::ServerQueried && *stored == Lookup::Miss;
    if let Some(reason) = job.forced.as_ref().filter(|reason| !is_first(reason)) {
        return vec![reason.clone()];
    }
    match stored {
        Lookup::Damaged { output, problem } => {
            return vec![RerunReason::Damaged { output: output.clone(), problem: problem.clone() }];
        }
        Lookup::Withheld(_) => return vec![RerunReason::Withheld],
        Lookup::Hit(_) => {
            let lacking = |metric: &String| RerunReason::NoMetric { metric: metric.clone() };
            return node.awaited.iter().map(lacking).collect();
        }
        Lookup::Miss => {}
    }
    match last.get(&node.id) {
        None => vec![RerunReason::First],
        Some(key) if *key == job.key => vec![RerunReason::Gone],
        Some(key) => match store.record(key) {
            Some(record) => {
                let reasons =
                    reason::differences(&record.fields, &job.fields, || Some(node.stage.card.parts()));
                reasons.into_iter().map(|reason| detailed(plan, store, job, reason)).collect()
            }
            None => vec![RerunReason::Forgotten],
        },
    }
}

/// Adds detail: the stage that wrote a changed input, or which tools of a tool list changed.
fn detailed(plan: &Plan, store: &Store, job: &Job, reason: RerunReason) -> RerunReason {
    let RerunReason::Input { role, name, old, new, .. } = reason else { return reason };
    if plan.node(job.index).stage.reads(&role, "tools")
        && let Some(changes) = old.zip(new).and_then(|(old, new)| ToolChanges::between(store, &old, &new))
    {
        return RerunReason::Tools { role, changes };
    }
    let fed = job.ready.inputs.get(&role).and_then(|fed| fed.iter().find(|fed| fed.name == name));
    let from = fed.map(|fed| plan.node(NodeIndex::new(fed.writer)).id.clone());
    RerunReason::Input { role, name, old, new, from }
}
