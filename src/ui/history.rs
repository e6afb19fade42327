//! Earlier runs as text: a list, one run, or one stage.

use chrono::{DateTime, Local};

use super::{human, table};
use crate::{
    exec::{
        RunState, StageOutcome,
        history::{Headline, NodeHistory, RunHistory, StageHistory, Stages, Written},
    },
    store::Cost,
    text::{percent, start_of},
};

/// Width of a list of runs in columns.
const COLUMNS: usize = 80;

/// A heading and a line for each run, plus lines for the overrides of its run file. Leaves out counts and
/// time where a line would be wider than 80 columns.
pub fn runs_text(runs: &[RunHistory]) -> String {
    let heading = ["RUN", "STATE", "SEED", "SUCCESS", "TOOK", "RAN", "CACHED"].map(str::to_owned).to_vec();
    let row = |run: &RunHistory| {
        vec![
            run.id.clone(),
            state(run.state).to_owned(),
            run.seed.map(|seed| seed.to_string()).unwrap_or_default(),
            run.headline.as_ref().map(success).unwrap_or_default(),
            human::seconds(run.seconds),
            run.count(StageOutcome::Ran).to_string(),
            run.count(StageOutcome::Cached).to_string(),
        ]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(runs.iter().map(row)).collect();
    let mut widths = table::widths(&rows);
    while widths.len() > 4 && widths.iter().sum::<usize>() + 2 * (widths.len() - 1) > COLUMNS {
        widths.pop();
    }
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        text += &format!("{}\n", table::row(row, &widths));
        for line in index.checked_sub(1).map(|index| overrides(&runs[index])).unwrap_or_default() {
            text += &format!("  {line}\n");
        }
        if let Some(problem) = index.checked_sub(1).and_then(|index| runs[index].unreadable.as_ref()) {
            text += &format!("  its journal cannot be read: {problem}\n");
        }
    }
    text
}

/// `38 % → 94 % [91, 96]`: the success rates of the baseline and of the last policy, with the interval of this one.
pub fn success(headline: &Headline) -> String {
    let Headline { baseline, success, interval, .. } = headline;
    let baseline = baseline.map(|baseline| format!("{} → ", human::percent(baseline)));
    let interval = interval.map(|[low, high]| format!(" [{}, {}]", percent(low, 0), percent(high, 0)));
    baseline.unwrap_or_default() + &human::percent(*success) + &interval.unwrap_or_default()
}

/// The overrides of the run file as `run` arguments, in lines that fit.
fn overrides(run: &RunHistory) -> Vec<String> {
    let set = run.set.iter().map(|set| format!("--set {set}"));
    let resample = run.resample.iter().map(|stage| format!("--resample {stage}"));
    let words = set.chain(resample).chain(run.until.iter().map(|stage| format!("--until {stage}")));
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() + 3 <= COLUMNS => {
                *line += &format!(" {word}");
            }
            _ => lines.push(word),
        }
    }
    lines
}

fn began(milliseconds: Option<u64>) -> String {
    let at = milliseconds.and_then(|at| DateTime::from_timestamp_millis(i64::try_from(at).ok()?));
    let text = at.map(|at| at.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string());
    text.unwrap_or_default()
}

fn state(state: RunState) -> &'static str {
    match state {
        RunState::Finished => "finished",
        RunState::Failed => "failed",
        RunState::Interrupted => "interrupted",
        RunState::Running => "running",
        RunState::Killed => "killed",
    }
}

/// A run and all its stages.
pub fn run_text(run: &RunHistory, stages: &Stages<'_>) -> String {
    let counts = StageOutcome::ALL.map(|outcome| (run.count(outcome), outcome.name()));
    let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}"));
    let mut text = format!(
        "{}: {}, began {}, {}, {}\n",
        run.id,
        state(run.state),
        began(run.began_ms),
        human::seconds(run.seconds),
        counts.collect::<Vec<_>>().join(", ")
    );
    let seed = run.seed.map(|seed| format!("seed {seed}"));
    for line in seed.into_iter().chain(overrides(run)) {
        text += &format!("{line}\n");
    }
    text.push('\n');
    text + &stages_text(run.nodes.iter(), stages)
}

/// A line for each of these stages: its outcome, time and metrics.
pub fn stages_text<'r>(nodes: impl Iterator<Item = &'r NodeHistory> + Clone, stages: &Stages<'_>) -> String {
    let mut text = String::new();
    let wide = nodes.clone().map(|node| node.id.chars().count()).max().unwrap_or(0);
    for node in nodes {
        let stage = stages.stage(node);
        let result = node.error.clone().unwrap_or_else(|| human::metrics(&stage.metrics));
        let took = match (node.seconds, stage.run_seconds) {
            (Some(seconds), _) => human::seconds(seconds),
            (None, Some(seconds)) => format!("({})", human::seconds(seconds)),
            (None, None) => String::new(),
        };
        let line = format!("{:<10} {:<wide$}  {took:>12}  {result}", node.outcome.name(), node.id);
        text += &format!("{}\n", line.trim_end());
    }
    text
}

/// Most notes of a stage in brief, and most characters of one.
const NOTES: usize = 5;
const NOTE: usize = 160;

/// One stage with where its artifacts are.
pub fn brief_text(run: &RunHistory, stage: &StageHistory) -> String {
    let notes = stage.node.notes.iter().take(NOTES).map(|note| format!("note: {}\n", start_of(note, NOTE)));
    let mut text = outcome_text(run, stage) + "\n" + &notes.collect::<String>();
    text += &table::section("outputs", outputs(stage), usize::MAX);
    text + "\n`-v` prints all tables, inputs, metrics and the parts of its key\n"
}

fn outputs(stage: &StageHistory) -> Vec<(String, String)> {
    let row = |output: &Written| {
        (output.output.clone(), format!("{}  {}", output.digest.short(), output.path.display()))
    };
    stage.outputs.iter().map(row).collect()
}

/// What became of a stage, and how long it took.
fn outcome_text(run: &RunHistory, stage: &StageHistory) -> String {
    let node = &stage.node;
    let mut text = format!("{}/{}: {}", run.id, node.id, node.outcome.name());
    match (node.seconds, stage.run_seconds) {
        (Some(seconds), _) => text += &format!(" in {}", human::seconds(seconds)),
        (None, Some(seconds)) => text += &format!(", ran in {} earlier", human::seconds(seconds)),
        (None, None) => {}
    }
    text
}

/// One stage with its artifacts, their origin, and the parts of its key.
pub fn stage_text(run: &RunHistory, stage: &StageHistory) -> String {
    let node = &stage.node;
    let mut text = outcome_text(run, stage);
    let cost = Cost { seconds: 0.0, spent: stage.spent.unwrap_or_default(), dollars: stage.dollars };
    let usage = Some(human::usage(&cost)).filter(|usage| !usage.is_empty());
    let lines = node.key.iter().map(|key| format!("key {key}"));
    let lines = lines.chain(node.error.iter().map(|error| format!("error: {error}")));
    let lines = lines.chain(node.hint.iter().map(|hint| format!("hint: {hint}")));
    let lines = lines.chain(usage.map(|usage| format!("usage: {usage}")));
    let lines = lines.chain(node.reasons.iter().map(|reason| format!("because {reason}")));
    let lines = lines.chain(node.notes.iter().map(|note| format!("note: {note}")));
    text += &format!("\n{}", lines.map(|line| line + "\n").collect::<String>());
    let mut section =
        |title: &str, rows: Vec<(String, String)>| text += &table::section(title, rows, usize::MAX);
    let inputs = stage.inputs.iter().map(|input| {
        let name = match input.name == input.role {
            true => input.role.clone(),
            false => format!("{}.{}", input.role, input.name),
        };
        let from = input.from.as_deref().unwrap_or("another run");
        (name, format!("{}  from {from}", input.digest.short()))
    });
    section("inputs", inputs.collect());
    section("outputs", outputs(stage));
    let metrics = stage.metrics.iter().map(|(name, value)| (name.clone(), human::metric(name, *value)));
    section("metrics", metrics.collect());
    if let Some(fields) = &stage.fields {
        let mut rows = vec![
            ("kind".to_owned(), fields.kind.clone()),
            ("revision".to_owned(), fields.revision.to_string()),
            ("card".to_owned(), fields.card.short()),
        ];
        rows.extend(fields.params.iter().map(|(name, value)| (format!("params.{name}"), value.to_string())));
        rows.extend(fields.seed.map(|seed| ("seed".to_owned(), seed.to_string())));
        rows.extend(fields.iteration.map(|number| ("iteration".to_owned(), number.to_string())));
        rows.extend(fields.server.iter().map(|server| ("server".to_owned(), server.to_string())));
        rows.extend(fields.numerics.iter().map(|numerics| ("numerics".to_owned(), numerics.clone())));
        section("key fields", rows);
    }
    text
}
