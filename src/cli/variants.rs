//! `mcprl run --seeds` and `--sweep`: one run for each combination, and a table of them.
//!
//! `--seeds` varies the stages that train and sample; tasks and exam stay the same, so the runs are compared on the same tasks. What
//! runs have in common is in the cache after the first.

use serde_json::{Value, json};

use super::Outcome;
use crate::{
    error::{Diagnostic, Result},
    exec::history,
    plan::Plan,
    report::{Replicates, replicates},
    store::Store,
    ui::{OutputFormat, Printer},
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
            let json = |(group, table): &(&[(Variant, String)], Result<Replicates, _>)| {
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
        OutputFormat::Human => {
            for (group, table) in &tables {
                printer.data(&text(group, table.as_ref().ok()));
            }
        }
    }
    Ok(Outcome::Success)
}

fn text(group: &[(Variant, String)], table: Option<&Replicates>) -> String {
    let heading = match group[0].0.value.as_str() {
        "" => String::new(),
        value => format!("{value}\n"),
    };
    let Some(Replicates { mode, tasks, policies }) = table else {
        let runs: Vec<&str> = group.iter().map(|(_, id)| id.as_str()).collect();
        return format!("{heading}no comparison of policies in {}", runs.join(", "));
    };
    let percent = |share: f64| format!("{:>7.1}", 100.0 * share);
    let seeds: String = group
        .iter()
        .map(|(variant, _)| {
            format!("{:>8}", variant.seed.map_or_else(String::new, |seed| format!("seed {seed}")))
        })
        .collect();
    let mut text = format!(
        "{heading}{tasks} held-out tasks, {mode}, success in %\n{:<12}{seeds}    mean     sd  gain",
        ""
    );
    for row in policies {
        let each: String = row.success.iter().map(|share| format!(" {}", percent(*share))).collect();
        let deviation = row.deviation.map_or_else(|| format!("{:>7}", "–"), percent);
        let gain = row.gain.map_or_else(String::new, |[gain, low, high]| {
            format!("  {:+.1} [{:+.0}, {:+.0}]", 100.0 * gain, 100.0 * low, 100.0 * high)
        });
        text += &format!("\n{:<12}{each} {}{deviation}{gain}", row.policy, percent(row.mean));
    }
    text
}
