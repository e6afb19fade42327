//! The `scenarios` stage: training tasks and held-out tasks.
//!
//! Tasks are generated from the live server ([`grounded`]) as declared in a families file, or read from a
//! user's file ([`mod@file`]). No task is in both outputs. No model is involved.

mod declaration;
mod error;
pub mod families;
pub mod file;
pub mod grounded;
mod live;
mod phrase;
mod preflight;
mod results;
mod solution;

#[cfg(test)]
pub(in crate::stage) mod tests;

use std::{collections::BTreeSet, path::PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::{
    error::ScenarioError,
    families::{Families, Family, Tier},
    live::{CallSequence, Live},
    phrase::Binding,
};
pub(in crate::stage) use self::{families::Step, phrase::below, solution::Solution};

use super::{
    Context, Metrics, StageError, StageKind,
    kind::{ExpectedOutputs, Requirement, StageFuture},
    preflight::{ExpectedOutput, ExpectedScenarios, Preflight, PreflightContext},
    typed,
};
use crate::{
    data::{Scenario, Tool},
    error::Result,
    usage::Usage,
};
use grounded::{Dropped, Grounded, QuestionCounts};

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    source: Source,
    families: Option<PathBuf>,
    file: Option<PathBuf>,
    questions_per_family: usize,
    heldout_per_split: usize,
    heldout_share: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Source {
    Grounded,
    File,
}

/// Fewer tasks in a split than this are reported as few.
const FEW: usize = 20;

pub struct Scenarios(Params);

impl Scenarios {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        typed(params).map(Self)
    }

    async fn make(&self, context: &Context) -> Result<Metrics> {
        let Self(params) = self;
        let made = match params.source {
            Source::Grounded => from_server(context, params).await?,
            Source::File => {
                let path = params.file.as_deref();
                let path = path.ok_or(ScenarioError::NoParam { origin: "file", param: "file" })?;
                let (train, heldout) = file::load(path, params.heldout_share, context.seed)?;
                let lacks = [
                    (train.is_empty(), "no task is left to train on: lower"),
                    (
                        heldout.is_empty(),
                        "no task is held out, so there is nothing to examine a policy with: raise",
                    ),
                ];
                for (_, lack) in lacks.into_iter().filter(|(lacks, _)| *lacks) {
                    context.observer.note(&format!(
                        "{}: {lack} heldout_share, or give tasks a `split` of their own (train or heldout)",
                        path.display()
                    ));
                }
                Grounded { train, heldout, ..Grounded::default() }
            }
        };
        context.write("train", &made.train)?;
        context.write("heldout", &made.heldout)?;
        Ok(metrics(&made))
    }

    fn requirements(&self, expected: &ExpectedOutputs) -> Vec<Requirement> {
        let count = |port| {
            let expected = expected.get(port).and_then(ExpectedOutput::scenarios);
            expected.map(ExpectedScenarios::count)
        };
        let Params { source, families, file, .. } = &self.0;
        let path = if matches!(source, Source::File) { file } else { families };
        let Some(path) = path.as_deref().map(std::path::Path::display) else { return Vec::new() };
        let Some((train, heldout)) = count("train").zip(count("heldout")) else {
            let part = if matches!(source, Source::File) { ", as far as it was checked" } else { "" };
            return vec![Requirement::Met(format!("{path} can be read{part}"))];
        };
        let text = format!("{path}: {train} to train on, {heldout} held out");
        if train.min(heldout) >= FEW {
            return vec![Requirement::Met(text)];
        }
        let hint = format!(
            "that is few: a gain is measurable where at least 6 held-out tasks come out better and none worse; {FEW} or \
             more of each are a start (`heldout_share` says how many are held out)"
        );
        vec![Requirement::Doubtful { text, hint }]
    }
}

impl StageKind for Scenarios {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.make(context))
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        preflight::preflight(&self.0, context)
    }

    fn requirements<'a>(&'a self, expected: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(async { self.requirements(expected) })
    }
}

async fn from_server(context: &Context, params: &Params) -> Result<Grounded> {
    let path = params.families.as_deref();
    let families =
        Families::load(path.ok_or(ScenarioError::NoParam { origin: "grounded", param: "families" })?)?;
    let tools: Vec<Tool> = context.read("tools")?;
    let servers = context.servers.as_ref().ok_or_else(|| StageError::NoInput { role: "server".into() })?;
    let live = Live::new(servers, &tools);
    let quota =
        QuestionCounts { per_family: params.questions_per_family, per_split: params.heldout_per_split };
    let made = grounded::generate(
        &families,
        &tools,
        &live,
        quota,
        context.seed,
        &*context.observer,
        &context.cancel,
    )
    .await;
    context.meter.add(Usage { tool_calls: live.calls() as u64, ..Usage::default() });
    live.close().await;
    made
}

fn metrics(made: &Grounded) -> Metrics {
    let mut metrics = Metrics::new();
    let mut count = |name: String, number: usize| _ = metrics.insert(name, number as f64);
    let families: BTreeSet<&str> =
        made.train.iter().chain(&made.heldout).map(|s| s.family.as_str()).collect();
    count("families".into(), families.len());
    count("train".into(), made.train.len());
    count("heldout".into(), made.heldout.len());
    let known: BTreeSet<&str> = made.train.iter().flat_map(words).collect();
    for split in ["a", "b", "c"] {
        let of_split: Vec<&Scenario> = made.heldout.iter().filter(|s| s.split == split).collect();
        if !of_split.is_empty() {
            let words: BTreeSet<&str> = of_split.iter().copied().flat_map(words).collect();
            count(format!("heldout_{split}"), of_split.len());
            count(format!("new_words_{split}"), words.difference(&known).count());
        }
    }
    for why in Dropped::ALL {
        count(format!("dropped_{}", why.name()), made.dropped.get(&why).copied().unwrap_or_default());
    }
    metrics
}

/// The words of a task as written.
fn words(scenario: &Scenario) -> impl Iterator<Item = &str> {
    scenario.task.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty())
}
