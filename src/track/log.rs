//! A run as a tracker sees it: settings, and an ordered list of scalars and texts.
//!
//! A log is a pure function of the run's folder, its records and its artifacts. Entries come in the order in which
//! their stages ended, so the log of a run that goes on begins with the log of before.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
};

use serde_json::{Map, Value};

use crate::{
    data::{EpisodeRow, Message, OutcomeRow, Role, Step},
    error::Result,
    eval,
    exec::{
        RunState,
        history::{self, RunHistory},
    },
    plan::{self, StageSettings},
    report::{
        Tone,
        document::{Block, Document, Transcript},
        ending, escape, markdown_page,
    },
    secret,
    stage::Cards,
    store::Store,
    view::{
        Iteration, Run, Stage,
        curves::{self, Point},
        exam::{self, Exam},
    },
};

/// What a tracker is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// The run's id.
    pub run: String,
    /// Name of the run file, which runs of it have in common.
    pub name: String,
    pub state: RunState,
    /// Milliseconds since the epoch.
    pub began_ms: u64,
    /// When the last entry of the journal was written.
    pub ended_ms: u64,
    /// Settings by dotted name: `seed`, `train/update.learning_rate`.
    pub config: Vec<(String, Value)>,
    pub entries: Vec<Entry>,
}

/// Scalars of one step, or a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    pub axis: Axis,
    /// Position on the axis.
    pub step: u64,
    pub content: Content,
}

/// What steps count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Iterations of a loop, from 1.
    Iterations(String),
    /// Optimizer steps of a loop or a stage, from 0.
    OptimizerSteps(String),
    /// Nothing: the stage runs once.
    Once,
}

impl Axis {
    /// Name of the axis as a metric, for trackers that plot one metric over another.
    pub fn metric(&self) -> Option<String> {
        match self {
            Self::Iterations(name) => Some(format!("{name}/iteration")),
            Self::OptimizerSteps(name) => Some(format!("{name}_steps/step")),
            Self::Once => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Finite values by tag: `train/success`.
    Scalars(Vec<(String, f64)>),
    /// A text in Markdown. `messages`: those of the conversation that it shows.
    Text { tag: String, markdown: String, messages: Vec<Message> },
}

impl Entry {
    /// The tags of its values.
    pub fn tags(&self) -> Vec<&str> {
        match &self.content {
            Content::Scalars(values) => values.iter().map(|(tag, _)| tag.as_str()).collect(),
            Content::Text { tag, .. } => vec![tag],
        }
    }
}

impl Log {
    /// Whether nothing is added to the run any more, unless it is resumed.
    pub fn is_over(&self) -> bool {
        self.state != RunState::Running
    }
}

/// Entries that come to be at once: those of an iteration, or of a stage outside loops.
#[derive(Clone)]
struct Group {
    /// When its last stage ended.
    ended_ms: u64,
    /// Optimizer steps.
    steps: usize,
    entries: Vec<Entry>,
}

/// Reads the log of a run again and again. What is finished is read once.
pub struct LogReader {
    store: Store,
    run: String,
    /// Whether conversations of episodes are in the log.
    examples: bool,
    settings: Vec<StageSettings>,
    name: Option<String>,
    /// By iteration or stage, with what they follow from.
    known: HashMap<String, (String, Group)>,
}

impl LogReader {
    /// `run` is the run's id.
    pub fn new(store: &Store, run: &str, examples: bool) -> Self {
        let spec = history::spec(store, run);
        let source = spec.as_ref().and_then(|spec| spec.source().ok());
        let settings = spec.as_ref().zip(source).map(|(spec, source)| {
            plan::stage_settings(&source, &spec.overrides, &Cards::new(spec.stages.clone()))
        });
        Self {
            store: store.clone(),
            run: run.to_owned(),
            examples,
            settings: settings.unwrap_or_default(),
            name: spec.and_then(|spec| Some(spec.file.file_stem()?.to_string_lossy().into_owned())),
            known: HashMap::new(),
        }
    }

    /// The run's folder.
    pub(super) fn folder(&self) -> PathBuf {
        self.store.runs().join(&self.run)
    }

    /// The run's log as of now.
    ///
    /// # Errors
    /// If there is no such run any more.
    pub fn read(&mut self) -> Result<Log> {
        let history = history::run(&self.store, &self.run)?;
        let run = Run::of(&self.store, &history);
        let mut groups = Vec::new();
        for stage in run.stages.iter().filter(|stage| stage.iteration.is_none() && stage.state.is_done()) {
            groups.push(self.group(&stage.id, &[stage], 0, || alone(stage)));
        }
        for found in &run.loops {
            let mut steps = 0;
            for iteration in &found.iterations {
                let stages: Vec<&Stage> = iteration.stages.iter().filter_map(|id| run.stage(id)).collect();
                if !self.is_complete(&found.name, &stages, run.state) {
                    continue;
                }
                let examples = self.examples;
                let group =
                    self.group(&format!("{}[{}]", found.name, iteration.number), &stages, steps, || {
                        of_iteration(&run, &found.name, iteration, &stages, steps, examples)
                    });
                steps += group.steps;
                groups.push(group);
            }
        }
        groups.sort_by_key(|group| group.ended_ms);
        let began_ms = run.began_ms.unwrap_or_default();
        let config = self.config(&history);
        Ok(Log {
            name: self.name.clone().unwrap_or_else(|| run.id.clone()),
            run: run.id,
            state: run.state,
            began_ms,
            ended_ms: run.ended_ms.unwrap_or(began_ms),
            config,
            entries: groups.into_iter().flat_map(|group| group.entries).collect(),
        })
    }

    /// Whether all stages of an iteration are done.
    fn is_complete(&self, in_loop: &str, stages: &[&Stage], state: RunState) -> bool {
        let prefix = format!("{in_loop}/");
        let declared = self.settings.iter().map(|stage| stage.name.as_str());
        let declared: BTreeSet<&str> = declared.filter(|name| name.starts_with(&prefix)).collect();
        let done: BTreeSet<&str> =
            stages.iter().filter(|stage| stage.state.is_done()).map(|stage| stage.name.as_str()).collect();
        match declared.is_empty() {
            // Without a run file, only the end of the run says that nothing more comes.
            true => state == RunState::Finished && done.len() == stages.len(),
            false => declared.is_subset(&done),
        }
    }

    /// The group of this name, read only if the results of its stages are new.
    fn group(
        &mut self,
        name: &str,
        stages: &[&Stage],
        steps: usize,
        read: impl FnOnce() -> (usize, Vec<Entry>),
    ) -> Group {
        let of = |stage: &&Stage| {
            let outputs: Vec<_> = stage.outputs.iter().map(|output| output.digest.to_string()).collect();
            format!("{} {:?} {:?} {outputs:?}", stage.id, stage.key, stage.ended_ms)
        };
        let from = format!("{steps} {}", stages.iter().map(of).collect::<Vec<_>>().join("\n"));
        if let Some((_, group)) = self.known.get(name).filter(|(known, _)| *known == from) {
            return group.clone();
        }
        let ended_ms = stages.iter().filter_map(|stage| stage.ended_ms).max().unwrap_or_default();
        let (steps, entries) = read();
        let group = Group { ended_ms, steps, entries };
        self.known.insert(name.to_owned(), (from, group.clone()));
        group
    }

    fn config(&self, run: &RunHistory) -> Vec<(String, Value)> {
        let mut config: Vec<(String, Value)> = Vec::new();
        config.extend(run.seed.map(|seed| ("seed".to_owned(), seed.into())));
        config.extend(run.versions.first().map(|version| ("mcprl".to_owned(), version.as_str().into())));
        // Settings of servers and trackers may hold what is secret, and say nothing of the method.
        let is_shown =
            |set: &&String| !["server", "track", "cache"].iter().any(|section| set.starts_with(section));
        let set: Vec<String> = run.set.iter().filter(is_shown).cloned().collect();
        if !set.is_empty() {
            config.push(("set".to_owned(), set.join(" ").into()));
        }
        for stage in &self.settings {
            config.push((format!("{}.kind", stage.name), stage.kind.as_str().into()));
            config.extend(settings(&stage.name, &stage.params));
        }
        config
    }
}

/// The parameters of a stage by dotted name, without what looks like a secret.
fn settings(stage: &str, params: &Map<String, Value>) -> Vec<(String, Value)> {
    let mut settings = Vec::new();
    flatten(stage, &secret::shareable_table(params), &mut settings);
    settings
}

/// Adds the values of a table by dotted name. Lists are JSON.
fn flatten(prefix: &str, table: &Map<String, Value>, config: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        let path = format!("{prefix}.{name}");
        match value {
            Value::Object(inner) => flatten(&path, inner, config),
            Value::Array(_) => config.push((path, value.to_string().into())),
            Value::Null => {}
            other => config.push((path, other.clone())),
        }
    }
}

/// Collects what is a number.
#[derive(Default)]
struct Scalars(Vec<(String, f64)>);

impl Scalars {
    fn add(&mut self, tag: impl Into<String>, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.0.push((tag.into(), value));
        }
    }

    fn entry(self, at_ms: u64, axis: Axis, step: u64) -> Option<Entry> {
        (!self.0.is_empty()).then_some(Entry { at_ms, axis, step, content: Content::Scalars(self.0) })
    }
}

/// The tag of a stage's metric. Without dots, which some trackers read as levels.
fn metric(prefix: &str, name: &str) -> String {
    format!("{prefix}/{}", name.replace('.', "/"))
}

/// The entries of a stage outside loops.
fn alone(stage: &Stage) -> (usize, Vec<Entry>) {
    let at_ms = stage.ended_ms.unwrap_or_default();
    let steps: Vec<Step> = stage.table().unwrap_or_default();
    let mut entries = step_entries(&stage.id, stage, &steps, 0);
    let mut values = Scalars::default();
    for (name, value) in &stage.metrics {
        values.add(metric(&format!("stages/{}", stage.id), name), Some(*value));
    }
    values.add(format!("stages/{}/seconds", stage.id), stage.any_seconds());
    let found = exam::exam(stage).ok();
    if let Some(found) = &found {
        exam_scalars(&stage.id, found, &mut values);
    }
    entries.extend(values.entry(at_ms, Axis::Once, 0));
    entries.extend(found.map(|found| exam_text(&stage.id, &found, at_ms, Axis::Once, 0)));
    (steps.len(), entries)
}

/// The entries of an iteration. `before`: optimizer steps of earlier iterations.
fn of_iteration(
    run: &Run,
    in_loop: &str,
    iteration: &Iteration,
    stages: &[&Stage],
    before: usize,
    examples: bool,
) -> (usize, Vec<Entry>) {
    let at_ms = stages.iter().filter_map(|stage| stage.ended_ms).max().unwrap_or_default();
    let axis = || Axis::Iterations(in_loop.to_owned());
    let step = u64::from(iteration.number);
    let point = curves::iteration_point(run, in_loop, iteration);
    let trainer = stages.iter().find(|stage| stage.artifact("steps").is_some());
    let mut entries =
        trainer.map(|stage| step_entries(in_loop, stage, &point.steps, before)).unwrap_or_default();
    let mut values = Scalars::default();
    point_scalars(in_loop, &point, stages, &mut values);
    let found: Vec<(&str, Exam)> =
        stages.iter().filter_map(|stage| Some((stage.own_name(), exam::exam(stage).ok()?))).collect();
    for (name, found) in &found {
        exam_scalars(&format!("{in_loop}_{name}"), found, &mut values);
    }
    entries.extend(values.entry(at_ms, axis(), step));
    for (name, found) in &found {
        entries.push(exam_text(&format!("{in_loop}_{name}"), found, at_ms, axis(), step));
    }
    if examples {
        let rollout = stages
            .iter()
            .find(|stage| stage.artifact("trajectories").is_some() && stage.artifact("verdict").is_none());
        for (tag, (markdown, messages)) in
            rollout.map(|stage| example_texts(in_loop, iteration.number, stage)).unwrap_or_default()
        {
            let content = Content::Text { tag, markdown, messages };
            entries.push(Entry { at_ms, axis: axis(), step, content });
        }
    }
    (point.steps.len(), entries)
}

fn point_scalars(name: &str, point: &Point, stages: &[&Stage], values: &mut Scalars) {
    let interval = point.interval;
    for (tag, value) in [
        ("success", point.success),
        ("success_low", interval.map(|rate| rate.low)),
        ("success_high", interval.map(|rate| rate.high)),
        ("success_new", point.success_new),
        ("success_greedy", point.success_greedy),
        ("reward", point.reward),
        ("loss", point.loss),
        ("gradient_norm", point.gradient_norm),
        ("learning_rate", point.learning_rate),
        ("entropy", point.entropy),
        ("clip_fraction", point.clip_fraction),
        ("moved_kl", point.moved_kl),
        ("kl", point.kl),
    ] {
        values.add(format!("{name}/{tag}"), value);
    }
    values.add(format!("{name}_signal/share"), point.signal_share);
    if let Some(signal) = &point.signal {
        for (tag, count) in [
            ("rollouts", signal.rollouts),
            ("with_gradient", signal.with_gradient),
            ("groups", signal.groups),
            ("groups_with_gradient", signal.groups_with_gradient),
            ("all_right", signal.all_right),
            ("all_wrong", signal.all_wrong),
            ("all_equal", signal.all_equal),
        ] {
            values.add(format!("{name}_signal/{tag}"), Some(count as f64));
        }
        for (reason, count) in &signal.without_gradient {
            let reason = serde_json::to_value(reason).unwrap_or_default();
            let reason = reason.as_str().unwrap_or("other");
            values.add(format!("{name}_signal/without_gradient_{reason}"), Some(*count as f64));
        }
    }
    for (tag, value) in [
        ("episodes", point.episodes),
        ("turns", point.turns),
        ("calls", point.calls),
        ("tool_errors", point.tool_errors),
        ("parse_failures", point.parse_failures),
        ("template_calls", point.template_calls),
        ("tool_answers", point.tool_answers),
        ("sampled_tokens", point.sampled_tokens),
        ("truncated", point.truncated),
    ] {
        values.add(format!("{name}_episodes/{tag}"), value);
    }
    // Both are of the record: what the result took when it was made.
    let rate = |tokens: fn(&crate::usage::Usage) -> u64| {
        let of = stages.iter().filter_map(|stage| Some((tokens(stage.usage.as_ref()?), stage.run_seconds?)));
        let (tokens, seconds) = of
            .filter(|(tokens, _)| *tokens > 0)
            .fold((0, 0.0), |(tokens, seconds), (more, took)| (tokens + more, seconds + took));
        (seconds > 0.0).then(|| tokens as f64 / seconds)
    };
    values.add(format!("{name}_time/seconds"), point.seconds);
    for (stage, seconds) in &point.seconds_by_stage {
        values.add(format!("{name}_time/{stage}"), Some(*seconds));
    }
    values.add(format!("{name}_time/sampled_tokens_per_second"), rate(|usage| usage.sampled_tokens));
    values.add(format!("{name}_time/trained_tokens_per_second"), rate(|usage| usage.trained_tokens));
    for (metric, value) in &point.metrics {
        values.add(self::metric(&format!("{name}_metrics"), metric), Some(*value));
    }
}

/// An entry for each optimizer step. The times of single steps are not recorded, so they are spread evenly over the
/// stage's.
fn step_entries(name: &str, stage: &Stage, steps: &[Step], before: usize) -> Vec<Entry> {
    let ended = stage.ended_ms.unwrap_or_default();
    let took = ended.saturating_sub(stage.started_ms.unwrap_or(ended));
    let count = steps.len().max(1) as u64;
    let entry = |(index, step): (usize, &Step)| {
        let mut values = Scalars::default();
        for (tag, value) in [
            ("loss", Some(step.loss)),
            ("gradient_norm", Some(step.gradient_norm)),
            ("learning_rate", Some(step.learning_rate)),
            ("entropy", step.entropy),
            ("clip_fraction", step.clip_fraction),
            ("moved_kl", step.moved_kl),
            ("held_out_loss", step.held_out_loss),
            ("tokens", Some(step.tokens as f64)),
            ("loss_tokens", Some(step.loss_tokens as f64)),
        ] {
            values.add(format!("{name}_steps/{tag}"), value);
        }
        let at_ms = ended - took + took * (index as u64 + 1) / count;
        values.entry(at_ms, Axis::OptimizerSteps(name.to_owned()), (before + index) as u64)
    };
    steps.iter().enumerate().filter_map(entry).collect()
}

/// The success and gain of each policy over all held-out tasks, in the reported mode.
fn exam_scalars(name: &str, found: &Exam, values: &mut Scalars) {
    for row in found.rows_of("all") {
        for (tag, value) in [
            ("success", Some(row.success)),
            ("success_low", Some(row.success_low)),
            ("success_high", Some(row.success_high)),
            ("gain", row.gain),
            ("gain_low", row.gain_low),
            ("gain_high", row.gain_high),
            ("p", row.p_adjusted),
        ] {
            values.add(format!("{name}/{}/{tag}", row.policy), value);
        }
    }
}

fn exam_text(name: &str, found: &Exam, at_ms: u64, axis: Axis, step: u64) -> Entry {
    let rows: Vec<_> = found.rows.iter().map(|row| row.row.clone()).collect();
    let markdown = escape::outgoing(&eval::report(&rows, &[]));
    let content = Content::Text { tag: format!("verdict/{name}"), markdown, messages: Vec::new() };
    Entry { at_ms, axis, step, content }
}

/// Removes what looks like a secret from the texts of a message.
fn conceal(message: &mut Message) {
    let Message { text, name, reasoning, calls, .. } = message;
    for call in calls.iter_mut() {
        let mut arguments = Value::Object(std::mem::take(&mut call.arguments));
        secret::conceal(&mut arguments);
        call.arguments = arguments.as_object_mut().map(std::mem::take).unwrap_or_default();
    }
    let names = calls.iter_mut().map(|call| &mut call.name);
    for text in [text].into_iter().chain(name).chain(reasoning).chain(names) {
        let shown = secret::concealed(text).into_owned();
        *text = shown;
    }
}

/// The first right and the first wrong episode, by tag.
fn example_texts(in_loop: &str, iteration: u32, stage: &Stage) -> BTreeMap<String, (String, Vec<Message>)> {
    let mut texts = BTreeMap::new();
    let outcomes: Vec<OutcomeRow> = stage.table().unwrap_or_default();
    for (correct, name) in [(true, "right"), (false, "wrong")] {
        let Some(row) = outcomes.iter().position(|row| row.correct == Some(correct)) else { continue };
        let read = stage.table_part::<EpisodeRow>(&BTreeSet::from([row])).ok();
        let Some(episode) = read.and_then(|mut rows| rows.pop()) else { continue };
        let mut messages = episode.messages.clone();
        messages.iter_mut().for_each(conceal);
        messages.retain(|message| message.role != Role::System);
        let page = Document {
            title: format!("{in_loop}, iteration {iteration}: an episode with the {name} answer"),
            subtitle: format!("{}, family {}", episode.scenario_id, episode.family),
            blocks: vec![Block::Conversations(vec![Transcript {
                title: String::new(),
                tone: Tone::Plain,
                messages: messages.clone(),
                ending: ending(&episode),
            }])],
        };
        texts.insert(format!("examples/{in_loop}_{name}"), (markdown_page(&page), messages));
    }
    texts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_setting_has_a_secret() {
        let params = json!({
            "args": ["--api-key", "s3cr3t", "--port", "80"],
            "urls": ["https://a.b/?token=s3cr3t"],
            "ask": {"password": "s3cr3t", "turns": 3},
        });
        let found = settings("s", params.as_object().unwrap());
        assert_eq!(
            found,
            [
                ("s.args", json!(r#"["--api-key","…","--port","80"]"#)),
                ("s.urls", json!(r#"["https://a.b/?token=…"]"#)),
                ("s.ask.password", json!("…")),
                ("s.ask.turns", json!(3)),
            ]
            .map(|(name, value)| (name.to_owned(), value))
        );
    }
}
