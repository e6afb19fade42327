//! Reads past runs from their journals and records. Writes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    ExecError, RunSpec, StageOutcome,
    event::{Event, RunState},
    folder,
    journal::{self, TimedEvent},
};
use crate::{
    data::{self, Table, VerdictRow},
    error::{Diagnostic as _, Failure, Result, did_you_mean},
    eval::{self, Mode},
    hash::Digest,
    plan::{InLoop, KeyFields, NodeName, Overrides, RerunReason, differences, stage_name, stored_parts},
    progress::now_ms,
    secret::{secret_free, shareable_table},
    store::{ActionRecord, CachedResult, Condition, LiveSet, Output, Store, StoreError},
    usage::Usage,
};

/// A stage of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NodeHistory {
    pub id: String,
    pub outcome: StageOutcome,
    pub key: Option<Digest>,
    /// Time that this run spent on it.
    pub seconds: Option<f64>,
    /// When this run last started it, in milliseconds since the epoch.
    pub started_ms: Option<u64>,
    /// When it ended: finished, failed, or found in the cache.
    pub ended_ms: Option<u64>,
    /// How often it failed and was retried.
    pub retries: u32,
    /// Why it ran.
    pub reasons: Vec<RerunReason>,
    pub error: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// The stage's notes.
    pub notes: Vec<String>,
    /// The stage's result in this run. If another run reran the stage since, the store has another result under
    /// the key.
    #[serde(skip)]
    pub result: Option<CachedResult>,
}

impl NodeHistory {
    fn take(&mut self, result: CachedResult) {
        self.notes.clone_from(&result.notes);
        self.result = Some(result);
    }

    /// The stage's key and result, if it finished.
    fn result(&self) -> Option<(Digest, &CachedResult)> {
        let finished = matches!(self.outcome, StageOutcome::Ran | StageOutcome::Cached);
        self.key.zip(self.result.as_ref()).filter(|_| finished)
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunHistory {
    pub id: String,
    pub state: RunState,
    /// Milliseconds since the epoch.
    pub began_ms: Option<u64>,
    /// Wall time while it was running, over all resumptions.
    pub seconds: f64,
    /// When the last entry of its journal was written, in milliseconds since the epoch.
    pub ended_ms: Option<u64>,
    /// The versions of mcprl that worked on it.
    pub versions: Vec<String>,
    /// The machines that worked on it: processor and cores.
    pub machines: Vec<String>,
    /// The seed of the run file, or its override.
    pub seed: Option<u64>,
    /// All overrides of the run file: `--set`, and environment variables in the syntax of `--set`. Without secrets.
    pub set: Vec<String>,
    /// Resampled stages.
    pub resample: Vec<String>,
    /// The stages that it was limited to, with what they need.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub until: Vec<String>,
    /// The iteration that a loop's result is of, and why, by the loop's name; 0 is what it starts from.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub loop_results: BTreeMap<String, (u32, String)>,
    /// Why its journal cannot be read, or not all of it. [`unreadable`] also sees what it lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// None before an exam has finished.
    pub headline: Option<Headline>,
    /// None before an iteration of training has been played.
    pub training: Option<TrainingSuccess>,
    #[serde(skip)]
    pub nodes: Vec<NodeHistory>,
}

/// The success that the last comparison of policies measured; without one, that of a single policy.
fn headline(store: &Store, nodes: &[NodeHistory]) -> Option<Headline> {
    let mut alone = None;
    for headline in nodes.iter().rev().filter_map(|node| Headline::of(store, node)) {
        if headline.baseline.is_some() {
            return Some(headline);
        }
        alone = alone.or(Some(headline));
    }
    alone
}

/// The success of a run: how well the last policy of its last comparison solves held-out tasks, as an agent is served. Only an
/// exam measures it: neither training nor demonstrations do. Whatever shows the success of a run takes it from here.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Headline {
    /// The stage that measured it.
    pub stage: String,
    /// The success of the policy that the last one is compared with; none if there is one policy.
    pub baseline: Option<f64>,
    pub success: f64,
    /// The 95 % interval of `success`; none if the verdict is no longer in the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

impl Headline {
    /// Of a stage that compares policies: from its verdict, or else from its metrics, which have no interval.
    fn of(store: &Store, node: &NodeHistory) -> Option<Self> {
        let result = node.result.as_ref()?;
        let of_metrics = Self::of_metrics(&node.id, &result.metrics)?;
        let rows =
            result.outputs.get(VerdictRow::NAME).and_then(|output| data::read(&store.path(output)).ok());
        Some(rows.and_then(|rows: Vec<VerdictRow>| Self::of_verdict(&node.id, &rows)).unwrap_or(of_metrics))
    }

    fn of_verdict(stage: &str, rows: &[VerdictRow]) -> Option<Self> {
        let found = eval::headline(rows)?;
        let (baseline, last) = found.ends()?;
        Some(Self {
            stage: stage.to_owned(),
            baseline: baseline.map(|standing| standing.success),
            success: last.success,
            interval: Some([last.low, last.high]),
        })
    }

    /// `eval` reports `all.trained.sampled` compared with `all.base.sampled`.
    fn of_metrics(stage: &str, metrics: &BTreeMap<String, f64>) -> Option<Self> {
        let of_mode = |mode: &str| -> Vec<(String, f64)> {
            let rates = metrics.iter().filter_map(|(name, value)| {
                let policy = name.strip_prefix("all.")?.strip_suffix(mode)?.strip_suffix('.')?;
                Some((policy.to_owned(), *value))
            });
            rates.collect()
        };
        let rates =
            Mode::HEADLINE.map(|mode| of_mode(mode.name())).into_iter().find(|rates| !rates.is_empty())?;
        let gain = |policy: &str| metrics.get(&format!("all.{policy}.gain"));
        let is_last = |policy: &str| gain(policy).is_some() && gain(policy) == metrics.get("all.gain");
        let (_, success) = *rates.iter().rev().find(|(policy, _)| is_last(policy)).or(rates.first())?;
        let baseline = rates.iter().find(|(policy, _)| gain(policy).is_none() && rates.len() > 1);
        Some(Self {
            stage: stage.to_owned(),
            baseline: baseline.map(|(_, rate)| *rate),
            success,
            interval: None,
        })
    }
}

/// Success in the newest iteration of training: of episodes that are sampled to learn from, on tasks that are trained on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainingSuccess {
    /// The stage that played them.
    pub stage: String,
    pub success: f64,
    /// That on tasks drawn for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_new: Option<f64>,
}

impl TrainingSuccess {
    /// Of the newest iteration of a loop with a stage that reports `success`.
    fn of(nodes: &[NodeHistory]) -> Option<Self> {
        let metric = |node: &NodeHistory, name: &str| node.result.as_ref()?.metrics.get(name).copied();
        let iteration = |node: &NodeHistory| {
            InLoop::parse(&node.id).map(|found| (found.name.to_owned(), found.iteration))
        };
        let reports = |node: &&NodeHistory| metric(node, "success").is_some();
        let newest = nodes.iter().rev().filter(reports).find_map(iteration)?;
        let mut of_newest = nodes.iter().filter(|node| iteration(node).as_ref() == Some(&newest));
        // The stage that played them comes before those that judge and learn from them.
        let played = of_newest.find(reports)?;
        Some(Self {
            stage: played.id.clone(),
            success: metric(played, "success")?,
            success_new: metric(played, "success_new"),
        })
    }
}

impl RunHistory {
    /// Success in training by iteration, of the stage that [`TrainingSuccess`] names.
    pub fn training_curve(&self) -> Vec<f64> {
        let Some(training) = &self.training else { return Vec::new() };
        let played = stage_name(&training.stage);
        let of_it = self.nodes.iter().filter(|node| stage_name(&node.id) == played);
        let points = of_it.filter_map(|node| {
            let success = node.result.as_ref()?.metrics.get("success")?;
            Some((InLoop::parse(&node.id)?.iteration, *success))
        });
        points.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// What its stages used that ran.
    pub fn usage(&self) -> Usage {
        let mut all = Usage::default();
        for node in self.nodes.iter().filter(|node| node.outcome == StageOutcome::Ran) {
            all += node.result.as_ref().map(|result| result.cost.spent).unwrap_or_default();
        }
        all
    }

    pub fn count(&self, outcome: StageOutcome) -> usize {
        self.nodes.iter().filter(|node| node.outcome == outcome).count()
    }

    /// The result under each key.
    pub fn results(&self) -> Vec<(Digest, &CachedResult)> {
        let mut results = Vec::new();
        for result in self.nodes.iter().filter_map(NodeHistory::result) {
            if !results.contains(&result) {
                results.push(result);
            }
        }
        results
    }

    /// The stage of this name. For a loop's stage, the newest iteration unless the name specifies one.
    pub fn node(&self, name: &str) -> Result<&NodeHistory> {
        let named = NodeName::parse(name);
        let is_meant = |node: &&NodeHistory| named.means(&node.id) && named.is_whole(&node.id);
        self.nodes.iter().rev().find(is_meant).ok_or_else(|| self.unknown(name))
    }

    /// The stages of this name, or of the loop or iteration of this name, in order.
    pub fn named(&self, name: &str) -> Result<Vec<&NodeHistory>> {
        let named = NodeName::parse(name);
        let found: Vec<_> = self.nodes.iter().filter(|node| named.means(&node.id)).collect();
        if found.is_empty() { Err(self.unknown(name)) } else { Ok(found) }
    }

    fn unknown(&self, name: &str) -> Failure {
        let near = did_you_mean(name, self.nodes.iter().map(|node| node.id.as_str())).map(str::to_owned);
        ExecError::NoStage { run: self.id.clone(), stage: name.to_owned(), near }.into()
    }
}

/// All runs, oldest first.
///
/// # Errors
/// If the folder of the runs is there and cannot be read.
pub fn runs(store: &Store) -> Result<Vec<RunHistory>, StoreError> {
    // In this order, since a run marks itself active before its folder exists.
    let ids = folder::list(store)?;
    let live = store.live_runs();
    Ok(ids.into_iter().map(|id| history(store, id, &live)).collect())
}

/// What a sweep must keep for these runs: all their keys, including those of unfinished stages, and their
/// artifacts.
///
/// # Errors
/// If the journal of one cannot be read: its results would look like garbage.
pub fn needed<'r>(
    store: &Store,
    runs: impl IntoIterator<Item = &'r RunHistory>,
) -> Result<LiveSet, StoreError> {
    let mut needed = LiveSet::default();
    for run in runs {
        if let Some(problem) = unreadable(store, &run.id) {
            return Err(StoreError::UnreadableRun {
                path: journal_path(store, &run.id),
                run: run.id.clone(),
                problem,
            });
        }
        for node in &run.nodes {
            needed.keys.extend(node.key);
            let outputs = node.result.iter().flat_map(|known| known.outputs.values());
            needed.artifacts.extend(outputs.map(|output| output.digest));
        }
    }
    Ok(needed)
}

/// Reads one run. `latest` is the newest.
pub fn run(store: &Store, id: &str) -> Result<RunHistory> {
    let id = folder::named(store, id);
    let path = folder::existing(store, &id)?;
    let run = history(store, id, &store.live_runs());
    if run.began_ms.is_none() && run.state != RunState::Running {
        // Without either, nothing is known of it.
        RunSpec::read(&path)?;
    }
    Ok(run)
}

/// Why the journal of a run cannot be read, or lacks events: one for each artifact that the run's folder links to.
pub fn unreadable(store: &Store, id: &str) -> Option<String> {
    // Before the journal: a result is in it before its link exists.
    let linked = folder::linked(&store.runs().join(id));
    let (entries, problem) = journal::inspect(&journal_path(store, id));
    problem.or_else(|| match linked {
        Ok(linked) => (!names(&entries, linked)).then(|| "it lacks results of the run".to_owned()),
        Err(cause) => Some(cause.to_string()),
    })
}

fn history(store: &Store, id: String, live: &[String]) -> RunHistory {
    let (mut entries, unreadable) = journal::inspect(&journal_path(store, &id));
    entries.retain(|timed| !matches!(timed.event, Event::Repeated { .. }));
    let state = if live.contains(&id) { RunState::Running } else { journal::state(&entries) };
    let spec = spec(store, &id);
    let opened = || {
        entries.iter().filter_map(|timed| match &timed.event {
            Event::Opened { version, machine, .. } => Some((version, machine.as_ref())),
            _ => None,
        })
    };
    let now = (state == RunState::Running).then(now_ms);
    let seconds = seconds(&entries, now);
    let loop_results = entries.iter().filter_map(|timed| loop_result(&timed.event)).collect();
    let (began_ms, ended_ms) = (entries.first().map(|timed| timed.at), entries.last().map(|timed| timed.at));
    let versions = distinct(opened().map(|(version, _)| version));
    let machines = distinct(opened().filter_map(|(_, machine)| machine));
    let nodes = nodes(entries);
    RunHistory {
        state,
        seed: spec.as_ref().map(seed),
        set: spec.as_ref().map(|spec| set(&spec.overrides)).unwrap_or_default(),
        resample: spec.as_ref().map(|spec| spec.resample.clone()).unwrap_or_default(),
        until: spec.map(|spec| spec.until).unwrap_or_default(),
        began_ms,
        ended_ms,
        versions,
        machines,
        seconds,
        loop_results,
        headline: headline(store, &nodes),
        training: TrainingSuccess::of(&nodes),
        nodes,
        unreadable,
        id,
    }
}

/// Whether the events name all of these artifacts as outputs.
fn names(entries: &[TimedEvent], mut artifacts: BTreeSet<Digest>) -> bool {
    for timed in entries {
        let (Event::Cached { result, .. } | Event::Finished { result, .. }) = &timed.event else { continue };
        for output in result.outputs.values() {
            artifacts.remove(&output.digest);
        }
    }
    artifacts.is_empty()
}

fn journal_path(store: &Store, id: &str) -> PathBuf {
    store.runs().join(id).join("journal.jsonl")
}

fn loop_result(event: &Event) -> Option<(String, (u32, String))> {
    match event {
        Event::LoopResult { name, iteration, message } => Some((name.clone(), (*iteration, message.clone()))),
        _ => None,
    }
}

/// The events of a run's journal so far.
pub fn events(store: &Store, id: &str) -> Vec<TimedEvent> {
    journal::read(&journal_path(store, id))
}

/// The run's request; none if it cannot be read.
pub fn spec(store: &Store, id: &str) -> Option<RunSpec> {
    RunSpec::read(&store.runs().join(id)).ok()
}

fn set(overrides: &Overrides) -> Vec<String> {
    overrides.spelled().iter().map(|set| secret_free(set).into_owned()).collect()
}

/// The run's seed; 0 if none was given.
fn seed(spec: &RunSpec) -> u64 {
    setting(spec, &["seed"]).and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// A text or number of the run file at this path of keys, or its override.
pub fn setting(spec: &RunSpec, path: &[&str]) -> Option<String> {
    let dotted = path.join(".");
    let set = spec.overrides.spelled().into_iter().rev().find_map(|set| {
        let (key, value) = set.split_once('=')?;
        (key.trim() == dotted).then(|| value.trim().trim_matches('"').to_owned())
    });
    let in_text = |text: &str| {
        let table = toml::from_str::<toml::Table>(text).ok()?;
        let (last, tables) = path.split_last()?;
        let table = tables.iter().try_fold(&table, |table, name| table.get(*name)?.as_table())?;
        match table.get(*last)? {
            toml::Value::String(text) => Some(text.clone()),
            value => value.as_integer().map(|number| number.to_string()),
        }
    };
    let mut files = std::iter::once(&spec.text).chain(spec.extended.iter().map(|file| &file.text));
    set.or_else(|| files.find_map(|text| in_text(text)))
}

/// Wall time from each `Opened` entry to the last entry before the next; of a run that is running, to `now`.
fn seconds(entries: &[TimedEvent], now: Option<u64>) -> f64 {
    let mut milliseconds = 0;
    let mut opened = None;
    let moments = entries.iter().map(|timed| (timed.at, matches!(timed.event, Event::Opened { .. })));
    for (at, is_opening) in moments.chain(now.map(|now| (now, false))) {
        if is_opening {
            opened = Some((at, milliseconds));
        }
        if let Some((begin, before)) = opened {
            milliseconds = milliseconds.max(before + at.saturating_sub(begin));
        }
    }
    std::time::Duration::from_millis(milliseconds).as_secs_f64()
}

/// The values without repetitions, in order.
fn distinct<'v>(values: impl Iterator<Item = &'v String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    values.filter(|value| seen.insert(*value)).cloned().collect()
}

/// The stages of the run with this journal, by name.
pub(super) fn stages(journal: &Path) -> BTreeMap<String, NodeHistory> {
    nodes(journal::read(journal)).into_iter().map(|node| (node.id.clone(), node)).collect()
}

fn nodes(entries: Vec<TimedEvent>) -> Vec<NodeHistory> {
    let mut nodes: Vec<NodeHistory> = Vec::new();
    let mut by_id: HashMap<String, usize> = HashMap::new();
    for TimedEvent { at, event } in entries {
        let (Event::Cached { id, .. }
        | Event::Retrying { id, .. }
        | Event::Started { id, .. }
        | Event::Finished { id, .. }
        | Event::Skipped { id }
        | Event::Note { id, .. }
        | Event::Failed { id, .. }) = &event
        else {
            continue;
        };
        let place = *by_id.entry(id.clone()).or_insert(nodes.len());
        if place == nodes.len() {
            nodes.push(NodeHistory { id: id.clone(), ..NodeHistory::default() });
        }
        let node = &mut nodes[place];
        match event {
            // What a resumed run finds again stays as it was: run, and at its time.
            Event::Cached { key, result, .. }
                if matches!(node.outcome, StageOutcome::Ran | StageOutcome::Cached)
                    && node.key == Some(key)
                    && node.result.as_ref().is_some_and(|before| before.outputs == result.outputs) => {}
            Event::Cached { key, result, .. } => {
                (node.outcome, node.key, node.ended_ms) = (StageOutcome::Cached, Some(key), Some(at));
                node.take(result);
            }
            Event::Started { key, reasons, .. } => {
                let NodeHistory { id, seconds, .. } = std::mem::take(node);
                let (key, started_ms) = (Some(key), Some(at));
                *node = NodeHistory { id, key, seconds, started_ms, reasons, ..NodeHistory::default() };
            }
            Event::Finished { key, result, .. } => {
                let seconds = Some(result.cost.seconds);
                (node.outcome, node.key, node.seconds) = (StageOutcome::Ran, Some(key), seconds);
                node.ended_ms = Some(at);
                node.take(result);
            }
            Event::Note { message, .. } => node.notes.push(message),
            Event::Skipped { .. } => node.outcome = StageOutcome::Skipped,
            Event::Retrying { .. } => node.retries += 1,
            Event::Failed { error, .. } => {
                (node.error, node.hint) = (Some(error.to_string()), error.hint());
                (node.outcome, node.ended_ms) = (StageOutcome::Failed, Some(at));
            }
            _ => {}
        }
    }
    nodes
}

/// An artifact that a stage wrote, and its path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Written {
    pub output: String,
    pub digest: Digest,
    pub path: PathBuf,
}

/// An artifact that a stage read, and the stage of the same run that wrote it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadArtifact {
    pub role: String,
    pub name: String,
    pub digest: Digest,
    pub from: Option<String>,
}

/// Checks that an artifact of a run is as it was written. Reads its files only if their stamps have changed, and then seals
/// it, so that the next check is cheap. `name`: the stage and the output.
///
/// # Errors
/// If it is gone or damaged.
pub fn check(store: &Store, run: &str, name: &str, digest: &Digest) -> Result<(), ExecError> {
    let problem = match store.inspect(digest) {
        Condition::Sealed => return Ok(()),
        Condition::Unsealed => {
            // A cache that cannot be written is checked in full each time.
            _ = store.seal(digest);
            return Ok(());
        }
        Condition::Absent => "it is gone".to_owned(),
        Condition::Damaged(problem) => problem,
    };
    Err(ExecError::Unusable { run: run.to_owned(), artifact: name.to_owned(), problem })
}

/// Whether an artifact is as it was written: [`check`].
pub fn is_intact(store: &Store, digest: &Digest) -> bool {
    check(store, "", "", digest).is_ok()
}

/// Checks that a link in a run's folder leads to an output of this stage, and that the output is as it was written.
///
/// # Errors
/// If it leads elsewhere, or the output is damaged.
pub fn check_link(store: &Store, run: &str, node: &NodeHistory, link: &Path) -> Result<(), ExecError> {
    let port = link.file_name().unwrap_or_default().to_string_lossy();
    let name = format!("{}.{port}", node.id);
    let outputs = node.result.iter().flat_map(|result| &result.outputs);
    let own = outputs.clone().find(|(output, _)| **output == *port);
    let named: Vec<Digest> = match own {
        Some((_, output)) => vec![output.digest],
        None => outputs.map(|(_, output)| output.digest).collect(),
    };
    // A stage that is run again has no result yet, and the link leads to its earlier one.
    let named = if node.result.is_some() { named } else { folder::target(link).into_iter().collect() };
    let at = link.canonicalize().ok();
    let leads_to = |digest: &Digest| at.is_some() && store.artifact(digest).canonicalize().ok() == at;
    match named.into_iter().find(leads_to) {
        Some(digest) => check(store, run, &name, &digest),
        None => {
            let problem = format!("{} leads to another artifact", link.display());
            Err(ExecError::Unusable { run: run.to_owned(), artifact: name, problem })
        }
    }
}

/// Checks all tables and reports of a run that are in the cache.
///
/// # Errors
/// If one is damaged.
pub fn check_tables(store: &Store, run: &RunHistory) -> Result<(), ExecError> {
    for node in &run.nodes {
        for (port, output) in node.result.iter().flat_map(|result| &result.outputs) {
            let path = store.path(output);
            if path.exists() && !folder::is_policy(&path) {
                check(store, &run.id, &format!("{}.{port}", node.id), &output.digest)?;
            }
        }
    }
    Ok(())
}

/// A stage of a run with all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageHistory {
    #[serde(flatten)]
    pub node: NodeHistory,
    pub outputs: Vec<Written>,
    pub inputs: Vec<ReadArtifact>,
    pub metrics: BTreeMap<String, f64>,
    /// How long the stage took when it ran.
    pub run_seconds: Option<f64>,
    /// Resources other than time that it used when it ran.
    pub spent: Option<Usage>,
    /// Cost of judge tokens, if their prices were known.
    pub dollars: Option<f64>,
    /// The fields of its key, their parameters without what looks like a secret.
    pub fields: Option<KeyFields>,
}

/// The stages of a run and the records behind them.
pub struct Stages<'s> {
    store: &'s Store,
    /// By stage.
    records: BTreeMap<String, ActionRecord>,
    /// Maps each artifact to the stage and output that wrote it.
    writers: BTreeMap<Digest, String>,
}

impl<'s> Stages<'s> {
    pub fn new(store: &'s Store, run: &RunHistory) -> Self {
        let mut records = BTreeMap::new();
        let mut writers = BTreeMap::new();
        for node in &run.nodes {
            let Some((key, result)) = node.result() else { continue };
            let record = store.result(&key, result);
            for (port, output) in &record.outputs {
                writers.entry(output.digest).or_insert_with(|| format!("{}.{port}", node.id));
            }
            records.insert(node.id.clone(), record);
        }
        Self { store, records, writers }
    }

    pub fn stage(&self, node: &NodeHistory) -> StageHistory {
        let record = self.records.get(&node.id);
        let fields = record.and_then(|record| serde_json::from_value(record.fields.clone()).ok());
        let fields =
            fields.map(|fields: KeyFields| KeyFields { params: shareable_table(&fields.params), ..fields });
        let written = |(port, output): (&String, &Output)| Written {
            output: port.clone(),
            digest: output.digest,
            path: self.store.path(output),
        };
        let inputs = fields.iter().flat_map(|fields| &fields.inputs);
        let inputs = inputs.flat_map(|(role, inputs)| inputs.iter().map(move |input| (role, input)));
        StageHistory {
            outputs: record.into_iter().flat_map(|record| &record.outputs).map(written).collect(),
            inputs: inputs
                .map(|(role, input)| ReadArtifact {
                    role: role.clone(),
                    name: input.name.clone(),
                    digest: input.digest,
                    from: self.writers.get(&input.digest).cloned(),
                })
                .collect(),
            metrics: record.map(|record| record.metrics.clone()).unwrap_or_default(),
            run_seconds: record.map(|record| record.cost.seconds),
            spent: record.map(|record| record.cost.spent),
            dollars: record.and_then(|record| record.cost.dollars),
            fields,
            node: node.clone(),
        }
    }
}

/// A named value in two runs; `None` where it was not reported.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change<T> {
    pub name: String,
    pub old: Option<T>,
    pub new: Option<T>,
}

/// All values that differ, by name.
fn changes<T: Copy + PartialEq>(old: &BTreeMap<String, T>, new: &BTreeMap<String, T>) -> Vec<Change<T>> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let change = |name: &String| Change {
        name: name.clone(),
        old: old.get(name).copied(),
        new: new.get(name).copied(),
    };
    names.into_iter().map(change).filter(|change| change.old != change.new).collect()
}

/// A difference between a stage in two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "difference", rename_all = "kebab-case")]
pub enum Difference {
    OnlyOld {
        id: String,
    },
    OnlyNew {
        id: String,
    },
    /// Its key fields or its results differ.
    Changed {
        id: String,
        key: Vec<RerunReason>,
        metrics: Vec<Change<f64>>,
        /// Outputs that differ although the key is the same: the stage was rerun.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        outputs: Vec<Change<Digest>>,
    },
}

/// All stages that differ between two runs, and the number of equal ones.
pub fn compare(store: &Store, old: &RunHistory, new: &RunHistory) -> (Vec<Difference>, usize) {
    let (before, after) = (Stages::new(store, old), Stages::new(store, new));
    let find = |run: &RunHistory, id: &str| {
        run.nodes.iter().find(|node| node.id == id && node.outcome != StageOutcome::Skipped).cloned()
    };
    let mut seen = BTreeSet::new();
    let ids = old.nodes.iter().chain(&new.nodes).map(|node| node.id.as_str());
    let (mut found, mut alike) = (Vec::new(), 0);
    for id in ids.filter(|id| seen.insert(id.to_owned())) {
        match (find(old, id), find(new, id)) {
            (Some(_), None) => found.push(Difference::OnlyOld { id: id.to_owned() }),
            (None, Some(_)) => found.push(Difference::OnlyNew { id: id.to_owned() }),
            (Some(one), Some(other)) => {
                let (old, new) = (before.records.get(id), after.records.get(id));
                let is_same_key = one.key == other.key;
                let (key, outputs) = match old.zip(new) {
                    Some((old, new)) if is_same_key => (Vec::new(), changes(&digests(old), &digests(new))),
                    Some((old, new)) => (key_changes(&old.fields, &new.fields), Vec::new()),
                    None => (Vec::new(), Vec::new()),
                };
                if is_same_key && outputs.is_empty() {
                    alike += 1;
                    continue;
                }
                let metrics = |record: Option<&ActionRecord>| {
                    record.map(|record| record.metrics.clone()).unwrap_or_default()
                };
                let metrics = changes(&metrics(old), &metrics(new));
                found.push(Difference::Changed { id: id.to_owned(), key, metrics, outputs });
            }
            (None, None) => alike += 1,
        }
    }
    (found, alike)
}

fn key_changes(old: &Value, new: &Value) -> Vec<RerunReason> {
    let fields = serde_json::from_value::<KeyFields>(new.clone());
    fields.map(|fields| differences(old, &fields, || stored_parts(new))).unwrap_or_default()
}

fn digests(record: &ActionRecord) -> BTreeMap<String, Digest> {
    record.outputs.iter().map(|(name, output)| (name.clone(), output.digest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::Scenario,
        eval::{self, Comparison, Episode},
    };

    #[test]
    fn a_runs_headline_has_the_figures_of_its_verdict() {
        let scenarios: Vec<Scenario> = (0..12)
            .map(|index| Scenario {
                id: index.to_string(),
                split: if index < 8 { "unseen_entities" } else { "unseen_phrasings" }.into(),
                ..Scenario::default()
            })
            .collect();
        let names = ["base", "start", "trained"].map(str::to_owned);
        let mut episodes = Vec::new();
        for (mode, right) in [(Mode::Greedy, [2, 7, 5]), (Mode::Sampled, [1, 2, 3])] {
            for (index, scenario) in scenarios.iter().enumerate() {
                episodes.extend(names.iter().zip(right).map(|(name, right)| Episode {
                    scenario: scenario.id.clone(),
                    policy: name.clone(),
                    mode,
                    changed: None,
                    right: index < right,
                    by_protocol: true,
                    any_right: None,
                    calls: 1,
                    turns: 1,
                    tokens: 1,
                    tool_errors: 0,
                    tools: Vec::new(),
                }));
            }
        }
        let compared = Comparison { policies: &names, scenarios: &scenarios, ..Default::default() };
        let rows = eval::verdict(&compared, &episodes);
        let verdict = eval::headline(&rows).unwrap();
        let last = &verdict.policies[2];
        let by_metrics = Headline::of_metrics("exam", &eval::metrics(&rows)).unwrap();
        let shown = Headline::of_verdict("exam", &rows).unwrap();
        assert_eq!((shown.baseline, shown.success), (Some(2.0 / 8.0), 5.0 / 8.0));
        assert_eq!(shown.interval, Some([last.low, last.high]));
        assert_eq!(Headline { interval: None, ..shown }, by_metrics);
    }

    fn node(id: &str, metrics: &[(&str, f64)]) -> NodeHistory {
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let result = CachedResult { metrics, ..CachedResult::default() };
        NodeHistory { id: id.to_owned(), result: Some(result), ..NodeHistory::default() }
    }

    #[test]
    fn demonstrations_and_training_are_no_success_of_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let solved = node("solved", &[("success", 1.0), ("episodes", 160.0)]);
        let mut nodes = vec![node("tries", &[("success", 0.0)]), solved];
        assert_eq!((headline(&store, &nodes), TrainingSuccess::of(&nodes)), (None, None));
        nodes.push(node("train[0001]/rollout", &[("success", 0.25), ("success_new", 0.2)]));
        nodes.push(node("train[0001]/reward", &[("success", 0.3)]));
        let training = TrainingSuccess::of(&nodes).unwrap();
        assert_eq!((training.success, training.success_new), (0.25, Some(0.2)));
        assert_eq!(headline(&store, &nodes), None, "a run without an exam has no success");
        nodes.push(node("exam", &[("all.base.greedy", 0.5)]));
        nodes.push(node("last", &[("success", 0.9)]));
        assert_eq!(headline(&store, &nodes).map(|found| found.success), Some(0.5));
    }

    #[test]
    fn the_time_of_a_live_run_is_wall_time() {
        let at = |at, event| TimedEvent { at, event };
        let opened = || Event::Opened { pid: 1, version: String::new(), machine: None };
        let entries = [at(1_000, opened()), at(5_000, Event::Skipped { id: "a".into() })];
        assert_eq!(seconds(&entries, None), 4.0);
        assert_eq!(seconds(&entries, Some(1_201_000)), 1200.0);
        let resumed = [&entries[..], &[at(900_000, opened())]].concat();
        assert_eq!(seconds(&resumed, Some(960_000)), 64.0, "without the time between its parts");
    }
}
