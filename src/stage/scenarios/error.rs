use crate::error::Diagnostic;

/// What is wrong with a stage that makes tasks.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "scenarios", class = usage)]
pub enum ScenariosError {
    #[error("source = \"{origin}\" needs the parameter `{param}`")]
    #[diagnostic(code = "param")]
    #[hint("name a JSON or JSONL file of tasks: file = \"tasks.jsonl\"" if *origin == "file")]
    #[hint("name sources with weights: mix = {{ explored = 3, file = 1 }}" if *origin == "mix")]
    #[hint("name a file of conversations: traces = \"chats.jsonl\"" if *origin == "traces")]
    #[hint("name an OpenAI-compatible endpoint and its model: base_url = \"http://127.0.0.1:8000/v1\", model = \"…\"; or a \
        model that the engine runs: local_model = \"base\"" if *origin == "llm")]
    #[hint = "name the families file: families = \"my.families.toml\""]
    NoParam { origin: &'static str, param: &'static str },
    #[error("no candidate was admitted: {account}")]
    #[diagnostic(class = work)]
    #[hint("raise `{limit}`, which ended exploration" if let Some(limit) = limit)]
    #[hint = "write tasks of your own (source = \"file\"), or give the server some state; only tools that are safe to call are \
        explored (docs/guides/scenarios.md)"]
    NothingAdmitted { account: String, limit: Option<&'static str> },
    #[error("`mix`: {problem}")]
    #[hint = "name sources with weights above 0: mix = {{ explored = 3, file = 1 }}"]
    Mix { problem: String },
    #[error("`max_cost` is set, but the prices of the language model's tokens are not")]
    #[hint = "set prices = {{ prompt = …, completion = … }} of the stage, in dollars per million tokens"]
    NoPrices,
    #[error("no training task is left: the policy solves all {tasks} too often or too seldom")]
    #[diagnostic(class = work)]
    #[hint = "raise `max_pass_rate` or lower `min_pass_rate`; tries are kept, so that the stage does not repeat them"]
    NothingLeft { tasks: usize },
    #[error("no training task is left: {votes} attempts agree on the answer of none of {tasks}")]
    #[diagnostic(class = work)]
    #[hint = "let a stronger model vote with `answers_from` or `answers_endpoint`; attempts are kept, so that the stage does not repeat them"]
    NoAgreement { tasks: usize, votes: u32 },
    #[error("{tasks} tasks have no answer, so {votes} attempts at each vote on it: {} episodes", *tasks as u64 * u64::from(*votes))]
    #[hint = "`answers_votes` says how many vote"]
    Voting { tasks: usize, votes: u32 },
    #[error("every training task has an answer, so none is voted on")]
    #[hint = "leave out `answers_from` or `answers_endpoint`, so that the stage does not wait for it"]
    NothingOpen,
    #[error("both `answers_from` and `answers_endpoint` are set")]
    #[hint = "leave one of them out"]
    TwoVoters,
    #[error("no pass rate is from {min} on and below {max}")]
    #[hint = "lower `min_pass_rate`, or raise `max_pass_rate`; above 1 it refuses no task"]
    PassRates { min: f64, max: f64 },
    #[error("`policy` is set, but `tries` is 0")]
    #[hint = "set `tries`, or remove `policy`, so that the stage does not wait for it"]
    NoTries,
    #[error("split_by = \"server\" is for tasks that name their server")]
    #[hint = "write the tasks in a file, with `server` in each: file = \"tasks.jsonl\""]
    SplitByServer,
}
