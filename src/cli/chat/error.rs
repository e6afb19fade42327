//! What keeps a chat from going on.

use std::path::PathBuf;

use crate::error::{Class, Diagnostic};

#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    #[error("{model} is a model, and no server is named")]
    NoServer { model: String },
    #[error("`{option}` applies only to {to}")]
    Stray { option: &'static str, to: &'static str },
    #[error("there is no run of {file}")]
    NoRun { file: PathBuf },
    #[error("the run file of \"{run}\" cannot be read")]
    NoSpec { run: String },
    #[error("run \"{run}\" has no finished stage that plays episodes")]
    NoEpisodes { run: String },
    #[error("run \"{run}\" has no policy \"{name}\"")]
    NoPolicy { run: String, name: String, known: Vec<String> },
    #[error("`{option} {glob}` fits none of the tools")]
    Rule { option: &'static str, glob: String, tools: Vec<String> },
    #[error("the chat template cannot carry a second message of the user")]
    OneMessage,
    #[error("cannot write the trace {path}")]
    Trace {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not a trace: {reason}")]
    Replay { path: PathBuf, reason: String },
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} has no tasks: {reason}")]
    Tasks { path: PathBuf, reason: String },
    #[error("cannot make a temporary folder")]
    Scratch(#[source] std::io::Error),
    #[error("cannot read from the terminal: {reason}")]
    Terminal { reason: String },
}

impl Diagnostic for TalkError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoServer { .. } => "talk::no_server",
            Self::Stray { .. } => "talk::option",
            Self::NoRun { .. } => "talk::no_run",
            Self::NoSpec { .. } => "talk::no_spec",
            Self::NoEpisodes { .. } => "talk::no_episodes",
            Self::NoPolicy { .. } => "talk::no_policy",
            Self::Rule { .. } => "talk::rule",
            Self::OneMessage => "talk::one_message",
            Self::Trace { .. } => "talk::trace",
            Self::Replay { .. } => "talk::replay",
            Self::Read { .. } => "talk::read",
            Self::Tasks { .. } => "talk::tasks",
            Self::Scratch(_) => "talk::scratch",
            Self::Terminal { .. } => "talk::terminal",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoServer { .. } => {
                "name it with `--server FILE`, a run file or a client's mcp.json, or put its command behind `--`".into()
            }
            Self::NoRun { file } => {
                format!("train it with `mcprl run {}`, or name a model and its server", file.display())
            }
            Self::NoSpec { .. } => "name the model and `--server` instead".into(),
            Self::NoEpisodes { run } => format!("continue the run with `mcprl resume {run}`"),
            Self::NoPolicy { run, known, .. } => match known.as_slice() {
                [] => format!("`mcprl show {run}` lists its stages"),
                known => format!("it compares {}; a stage that writes a policy counts, too", known.join(", ")),
            },
            Self::Rule { tools, .. } => {
                format!("`*` stands for any letters; the tools are {}", tools.join(", "))
            }
            Self::OneMessage => "`/reset` starts another conversation".into(),
            Self::Trace { .. } => "name a folder that you may write with `--trace-dir DIR`".into(),
            Self::Replay { .. } => {
                "a trace is one line of JSON with `messages`, as `--trace-dir` writes it".into()
            }
            Self::Tasks { .. } => "write one task per line, or JSON: {\"task\": \"…\"}".into(),
            Self::Stray { .. } | Self::Read { .. } | Self::Scratch(_) | Self::Terminal { .. } => return None,
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::OneMessage | Self::Trace { .. } | Self::Scratch(_) | Self::Terminal { .. } => Class::Work,
            _ => Class::Usage,
        }
    }
}
