//! The parameters of the stage, and what each source needs of them.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ScenariosError;
use crate::{
    data::Scenario,
    stage::{StageError, local_model::LocalSettings, typed},
    tasks::{
        explored::{self, Examples, ExploreWrites},
        file,
        split::SplitBy,
    },
};

#[derive(Debug, Deserialize)]
pub struct Params {
    pub source: TaskSource,
    pub families: Option<PathBuf>,
    pub file: Option<PathBuf>,
    pub traces: Option<PathBuf>,
    pub mix: Option<BTreeMap<TaskSource, f64>>,
    pub tasks: usize,
    /// Of `[agent]`: characters of a result that an agent sees.
    pub result_chars: usize,
    pub explore_calls: usize,
    pub explore_seconds: u64,
    #[serde(default)]
    pub values: Examples,
    #[serde(default)]
    pub explore_writes: ExploreWrites,
    pub impossible_share: f64,
    pub no_call_share: f64,
    pub split_by: Option<SplitBy>,
    pub heldout_digest: Option<String>,
    pub questions_per_family: usize,
    pub heldout_per_split: usize,
    pub heldout_share: f64,
    pub dev: usize,
    pub lessons: usize,
    pub reword: Option<f64>,
    pub base_url: Option<String>,
    pub model: Option<String>,
    pub api_key_env: Option<String>,
    pub temperature: f64,
    pub max_tokens: u32,
    pub timeout_s: f64,
    pub retries: u32,
    pub concurrency: usize,
    pub max_cost: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskSource {
    Grounded,
    File,
    Explored,
    Llm,
    Traces,
    Mix,
}

impl Params {
    /// Without `source`, a file that is given says which it is.
    ///
    /// # Errors
    /// If a parameter is of another type.
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        if params.contains_key("source") {
            return typed(params);
        }
        let by = [("file", "file"), ("families", "grounded"), ("traces", "traces"), ("mix", "mix")];
        let given =
            by.into_iter().find(|(param, _)| params.get(*param).is_some_and(|value| !value.is_null()));
        let mut params = params.clone();
        params.insert("source".into(), given.map_or("explored", |(_, source)| source).into());
        typed(&params)
    }

    /// How many tasks with reference solutions exploration adds to `start`.
    pub fn lessons(&self) -> usize {
        // Tasks of other sources have solutions.
        if self.source == TaskSource::File { self.lessons } else { 0 }
    }

    /// Whether exploration makes the tasks that are trained on, because a file's tasks are all held out. `train`: those of the
    /// file that are not.
    pub fn explores_for(&self, train: &[Scenario]) -> bool {
        train.is_empty() && self.lessons() > 0
    }

    pub fn uses(&self, source: TaskSource) -> bool {
        self.source == source || self.mix.as_ref().is_some_and(|mix| mix.contains_key(&source))
    }

    /// Whether a language model is asked, where one is given.
    pub fn asks(&self) -> bool {
        self.uses(TaskSource::Llm) || self.reword.is_none_or(|share| share > 0.0)
    }

    /// Whether an endpoint is asked.
    pub fn asks_endpoint(&self) -> bool {
        self.asks() && self.base_url.is_some()
    }

    /// The share of the tasks of a source that a language model words anew.
    pub fn reworded(&self, source: TaskSource, has_model: bool) -> f64 {
        // A model has worded its own already.
        let all =
            if has_model && matches!(source, TaskSource::Explored | TaskSource::File) { 1.0 } else { 0.0 };
        self.reword.unwrap_or(all)
    }

    /// Checks that the parameters of the source are given. `has_model`: whether the engine runs the language model.
    pub fn complete(&self, has_model: bool) -> Result<(), ScenariosError> {
        let mut sources = vec![self.source];
        if self.source == TaskSource::Mix {
            let no_mix = ScenariosError::NoParam { origin: "mix", param: "mix" };
            sources = mixed(self.mix.as_ref().ok_or(no_mix)?)?;
        }
        if self.split_by == Some(SplitBy::Server) && sources != [TaskSource::File] {
            return Err(ScenariosError::SplitByServer);
        }
        if self.reword.is_some_and(|share| share > 0.0) {
            sources.push(TaskSource::Llm);
        }
        let missing = sources.into_iter().find_map(|source| match source {
            TaskSource::Grounded if self.families.is_none() => Some(("grounded", "families")),
            TaskSource::File if self.file.is_none() => Some(("file", "file")),
            TaskSource::Traces if self.traces.is_none() => Some(("traces", "traces")),
            TaskSource::Llm if has_model => None,
            TaskSource::Llm if self.base_url.is_none() => Some(("llm", "base_url")),
            TaskSource::Llm if self.model.is_none() => Some(("llm", "model")),
            _ => None,
        });
        missing.map_or(Ok(()), |(origin, param)| Err(ScenariosError::NoParam { origin, param }))
    }

    pub fn hold_out(&self, seed: u64) -> file::HoldOut {
        file::HoldOut { share: self.heldout_share, seed, by: self.split_by.unwrap_or(SplitBy::Task) }
    }

    pub fn local(&self) -> LocalSettings {
        let Self { temperature, max_tokens, concurrency, .. } = *self;
        LocalSettings { temperature, max_tokens, concurrency }
    }

    pub fn budget(&self) -> explored::Budget {
        explored::Budget {
            calls: self.explore_calls,
            seconds: self.explore_seconds,
            tasks: self.tasks,
            per_family: self.questions_per_family,
            impossible_share: self.impossible_share,
            no_call_share: self.no_call_share,
            result_chars: self.result_chars,
        }
    }
}

/// The sources of a mix.
fn mixed(mix: &BTreeMap<TaskSource, f64>) -> Result<Vec<TaskSource>, ScenariosError> {
    let wrong = |problem: String| Err(ScenariosError::Mix { problem });
    if mix.is_empty() {
        return wrong("it is empty".into());
    }
    for (source, weight) in mix {
        if *source == TaskSource::Mix {
            return wrong("a mix cannot contain a mix".into());
        }
        if !weight.is_finite() || *weight <= 0.0 {
            return wrong(format!("{weight} is no weight"));
        }
    }
    Ok(mix.keys().copied().collect())
}
