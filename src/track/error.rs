use std::path::PathBuf;

use crate::error::{Class, Diagnostic};

/// Errors of trackers.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "track::", serialize_all = "snake_case")]
pub enum TrackError {
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot start the thread that updates trackers")]
    Thread(#[source] std::io::Error),
    #[error("not everything could be sent in time")]
    Late { command: String },
    #[error("stopped before everything was sent")]
    Stopped { command: String },
    #[error("cannot write the database {path}")]
    Database {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("the program `{program}` is not installed")]
    NoProgram { program: &'static str },
    #[error("cannot start `{program}`")]
    Start {
        program: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("`{program}` failed: {message}")]
    Program { program: &'static str, message: String },
    #[error("run \"{run}\" names no tracker")]
    NoTracker { run: String },
    #[error("\"{text}\" is no tracker: {reason}")]
    UnknownTracker { text: String, reason: String, near: Option<&'static str> },
}

impl Diagnostic for TrackError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Write { .. } => "check the permissions and the free space of its folder".into(),
            Self::Thread(_) | Self::Start { .. } => return None,
            Self::Database { .. } => {
                "if a trackio before 0.24 made it, open it once with a newer `trackio show`".into()
            }
            Self::NoProgram { program } => {
                format!("`pip install {program}` installs it; mode = \"offline\" needs no program")
            }
            Self::Program { program, .. } => {
                format!("check `{program} login` and the connection; what was written is kept")
            }
            Self::Late { command } | Self::Stopped { command } => format!("`{command}` sends the rest"),
            Self::NoTracker { run } => {
                format!("`mcprl track {run} --to tensorboard` names one, or [track] in the run file")
            }
            Self::UnknownTracker { near: Some(near), .. } => format!("did you mean `{near}`?"),
            Self::UnknownTracker { near: None, .. } => {
                "for example `--to tensorboard`, `--to tensorboard=logs` or `--to wandb=online`".into()
            }
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::NoTracker { .. } | Self::UnknownTracker { .. } => Class::Usage,
            _ => Class::Work,
        }
    }
}
