//! `mcprl runs`, `mcprl show` and `mcprl diff`: lists, shows and compares earlier runs.

use clap::Args;
use serde_json::{Value, json};

use super::{Outcome, locations::Locations, target::Target};
use crate::{
    data::{self, OutcomeRow, VerdictRow},
    error::Result,
    eval,
    exec::{
        StageOutcome,
        history::{self, RunHistory, StageHistory, Stages},
    },
    store::Store,
    ui::{
        OutputFormat, Printer, Side, brief_text, diff_text, queued_text, run_text, runs_text, stage_text,
        stages_text, verdict_text,
    },
};

#[derive(Args)]
pub struct Runs {
    #[command(flatten)]
    locations: Locations,
}

#[derive(Args)]
pub struct Show {
    /// A run's id, as `mcprl runs` lists it, or `latest`; followed by `/STAGE` for one stage, a loop or one of its
    /// iterations: `latest/train[3]/rollout`, `latest/train`, `latest/train[3]`. A path that `run` printed also works.
    #[arg(value_name = "RUN[/STAGE]|FOLDER")]
    run: String,
    /// Of a comparison of policies, print all tables, inputs, metrics and the parts of its key.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Args)]
pub struct Diff {
    /// The run to compare with.
    old: String,
    /// The run to compare; `latest` is the newest.
    new: String,
    #[command(flatten)]
    locations: Locations,
}

impl Runs {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.locations.store(None)?;
        let mut runs = history::runs(&store)?;
        runs.iter_mut().for_each(|run| run.unreadable = history::unreadable(&store, &run.id));
        match printer.format {
            OutputFormat::Json => {
                let counted = |run: &RunHistory| {
                    let mut value = json!(run);
                    for outcome in StageOutcome::ALL {
                        value[outcome.name()] = run.count(outcome).into();
                    }
                    value
                };
                printer.json(&runs.iter().map(counted).collect::<Vec<Value>>());
            }
            OutputFormat::Human if runs.is_empty() => {
                printer.say(&format!("no runs in {}", store.root().display()));
            }
            OutputFormat::Human => printer.data(&runs_text(&runs)),
        }
        if printer.format == OutputFormat::Human {
            print_queued(printer, &store);
        }
        Ok(Outcome::Success)
    }
}

/// A comparison of policies in a few lines; none of another stage.
fn brief(run: &RunHistory, stage: &StageHistory) -> Option<String> {
    let path =
        |name: &str| stage.outputs.iter().find(|output| output.output == name).map(|output| &output.path);
    let rows: Vec<VerdictRow> = data::read(path("verdict")?).ok()?;
    let episodes: Vec<OutcomeRow> =
        path("episodes").and_then(|path| data::read(path).ok()).unwrap_or_default();
    let lines = [verdict_text(&rows, false), eval::cut(&episodes).unwrap_or_default()];
    let lines: Vec<String> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    Some(format!("{}\n\n{}", lines.join("\n"), brief_text(run, stage)))
}

/// The text reports of a stage, such as that of an exam.
fn reports(stage: &StageHistory) -> String {
    let paths = stage.outputs.iter().map(|output| &output.path);
    let reports = paths.filter(|path| path.extension().is_some_and(|end| end == "md"));
    reports.filter_map(|path| Some(std::fs::read_to_string(path).ok()? + "\n")).collect()
}

/// Reports the shared caches that lack some results.
pub(super) fn print_queued(printer: Printer, store: &Store) {
    for queue in store.upload_queues() {
        let count = queue.keys().len();
        if count > 0 {
            printer.say(&queued_text(count, &queue.place));
        }
    }
}

impl Show {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Target { store, run, part } = Target::new(&self.locations, &self.run)?;
        let run = history::run(&store, &run)?;
        let stages = Stages::new(&store, &run);
        let is_json = printer.format == OutputFormat::Json;
        match part.as_deref().map(|part| (part, run.node(part))) {
            None if is_json => {
                let mut value = json!(run);
                let all: Vec<_> = run.nodes.iter().map(|node| json!(stages.stage(node))).collect();
                value["stages"] = all.into();
                printer.json(&value);
            }
            None => printer.data(&run_text(&run, &stages)),
            Some((_, Ok(node))) => {
                let stage = stages.stage(node);
                printer.show(&stage, || {
                    let brief = if self.verbose { None } else { brief(&run, &stage) };
                    brief.unwrap_or_else(|| reports(&stage) + &stage_text(&run, &stage))
                });
            }
            // A loop, or one of its iterations.
            Some((part, Err(unknown))) => {
                let nodes = run.named(part).map_err(|_| unknown)?;
                match is_json {
                    true => {
                        printer.json(&nodes.iter().map(|node| stages.stage(node)).collect::<Vec<_>>());
                    }
                    false => printer.data(&stages_text(nodes.into_iter(), &stages)),
                }
            }
        }
        Ok(Outcome::Success)
    }
}

impl Diff {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Target { store, run: old, .. } = Target::new(&self.locations, &self.old)?;
        let Target { run: new, .. } = Target::new(&self.locations, &self.new)?;
        let (old, new) = (history::run(&store, &old)?, history::run(&store, &new)?);
        let (found, alike) = history::compare(&store, &old, &new);
        let json =
            json!({"old": old.id, "new": new.id, "runs": [&old, &new], "alike": alike, "differences": found});
        let verdicts = |run| verdicts(&store, run).iter().map(|rows| eval::text(rows)).collect();
        let side = |run| Side { run, verdicts: verdicts(run) };
        printer.show(&json, || diff_text(&side(&old), &side(&new), &found, alike));
        Ok(Outcome::Success)
    }
}

/// The results of a run's policy comparisons.
pub(super) fn verdicts(store: &Store, run: &RunHistory) -> Vec<Vec<VerdictRow>> {
    let stages = Stages::new(store, run);
    let outputs = run.nodes.iter().flat_map(|node| stages.stage(node).outputs);
    let verdicts = outputs.filter(|output| output.output == "verdict");
    // Outputs that are not verdicts are skipped.
    verdicts.filter_map(|output| data::read(&output.path).ok()).collect()
}
