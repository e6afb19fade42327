//! Earlier runs as text: a list, one run, or one stage.

use chrono::{DateTime, Local};

use super::human;
use crate::{
    exec::history::{Headline, NodeHistory, RunHistory, StageHistory, StageOutcome, Stages, Standing},
    store::Cost,
};

/// Width of a list of runs in columns.
const COLUMNS: usize = 80;

/// A heading and a line for each run, plus lines for the overrides of its run file. Leaves out counts and
/// time where a line would be wider than 80 columns.
pub fn runs_text(runs: &[RunHistory]) -> String {
    let heading = ["RUN", "STATE", "SEED", "SUCCESS", "TOOK", "RAN", "CACHED"].map(str::to_owned);
    let row = |run: &RunHistory| {
        [
            run.id.clone(),
            standing(run.standing).to_owned(),
            run.seed.map(|seed| seed.to_string()).unwrap_or_default(),
            run.headline().map(|headline| success(&headline)).unwrap_or_default(),
            human::seconds(run.seconds),
            run.count(StageOutcome::Ran).to_string(),
            run.count(StageOutcome::Reused).to_string(),
        ]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(runs.iter().map(row)).collect();
    let wide: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut count = wide.len();
    while count > 4 && wide[..count].iter().sum::<usize>() + 2 * (count - 1) > COLUMNS {
        count -= 1;
    }
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&wide).take(count);
        let cells: Vec<String> = cells.map(|(cell, wide)| format!("{cell:<wide$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
        for line in index.checked_sub(1).map(|index| asked(&runs[index])).unwrap_or_default() {
            text += &format!("  {line}\n");
        }
    }
    text
}

/// `0.376 → 0.944`: the success rates of the baseline and of the last policy.
pub fn success(headline: &Headline) -> String {
    match headline.baseline {
        Some(baseline) => format!("{baseline:.3} → {:.3}", headline.success),
        None => format!("{:.3}", headline.success),
    }
}

/// The overrides of the run file as `run` arguments, in lines that fit.
fn asked(run: &RunHistory) -> Vec<String> {
    let set = run.set.iter().map(|set| format!("--set {set}"));
    let words = set.chain(run.resample.iter().map(|stage| format!("--resample {stage}")));
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

fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Finished => "finished",
        Standing::Failed => "failed",
        Standing::Stopped => "stopped",
        Standing::AtWork => "at work",
        Standing::Killed => "killed",
    }
}

fn outcome(outcome: StageOutcome) -> &'static str {
    match outcome {
        StageOutcome::Ran => "worked",
        StageOutcome::Reused => "reused",
        StageOutcome::Skipped => "skipped",
        StageOutcome::Failed => "failed",
        StageOutcome::Begun => "begun",
    }
}

/// Counts of the stages by outcome.
fn counts(run: &RunHistory) -> String {
    let fates = [
        StageOutcome::Ran,
        StageOutcome::Reused,
        StageOutcome::Skipped,
        StageOutcome::Failed,
        StageOutcome::Begun,
    ];
    let counted = fates.map(|which| (run.count(which), outcome(which)));
    let shown = counted.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
    shown.collect::<Vec<_>>().join(", ")
}

/// A run and all its stages.
pub fn run_text(run: &RunHistory, stages: &Stages<'_>) -> String {
    let mut text = format!(
        "{}: {}, began {}, {}, {}\n",
        run.id,
        standing(run.standing),
        began(run.began_ms),
        human::seconds(run.seconds),
        counts(run)
    );
    let seed = run.seed.map(|seed| format!("seed {seed}"));
    for line in seed.into_iter().chain(asked(run)) {
        text += &format!("{line}\n");
    }
    text.push('\n');
    let wide = run.nodes.iter().map(|node| node.id.chars().count()).max().unwrap_or(0);
    for node in &run.nodes {
        let stage = stages.stage(node);
        let said = node.error.clone().unwrap_or_else(|| human::metrics(&stage.metrics));
        let line =
            format!("{:<7} {:<wide$}  {:>12}  {said}", outcome(node.outcome), node.id, took(node, &stage));
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn took(node: &NodeHistory, stage: &StageHistory) -> String {
    match (node.seconds, stage.worked_seconds) {
        (Some(seconds), _) => human::seconds(seconds),
        (None, Some(seconds)) => format!("({})", human::seconds(seconds)),
        (None, None) => String::new(),
    }
}

/// One stage with its artifacts, their origin, and the parts of its key.
pub fn stage_text(run: &RunHistory, stage: &StageHistory) -> String {
    let node = &stage.node;
    let mut text = format!("{}/{}: {}", run.id, node.id, outcome(node.outcome));
    match (node.seconds, stage.worked_seconds) {
        (Some(seconds), _) => text += &format!(" in {}", human::seconds(seconds)),
        (None, Some(seconds)) => text += &format!(", worked in {} before", human::seconds(seconds)),
        (None, None) => {}
    }
    text.push('\n');
    if let Some(key) = &node.key {
        text += &format!("key {key}\n");
    }
    if let Some(error) = &node.error {
        text += &format!("error: {error}\n");
    }
    let cost = Cost { seconds: 0.0, spent: stage.spent.unwrap_or_default(), dollars: stage.dollars };
    let spent = human::spent(&cost);
    if !spent.is_empty() {
        text += &format!("spent {spent}\n");
    }
    for reason in &node.reasons {
        text += &format!("because {reason}\n");
    }
    for note in &node.notes {
        text += &format!("note: {note}\n");
    }
    let mut section = |title: &str, rows: Vec<(String, String)>| {
        let wide = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
        if !rows.is_empty() {
            text += &format!("\n{title}\n");
        }
        for (left, right) in rows {
            text += format!("  {left:<wide$}  {right}").trim_end();
            text.push('\n');
        }
    };
    let inputs = stage.inputs.iter().map(|input| {
        let name = if input.name == input.role {
            input.role.clone()
        } else {
            format!("{}.{}", input.role, input.name)
        };
        let from = input.from.as_deref().unwrap_or("another run");
        (name, format!("{}  from {from}", input.digest.short()))
    });
    section("inputs", inputs.collect());
    let outputs = stage.outputs.iter().map(|output| {
        (output.output.clone(), format!("{}  {}", output.digest.short(), output.path.display()))
    });
    section("outputs", outputs.collect());
    let metrics = stage.metrics.iter().map(|(name, value)| (name.clone(), human::number(*value)));
    section("metrics", metrics.collect());
    if let Some(fields) = &stage.fields {
        let mut rows = vec![
            ("kind".to_owned(), fields.kind.clone()),
            ("revision".to_owned(), fields.revision.to_string()),
            ("card".to_owned(), fields.card.short()),
        ];
        rows.extend(fields.params.iter().map(|(name, value)| (format!("params.{name}"), value.to_string())));
        rows.extend(fields.seed.map(|seed| ("seed".to_owned(), seed.to_string())));
        rows.extend(fields.iteration.map(|turn| ("iteration".to_owned(), turn.to_string())));
        rows.extend(fields.server.iter().map(|server| ("server".to_owned(), server.to_string())));
        rows.extend(fields.numerics.iter().map(|numerics| ("numerics".to_owned(), numerics.clone())));
        section("key fields", rows);
    }
    text
}
