use std::path::PathBuf;

use crate::error::{Class, Diagnostic};

/// Errors in the source of tasks.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "scenarios::", serialize_all = "snake_case")]
pub enum ScenarioError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("source = \"{origin}\" needs the parameter `{param}`")]
    #[strum(serialize = "param")]
    NoParam { origin: &'static str, param: &'static str },
    #[error("{file}: {problem}")]
    #[strum(serialize = "families")]
    Syntax { file: String, problem: String },
    #[error("{file}: {place}: {problem}")]
    Families { file: String, place: String, problem: String },
    #[error("entities `{name}`: {problem}")]
    Entities { name: String, problem: String },
    #[error("no question has an answer: {account}")]
    Nothing { account: String },
    #[error("{file}: {count} bad {}\n{list}", if *count == 1 { "task" } else { "tasks" })]
    BadLines { file: String, count: usize, list: String },
    #[error("{file} contains no task")]
    Empty { file: String },
    #[error("no candidate was admitted: {account}")]
    NothingAdmitted { account: String },
    #[error("the held-out set is not the frozen one: its digest is {found} instead of {expected}")]
    #[strum(serialize = "heldout_differs")]
    HeldOutDiffers { expected: String, found: String },
    #[error("{count} training {} held out: {task}", if *count == 1 { "task is" } else { "tasks are" })]
    #[strum(serialize = "trains_on_heldout")]
    TrainsOnHeldOut { task: String, count: usize },
    #[error("`mix`: {problem}")]
    Mix { problem: String },
    #[error("the prompt `generate` cannot be rendered: {problem}")]
    Prompt { problem: String },
    #[error("`max_cost` is set, but the prices of the language model's tokens are not")]
    NoPrices,
    #[error("{file}: {problem}")]
    #[strum(serialize = "traces")]
    BadTraces { file: String, problem: String },
    #[error("{file}: {problem}")]
    Parquet { file: String, problem: String },
    #[error("no training task is left: the policy solves all {tasks} too often or too seldom")]
    NothingLeft { tasks: usize },
    #[error("no pass rate is from {min} on and below {max}")]
    PassRates { min: f64, max: f64 },
    #[error("`policy` is set, but `tries` is 0")]
    NoTries,
    #[error("split_by = \"server\" is for tasks that name their server")]
    SplitByServer,
    #[error("`values.{name}` names no parameter of a tool")]
    #[strum(serialize = "values")]
    UnknownExample { name: String, near: Option<String>, known: String },
    #[error("`values.{name}` has {value}, but the parameter takes {expected}")]
    #[strum(serialize = "values")]
    UnfitExample { name: String, value: String, expected: String },
}

impl Diagnostic for ScenarioError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoParam { origin: "file", .. } => {
                "name a JSON or JSONL file of tasks: file = \"tasks.jsonl\"".into()
            }
            Self::NoParam { origin: "mix", .. } => "name sources with weights: mix = { explored = 3, file = 1 }".into(),
            Self::NoParam { origin: "traces", .. } => "name a file of conversations: traces = \"chats.jsonl\"".into(),
            Self::NoParam { origin: "llm", .. } => {
                "name an OpenAI-compatible endpoint and its model: base_url = \"http://127.0.0.1:8000/v1\", model = \"…\"; or a \
                 model that the engine runs: local_model = \"base\""
                    .into()
            }
            Self::NoParam { .. } => "name the families file: families = \"my.families.toml\"".into(),
            Self::BadLines { .. } | Self::Empty { .. } => {
                "a task is {\"task\": \"…\", \"answer\": \"…\"}, one per line or in one JSON array; `answer`, `check`, \
                 `split` and `family` may be missing"
                    .into()
            }
            Self::Entities { .. } => "try the call by hand; [results] defines how its answer is parsed".into(),
            Self::Nothing { .. } => "try the calls under `solve` by hand".into(),
            Self::NothingAdmitted { .. } => {
                "write tasks of your own (source = \"file\"), give the server some state, or raise `explore_calls`; only tools that \
                 are safe to call are explored (docs/guides/scenarios.md)"
                    .into()
            }
            Self::HeldOutDiffers { .. } => {
                "the server's data, the seed or a parameter has changed; put the new digest into `heldout_digest` if that is meant"
                    .into()
            }
            Self::TrainsOnHeldOut { .. } => "remove the task from one side; upper case and spaces do not make it another".into(),
            Self::Mix { .. } => "name sources with weights above 0: mix = { explored = 3, file = 1 }".into(),
            Self::BadTraces { .. } => {
                "a conversation is {\"messages\": […]} in OpenAI's format, one per line or in one JSON array".into()
            }
            Self::Parquet { .. } => "a Parquet file of tasks needs a column `task` with texts".into(),
            Self::NothingLeft { .. } => {
                "raise `max_pass_rate` or lower `min_pass_rate`; tries are kept, so that the stage does not repeat them".into()
            }
            Self::PassRates { .. } => "lower `min_pass_rate`, or raise `max_pass_rate`; above 1 it refuses no task".into(),
            Self::NoTries => "set `tries`, or remove `policy`, so that the stage does not wait for it".into(),
            Self::NoPrices => {
                "set prices = { prompt = …, completion = … } of the stage, in dollars per million tokens".into()
            }
            Self::UnknownExample { near: Some(near), .. } => format!("did you mean `{near}`?"),
            Self::UnknownExample { known, .. } => {
                format!("a key is the name of a parameter, or `tool.parameter`; parameters: {known}")
            }
            Self::UnfitExample { .. } => "remove the value, or name the tool whose parameter takes it: \"tool.parameter\" = […]".into(),
            Self::SplitByServer => "write the tasks in a file, with `server` in each: file = \"tasks.jsonl\"".into(),
            _ => return None,
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::Read { .. }
            | Self::Entities { .. }
            | Self::Nothing { .. }
            | Self::NothingAdmitted { .. }
            | Self::NothingLeft { .. } => Class::Work,
            _ => Class::Usage,
        }
    }
}
