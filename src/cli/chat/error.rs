//! What keeps a chat from going on.

use std::path::PathBuf;

use crate::error::{Class, Diagnostic};

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "talk::", serialize_all = "snake_case")]
pub enum TalkError {
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
    #[error("{url} is an endpoint, and no model is named")]
    NoModelName { url: String },
    #[error("`--model` names a model behind an endpoint, and `{subject}` is no address of one")]
    NoEndpoint { subject: String },
    #[error("cannot read from the terminal: {reason}")]
    Terminal { reason: String },
}

impl Diagnostic for TalkError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Trace { .. } => "name a folder that you may write with `--trace-dir DIR`".into(),
            Self::Replay { .. } => {
                "a trace is one line of JSON with `messages`, as `--trace-dir` writes it".into()
            }
            Self::Tasks { .. } => "write one task per line, or JSON: {\"task\": \"…\"}".into(),
            Self::NoModelName { url } => {
                format!("name it with `--model NAME`; `curl {url}/models` lists those that it has")
            }
            Self::NoEndpoint { .. } => {
                "write the address up to and including the version, as http://localhost:8000/v1".into()
            }
            Self::Read { .. } | Self::Terminal { .. } => return None,
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::Trace { .. } | Self::Terminal { .. } => Class::Work,
            _ => Class::Usage,
        }
    }
}
