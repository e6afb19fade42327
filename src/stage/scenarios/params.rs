//! The parameters of the stage, and what each source needs of them.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    error::ScenarioError,
    explored::{self, Examples},
    file,
    split::SplitBy,
};
use crate::stage::{StageError, local_model::LocalSettings, typed};

#[derive(Debug, Deserialize)]
pub struct Params {
    pub source: Source,
    pub families: Option<PathBuf>,
    pub file: Option<PathBuf>,
    pub traces: Option<PathBuf>,
    pub mix: Option<BTreeMap<Source, f64>>,
    pub tasks: usize,
    /// Of `[agent]`: characters of a result that an agent sees.
    pub result_chars: usize,
    pub explore_calls: usize,
    pub explore_seconds: u64,
    #[serde(default)]
    pub values: Examples,
    pub impossible_share: f64,
    pub no_call_share: f64,
    pub split_by: Option<SplitBy>,
    pub heldout_digest: Option<String>,
    pub questions_per_family: usize,
    pub heldout_per_split: usize,
    pub heldout_share: f64,
    pub start_share: f64,
    pub lessons: usize,
    pub reword: f64,
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
pub enum Source {
    Grounded,
    Server,
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
        if self.source == Source::File { self.lessons } else { 0 }
    }

    pub fn uses(&self, source: Source) -> bool {
        self.source == source || self.mix.as_ref().is_some_and(|mix| mix.contains_key(&source))
    }

    /// Whether a language model is asked.
    pub fn asks(&self) -> bool {
        self.uses(Source::Llm) || self.reword > 0.0
    }

    /// Checks that the parameters of the source are given. `has_model`: whether the engine runs the language model.
    pub fn complete(&self, has_model: bool) -> Result<(), ScenarioError> {
        let sources: Vec<Source> = match (&self.mix, self.source) {
            (None, Source::Mix) => return Err(ScenarioError::NoParam { origin: "mix", param: "mix" }),
            (Some(mix), Source::Mix) => {
                let problem = match mix.iter().find(|(source, weight)| {
                    **source == Source::Mix || !weight.is_finite() || **weight <= 0.0
                }) {
                    _ if mix.is_empty() => Some("it is empty".to_owned()),
                    Some((Source::Mix, _)) => Some("a mix cannot contain a mix".to_owned()),
                    Some((_, weight)) => Some(format!("{weight} is no weight")),
                    None => None,
                };
                if let Some(problem) = problem {
                    return Err(ScenarioError::Mix { problem });
                }
                mix.keys().copied().collect()
            }
            (_, source) => vec![source],
        };
        let words: &[Source] = if self.reword > 0.0 && !has_model { &[Source::Llm] } else { &[] };
        let needed = sources.into_iter().chain(words.iter().copied()).flat_map(|source| match source {
            Source::Grounded => vec![("grounded", "families", self.families.is_some())],
            Source::File => vec![("file", "file", self.file.is_some())],
            Source::Traces => vec![("traces", "traces", self.traces.is_some())],
            Source::Llm if has_model => Vec::new(),
            Source::Llm => {
                vec![("llm", "base_url", self.base_url.is_some()), ("llm", "model", self.model.is_some())]
            }
            Source::Server | Source::Explored | Source::Mix => Vec::new(),
        });
        match needed.into_iter().find(|(_, _, is_given)| !is_given) {
            Some((origin, param, _)) => Err(ScenarioError::NoParam { origin, param }),
            None => Ok(()),
        }
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
