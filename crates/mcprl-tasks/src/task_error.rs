use std::path::PathBuf;

use crate::error::Diagnostic;

/// What is wrong with tasks, or with what they are made of.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "scenarios", class = usage)]
pub enum TaskError {
    #[error("cannot read {path}")]
    #[diagnostic(class = work)]
    Read { path: PathBuf, source: std::io::Error },
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
    #[error("the held-out set is not the frozen one: its digest is {found} instead of {expected}")]
    #[diagnostic(code = "heldout_differs")]
    #[hint = "the server's data, the seed or a parameter has changed; put the new digest into `heldout_digest` if that is meant"]
    HeldOutDiffers { expected: String, found: String },
    #[error("{count} training {} held out: {task}", if *count == 1 { "task is" } else { "tasks are" })]
    #[diagnostic(code = "trains_on_heldout")]
    #[hint = "remove the task from one side; upper case and spaces do not make it another"]
    TrainsOnHeldOut { task: String, count: usize },
    #[error("the prompt `generate` cannot be rendered: {problem}")]
    Prompt { problem: String },
    #[error("{file}: {problem}")]
    #[diagnostic(code = "traces")]
    #[hint = "a conversation is {{\"messages\": […]}} in OpenAI's format, one per line or in one JSON array"]
    BadTraces { file: String, problem: String },
    #[error("{file}: {problem}")]
    #[hint = "a Parquet file of tasks needs a column `task` with texts"]
    Parquet { file: String, problem: String },
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
