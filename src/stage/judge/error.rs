use crate::error::{Class, Diagnostic};

/// Errors of the stage `judge`.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "judge::", serialize_all = "snake_case")]
pub(super) enum JudgeStageError {
    #[error("trajectory {trajectory} belongs to scenario {scenario}, which is not in the scenarios table")]
    UnknownScenario { trajectory: String, scenario: String },
    #[error("the reward of trajectory {trajectory} is not a finite number: {components}")]
    NotFinite { trajectory: String, components: String },
    #[error("no scenario has a known answer, and no language model judges")]
    NothingToGoBy,
    #[error(
        "only {known} of the {scenarios} scenarios have a known answer: attempts at the others get no reward"
    )]
    LittleToGoBy { known: usize, scenarios: usize },
    #[error("`weights.{name}` is {value}, and should be a number of 0 or more")]
    Weight { name: &'static str, value: f64 },
    #[error("no part of the reward has a weight, so a right answer earns no more than a wrong one")]
    NothingEarned,
    #[error("`{judge}` is used, but `{param}` is not set")]
    NoModel { judge: &'static str, param: &'static str },
    #[error("the criteria of the rubric cannot be used: {problem}")]
    Criteria { problem: String },
    #[error("the gates cannot be used: {problem}")]
    Gates { problem: String },
    #[error("`max_cost` is set, but the prices of the judge's tokens are not")]
    NoPrices,
    #[error("the judge's program `{program}` cannot be started: {problem}")]
    NoProgram { program: String, problem: String },
}

impl Diagnostic for JudgeStageError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::UnknownScenario { .. } => "give the judge the same scenarios as the rollout".into(),
            Self::NotFinite { .. } => "lower the weights and costs of the stage: rewards are 32-bit numbers".into(),
            Self::NothingToGoBy | Self::LittleToGoBy { .. } => {
                "set `weights = { relative = 1.0 }`, and `base_url` and `model` or `local_model`, to use a language model as judge, or `weights = { labels = 1.0 }` and `labels_file` to use labels of people".into()
            }
            Self::Weight { .. } => "0 leaves a part out, and `veto = false` lets a judge overrule the known answer".into(),
            Self::NothingEarned => {
                "give `truth` a weight, or `relative` with `base_url` and `model` or `local_model`".into()
            }
            Self::NoModel { judge, param: "base_url" | "model" } => format!(
                "set `base_url` and `model` to ask an endpoint, or `local_model` to a model that the engine runs, or `weights.{judge} = 0`"
            ),
            Self::NoModel { judge, param } => format!("set `{param}` of the stage, or `weights.{judge} = 0`"),
            Self::Criteria { .. } => {
                "write criteria = { NAME = \"what is good\" }, or { NAME = { about = \"…\", weight = 2 } }".into()
            }
            Self::Gates { .. } => {
                "write gates = { \"rubric.NAME\" = { below = 0.5 } }; other names are relative, rubric, command, labels, empty, hedging, copied and injection".into()
            }
            Self::NoPrices => "set prices = { prompt = …, completion = … } of the stage, in dollars per million tokens".into(),
            Self::NoProgram { .. } => "set `interpreter`, such as [\"python3\"], or make the file executable".into(),
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::UnknownScenario { .. } => Class::Work,
            _ => Class::Usage,
        }
    }
}
