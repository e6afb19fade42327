//! `mcprl run` and `mcprl resume`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use clap::Args;
use serde_json::json;

use super::{
    Outcome, listing,
    locations::{self, Locations},
    run_args::RunArgs,
    ui, variants, worker,
};
use crate::{
    data::{self, OutcomeRow, Table, VerdictRow},
    error::Result,
    eval::{cut, headline},
    exec::{self, Event, Listener, Request, RunFolder, RunSpec, Signals, StageOutcome, Summary, folder},
    plan::{Plan, RunFile, stage_name},
    stage::Cards,
    store::{FileDigests, Store},
    track::Live,
    ui::{Closing, OutputFormat, Printer, RunView, Verbosity, closing_text, idle_text, verdict_text},
};

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    args: RunArgs,
    /// After a failure, run all stages that do not depend on the failed one; by default no new stage starts.
    #[arg(long)]
    keep_going: bool,
    /// Run once with each of these seeds of the stages that train and sample, on the same tasks, and print a table.
    #[arg(long, value_name = "SEED,…", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Run once with each of these values, and print a table: `--sweep loop.train.iterations=1,2,4`.
    #[arg(long, value_name = "KEY=VALUE,…")]
    sweep: Option<String>,
    /// Serve the run's live page while it runs, and print its address.
    #[arg(long)]
    ui: bool,
    #[command(flatten)]
    shown: ShownArgs,
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
    /// Serve the run's live page while it runs, and print its address.
    #[arg(long)]
    ui: bool,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    locations: Locations,
}

/// How much to show of a run.
#[derive(Args, Clone, Copy)]
pub struct ShownArgs {
    /// Show warnings, failures and the verdict only.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Show every stage of every iteration, with all metrics and notes.
    #[arg(short, long)]
    verbose: bool,
}

impl ShownArgs {
    pub fn verbosity(self) -> Verbosity {
        match self {
            Self { quiet: true, .. } => Verbosity::Quiet,
            Self { verbose: true, .. } => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }
}

/// How a run is started.
#[derive(Clone, Copy)]
struct Options {
    with_ui: bool,
    is_offline: bool,
    shown: ShownArgs,
}

impl Run {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let options = Options { with_ui: self.ui, is_offline: self.args.offline, shown: self.shown };
        let source = RunFile::read(&self.args.file)?;
        let store = self.args.locations.store(Some(&self.args.file))?;
        let overrides = self.args.overrides(&source, &store)?;
        let RunArgs { file, resample, until, locations, .. } = self.args;
        let spec = RunSpec {
            stages: locations.stages(Some(&file)),
            file: std::path::absolute(&file).unwrap_or(file),
            resample,
            until,
            keep_going: self.keep_going,
            overrides,
            text: source.text().to_owned(),
            extended: source.extended(),
            is_trial: false,
        };
        if self.seeds.is_empty() && self.sweep.is_none() {
            return Ok(start(printer, store, &source, &spec, None, options)?.0);
        }
        let files = FileDigests::load(&store);
        let plan = Plan::new(&source, &spec.overrides, &Cards::new(spec.stages.clone()), &files)?;
        let variants = variants::variants(&plan, &self.seeds, self.sweep.as_deref())?;
        drop((plan, files));
        let root = store.root().to_owned();
        let mut done = Vec::new();
        for variant in variants {
            let mut spec = spec.clone();
            spec.overrides.set.extend(variant.set.iter().cloned());
            let names = [Some(variant.value.clone()), variant.seed.map(|seed| format!("seed {seed}"))];
            let names: Vec<String> = names.into_iter().flatten().filter(|name| !name.is_empty()).collect();
            printer.say(&names.join(", "));
            let store = Store::open(&root)?;
            let (outcome, id) = start(printer, store, &source, &spec, None, options)?;
            if outcome != Outcome::Success && !(self.keep_going && outcome == Outcome::Failed) {
                return Ok(outcome);
            }
            done.push((variant, id));
        }
        variants::print(printer, &Store::open(&root)?, &done)
    }
}

impl Resume {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.locations.store(None)?;
        let (folder, mut spec) = RunFolder::open(&store, &self.id)?;
        spec.stages = self.locations.given_stages().or(spec.stages);
        spec.keep_going |= self.keep_going;
        let source = spec.source()?;
        let options = Options { with_ui: self.ui, is_offline: false, shown: self.shown };
        Ok(start(printer, store, &source, &spec, Some(folder), options)?.0)
    }
}

/// Plans and runs. `resumed` is the folder of a resumed run. Creates a new run's folder only after planning, so that an invalid
/// run file leaves none behind. Returns the run's id, too.
fn start(
    printer: Printer,
    store: Store,
    source: &RunFile,
    spec: &RunSpec,
    resumed: Option<RunFolder>,
    Options { with_ui, is_offline, shown }: Options,
) -> Result<(Outcome, String)> {
    let began = Instant::now();
    let files = FileDigests::load(&store);
    let planned = Plan::new(source, &spec.overrides, &Cards::new(spec.stages.clone()), &files)
        .and_then(|plan| Ok((plan.resampled(&spec.resample)?, plan.until(&spec.until)?)))
        .and_then(|(resample, plan)| plan.check_confirmed().map(|()| (resample, plan)).map_err(Into::into));
    if let (Err(_), Some(folder)) = (&planned, &resumed) {
        folder.refused()?;
    }
    let (resample, plan) = planned?;
    let plan = if is_offline { plan.offline() } else { asked(plan, &store, printer) };
    let verbosity = shown.verbosity();
    let stages = plan.order().iter().map(|index| plan.node(*index).id.as_str());
    let listener = Arc::new(RunView::new(printer, verbosity, stages));
    let folder = match resumed {
        Some(folder) => folder,
        None => {
            if let Some(run) = exec::up_to_date(&plan, &store, &resample)? {
                // Saves new digests of outside files; without them the next run reads the files again.
                _ = files.save(&store);
                let mut summary = run.report(&*listener);
                // They may be new in the run file.
                let live = Live::begin(&plan.track, &store, &run.id, listener.clone());
                let is_tracked = finish(live, &Signals::listen(), &track_command(&store, &run.id));
                if is_tracked {
                    summary.traffic = exec::push_queued(&plan, &store);
                }
                let is_new = listener.end();
                let ending = ClosingReport::new(&plan, &store, &run.id, &run.path, began);
                let outcome = ending.report((printer, verbosity), &summary, is_new);
                return Ok((if is_tracked { outcome } else { Outcome::Interrupted }, run.id));
            }
            store.prepare()?;
            RunFolder::create(&store, &plan.name, spec)?
        }
    };
    if with_ui {
        ui::serve_run(printer, &store, &folder.id)?;
    }
    let program = worker::program(&store, &folder.id, spec.stages.as_deref());
    let ending = ClosingReport::new(&plan, &store, &folder.id, &folder.path, began);
    let live = Live::begin(&plan.track, &store, &folder.id, listener.clone());
    let track = track_command(&store, &folder.id);
    let signals = Signals::listen();
    let stopping = listener.clone();
    let events: Arc<dyn Listener> = live.as_ref().map_or(listener.clone(), Live::listener);
    let summary = exec::run(Request {
        keep_going: spec.keep_going,
        plan,
        store,
        files,
        folder,
        resample,
        listener: events,
        program: Some(program),
        cancel: signals.stop(move || stopping.event(&Event::Stopping)),
    });
    let is_tracked = finish(live, &signals, &track);
    drop(signals);
    let is_new = listener.end();
    let outcome = ending.report((printer, verbosity), &summary?, is_new);
    Ok((if is_tracked { outcome } else { Outcome::Interrupted }, ending.id))
}

/// The plan with what the servers say now. One that is away, or says something new, is asked again by its stage.
fn asked(plan: Plan, store: &Store, printer: Printer) -> Plan {
    match listing::ask(&plan) {
        Some(Ok(offered)) => listing::compared(plan, store, &offered, printer),
        _ => plan,
    }
}

/// Updates the trackers a last time. False if a signal stopped it.
fn finish(live: Option<Live>, signals: &Signals, track: &str) -> bool {
    let Some(live) = live else { return true };
    let stop = signals.stop(|| {});
    live.finish(track, &stop);
    let is_stopped = stop.is_cancelled();
    if is_stopped {
        // Some upload for a tracker.
        exec::kill_children();
    }
    !is_stopped
}

/// The command that sends a run to its trackers.
fn track_command(store: &Store, run: &str) -> String {
    format!("mcprl track {run}{}", locations::cache_option(store))
}

/// The report at the end of a run.
struct ClosingReport {
    began: Instant,
    id: String,
    path: PathBuf,
    /// The option that names the cache, if it is needed.
    cache: String,
    artifacts: Vec<Artifact>,
}

/// An output of a stage outside loops, or a policy of a loop.
struct Artifact {
    node: String,
    port: String,
    artifact: String,
    /// The link in the run's folder.
    link: PathBuf,
}

/// The comparisons of policies, by stage.
fn verdicts<'a>(written: &'a [&Artifact]) -> impl Iterator<Item = (&'a str, Vec<VerdictRow>)> {
    let verdicts = written.iter().filter(|artifact| artifact.artifact == VerdictRow::NAME);
    verdicts.filter_map(|artifact| Some((artifact.node.as_str(), data::read(&artifact.link).ok()?)))
}

impl ClosingReport {
    fn new(plan: &Plan, store: &Store, id: &str, path: &Path, began: Instant) -> Self {
        let mut artifacts = Vec::new();
        for node in plan.order().iter().map(|index| plan.node(*index)) {
            for (name, port) in &node.stage.card.outputs {
                let Some(inner) = folder::inner_path(node, name) else { continue };
                if node.iteration.is_none() || port.artifact == "policy" {
                    let (node, artifact) = (node.id.clone(), port.artifact.clone());
                    artifacts.push(Artifact { node, port: name.clone(), artifact, link: path.join(inner) });
                }
            }
        }
        let cache = locations::cache_option(store);
        Self { began, id: id.to_owned(), path: path.to_owned(), cache, artifacts }
    }

    /// `is_new`: whether anything had to be done.
    fn report(&self, (printer, verbosity): (Printer, Verbosity), summary: &Summary, is_new: bool) -> Outcome {
        for failure in &summary.failures {
            printer.error(failure);
        }
        let done = |id: &String| {
            let found = summary.nodes.iter().find(|(node, _)| node == id);
            found.is_some_and(|(_, outcome)| matches!(outcome, StageOutcome::Cached | StageOutcome::Ran))
        };
        let written: Vec<&Artifact> = self.artifacts.iter().filter(|artifact| done(&artifact.node)).collect();
        // A later iteration replaces an earlier one.
        let mut paths: BTreeMap<String, &PathBuf> = BTreeMap::new();
        for Artifact { node, port, link, .. } in &written {
            paths.insert(format!("{}.{port}", stage_name(node).replace('/', ".")), link);
        }
        match printer.format {
            OutputFormat::Json => printer.data(&self.json(summary, &written, &paths).to_string()),
            OutputFormat::Human => self.print((printer, verbosity), (summary, is_new), &written, &paths),
        }
        match () {
            () if summary.interrupted => Outcome::Interrupted,
            () if summary.failures.is_empty() && !summary.is_stuck() => Outcome::Success,
            () => Outcome::Failed,
        }
    }

    /// The verdicts, then the outcome of the stages, then what to do next.
    fn print(
        &self,
        (printer, verbosity): (Printer, Verbosity),
        (summary, is_new): (&Summary, bool),
        written: &[&Artifact],
        paths: &BTreeMap<String, &PathBuf>,
    ) {
        let (is_quiet, is_verbose) = (verbosity == Verbosity::Quiet, verbosity == Verbosity::Verbose);
        let of_type = |name: &'static str| written.iter().filter(move |written| written.artifact == name);
        // `mcprl show` prints the report of a verdict.
        let has_verdict = |node: &String| of_type("verdict").any(|verdict| verdict.node == *node);
        for report in of_type("report").filter(|report| !has_verdict(&report.node)) {
            if let Ok(text) = std::fs::read_to_string(&report.link) {
                printer.data(&text);
            }
        }
        if is_verbose {
            let line = |(name, path): (&String, &&PathBuf)| format!("{name:<24} {}\n", path.display());
            printer.say(&paths.iter().map(line).collect::<String>());
        }
        for result in summary.loop_results.iter().filter(|_| !is_quiet) {
            printer.say(&result.to_string());
        }
        for (node, rows) in verdicts(written) {
            printer.data(&verdict_text(&rows, is_verbose));
            let episodes = of_type("trajectories").filter(|episodes| episodes.node == node);
            let rows: Vec<Vec<OutcomeRow>> =
                episodes.filter_map(|episodes| data::read(&episodes.link).ok()).collect();
            if let Some(text) = cut(&rows.concat()) {
                printer.data(&text);
            }
        }
        for idle in &summary.idle {
            printer.say(&idle_text(idle, is_quiet));
        }
        let has_failed = summary.interrupted || !summary.failures.is_empty();
        if is_quiet && !has_failed {
            return;
        }
        let resume = format!("mcprl resume {}{}", self.id, self.cache);
        printer.say(&closing_text(&Closing {
            summary,
            run: &self.id,
            path: &self.path,
            resume: &resume,
            seconds: self.began.elapsed().as_secs_f64(),
            is_new,
            is_verbose,
        }));
        if is_new && !has_failed {
            printer.say(&self.next(written).join("\n"));
        }
    }

    /// The commands that show what the run made: its wrong episodes, its agent, all of it.
    fn next(&self, written: &[&Artifact]) -> Vec<String> {
        let Self { id, cache, .. } = self;
        let of_type = |name: &str| written.iter().rev().find(|written| written.artifact == name);
        let verdict = of_type("verdict");
        let episodes = verdict.or_else(|| of_type("trajectories")).map(|exam| {
            let wrong = if verdict.is_some() { " --wrong" } else { "" };
            format!("mcprl episodes {id}/{}{wrong}{cache}", exam.node)
        });
        let chat = of_type("policy").map(|_| format!("mcprl chat {id}{cache}"));
        let whole = match verdict {
            Some(_) => format!("mcprl report {id} --out report.html{cache}"),
            None => format!("mcprl show {id}{cache}"),
        };
        let all = episodes.into_iter().chain(chat).chain([whole]);
        all.map(|command| format!("  {command}")).collect()
    }

    fn json(
        &self,
        summary: &Summary,
        written: &[&Artifact],
        paths: &BTreeMap<String, &PathBuf>,
    ) -> serde_json::Value {
        let verdicts = verdicts(written).map(|(node, rows)| (node, json!(headline(&rows))));
        let failed = summary.nodes.iter().filter(|(_, outcome)| *outcome == StageOutcome::Failed);
        let blocked = |(id, by): &(String, Vec<String>)| json!({ "id": id, "by": by });
        let mut event = json!({
            "event": "ended",
            "run": self.id,
            "seconds": self.began.elapsed().as_secs_f64(),
            "interrupted": summary.interrupted,
            "failures": failed.map(|(id, _)| id).collect::<Vec<_>>(),
            "spent": summary.spent,
            "saved": summary.saved,
            "shared": summary.traffic,
            "idle": summary.idle,
            "loop_results": summary.loop_results,
            "blocked": summary.blocked.iter().map(blocked).collect::<Vec<_>>(),
            "artifacts": paths,
            "verdicts": verdicts.collect::<BTreeMap<_, _>>(),
        });
        for outcome in StageOutcome::ALL {
            event[outcome.name()] = summary.count(outcome).into();
        }
        event
    }
}
