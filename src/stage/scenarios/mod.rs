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
mod look;
mod phrase;
mod results;

#[cfg(test)]
pub(in crate::stage) mod tests;

use std::{collections::BTreeSet, path::PathBuf};

use serde::Deserialize;

pub(in crate::stage) use self::phrase::below;
pub use self::{
    error::ScenarioError,
    families::{Families, Family, Read, Tier},
    live::{CallSequence, Live},
    look::look,
    phrase::Binding,
};

use super::{Context, Metrics, StageError};
use crate::{
    data::{self, Scenario, Tool},
    error::Result,
    usage::Usage,
};
use grounded::{Dropped, Grounded, QuestionCounts};

#[derive(Debug, Deserialize)]
struct Params {
    source: Source,
    families: Option<PathBuf>,
    file: Option<PathBuf>,
    questions_per_family: usize,
    heldout_per_split: usize,
    heldout_share: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    Grounded,
    File,
}

/// Writes `train.parquet` and `heldout.parquet`.
pub async fn run(context: &Context) -> Result<Metrics> {
    let params: Params = context.params()?;
    let made = match params.source {
        Source::Grounded => from_server(context, &params).await?,
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
    data::write(&context.output.join("train.parquet"), &made.train)?;
    data::write(&context.output.join("heldout.parquet"), &made.heldout)?;
    Ok(metrics(&made))
}

async fn from_server(context: &Context, params: &Params) -> Result<Grounded> {
    let path = params.families.as_deref();
    let families =
        Families::load(path.ok_or(ScenarioError::NoParam { origin: "grounded", param: "families" })?)?;
    let tools: Vec<Tool> = data::read(&context.input("tools")?.path)?;
    let server = context.server.as_ref().ok_or_else(|| StageError::NoInput { role: "server".into() })?;
    let live = Live::new(server, &tools);
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
