//! `mcprl runs`, `mcprl show` and `mcprl diff`: lists, shows and compares earlier runs.

use clap::Args;
use serde_json::json;

use super::{Outcome, place::Place, target::Target};
use crate::{
    data::{self, VerdictRow},
    error::Result,
    eval,
    exec::history::{self, RunHistory, StageHistory, Stages},
    store::Store,
    ui::{OutputFormat, Printer, Side, diff_text, run_text, runs_text, stage_text, waiting_text},
};

#[derive(Args)]
pub struct Runs {
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
pub struct Show {
    /// A run's id, as `mcprl runs` lists it, or `latest`; followed by `/STAGE` for one stage:
    /// `latest/train[3]/rollout`, `latest/train.0003/rollout`. A path that `run` printed also works.
    #[arg(value_name = "RUN[/STAGE]|FOLDER")]
    run: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
pub struct Diff {
    /// The run to compare with.
    old: String,
    /// The run to compare; `latest` is the newest.
    new: String,
    #[command(flatten)]
    place: Place,
}

impl Runs {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.place.store(None)?;
        let runs = history::runs(&store);
        match printer.format {
            OutputFormat::Json => {
                let run = |run: &history::RunHistory| {
                    json!({
                        "id": run.id,
                        "state": run.standing,
                        "began_ms": run.began_ms,
                        "seconds": run.seconds,
                        "seed": run.seed,
                        "set": run.set,
                        "resample": run.resample,
                        "headline": run.headline(),
                        "worked": run.count(history::StageOutcome::Ran),
                        "reused": run.count(history::StageOutcome::Reused),
                        "skipped": run.count(history::StageOutcome::Skipped),
                        "failed": run.count(history::StageOutcome::Failed),
                        "begun": run.count(history::StageOutcome::Begun),
                    })
                };
                printer.json(&runs.iter().map(run).collect::<Vec<_>>());
            }
            OutputFormat::Human if runs.is_empty() => {
                printer.say(&format!("no runs in {}", store.root().display()));
            }
            OutputFormat::Human => printer.data(&runs_text(&runs)),
        }
        if printer.format == OutputFormat::Human {
            tell_waiting(printer, &store);
        }
        Ok(Outcome::Success)
    }
}

/// The text reports of a stage, such as that of an exam.
fn pages(stage: &StageHistory) -> String {
    let pages = stage.outputs.iter().filter(|output| output.path.extension().is_some_and(|end| end == "md"));
    let texts = pages.filter_map(|output| std::fs::read_to_string(&output.path).ok());
    texts.map(|text| format!("\n{text}")).collect()
}

/// Reports the shared caches that lack some results.
pub(super) fn tell_waiting(printer: Printer, store: &Store) {
    for waiting in store.all_waiting() {
        let count = waiting.keys().len();
        if count > 0 {
            printer.say(&waiting_text(count, &waiting.place));
        }
    }
}

impl Show {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Target { store, run, part } = Target::new(&self.place, &self.run)?;
        let run = history::run(&store, &run)?;
        let stages = Stages::new(&store, &run);
        match (part.as_deref(), printer.format) {
            (Some(stage), OutputFormat::Json) => printer.json(&stages.stage(run.node(stage)?)),
            (Some(stage), OutputFormat::Human) => {
                let stage = stages.stage(run.node(stage)?);
                printer.data(&(stage_text(&run, &stage) + &pages(&stage)));
            }
            (None, OutputFormat::Json) => {
                let all: Vec<_> = run.nodes.iter().map(|node| stages.stage(node)).collect();
                printer.json(&json!({
                    "id": run.id,
                    "state": run.standing,
                    "began_ms": run.began_ms,
                    "seconds": run.seconds,
                    "seed": run.seed,
                    "set": run.set,
                    "resample": run.resample,
                    "headline": run.headline(),
                    "stages": all,
                }));
            }
            (None, OutputFormat::Human) => printer.data(&run_text(&run, &stages)),
        }
        Ok(Outcome::Success)
    }
}

impl Diff {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Target { store, run: old, .. } = Target::new(&self.place, &self.old)?;
        let Target { run: new, .. } = Target::new(&self.place, &self.new)?;
        let (old, new) = (history::run(&store, &old)?, history::run(&store, &new)?);
        let (found, alike) = history::compare(&store, &old, &new);
        match printer.format {
            OutputFormat::Json => {
                let asked = |run: &RunHistory| json!({ "id": run.id, "seed": run.seed, "set": run.set, "headline": run.headline() });
                let runs = [asked(&old), asked(&new)];
                printer.json(&json!({
                    "old": old.id, "new": new.id, "runs": runs, "alike": alike, "differences": found,
                }));
            }
            OutputFormat::Human => {
                let side = |run| Side { run, verdicts: verdicts(&store, run) };
                printer.data(&diff_text(&side(&old), &side(&new), &found, alike));
            }
        }
        Ok(Outcome::Success)
    }
}

/// The verdicts of a run's policy comparisons, as text.
fn verdicts(store: &Store, run: &RunHistory) -> Vec<String> {
    let stages = Stages::new(store, run);
    let outputs = run.nodes.iter().flat_map(|node| stages.stage(node).outputs);
    let verdicts = outputs.filter(|output| output.output == "verdict");
    // Outputs that are not verdicts are skipped.
    verdicts
        .filter_map(|output| Some(eval::headline(&data::read::<VerdictRow>(&output.path).ok()?)))
        .collect()
}
