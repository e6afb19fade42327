use std::path::PathBuf;

use crate::error::{Class, Diagnostic};

/// Errors in the source of tasks.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("source = \"{origin}\" needs the parameter `{param}`")]
    NoParam { origin: &'static str, param: &'static str },
    #[error("{file}: {problem}")]
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
    #[error("scenario {id} belongs to family \"{family}\", which the families file does not declare")]
    UnknownFamily { id: String, family: String },
    #[error("no scenario has a reference solution to learn from")]
    NoReference,
}

impl Diagnostic for ScenarioError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "scenarios::read",
            Self::NoParam { .. } => "scenarios::param",
            Self::Syntax { .. } | Self::Families { .. } => "scenarios::families",
            Self::Entities { .. } => "scenarios::entities",
            Self::Nothing { .. } => "scenarios::nothing",
            Self::BadLines { .. } => "scenarios::bad_lines",
            Self::Empty { .. } => "scenarios::empty",
            Self::UnknownFamily { .. } => "scenarios::unknown_family",
            Self::NoReference => "scenarios::no_reference",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoParam { origin: "file", .. } => {
                "name a JSON or JSONL file of tasks: file = \"tasks.jsonl\"".into()
            }
            Self::NoParam { .. } => "name the families file: families = \"my.families.toml\"".into(),
            Self::BadLines { .. } | Self::Empty { .. } => {
                "a task is {\"task\": \"…\", \"answer\": \"…\"}, one per line or in one JSON array; `answer`, `check`, \
                 `split` and `family` may be missing"
                    .into()
            }
            Self::Entities { .. } => "try the call by hand; [results] defines how its answer is parsed".into(),
            Self::Nothing { .. } => "try the calls under `solve` by hand".into(),
            Self::UnknownFamily { .. } => {
                "give the warm-up the families file that the scenarios were made from".into()
            }
            Self::NoReference => "the warm-up needs scenarios with source = \"grounded\"".into(),
            _ => return None,
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::NoParam { .. }
            | Self::Syntax { .. }
            | Self::Families { .. }
            | Self::BadLines { .. }
            | Self::Empty { .. }
            | Self::UnknownFamily { .. }
            | Self::NoReference => Class::Usage,
            Self::Read { .. } | Self::Entities { .. } | Self::Nothing { .. } => Class::Work,
        }
    }
}
