//! Read-only models of a run, for reports and pages: pure functions of its journal, its records and its artifacts.
//!
//! A run may be unfinished, taken from the cache in part, or older than a table; its artifacts may be swept. What is not there
//! is said ([`Missing`]) and never an error. Nothing here writes, prints, connects, or knows a stage kind by name: what a
//! stage is for follows from the types of its outputs.

pub mod calls;
pub mod curves;
pub mod episode;
pub mod episodes;
pub mod exam;
pub mod judge;
pub mod neighbours;
#[cfg(test)]
pub mod synthetic;
pub mod tokens;

#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use serde::Serialize;

use crate::{
    data::{self, Table, Tool},
    engine::EngineSpec,
    error::Result,
    exec::{
        RunState, StageOutcome,
        history::{
            self, Difference, Headline, NodeHistory, RunHistory, StageHistory, Stages, TrainingSuccess,
        },
    },
    hash::Digest,
    plan::{self, InLoop, InputEdge, Plan, RerunReason, stage_name},
    secret::secret_free,
    stage::{Card, Cards, built_in_type},
    store::{FileDigests, Store},
    usage::Usage,
};

/// A run with all its stages.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    pub id: String,
    pub state: RunState,
    /// Milliseconds since the epoch.
    pub began_ms: Option<u64>,
    /// When the last entry of its journal was written.
    pub ended_ms: Option<u64>,
    /// Wall time while it was running, over all resumptions.
    pub seconds: f64,
    pub seed: Option<u64>,
    /// Overrides of the run file, as `--set` takes them.
    pub set: Vec<String>,
    pub resample: Vec<String>,
    /// The stages that it was limited to, with what they need.
    pub until: Vec<String>,
    /// The versions of mcprl that worked on it.
    pub versions: Vec<String>,
    /// The machines that worked on it: processor and cores.
    pub machines: Vec<String>,
    /// Which iteration the result of a loop is of, where it has a choice.
    pub loop_results: Vec<String>,
    pub headline: Option<Headline>,
    pub training: Option<TrainingSuccess>,
    /// In the order of the journal; stages that have not begun follow if the run was opened [`Run::with_pending`].
    pub stages: Vec<Stage>,
    pub loops: Vec<Loop>,
    /// Why its journal cannot be read, or not all of it.
    pub unreadable: Option<String>,
    /// Name of the run file.
    pub file: Option<String>,
    /// The section `[engine]`, with overrides.
    pub engine: Option<EngineSpec>,
    /// Text of the run file. Not serialized: it may hold a secret that nothing has recognized.
    #[serde(skip)]
    pub text: Option<String>,
}

/// A loop of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Loop {
    pub name: String,
    pub iterations: Vec<Iteration>,
}

/// One iteration of a loop.
#[derive(Debug, Clone, Serialize)]
pub struct Iteration {
    /// From 1.
    pub number: u32,
    /// Ids of its stages.
    pub stages: Vec<String>,
    pub state: StageState,
    /// Time of its stages, as in [`Stage::any_seconds`].
    pub seconds: f64,
}

/// The state of a stage in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum StageState {
    /// It has not begun.
    #[default]
    Pending,
    Running,
    Ran,
    /// Taken from the store.
    Cached,
    /// Its loop had reached its goal.
    Skipped,
    Failed,
    /// It began and did not end: the run was stopped.
    Unfinished,
}

impl StageState {
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether it has a result.
    pub fn is_done(self) -> bool {
        matches!(self, Self::Ran | Self::Cached)
    }
}

/// One execution of a stage: one outside loops, one per iteration within.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Stage {
    /// `exam`, `train[0003]/rollout`.
    pub id: String,
    /// Name in the run file: `exam`, `train/rollout`.
    pub name: String,
    /// Its loop and iteration, from 1.
    pub iteration: Option<(String, u32)>,
    pub state: StageState,
    /// Kind of the stage, if its record is in the store.
    pub kind: Option<String>,
    pub key: Option<Digest>,
    pub started_ms: Option<u64>,
    pub ended_ms: Option<u64>,
    /// Time that this run spent on it.
    pub seconds: Option<f64>,
    /// Time that its result took, in this run or an earlier one.
    pub run_seconds: Option<f64>,
    pub usage: Option<Usage>,
    pub dollars: Option<f64>,
    /// Why it ran.
    pub reasons: Vec<String>,
    pub error: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    pub retries: u32,
    pub notes: Vec<String>,
    pub metrics: BTreeMap<String, f64>,
    /// What its key says of its parameters, without what looks like a secret.
    pub params: serde_json::Map<String, serde_json::Value>,
    pub inputs: Vec<Edge>,
    pub outputs: Vec<Artifact>,
}

/// An artifact that a stage reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Edge {
    pub role: String,
    /// The name in the run file if the role takes several; otherwise the role.
    pub name: String,
    /// None before the stage has begun.
    pub digest: Option<Digest>,
    /// `STAGE.OUTPUT` of the same run.
    pub from: Option<String>,
}

/// An artifact that a stage wrote.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Artifact {
    /// Name of the output.
    pub port: String,
    /// Artifact type: `trajectories`, `policy`.
    pub kind: String,
    pub digest: Digest,
    /// Whether the store still has it, undamaged.
    pub is_present: bool,
    #[serde(skip)]
    pub path: PathBuf,
}

impl Artifact {
    /// Its table.
    ///
    /// # Errors
    /// If it is not there.
    pub fn table<T: Table>(&self) -> Result<Vec<T>, Missing> {
        rows(Some(self))
    }
}

/// Why a table cannot be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
pub enum Missing {
    /// The stage writes no such table, is of an earlier version, or has not finished.
    #[strum(to_string = "not written")]
    NotWritten,
    #[strum(to_string = "removed from the cache, or damaged; `mcprl resume` makes it again")]
    Gone,
    #[strum(to_string = "unreadable: {0}")]
    Unreadable(String),
}

/// The plan of a run. Computes digests of files that the run file names, if they are not known yet.
pub fn plan_of(store: &Store, run: &str) -> Option<Plan> {
    let spec = history::spec(store, run)?;
    let files = FileDigests::load(store);
    let source = spec.source().ok()?;
    let plan = Plan::new(&source, &spec.overrides, &Cards::new(spec.stages), &files).ok()?;
    plan.until(&spec.until).ok()
}

impl Run {
    /// Reads a run; `latest` is the newest.
    ///
    /// # Errors
    /// If there is no such run.
    pub fn open(store: &Store, id: &str) -> Result<Self> {
        Ok(Self::of(store, &history::run(store, id)?))
    }

    /// The run with this history.
    pub fn of(store: &Store, run: &RunHistory) -> Self {
        let spec = history::spec(store, &run.id);
        let cards = Cards::new(spec.as_ref().and_then(|spec| spec.stages.clone()));
        let known = Stages::new(store, run);
        let is_live = run.state == RunState::Running;
        let histories: Vec<StageHistory> = run.nodes.iter().map(|node| known.stage(node)).collect();
        // Each card is parsed once: a loop has hundreds of stages.
        let kinds: BTreeSet<&str> =
            histories.iter().filter_map(|stage| Some(stage.fields.as_ref()?.kind.as_str())).collect();
        let cards: BTreeMap<String, Arc<Card>> = kinds
            .into_iter()
            .filter_map(|kind| Some((kind.to_owned(), cards.get(kind).ok().flatten()?)))
            .collect();
        let stages = run.nodes.iter().zip(histories);
        let stages: Vec<Stage> =
            stages.map(|(node, stage)| Stage::new(store, (node, stage), &cards, is_live)).collect();
        Self {
            loops: loops(&stages),
            id: run.id.clone(),
            state: run.state,
            began_ms: run.began_ms,
            ended_ms: run.ended_ms,
            seconds: run.seconds,
            seed: run.seed,
            set: run.set.clone(),
            resample: run.resample.clone(),
            until: run.until.clone(),
            versions: run.versions.clone(),
            machines: run.machines.clone(),
            loop_results: run.loop_results.values().map(|(_, message)| message.clone()).collect(),
            headline: run.headline.clone(),
            training: run.training.clone(),
            unreadable: run.unreadable.clone(),
            stages,
            file: spec.as_ref().and_then(|spec| Some(spec.file.file_name()?.to_string_lossy().into_owned())),
            engine: spec.as_ref().and_then(|spec| {
                let source = spec.source().ok()?;
                plan::engine_spec(&source, &spec.overrides).ok()
            }),
            text: spec.map(|spec| secret_free(&spec.text).into_owned()),
        }
    }

    /// Adds the stages that have not begun, in the order of the plan. Adds none if the run file cannot be planned any more,
    /// for example because a file that it names is gone.
    #[must_use]
    pub fn with_pending(self, store: &Store) -> Self {
        match plan_of(store, &self.id) {
            Some(plan) => self.with_plan(&plan),
            None => self,
        }
    }

    /// Adds the stages of the plan that have not begun.
    #[must_use]
    pub fn with_plan(mut self, plan: &Plan) -> Self {
        let mut begun: BTreeMap<String, Stage> =
            self.stages.drain(..).map(|stage| (stage.id.clone(), stage)).collect();
        for index in plan.order() {
            let node = plan.node(*index);
            let mut stage = begun.remove(&node.id).unwrap_or_else(|| Stage::pending(&node.id));
            stage.kind.get_or_insert_with(|| node.stage.card.kind.clone());
            if stage.inputs.is_empty() {
                let edge = |input: &InputEdge| {
                    let from = input.from.output();
                    let from = from.map(|(writer, port)| format!("{}.{port}", plan.node(writer).id));
                    Edge { role: input.role.clone(), name: input.name.clone(), digest: None, from }
                };
                stage.inputs = node.inputs.iter().map(edge).collect();
            }
            self.stages.push(stage);
        }
        // Of a run file that changed while the run was stopped.
        self.stages.extend(begun.into_values());
        self.loops = loops(&self.stages);
        self
    }

    pub fn stage(&self, id: &str) -> Option<&Stage> {
        self.stages.iter().find(|stage| stage.id == id)
    }

    /// The stages that wrote an artifact of this type.
    pub fn writers<'r>(&'r self, kind: &'r str) -> impl Iterator<Item = &'r Stage> {
        self.stages.iter().filter(move |stage| stage.artifact(kind).is_some())
    }

    /// Artifacts that were removed from the cache, as `STAGE.OUTPUT`.
    pub fn gone(&self) -> Vec<String> {
        let of = |stage: &Stage| {
            let gone = stage.outputs.iter().filter(|artifact| !artifact.is_present);
            gone.map(|artifact| format!("{}.{}", stage.id, artifact.port)).collect::<Vec<_>>()
        };
        self.stages.iter().flat_map(of).collect()
    }

    /// The artifact that a stage read in this role, if a stage of this run wrote it.
    pub fn input(&self, stage: &Stage, role: &str) -> Option<&Artifact> {
        let digest = stage.inputs.iter().find(|edge| edge.role == role)?.digest?;
        self.stages.iter().flat_map(|stage| &stage.outputs).find(|artifact| artifact.digest == digest)
    }

    /// The tools that the agent of a stage had.
    ///
    /// # Errors
    /// If they are not there.
    pub fn tools(&self, stage: &Stage) -> Result<Vec<Tool>, Missing> {
        rows(self.input(stage, "tools"))
    }

    /// The scenarios that a stage read.
    ///
    /// # Errors
    /// If they are not there.
    pub fn scenarios(&self, stage: &Stage) -> Result<Vec<data::Scenario>, Missing> {
        rows(self.input(stage, "scenarios"))
    }
}

/// What sets a run apart from another one: seeds, overrides and the fields of keys, without those that follow from others.
pub fn differences(store: &Store, old: &RunHistory, new: &RunHistory) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut add = |text: String| {
        if !all.contains(&text) {
            all.push(text);
        }
    };
    if old.seed != new.seed {
        let seed = |run: &RunHistory| run.seed.map_or_else(|| "unknown".to_owned(), |seed| seed.to_string());
        add(format!("seed {} → {}", seed(old), seed(new)));
    }
    let of = |run: &RunHistory| run.versions.join(", ");
    if of(old) != of(new) {
        add(format!("mcprl {} → {}", of(old), of(new)));
    }
    let (found, _) = history::compare(store, old, new);
    for difference in found {
        match difference {
            Difference::Changed { id, key, .. } => {
                let follows =
                    |reason: &RerunReason| matches!(reason, RerunReason::Input { .. } | RerunReason::First);
                for reason in key.iter().filter(|reason| !follows(reason)) {
                    add(format!("{}: {reason}", stage_name(&id)));
                }
            }
            Difference::OnlyOld { id } => add(format!("{}: in {} only", stage_name(&id), old.id)),
            Difference::OnlyNew { id } => add(format!("{}: in {} only", stage_name(&id), new.id)),
        }
    }
    all
}

fn loops(stages: &[Stage]) -> Vec<Loop> {
    let mut loops: Vec<Loop> = Vec::new();
    for stage in stages {
        let Some((name, number)) = &stage.iteration else { continue };
        let at = loops.iter().position(|found| found.name == *name).unwrap_or_else(|| {
            loops.push(Loop { name: name.clone(), iterations: Vec::new() });
            loops.len() - 1
        });
        let iterations = &mut loops[at].iterations;
        let at = iterations.iter().position(|found| found.number == *number).unwrap_or_else(|| {
            let (stages, state) = (Vec::new(), StageState::Pending);
            iterations.push(Iteration { number: *number, stages, state, seconds: 0.0 });
            iterations.len() - 1
        });
        iterations[at].stages.push(stage.id.clone());
        iterations[at].seconds += stage.any_seconds().unwrap_or(0.0);
    }
    for found in &mut loops {
        found.iterations.sort_by_key(|iteration| iteration.number);
        for iteration in &mut found.iterations {
            let is_of = |stage: &&Stage| stage.iteration == Some((found.name.clone(), iteration.number));
            iteration.state = together(stages.iter().filter(is_of).map(|stage| stage.state));
        }
    }
    loops
}

/// The state of several stages as one.
fn together(states: impl Iterator<Item = StageState>) -> StageState {
    use StageState::{Cached, Failed, Pending, Ran, Running, Skipped, Unfinished};
    let states: Vec<StageState> = states.collect();
    let has = |state| states.contains(&state);
    match () {
        () if has(Failed) => Failed,
        () if has(Running) => Running,
        () if has(Unfinished) => Unfinished,
        () if has(Pending) && (has(Ran) || has(Cached)) => Running,
        () if has(Pending) => Pending,
        () if has(Ran) => Ran,
        () if has(Skipped) => Skipped,
        () => Cached,
    }
}

impl Stage {
    fn pending(id: &str) -> Self {
        Self {
            name: stage_name(id),
            iteration: InLoop::parse(id).map(|of| (of.name.to_owned(), of.iteration)),
            id: id.to_owned(),
            ..Self::default()
        }
    }

    fn new(
        store: &Store,
        (node, stage): (&NodeHistory, StageHistory),
        cards: &BTreeMap<String, Arc<Card>>,
        is_live: bool,
    ) -> Self {
        let state = match node.outcome {
            StageOutcome::Ran => StageState::Ran,
            StageOutcome::Cached => StageState::Cached,
            StageOutcome::Skipped => StageState::Skipped,
            StageOutcome::Failed => StageState::Failed,
            StageOutcome::Unfinished if is_live => StageState::Running,
            StageOutcome::Unfinished => StageState::Unfinished,
        };
        let card = stage.fields.as_ref().and_then(|fields| cards.get(&fields.kind));
        let artifact = |written: &history::Written| {
            let declared = card.as_ref().and_then(|card| card.outputs.get(&written.output));
            // Without a record, the card is not known.
            let kind = declared.map_or_else(|| built_in_type(&written.output), |port| Some(&*port.artifact));
            // Of tables and reports, what was damaged is not shown: its path leads nowhere.
            let is_intact = !written.path.is_file() || history::is_intact(store, &written.digest);
            let path = if is_intact { written.path.clone() } else { written.path.join("damaged") };
            Artifact {
                kind: kind.unwrap_or(&written.output).to_owned(),
                port: written.output.clone(),
                digest: written.digest,
                is_present: path.exists(),
                path,
            }
        };
        let edge = |read: &history::ReadArtifact| Edge {
            role: read.role.clone(),
            name: read.name.clone(),
            digest: Some(read.digest),
            from: read.from.clone(),
        };
        Self {
            state,
            kind: stage.fields.as_ref().map(|fields| fields.kind.clone()),
            key: node.key,
            started_ms: node.started_ms,
            ended_ms: node.ended_ms,
            seconds: node.seconds,
            run_seconds: stage.run_seconds,
            usage: stage.spent,
            dollars: stage.dollars,
            reasons: node.reasons.iter().map(ToString::to_string).filter(|text| !text.is_empty()).collect(),
            error: node.error.clone(),
            hint: node.hint.clone(),
            retries: node.retries,
            notes: node.notes.clone(),
            metrics: stage.metrics,
            inputs: stage.inputs.iter().map(edge).collect(),
            outputs: stage.outputs.iter().map(artifact).collect(),
            params: stage.fields.map(|fields| fields.params).unwrap_or_default(),
            ..Self::pending(&node.id)
        }
    }

    /// Its name within its loop.
    pub fn own_name(&self) -> &str {
        self.name.split_once('/').map_or(self.name.as_str(), |(_, own)| own)
    }

    /// Time that this run spent on it, or else what its result took in an earlier one.
    pub fn any_seconds(&self) -> Option<f64> {
        self.seconds.or(self.run_seconds)
    }

    /// Whether policies played its episodes: reference solutions say nothing of one.
    pub fn is_played(&self) -> bool {
        self.table::<data::OutcomeRow>()
            .is_ok_and(|rows| rows.iter().any(|row| row.policy != data::REFERENCE))
    }

    /// Its first output of this artifact type.
    pub fn artifact(&self, kind: &str) -> Option<&Artifact> {
        self.outputs.iter().find(|artifact| artifact.kind == kind)
    }

    /// Its first output that is this table. The columns that `T` lacks are not read.
    ///
    /// # Errors
    /// If it is not there.
    pub fn table<T: Table>(&self) -> Result<Vec<T>, Missing> {
        rows(self.artifact(T::NAME))
    }

    /// These rows of the table, in ascending order.
    ///
    /// # Errors
    /// As [`Self::table`].
    pub fn table_part<T: Table>(&self, rows: &BTreeSet<usize>) -> Result<Vec<T>, Missing> {
        part(self.artifact(T::NAME), Some(&rows.iter().copied().collect::<Vec<_>>()))
    }

    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).copied()
    }
}

fn rows<T: Table>(artifact: Option<&Artifact>) -> Result<Vec<T>, Missing> {
    part(artifact, None)
}

fn part<T: Table>(artifact: Option<&Artifact>, rows: Option<&[usize]>) -> Result<Vec<T>, Missing> {
    match artifact {
        None => Err(Missing::NotWritten),
        Some(artifact) if !artifact.is_present => Err(Missing::Gone),
        Some(artifact) => {
            data::read_part(&artifact.path, rows).map_err(|error| Missing::Unreadable(error.to_string()))
        }
    }
}
