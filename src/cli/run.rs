//! `mcprl run` and `mcprl resume`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use clap::Args;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Outcome,
    asked::Asked,
    place::{self, Place},
};
use crate::{
    data::{self, VerdictRow},
    error::Result,
    exec::{self, Ended, Request, RunFolder, RunSpec, Summary, folder},
    plan::{Node, Plan, Source, stage_name},
    stage::{Cards, card::Port},
    store::{FileDigests, Store},
    ui::{OutputFormat, Printer, RunView, closing_text, verdict_text},
};

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    asked: Asked,
    /// After a failure, run all stages that do not depend on the failed one; by default no new stage starts.
    #[arg(long)]
    keep_going: bool,
}

#[derive(Args)]
pub struct Resume {
    /// The run's id, as `mcprl runs` lists it, or `latest`.
    #[arg(value_name = "RUN")]
    id: String,
    /// After a failure, run all stages that do not depend on the failed one [default: as the run was
    /// started].
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    place: Place,
}

impl Run {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let overrides = self.asked.overrides();
        let Asked { file, resample, place, .. } = self.asked;
        let source = Source::read(&file)?;
        let store = place.store(Some(&file))?;
        let spec = RunSpec {
            stages: place.stages(Some(&file)),
            file: std::path::absolute(&file).unwrap_or(file),
            resample,
            keep_going: self.keep_going,
            overrides,
            text: source.text().to_owned(),
        };
        start(printer, store, &source, &spec, Begin::Anew)
    }
}

impl Resume {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.place.store(None)?;
        let (folder, mut spec) = RunFolder::open(&store, &self.id)?;
        spec.stages = self.place.given_stages().or(spec.stages);
        spec.keep_going |= self.keep_going;
        let source = Source::parse(&spec.file, spec.text.clone())?;
        start(printer, store, &source, &spec, Begin::Again(folder))
    }
}

enum Begin {
    Anew,
    Again(RunFolder),
}

/// Plans and runs. Creates a new run's folder only after planning, so that an invalid run file leaves none
/// behind.
fn start(printer: Printer, store: Store, source: &Source, spec: &RunSpec, begin: Begin) -> Result<Outcome> {
    let began = Instant::now();
    let files = FileDigests::load(&store);
    let planned = Plan::new(source, &spec.overrides, &Cards::new(spec.stages.clone()), &files)
        .and_then(|plan| Ok((plan.resampled(&spec.resample)?, plan)));
    let (resample, plan) = match (planned, &begin) {
        (Err(refused), Begin::Again(folder)) => {
            folder.refused()?;
            return Err(refused);
        }
        (planned, _) => planned?,
    };
    let listener = Arc::new(RunView::new(printer, &plan));
    let folder = match begin {
        Begin::Again(folder) => folder,
        Begin::Anew => {
            if let Some(standing) = exec::standing(&plan, &store, &resample)? {
                let ending = Ending::of(&plan, &store, &standing.id, &standing.path, began);
                // Saves new digests of outside files; without them the next run reads the files again.
                _ = files.save(&store);
                let mut summary = standing.tell(&plan, &*listener);
                summary.traffic = exec::hand_on_alone(&plan, &store)?;
                listener.flush();
                return Ok(ending.tell(printer, &summary));
            }
            store.prepare()?;
            RunFolder::create(&store, &plan.name, spec)?
        }
    };
    let ending = Ending::of(&plan, &store, &folder.id, &folder.path, began);
    let cancel = CancellationToken::new();
    let summary = exec::run(Request {
        keep_going: spec.keep_going,
        plan,
        store,
        files,
        folder,
        resample,
        listener: listener.clone(),
        cancel,
    });
    listener.flush();
    let summary = summary?;
    Ok(ending.tell(printer, &summary))
}

/// The report at the end of a run.
struct Ending {
    began: Instant,
    id: String,
    path: PathBuf,
    shown: Shown,
    resume: String,
    /// For each stage with a verdict, the command that shows all of its tables.
    pages: BTreeMap<String, String>,
}

impl Ending {
    fn of(plan: &Plan, store: &Store, id: &str, path: &Path, began: Instant) -> Self {
        let shown = Shown::of(plan, path);
        let page = |node: &String| (node.clone(), place::command(store, &format!("show {id}/{node}")));
        let pages = shown.ports.iter().filter(|(_, _, artifact, _)| artifact == "verdict");
        let pages = pages.map(|(node, ..)| page(node)).collect();
        Self {
            began,
            id: id.to_owned(),
            path: path.to_owned(),
            shown,
            resume: place::command(store, &format!("resume {id}")),
            pages,
        }
    }

    fn tell(&self, printer: Printer, summary: &Summary) -> Outcome {
        let Self { began, id, path, shown, resume, pages } = self;
        for failure in &summary.failures {
            printer.error(failure);
        }
        let artifacts = shown.artifacts(summary);
        match printer.format {
            OutputFormat::Json => printer.data(&ended_json(summary, id, *began, &artifacts).to_string()),
            OutputFormat::Human => {
                for text in shown.reports(summary) {
                    printer.data(&text);
                }
                let line =
                    |(name, artifact): (&String, &PathBuf)| format!("{name:<24} {}\n", artifact.display());
                let text: String = artifacts.iter().map(line).collect();
                let closing = text + &closing_text(summary, path, resume, began.elapsed().as_secs_f64());
                // The last lines on the screen are the failures or else the verdict.
                let failed = summary.interrupted || !summary.failures.is_empty();
                if !failed {
                    printer.say(&closing);
                }
                for (node, verdict) in shown.verdicts(summary) {
                    let page = pages.get(node).map(|page| format!("{node} by family and tool: {page}\n"));
                    printer.say(&page.unwrap_or_default());
                    printer.data(&verdict);
                }
                if failed {
                    printer.say(&closing);
                }
            }
        }
        match () {
            () if summary.interrupted => Outcome::Interrupted,
            () if summary.failures.is_empty() => Outcome::Success,
            () => Outcome::Failed,
        }
    }
}

/// The artifacts to show after a run: those of stages outside loops, and the newest policy of each loop.
struct Shown {
    /// Node, port, type and the link in the run's folder.
    ports: Vec<(String, String, String, PathBuf)>,
    /// The same for policies in loops, in order.
    policies: Vec<(String, String, String, PathBuf)>,
}

impl Shown {
    fn of(plan: &Plan, run: &Path) -> Self {
        let of = |node: &Node| {
            let port = |(name, port): (&String, &Port)| {
                let link = run.join(folder::inner_path(node, name)?);
                Some((node.id.clone(), name.clone(), port.artifact.clone(), link))
            };
            node.stage.card.outputs.iter().filter_map(port).collect::<Vec<_>>()
        };
        let nodes = || plan.order().iter().map(|index| plan.node(*index));
        let mut policies: Vec<_> = nodes().filter(|node| node.iteration.is_some()).flat_map(of).collect();
        policies.retain(|(_, _, artifact, _)| artifact == "policy");
        Self { ports: nodes().filter(|node| node.iteration.is_none()).flat_map(of).collect(), policies }
    }

    fn there<'s>(
        ports: &'s [(String, String, String, PathBuf)],
        summary: &Summary,
    ) -> impl Iterator<Item = &'s (String, String, String, PathBuf)> {
        let done: BTreeSet<&str> = summary
            .nodes
            .iter()
            .filter(|(_, ended)| matches!(ended, Ended::Cached | Ended::Ran))
            .map(|(id, _)| id.as_str())
            .collect();
        ports.iter().filter(move |(node, ..)| done.contains(node.as_str()))
    }

    fn artifacts(&self, summary: &Summary) -> BTreeMap<String, PathBuf> {
        let mut artifacts: BTreeMap<_, _> = Self::there(&self.ports, summary)
            .map(|(node, port, _, link)| (format!("{node}.{port}"), link.clone()))
            .collect();
        for (node, port, _, link) in Self::there(&self.policies, summary) {
            // A later iteration replaces an earlier one.
            artifacts.insert(format!("{}.{port}", stage_name(node).replace('/', ".")), link.clone());
        }
        artifacts
    }

    fn of_type<'s>(
        &'s self,
        artifact: &'s str,
        summary: &Summary,
    ) -> impl Iterator<Item = &'s (String, String, String, PathBuf)> {
        Self::there(&self.ports, summary).filter(move |(_, _, of, _)| of == artifact)
    }

    /// Every stage with a `verdict` output, and its text.
    fn verdicts<'s>(&'s self, summary: &Summary) -> Vec<(&'s String, String)> {
        let verdict = |port: &'s (String, String, String, PathBuf)| {
            let rows: Vec<VerdictRow> = data::read(&port.3).ok()?;
            Some((&port.0, verdict_text(&rows)))
        };
        self.of_type("verdict", summary).filter_map(verdict).collect()
    }

    /// Texts of all outputs of type `report` except those of a verdict, which `mcprl show` prints.
    fn reports(&self, summary: &Summary) -> Vec<String> {
        let verdicts: BTreeSet<&String> = self.of_type("verdict", summary).map(|(node, ..)| node).collect();
        let reports = self.of_type("report", summary).filter(|(node, ..)| !verdicts.contains(node));
        reports.filter_map(|(.., link)| std::fs::read_to_string(link).ok()).collect()
    }
}

fn ended_json(
    summary: &Summary,
    id: &str,
    began: Instant,
    artifacts: &BTreeMap<String, PathBuf>,
) -> serde_json::Value {
    let count = |which: Ended| summary.count(|ended| *ended == which);
    let named =
        |which: Ended| summary.nodes.iter().filter(move |(_, ended)| *ended == which).map(|(id, _)| id);
    let blocked = |(id, by): &(String, Vec<String>)| json!({ "id": id, "by": by });
    json!({
        "event": "ended",
        "run": id,
        "seconds": began.elapsed().as_secs_f64(),
        "interrupted": summary.interrupted,
        "cached": count(Ended::Cached), "worked": count(Ended::Ran), "skipped": count(Ended::Skipped),
        "failed": count(Ended::Failed), "open": count(Ended::Open),
        "failures": named(Ended::Failed).collect::<Vec<_>>(),
        "spent": summary.spent,
        "saved": summary.saved,
        "shared": summary.traffic,
        "blocked": summary.blocked.iter().map(blocked).collect::<Vec<_>>(),
        "artifacts": artifacts,
    })
}
