//! `mcprl run --seeds` and `--sweep`: one run for each combination, and a table of them.
//!
//! `--seeds` varies the stages that train and sample; tasks and exam stay the same, so the runs are compared on the same tasks. What
//! runs have in common is in the cache after the first.

use serde_json::{Value, json};

use super::Outcome;
use crate::{
    error::{Diagnostic, Result},
    eval::points,
    exec::history,
    plan::Plan,
    report::{NotComparable, Replicated, Replicates, replicates},
    store::Store,
    text,
    ui::{OutputFormat, Printer, aligned},
    view,
};

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "run", class = usage)]
pub enum VariantError {
    #[error("`--sweep {given}` should read `KEY=VALUE,VALUE,…`")]
    #[hint = "for example loop.train.stages.update.learning_rate=1e-5,1e-4"]
    Sweep { given: String },
    #[error("no stage of the run file trains or samples, so seeds change nothing")]
    #[diagnostic(code = "seeds")]
    #[hint = "`--set seed=N` changes the seed of all stages"]
    NoStage,
}

/// One run of several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Variant {
    /// Of `--sweep`; empty without.
    pub value: String,
    pub seed: Option<u64>,
    /// As `--set` takes them.
    pub set: Vec<String>,
}

/// All combinations, those of one value together. One without changes if nothing varies.
///
/// # Errors
/// If `sweep` cannot be read, or seeds change nothing.
pub fn variants(plan: &Plan, seeds: &[u64], sweep: Option<&str>) -> Result<Vec<Variant>, VariantError> {
    let mut all = vec![Variant::default()];
    if let Some(given) = sweep {
        let wrong = || VariantError::Sweep { given: given.to_owned() };
        let (key, values) = given.split_once('=').ok_or_else(wrong)?;
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        if key.trim().is_empty() || values.iter().any(|value| value.is_empty()) {
            return Err(wrong());
        }
        let of = |value: &&str| Variant {
            value: format!("{}={value}", key.trim()),
            set: vec![format!("{}={value}", key.trim())],
            seed: None,
        };
        all = values.iter().map(of).collect();
    }
    if seeds.is_empty() {
        return Ok(all);
    }
    let paths = seeded(plan);
    if paths.is_empty() {
        return Err(VariantError::NoStage);
    }
    let with = |variant: &Variant, seed: u64| {
        let own = paths.iter().map(|path| format!("{path}.seed={seed}"));
        let set = variant.set.iter().cloned().chain(own).collect();
        Variant { seed: Some(seed), set, value: variant.value.clone() }
    };
    Ok(all.iter().flat_map(|variant| seeds.iter().map(move |seed| with(variant, *seed))).collect())
}

/// The tables of the stages that draw and write policies or episodes, without those that compare.
fn seeded(plan: &Plan) -> Vec<String> {
    let mut paths = Vec::new();
    for index in plan.order() {
        let stage = &plan.node(*index).stage;
        let writes = |artifact: &str| stage.card.output_of_type(artifact).is_some();
        let is_drawn = stage.card.determinism.draws() && !writes("verdict");
        if is_drawn && (writes("policy") || writes("trajectories")) && !paths.contains(&stage.path) {
            paths.push(stage.path.clone());
        }
    }
    paths
}

/// Prints the table of finished runs, with their variants.
///
/// # Errors
/// If a run cannot be read.
pub fn print(printer: Printer, store: &Store, done: &[(Variant, String)]) -> Result<Outcome> {
    let mut tables = Vec::new();
    for group in done.chunk_by(|(one, _), (other, _)| one.value == other.value) {
        let runs: Vec<view::Run> = group
            .iter()
            .map(|(_, id)| Ok(view::Run::of(store, &history::run(store, id)?)))
            .collect::<Result<_>>()?;
        tables.push((group, replicates(&runs)));
    }
    match printer.format {
        OutputFormat::Json => {
            let json = |(group, table): &Group<'_>| {
                json!({
                    "value": group[0].0.value,
                    "seeds": group.iter().map(|(variant, _)| variant.seed).collect::<Vec<_>>(),
                    "runs": group.iter().map(|(_, id)| id).collect::<Vec<_>>(),
                    "comparison": table.as_ref().ok(),
                })
            };
            let table =
                json!({"event": "table", "variants": tables.iter().map(json).collect::<Vec<Value>>()});
            printer.data(&table.to_string());
        }
        OutputFormat::Human => printer.data(&text(&tables)),
    }
    Ok(Outcome::Success)
}

type Group<'d> = (&'d [(Variant, String)], Result<Replicates, NotComparable>);

/// One table: a line for each value and seed, the best first, and one for the mean over the seeds of a value.
fn text(tables: &[Group<'_>]) -> String {
    let compared = || tables.iter().filter_map(|(group, table)| Some((*group, table.as_ref().ok()?)));
    let ids = |group: &[(Variant, String)]| group.iter().map(|(_, id)| id.clone()).collect::<Vec<_>>();
    let failed = tables.iter().filter(|(_, table)| table.is_err()).flat_map(|(group, _)| ids(group));
    let failed: Vec<String> = failed.collect();
    let failed = (!failed.is_empty()).then(|| format!("no comparison of policies in {}", failed.join(", ")));
    let Some((_, first)) = compared().next() else { return failed.unwrap_or_default() };
    let names: Vec<&String> = first.policies.iter().map(|row| &row.policy).collect();
    let mut lines: Vec<(f64, Vec<String>)> = Vec::new();
    for (group, table) in compared() {
        let row = |name: &String| table.policies.iter().find(|row| row.policy == *name);
        let last = table.policies.last();
        for (at, (variant, id)) in group.iter().enumerate() {
            let success = |row: &Replicated| percent(row.success[at]);
            let mut cells = vec![named(variant)];
            cells.extend(names.iter().map(|name| row(name).map_or_else(String::new, success)));
            cells.extend([if group.len() == 1 { gain(last) } else { String::new() }, id.clone()]);
            lines.push((last.map_or(0.0, |last| last.success[at]), cells));
        }
        if group.len() > 1 {
            let mean = |row: &Replicated| {
                let deviation = row.deviation.map_or_else(String::new, |sd| format!(" ±{}", percent(sd)));
                percent(row.mean) + &deviation
            };
            let mut cells = vec![format!("{} mean ± sd", group[0].0.value).trim().to_owned()];
            cells.extend(names.iter().map(|name| row(name).map_or_else(String::new, mean)));
            cells.extend([gain(last), String::new()]);
            lines.push((last.map_or(0.0, |last| last.mean), cells));
        }
    }
    lines.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let heading = std::iter::once(String::new()).chain(names.into_iter().cloned());
    let heading = heading.chain(["gain".to_owned(), "run".to_owned()]).collect();
    let rows: Vec<Vec<String>> =
        std::iter::once(heading).chain(lines.into_iter().map(|(_, cells)| cells)).collect();
    let Replicates { mode, tasks, .. } = first;
    let title = format!("{tasks} held-out tasks, {mode}, success in %, best first\n");
    [title + &aligned(&rows)].into_iter().chain(failed).collect::<Vec<_>>().join("\n")
}

fn named(Variant { value, seed, .. }: &Variant) -> String {
    let seed = seed.map(|seed| format!("seed {seed}"));
    let parts = [value.clone(), seed.unwrap_or_default()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn percent(share: f64) -> String {
    text::percent(share, 1)
}

/// `+34.5 [+28, +41]`, of the mean over the seeds.
fn gain(row: Option<&Replicated>) -> String {
    let gain = row.and_then(|row| row.gain);
    gain.map_or_else(String::new, |[gain, low, high]| {
        format!("{} [{}, {}]", points(gain, 1), points(low, 0), points(high, 0))
    })
}
