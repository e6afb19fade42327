//! Earlier runs as text: a list, one run, one stage of it, and what sets two apart.

use chrono::{DateTime, Local};

use super::human;
use crate::exec::history::{
    Difference, Fate, MetricChange, NodeHistory, OutputChange, RunHistory, StageHistory, Stages, Standing,
};
use crate::{hash::Digest, store::Cost};

/// One line for each run.
pub fn runs_text(runs: &[RunHistory]) -> String {
    let wide = runs.iter().map(|run| run.id.len()).max().unwrap_or(0);
    let line = |run: &RunHistory| {
        let took = human::seconds(run.seconds);
        let (began, word, counts) = (began(run.began_ms), standing(run.standing), counts(run));
        format!("{:<wide$}  {began:<19}  {word:<8}  {took:<12}  {counts}", run.id).trim_end().to_owned()
    };
    runs.iter().map(line).collect::<Vec<_>>().join("\n")
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

fn fate(fate: Fate) -> &'static str {
    match fate {
        Fate::Worked => "worked",
        Fate::Reused => "reused",
        Fate::Skipped => "skipped",
        Fate::Failed => "failed",
        Fate::Begun => "begun",
    }
}

/// `3 worked, 57 reused`.
fn counts(run: &RunHistory) -> String {
    let fates = [Fate::Worked, Fate::Reused, Fate::Skipped, Fate::Failed, Fate::Begun];
    let counted = fates.map(|which| (run.count(which), fate(which)));
    let shown = counted.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
    shown.collect::<Vec<_>>().join(", ")
}

/// A run and all its stages.
pub fn run_text(run: &RunHistory, stages: &Stages<'_>) -> String {
    let mut text = format!(
        "{}: {}, began {}, {}, {}\n\n",
        run.id,
        standing(run.standing),
        began(run.began_ms),
        human::seconds(run.seconds),
        counts(run)
    );
    let wide = run.nodes.iter().map(|node| node.id.chars().count()).max().unwrap_or(0);
    for node in &run.nodes {
        let stage = stages.stage(node);
        let said = node.error.clone().unwrap_or_else(|| human::metrics(&stage.metrics));
        let line = format!("{:<7} {:<wide$}  {:>12}  {said}", fate(node.fate), node.id, took(node, &stage));
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

/// One stage with its artifacts, where they come from, and what its key is made of.
pub fn stage_text(run: &RunHistory, stage: &StageHistory) -> String {
    let node = &stage.node;
    let mut text = format!("{}/{}: {}", run.id, node.id, fate(node.fate));
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

/// What sets two runs apart: for each stage the differences of its key, then those of its metrics.
pub fn diff_text(old: &RunHistory, new: &RunHistory, found: &[Difference], alike: usize) -> String {
    let mut text = format!("{} → {}\n", old.id, new.id);
    for difference in found {
        match difference {
            Difference::OnlyOld { id } => text += &format!("\n{id}\n  only in {}\n", old.id),
            Difference::OnlyNew { id } => text += &format!("\n{id}\n  only in {}\n", new.id),
            Difference::Changed { id, key, metrics, outputs } => {
                text += &format!("\n{id}\n");
                for reason in key {
                    text += &format!("  key     {reason}\n");
                }
                let short =
                    |digest: Option<Digest>| digest.map_or("none".to_owned(), |digest| digest.short());
                for OutputChange { name, old, new } in outputs {
                    text += &format!("  output  {name} {} → {}\n", short(*old), short(*new));
                }
                for change in metrics {
                    text += &format!("  metric  {}\n", metric(change));
                }
            }
        }
    }
    text + &format!("\n{} alike, {} different\n", alike, found.len())
}

fn metric(change: &MetricChange) -> String {
    let shown = |value: Option<f64>| value.map_or("none".to_owned(), human::number);
    let by = match (change.old, change.new) {
        (Some(old), Some(new)) => {
            let sign = if new >= old { "+" } else { "−" };
            format!("  ({sign}{})", human::number((new - old).abs()))
        }
        _ => String::new(),
    };
    format!("{} {} → {}{by}", change.name, shown(change.old), shown(change.new))
}
