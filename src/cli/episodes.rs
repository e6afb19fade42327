//! `mcprl episodes`: prints episodes as transcripts.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::json;

use super::{Outcome, locations::Locations, target::Target};
use crate::{
    data::VerdictRow,
    error::{Diagnostic, Result, did_you_mean},
    eval::headline,
    exec::{
        history::{self, RunHistory},
        labels,
    },
    plan::stage_name,
    ui::{Heading, Printer, episode_text},
    view::{
        Run,
        episode::{EpisodeDetails, episode},
        episodes::{
            EpisodeCache, EpisodeSource, Episodes as Tables, Filter, OutcomeFilter, PageSpec, sources,
        },
    },
};

#[derive(Args)]
pub struct Episodes {
    /// A run's id or `latest`, followed by `/STAGE`: `latest/exam`, `latest/train[3]/rollout` [default: the run's last stage
    /// with episodes].
    #[arg(value_name = "RUN[/STAGE]", default_value = "latest")]
    run: String,
    /// Only episodes whose answer is wrong.
    #[arg(long, conflicts_with = "right")]
    wrong: bool,
    /// Only episodes whose answer is right.
    #[arg(long)]
    right: bool,
    /// Only tasks of this kind.
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only the task whose id begins so.
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Only this policy of an exam [default: the one that its verdict says to use].
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Most episodes to print.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 3)]
    number: usize,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "episodes", class = usage)]
enum EpisodesError {
    #[error("{} of run \"{run}\" has no episodes", stage.as_deref().unwrap_or("no stage"))]
    #[hint(format!("name one of {}", known.join(", ")) if !known.is_empty())]
    #[hint = "stages that play tasks have them: of kind `rollout`, `eval`, `demonstrations` or `headroom`"]
    NoEpisodes { run: String, stage: Option<String>, known: Vec<String> },
    #[error("the episodes of {stage} cannot be read: {problem}")]
    #[diagnostic(class = work)]
    #[hint = "`mcprl resume` with the run's id runs what is missing"]
    Unreadable { stage: String, problem: String },
    #[error("no episode has the {what} \"{name}\"")]
    #[hint("did you mean \"{near}\"?" if let Some(near) = near)]
    #[hint("there is {known}" if !known.is_empty())]
    #[hint = "without this option, the transcripts show it"]
    Unknown { what: &'static str, name: String, near: Option<String>, known: String },
}

impl Episodes {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Target { store, run, part } = Target::new(&self.locations, &self.run)?;
        let history = history::run(&store, &run)?;
        history::check_tables(&store, &history)?;
        let run = Run::of(&store, &history);
        let tables = EpisodeCache::default().episodes(chosen(&history, &run, part.as_deref())?);
        if let Some(missing) = tables.unavailable.first().filter(|_| tables.tables.is_empty()) {
            let (stage, problem) = (missing.stage.clone(), missing.problem.clone());
            return Err(EpisodesError::Unreadable { stage, problem }.into());
        }
        let filter = self.filter(&run, &tables)?;
        let labels = labels::read(&store, &history.id)?;
        let spec = PageSpec { limit: self.number, ..PageSpec::default() };
        let page = tables.page(&filter, &spec, &labels)?;
        let mut found: Vec<EpisodeDetails> = Vec::new();
        for row in &page.episodes {
            let (stage, id) =
                (row["stage"].as_str().unwrap_or_default(), row["id"].as_str().unwrap_or_default());
            let Some(table) = tables.table(stage) else { continue };
            if let Some((at, indexed)) = table.episode(id) {
                found.push(episode(table, at, indexed, &labels)?);
            }
        }
        let json = json!({ "run": history.id, "matching": page.matching, "episodes": found });
        printer.show(&json, || self.text(&found, page.matching));
        Ok(Outcome::Success)
    }

    fn text(&self, found: &[EpisodeDetails], matching: usize) -> String {
        let which = match (self.wrong, self.right) {
            (true, _) => " wrong",
            (_, true) => " right",
            _ => "",
        };
        if found.is_empty() {
            return format!("no{which} episodes");
        }
        let each = found.iter().enumerate().map(|(at, details)| {
            let heading = Heading { number: at + 1, of: matching, which };
            episode_text(&heading, details)
        });
        each.collect::<Vec<_>>().join("\n")
    }

    fn filter(&self, run: &Run, tables: &Tables) -> Result<Filter> {
        let rows = || tables.tables.iter().flat_map(|table| &table.episodes).map(|found| &found.summary);
        let outcome = match (self.wrong, self.right) {
            (true, _) => Some(OutcomeFilter::Wrong),
            (_, true) => Some(OutcomeFilter::Right),
            _ => None,
        };
        if let Some(kind) = &self.kind {
            known("kind", kind, &rows().map(|row| row.family.as_str()).collect())?;
        }
        let scenario = match &self.task {
            None => None,
            Some(id) => match rows().find(|row| row.scenario_id.starts_with(id.as_str())) {
                Some(row) => Some(row.scenario_id.clone()),
                None => return Err(unknown("task", id, &BTreeSet::new()).into()),
            },
        };
        Ok(Filter {
            outcome,
            scenario,
            family: self.kind.clone(),
            policy: self.policy(run, tables)?,
            ..Filter::default()
        })
    }

    /// The policy that was asked for; of an exam, the one that its verdict says to use.
    fn policy(&self, run: &Run, tables: &Tables) -> Result<Option<String>> {
        let names = || {
            let all = tables.tables.iter().flat_map(|table| {
                table.episodes.iter().map(|found| table.policy_name(&found.summary.policy))
            });
            let names: BTreeSet<String> = all.collect();
            names.iter().flat_map(|names| names.split(", ")).map(str::to_owned).collect::<BTreeSet<String>>()
        };
        if let Some(name) = &self.policy {
            known("policy", name, &names().iter().map(String::as_str).collect())?;
            return Ok(Some(name.clone()));
        }
        let mut stages = tables.tables.iter().filter_map(|table| run.stage(&table.source.stage));
        let verdict = stages.find_map(|stage| stage.table::<VerdictRow>().ok());
        let found = verdict.as_deref().and_then(headline);
        let used = found.and_then(|found| found.advice.map(|advice| advice.policy));
        Ok(used.filter(|name| names().contains(name)))
    }
}

/// Checks a name that was given.
fn known(what: &'static str, name: &str, all: &BTreeSet<&str>) -> Result<(), EpisodesError> {
    if all.contains(name) { Ok(()) } else { Err(unknown(what, name, all)) }
}

fn unknown(what: &'static str, name: &str, all: &BTreeSet<&str>) -> EpisodesError {
    let near = did_you_mean(name, all.iter().copied()).map(str::to_owned);
    let known = all.iter().copied().collect::<Vec<_>>().join(", ");
    EpisodesError::Unknown { what, name: name.to_owned(), near, known }
}

/// The artifacts with the episodes of a stage, of an iteration or of a loop.
fn chosen(history: &RunHistory, run: &Run, part: Option<&str>) -> Result<Vec<EpisodeSource>> {
    let mut all = sources(run);
    let known = all.iter().map(|source| stage_name(&source.stage));
    let known: Vec<String> = known.collect::<BTreeSet<_>>().into_iter().collect();
    let stages: Vec<String> = match part {
        None => {
            let exam = run.writers("verdict").map(|stage| &stage.id).filter(|id| has(&all, id)).last();
            exam.or(all.last().map(|source| &source.stage)).cloned().into_iter().collect()
        }
        Some(part) => match history.node(part) {
            Ok(node) => vec![node.id.clone()],
            Err(unknown) => {
                let nodes = history.named(part).map_err(|_| unknown)?;
                nodes.into_iter().map(|node| node.id.clone()).collect()
            }
        },
    };
    all.retain(|source| stages.contains(&source.stage));
    if all.is_empty() {
        let stage = part.map(|part| format!("stage \"{part}\""));
        return Err(EpisodesError::NoEpisodes { run: history.id.clone(), stage, known }.into());
    }
    Ok(all)
}

fn has(sources: &[EpisodeSource], id: &str) -> bool {
    sources.iter().any(|source| source.stage == id)
}
