use std::{io::ErrorKind, path::PathBuf};

use crate::error::{Class, Diagnostic};

/// Errors in a card, or in how a stage is used.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "stage::", serialize_all = "snake_case")]
pub enum StageError {
    #[error("{place}: {problem}")]
    Card { place: String, problem: String },
    #[error("{place}: {problem}")]
    #[strum(serialize = "card")]
    CardSyntax { place: String, problem: String },
    #[error("{place}: the system prompt is no part of a card")]
    #[strum(serialize = "card")]
    SystemPrompt { place: String },
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("parameter `{name}`: {problem}")]
    Param { name: String, problem: String },
    #[error("missing input `{role}`")]
    #[strum(serialize = "input")]
    NoInput { role: String },
    #[error("input `{role}` takes one artifact, found several")]
    #[strum(serialize = "input")]
    ManyInputs { role: String },
    #[error("the card declares no output `{port}` of type {artifact}")]
    NoPort { port: String, artifact: String },
    #[error("kind \"{kind}\" is not built in")]
    NotBuiltIn { kind: String },
    #[error("cannot start `{command}`")]
    Start { command: String, source: std::io::Error },
    #[error("`{command}` needs {file}, which does not exist")]
    NoCode { command: String, file: String },
    #[error("cannot start `{command}`: {file} is not executable")]
    #[strum(serialize = "start")]
    NotExecutable { command: String, file: String },
    #[error("`{command}` ended with {status}{}{tail}", if tail.is_empty() { "" } else { "\n" })]
    Command { command: String, status: String, tail: String },
    #[error("output `{port}` was not written: {path} is missing")]
    NoOutput { port: String, path: String },
    #[error("what `{command}` wrote to ${variable} is not a JSON object of numbers: {problem}")]
    Metrics { command: String, variable: &'static str, problem: String },
}

impl Diagnostic for StageError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoPort { .. } => {
                "an edited card of a built-in kind keeps its outputs; `mcprl stage show KIND` lists them"
                    .into()
            }
            Self::SystemPrompt { .. } => {
                "move system.jinja out of the card's folder, remove its line from [files], and name it in the run file: \
                 [agent] system = \"system.jinja\""
                    .into()
            }
            Self::NotBuiltIn { .. } => "`mcprl stage list` lists all kinds".into(),
            Self::Start { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
                "check that you may run the program; `chmod +x` makes a script executable".into()
            }
            Self::Start { .. } => "check the name, and that the program is installed".into(),
            Self::NoCode { .. } => "a file that a command names belongs into the card's folder".into(),
            Self::NotExecutable { file, .. } => {
                format!("`chmod +x {file}`, or begin the card's `command` with its interpreter")
            }
            Self::NoOutput { .. } => "the card says in [outputs] which files the stage writes".into(),
            _ => return None,
        })
    }

    fn is_transient(&self) -> bool {
        matches!(self, Self::Command { .. })
    }

    fn class(&self) -> Class {
        match self {
            Self::Card { .. }
            | Self::CardSyntax { .. }
            | Self::NoPort { .. }
            | Self::NoCode { .. }
            | Self::NotExecutable { .. } => Class::Usage,
            Self::Start { source, .. }
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                Class::Usage
            }
            _ => Class::Work,
        }
    }
}
