use std::path::PathBuf;

use crate::error::Diagnostic;

/// Errors in the source of tasks.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "scenarios", class = usage)]
pub enum ScenarioError {
    #[error("cannot read {path}")]
    #[diagnostic(class = work)]
    Read { path: PathBuf, source: std::io::Error },
    #[error("source = \"{origin}\" needs the parameter `{param}`")]
    #[diagnostic(code = "param")]
    #[hint("name a JSON or JSONL file of tasks: file = \"tasks.jsonl\"" if *origin == "file")]
    #[hint("name sources with weights: mix = {{ explored = 3, file = 1 }}" if *origin == "mix")]
    #[hint("name a file of conversations: traces = \"chats.jsonl\"" if *origin == "traces")]
    #[hint("name an OpenAI-compatible endpoint and its model: base_url = \"http://127.0.0.1:8000/v1\", model = \"…\"; or a \
        model that the engine runs: local_model = \"base\"" if *origin == "llm")]
    #[hint = "name the families file: families = \"my.families.toml\""]
    NoParam { origin: &'static str, param: &'static str },
    #[error("{file}: {problem}")]
    #[diagnostic(code = "families")]
    Syntax { file: String, problem: String },
    #[error("{file}: {place}: {problem}")]
    Families { file: String, place: String, problem: String },
    #[error("entities `{name}`: {problem}")]
    #[diagnostic(class = work)]
    #[hint = "try the call by hand; [results] defines how its answer is parsed"]
    Entities { name: String, problem: String },
    #[error("no question has an answer: {account}")]
    #[diagnostic(class = work)]
    #[hint = "try the calls under `solve` by hand"]
    Nothing { account: String },
    #[error("{file}: {count} bad {}\n{list}", if *count == 1 { "task" } else { "tasks" })]
    #[hint = "a task is {{\"task\": \"…\", \"answer\": \"…\"}}, one per line or in one JSON array; `answer`, `check`, \
        `split` and `family` may be missing"]
    BadLines { file: String, count: usize, list: String },
    #[error("{file} contains no task")]
    #[hint = "a task is {{\"task\": \"…\", \"answer\": \"…\"}}, one per line or in one JSON array; `answer`, `check`, \
        `split` and `family` may be missing"]
    Empty { file: String },
    #[error("no candidate was admitted: {account}")]
    #[diagnostic(class = work)]
    #[hint("raise `{limit}`, which ended exploration" if let Some(limit) = limit)]
    #[hint = "write tasks of your own (source = \"file\"), or give the server some state; only tools that are safe to call are \
        explored (docs/guides/scenarios.md)"]
    NothingAdmitted { account: String, limit: Option<&'static str> },
    #[error("the held-out set is not the frozen one: its digest is {found} instead of {expected}")]
    #[diagnostic(code = "heldout_differs")]
    #[hint = "the server's data, the seed or a parameter has changed; put the new digest into `heldout_digest` if that is meant"]
    HeldOutDiffers { expected: String, found: String },
    #[error("{count} training {} held out: {task}", if *count == 1 { "task is" } else { "tasks are" })]
    #[diagnostic(code = "trains_on_heldout")]
    #[hint = "remove the task from one side; upper case and spaces do not make it another"]
    TrainsOnHeldOut { task: String, count: usize },
    #[error("`mix`: {problem}")]
    #[hint = "name sources with weights above 0: mix = {{ explored = 3, file = 1 }}"]
    Mix { problem: String },
    #[error("the prompt `generate` cannot be rendered: {problem}")]
    Prompt { problem: String },
    #[error("`max_cost` is set, but the prices of the language model's tokens are not")]
    #[hint = "set prices = {{ prompt = …, completion = … }} of the stage, in dollars per million tokens"]
    NoPrices,
    #[error("{file}: {problem}")]
    #[diagnostic(code = "traces")]
    #[hint = "a conversation is {{\"messages\": […]}} in OpenAI's format, one per line or in one JSON array"]
    BadTraces { file: String, problem: String },
    #[error("{file}: {problem}")]
    #[hint = "a Parquet file of tasks needs a column `task` with texts"]
    Parquet { file: String, problem: String },
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
    #[error("`explore_writes` names `{name}`, which is no tool of the servers")]
    #[diagnostic(code = "explore_writes")]
    #[hint("did you mean `{near}`?" if let Some(near) = near)]
    #[hint = "true explores all tools that write and are not declared destructive; a list explores those that it names"]
    UnknownWriter { name: String, near: Option<String> },
    #[error("{place}: the check of the state {problem}")]
    #[diagnostic(code = "state_check")]
    #[hint("did you mean `{near}`?" if let Some(near) = near)]
    #[hint = "a check of the state is a call after the episode; name a tool that the server lists, and its arguments"]
    StateCheck { place: String, problem: String, near: Option<String> },
    #[error("`values.{name}` names no parameter of a tool")]
    #[diagnostic(code = "values")]
    #[hint("did you mean `{near}`?" if let Some(near) = near)]
    #[hint = "a key is the name of a parameter, or `tool.parameter`; parameters: {known}"]
    UnknownExample { name: String, near: Option<String>, known: String },
    #[error("`values.{name}` has {value}, but the parameter takes {expected}")]
    #[diagnostic(code = "values")]
    #[hint = "remove the value, or name the tool whose parameter takes it: \"tool.parameter\" = […]"]
    UnfitExample { name: String, value: String, expected: String },
}
