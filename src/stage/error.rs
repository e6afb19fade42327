use std::{io::ErrorKind, path::PathBuf};

use crate::error::Diagnostic;

/// Errors in a card, or in how a stage is used.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "stage")]
pub enum StageError {
    #[error("{place}: {problem}")]
    #[diagnostic(class = usage)]
    Card { place: String, problem: String },
    #[error("{place}: {problem}")]
    #[diagnostic(code = "card", class = usage)]
    CardSyntax { place: String, problem: String },
    #[error("{place}: the system prompt is no part of a card")]
    #[diagnostic(code = "card")]
    #[hint = "move system.jinja out of the card's folder, remove its line from [files], and name it in the run file: \
        [agent] system = \"system.jinja\""]
    SystemPrompt { place: String },
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("parameter `{name}`: {problem}")]
    Param { name: String, problem: String },
    #[error("missing input `{role}`")]
    #[diagnostic(code = "input")]
    NoInput { role: String },
    #[error("input `{role}` takes one artifact, found several")]
    #[diagnostic(code = "input")]
    ManyInputs { role: String },
    #[error("the card declares no output `{port}` of type {artifact}")]
    #[diagnostic(class = usage)]
    #[hint = "an edited card of a built-in kind keeps its outputs; `mcprl stage show KIND` lists them"]
    NoPort { port: String, artifact: String },
    #[error("kind \"{kind}\" is not built in")]
    #[hint = "`mcprl stage list` lists all kinds"]
    NotBuiltIn { kind: String },
    #[error("cannot start `{command}`")]
    #[diagnostic(class = usage if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied))]
    #[hint("check that you may run the program; `chmod +x` makes a script executable" if source.kind() == ErrorKind::PermissionDenied)]
    #[hint = "check the name, and that the program is installed"]
    Start { command: String, source: std::io::Error },
    #[error("`{command}` needs {file}, which does not exist")]
    #[diagnostic(class = usage)]
    #[hint = "a file that a command names belongs into the card's folder"]
    NoCode { command: String, file: String },
    #[error("cannot start `{command}`: {file} is not executable")]
    #[diagnostic(code = "start", class = usage)]
    #[hint = "`chmod +x {file}`, or begin the card's `command` with its interpreter"]
    NotExecutable { command: String, file: String },
    #[error("`{command}` ended with {status}{}{tail}", if tail.is_empty() { "" } else { "\n" })]
    #[diagnostic(transient)]
    Command { command: String, status: String, tail: String },
    #[error("output `{port}` was not written: {path} is missing")]
    #[hint = "the card says in [outputs] which files the stage writes"]
    NoOutput { port: String, path: String },
    #[error("what `{command}` wrote to ${variable} is not a JSON object of numbers: {problem}")]
    Metrics { command: String, variable: &'static str, problem: String },
}
