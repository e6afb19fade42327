//! `mcprl report`: writes a report of a run as HTML, Markdown or SVG, compares runs, or reports to the server's author.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{Outcome, locations::Locations, target::Target};
use crate::{
    error::{Diagnostic, Result},
    exec::history,
    report::{self, Comparable, NotComparable, document::Document},
    ui::{OutputFormat, Printer},
    view::{
        self, Run,
        curves::curves,
        exam::{Exam, exams},
    },
};

#[derive(Args)]
pub struct Report {
    /// A run's id, as `mcprl runs` lists it, or `latest`; the folder of a run also works. Several runs are compared with the
    /// first one. With `--server`, RUN/STAGE takes the failed tasks of that comparison of policies instead of the last one's.
    #[arg(value_name = "RUN", default_value = "latest")]
    runs: Vec<String>,
    /// The file to write [default: standard output]. A name that ends in `.html` gets a page of its own, which opens without
    /// a network and prints.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write Markdown, for a terminal or a pull request; the default unless the file is HTML.
    #[arg(long)]
    md: bool,
    /// Write one plot as SVG: the success over the iterations, or the gains of the comparison.
    #[arg(long, value_name = "PLOT", conflicts_with_all = ["md", "server"])]
    svg: Option<Plot>,
    /// Report to the server's author: how agents use the tools, what fails and what would help.
    #[arg(long)]
    server: bool,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Plot {
    Curve,
    Verdict,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "report")]
enum ReportError {
    #[error("run \"{run}\" has nothing for this plot")]
    #[hint = "`mcprl show {run}` lists what it has"]
    NoPlot { run: String },
    #[error("{stage} of run \"{run}\" compares no policies")]
    #[hint(format!("name one of {}", known.join(", ")) if !known.is_empty())]
    NoComparison { run: String, stage: String, known: Vec<String> },
    #[error("`--svg` and `--server` take one run")]
    #[diagnostic(class = usage)]
    #[hint = "write a report for each run"]
    OneRun,
    #[error("{0} and {1} are of different caches")]
    #[diagnostic(class = usage)]
    #[hint = "copy one of them with `mcprl cache export` and `mcprl cache import`"]
    Caches(String, String),
    #[error("the runs cannot be compared: {}", match .0 {
        NotComparable::NoEpisodes(run) => format!("{run} has no comparison of policies whose episodes are in the cache"),
        NotComparable::NoPolicy => "no policy has the same name in all of them".to_owned(),
        NotComparable::Modes => "one played greedily, another sampled".to_owned(),
        NotComparable::NoTask => "they have no task in common".to_owned(),
    })]
    #[hint("`mcprl resume {run}` runs what is missing" if let NotComparable::NoEpisodes(run) = _0)]
    #[hint = "runs are compared by their last `eval` stages; keep its policies' names and its tasks"]
    NotComparable(NotComparable),
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
}

impl Report {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let mut targets = self.runs.iter().map(|run| Target::new(&self.locations, run));
        let Some(first) = targets.next().transpose()? else { return Err(ReportError::OneRun.into()) };
        let (store, stage) = (first.store, first.part);
        let mut histories = vec![history::run(&store, &first.run)?];
        for target in targets {
            let target = target?;
            if target.store.root() != store.root() {
                return Err(ReportError::Caches(first.run, target.run).into());
            }
            histories.push(history::run(&store, &target.run)?);
        }
        histories.iter().try_for_each(|run| history::check_tables(&store, run))?;
        let runs: Vec<Run> = histories.iter().map(|run| Run::of(&store, run)).collect();
        if runs.len() > 1 && (self.svg.is_some() || self.server) {
            return Err(ReportError::OneRun.into());
        }
        let comparisons = || runs[0].writers("verdict").map(|stage| stage.id.as_str());
        if let Some(stage) =
            stage.as_deref().filter(|stage| self.server && comparisons().all(|id| id != *stage))
        {
            return Err(ReportError::NoComparison {
                run: runs[0].id.clone(),
                stage: stage.to_owned(),
                known: comparisons().map(str::to_owned).collect(),
            }
            .into());
        }
        if let Some(plot) = self.svg {
            let found = match plot {
                Plot::Curve => report::curve_plot(&curves(&runs[0])),
                Plot::Verdict => exams(&runs[0]).last().and_then(report::verdict_plot),
            };
            let plot = found.ok_or_else(|| ReportError::NoPlot { run: runs[0].id.clone() })?;
            return self.write(printer, &plot.file(), json!({ "run": runs[0].id }));
        }
        if printer.format == OutputFormat::Json && self.out.is_none() {
            printer.json(&self.model(&runs, stage.as_deref()));
            return Ok(Outcome::Success);
        }
        let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
        let json = json!({ "runs": ids });
        let page = match runs.as_slice() {
            [run] if self.server => {
                report::server_document(run, &report::server_report(run, stage.as_deref()))
            }
            [run] => report::report(run),
            _ => {
                let comparable: Vec<Comparable> = runs
                    .into_iter()
                    .zip(&histories)
                    .map(|(run, history)| Comparable {
                        differences: view::differences(&store, &histories[0], history),
                        run,
                    })
                    .collect();
                report::comparison(&comparable).map_err(ReportError::NotComparable)?
            }
        };
        self.write(printer, &self.text(&page), json)
    }

    fn text(&self, page: &Document) -> String {
        let is_html = |path: &PathBuf| {
            path.extension()
                .is_some_and(|end| end.eq_ignore_ascii_case("html") || end.eq_ignore_ascii_case("htm"))
        };
        match !self.md && self.out.as_ref().is_some_and(is_html) {
            true => report::html_page(page),
            false => report::markdown_page(page),
        }
    }

    fn model(&self, runs: &[Run], stage: Option<&str>) -> Value {
        let of = |run: &Run| match self.server {
            true => json!(report::server_report(run, stage)),
            false => json!({ "run": run, "curves": curves(run), "exams": with_pairs(run) }),
        };
        match runs {
            [run] => of(run),
            _ => runs.iter().map(of).collect(),
        }
    }

    fn write(&self, printer: Printer, text: &str, mut json: Value) -> Result<Outcome> {
        let Some(path) = &self.out else {
            printer.data(text.trim_end_matches('\n'));
            return Ok(Outcome::Success);
        };
        write(path, text).map_err(|source| ReportError::Write { path: path.clone(), source })?;
        match printer.format {
            OutputFormat::Json => {
                json["out"] = json!(path);
                printer.json(&json);
            }
            OutputFormat::Human => printer.say(&format!("report written to {}", path.display())),
        }
        Ok(Outcome::Success)
    }
}

/// Replaces the file only when the new one is whole.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    let mut file = tempfile::Builder::new()
        .prefix(".report-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(parent)?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// The comparisons of a run with their scenarios.
fn with_pairs(run: &Run) -> Value {
    let exam = |exam: Exam| {
        let mut value = json!(exam);
        value["pairs"] = json!(exam.pairs(run));
        value
    };
    exams(run).into_iter().map(exam).collect()
}
