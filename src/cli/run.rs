//! `mcprl run` and `mcprl resume`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use clap::Args;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Outcome, place::Place};
use crate::{
    error::Result,
    exec::{self, Ended, Request, RunFolder, RunSpec, Summary, folder},
    plan::{Overrides, Plan, Source},
    stage::Cards,
    store::{FileDigests, Output, Store},
    ui::{Printer, RunView, Voice},
};

#[derive(Args)]
pub struct Run {
    /// The run file.
    file: PathBuf,
    /// Change a value of the run file: `--set loop.train.iterations=2`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Draw this stage's sample anew.
    #[arg(long, value_name = "STAGE")]
    resample: Vec<String>,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
pub struct Resume {
    /// The run's id, as `mcprl runs` lists it.
    id: String,
    #[command(flatten)]
    place: Place,
}

impl Run {
    pub fn execute(self, printer: &Printer) -> Result<Outcome> {
        let source = Source::read(&self.file)?;
        let store = self.place.store(Some(&self.file))?;
        let spec = RunSpec {
            file: std::path::absolute(&self.file).unwrap_or_else(|_| self.file.clone()),
            stages: self.place.stages(Some(&self.file)),
            resample: self.resample,
            overrides: Overrides::new(std::env::vars(), self.set),
            text: source.text().to_owned(),
        };
        let files = FileDigests::load(&store);
        let plan = Plan::new(&source, &spec.overrides, &Cards::new(spec.stages.clone()), &files)?;
        let resample = plan.resampled(&spec.resample)?;
        store.prepare()?;
        let folder = RunFolder::create(&store, &plan.name, &spec)?;
        go(printer, Request {
            plan,
            store,
            files,
            folder,
            resample,
            listener: Arc::new(RunView::new(*printer)),
            cancel: CancellationToken::new(),
        })
    }
}

impl Resume {
    pub fn execute(self, printer: &Printer) -> Result<Outcome> {
        let store = self.place.store(None)?;
        let (folder, spec) = RunFolder::open(&store, &self.id)?;
        let source = Source::parse(&spec.file, spec.text.clone())?;
        let files = FileDigests::load(&store);
        let stages = self.place.given_stages().or(spec.stages);
        let plan = Plan::new(&source, &spec.overrides, &Cards::new(stages), &files)?;
        let resample = plan.resampled(&spec.resample)?;
        store.prepare()?;
        go(printer, Request {
            plan,
            store,
            files,
            folder,
            resample,
            listener: Arc::new(RunView::new(*printer)),
            cancel: CancellationToken::new(),
        })
    }
}

fn go(printer: &Printer, request: Request) -> Result<Outcome> {
    let began = Instant::now();
    let (store, id, path) = (request.store.clone(), request.folder.id.clone(), request.folder.path.clone());
    let last = final_stages(&request.plan);
    let reports = reports(&request.plan);
    let summary = exec::run(request)?;
    for failure in &summary.failures {
        printer.error(failure);
    }
    let artifacts = artifacts(&summary, &last, &store);
    match printer.voice {
        Voice::Json => printer.data(&ended(&summary, &id, began, &artifacts).to_string()),
        Voice::Human => {
            for (name, artifact) in &artifacts {
                printer.say(&format!("{name:<24} {}", artifact.display()));
            }
            for (node, port) in &reports {
                if let Some(text) = report(&summary, &store, node, port) {
                    printer.data(&text);
                }
            }
            printer.say(&closing(&summary, &id, &path, began));
        }
    }
    Ok(match () {
        () if summary.interrupted => Outcome::Interrupted,
        () if summary.failures.is_empty() => Outcome::Worked,
        () => Outcome::Failed,
    })
}

/// Nodes outside loops, whose artifacts a person asks for.
fn final_stages(plan: &Plan) -> Vec<String> {
    let outside = plan.order().iter().map(|index| plan.node(*index)).filter(|node| node.turn.is_none());
    outside.map(|node| node.id.clone()).collect()
}

/// Node and port of everything of type `report`.
fn reports(plan: &Plan) -> Vec<(String, String)> {
    let nodes = plan.order().iter().map(|index| plan.node(*index)).filter(|node| node.turn.is_none());
    nodes
        .flat_map(|node| {
            let ports = node.stage.card.outputs.iter().filter(|(_, port)| port.artifact == "report");
            ports.map(|(name, _)| (node.id.clone(), name.clone()))
        })
        .collect()
}

fn outputs<'s>(summary: &'s Summary, id: &str) -> Option<&'s std::collections::BTreeMap<String, Output>> {
    match &summary.nodes.iter().find(|(node, _)| node == id)?.1 {
        Ended::Cached(outputs) | Ended::Worked(outputs) => Some(outputs),
        Ended::Skipped | Ended::Failed | Ended::Open => None,
    }
}

fn artifacts(summary: &Summary, nodes: &[String], store: &Store) -> Vec<(String, PathBuf)> {
    let mut artifacts = Vec::new();
    for id in nodes {
        for (port, output) in outputs(summary, id).into_iter().flatten() {
            artifacts.push((format!("{id}.{port}"), folder::artifact(store, output)));
        }
    }
    artifacts
}

fn report(summary: &Summary, store: &Store, node: &str, port: &str) -> Option<String> {
    let output = outputs(summary, node)?.get(port)?;
    std::fs::read_to_string(folder::artifact(store, output)).ok()
}

fn counts(summary: &Summary) -> [usize; 5] {
    [
        summary.count(|ended| matches!(ended, Ended::Cached(_))),
        summary.count(|ended| matches!(ended, Ended::Worked(_))),
        summary.count(|ended| matches!(ended, Ended::Skipped)),
        summary.count(|ended| matches!(ended, Ended::Failed)),
        summary.count(|ended| matches!(ended, Ended::Open)),
    ]
}

fn closing(summary: &Summary, id: &str, path: &Path, began: Instant) -> String {
    let [cached, worked, skipped, failed, open] = counts(summary);
    let mut parts = vec![format!("{cached} cached"), format!("{worked} worked")];
    let more = [(skipped, "skipped"), (failed, "failed"), (open, "not begun")];
    parts.extend(more.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    let took = crate::ui::seconds(began.elapsed().as_secs_f64());
    let text = format!("{id}: {} in {took}, {}", parts.join(", "), path.display());
    match (summary.interrupted, summary.failures.is_empty()) {
        (true, _) => format!("{text}\nstopped; to go on: mcprl resume {id}"),
        (false, false) => format!("{text}\nhint: when the cause is gone, `mcprl resume {id}` goes on"),
        (false, true) => text,
    }
}

fn ended(
    summary: &Summary,
    id: &str,
    began: Instant,
    artifacts: &[(String, PathBuf)],
) -> serde_json::Value {
    let [cached, worked, skipped, failed, open] = counts(summary);
    let artifacts: std::collections::BTreeMap<_, _> = artifacts.iter().cloned().collect();
    json!({
        "event": "ended",
        "run": id,
        "seconds": began.elapsed().as_secs_f64(),
        "interrupted": summary.interrupted,
        "cached": cached, "worked": worked, "skipped": skipped, "failed": failed, "open": open,
        "artifacts": artifacts,
    })
}
