use crate::error::Diagnostic;

/// Errors of the stage `judge`.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "judge", class = usage)]
pub(super) enum JudgeStageError {
    #[error("trajectory {trajectory} belongs to scenario {scenario}, which is not in the scenarios table")]
    #[diagnostic(class = work)]
    #[hint = "give the judge the same scenarios as the rollout"]
    UnknownScenario { trajectory: String, scenario: String },
    #[error("the reward of trajectory {trajectory} is not a finite number: {components}")]
    #[hint = "lower the weights and costs of the stage: rewards are 32-bit numbers"]
    NotFinite { trajectory: String, components: String },
    #[error("no scenario has a known answer, and no language model judges")]
    #[hint = "set `weights = {{ relative = 1.0 }}`, and `base_url` and `model` or `local_model`, to use a language model as judge, `weights = {{ labels = 1.0 }}` and `labels_file` to use labels of people, or `weights = {{ consensus = 1.0 }}` for what attempts agree on"]
    NothingToGoBy,
    #[error("only {known} of the {scenarios} scenarios have a known answer; the others are not trained on")]
    #[hint = "set `weights = {{ relative = 1.0 }}`, and `base_url` and `model` or `local_model`, to use a language model as judge, `weights = {{ labels = 1.0 }}` and `labels_file` to use labels of people, or `weights = {{ consensus = 1.0 }}` for what attempts agree on"]
    LittleToGoBy { known: usize, scenarios: usize },
    #[error(
        "{known} of the tasks have a known answer, so it is hardly measured whether the judges reward what is right"
    )]
    #[hint = "{least} or more make it so: explored tasks have answers, as with `mix = {{ file = 1, explored = 1 }}` in the stage that makes the tasks"]
    LittleTrust { known: usize, least: usize },
    #[error("each task has one attempt, which has no other to agree with")]
    #[hint = "set `group_size` of the stage that plays them to 4 or more, or `weights.consensus = 0`"]
    Alone,
    #[error("`weights.{name}` is {value}, and should be a number of 0 or more")]
    #[hint = "0 leaves a part out, and `veto = false` lets a judge overrule the known answer"]
    Weight { name: &'static str, value: f64 },
    #[error("no part of the reward has a weight, so a right answer earns no more than a wrong one")]
    #[hint = "give `truth` or `consensus` a weight, or `relative` with `base_url` and `model` or `local_model`"]
    NothingEarned,
    #[error("`{judge}` is used, but `{param}` is not set")]
    #[hint("set `base_url` and `model` to ask an endpoint, or `local_model` to a model that the engine runs, or `weights.{judge} = 0`" if matches!(*param, "base_url" | "model"))]
    #[hint = "set `{param}` of the stage, or `weights.{judge} = 0`"]
    NoModel { judge: &'static str, param: &'static str },
    #[error("the criteria of the rubric cannot be used: {problem}")]
    #[hint = "write criteria = {{ NAME = \"what is good\" }}, or {{ NAME = {{ about = \"…\", weight = 2 }} }}"]
    Criteria { problem: String },
    #[error("the gates cannot be used: {problem}")]
    #[hint = "write gates = {{ \"rubric.NAME\" = {{ below = 0.5 }} }}"]
    Gates { problem: String },
    #[error("`max_cost` is set, but the prices of the judge's tokens are not")]
    #[hint = "set prices = {{ prompt = …, completion = … }} of the stage, in dollars per million tokens"]
    NoPrices,
    #[error("the judge's program `{program}` cannot be started: {problem}")]
    #[hint = "set `interpreter`, such as [\"python3\"], or make the file executable"]
    NoProgram { program: String, problem: String },
}
