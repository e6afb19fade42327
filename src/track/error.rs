use std::path::PathBuf;

use crate::error::Diagnostic;

/// Errors of trackers.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "track")]
pub enum TrackError {
    #[error("cannot write {path}")]
    #[hint = "check the permissions and the free space of its folder"]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot start the thread that updates trackers")]
    Thread(#[source] std::io::Error),
    #[error("not everything could be sent in time")]
    #[hint = "`{command}` sends the rest"]
    Late { command: String },
    #[error("stopped before everything was sent")]
    #[hint = "`{command}` sends the rest"]
    Stopped { command: String },
    #[error("cannot write the database {path}")]
    #[hint = "if a trackio before 0.24 made it, open it once with a newer `trackio show`"]
    Database { path: PathBuf, source: rusqlite::Error },
    #[error("the program `{program}` is not installed")]
    #[hint = "`pip install {program}` installs it; mode = \"offline\" needs no program"]
    NoProgram { program: &'static str },
    #[error("cannot start `{program}`")]
    Start { program: &'static str, source: std::io::Error },
    #[error("`{program}` failed: {message}")]
    #[hint = "check `{program} login` and the connection; what was written is kept"]
    Program { program: &'static str, message: String },
    #[error("run \"{run}\" names no tracker")]
    #[diagnostic(class = usage)]
    #[hint = "`mcprl track {run} --to tensorboard` names one, or [track] in the run file"]
    NoTracker { run: String },
    #[error("\"{text}\" is no tracker: {reason}")]
    #[diagnostic(class = usage)]
    #[hint("did you mean `{near}`?" if let Some(near) = near)]
    #[hint = "for example `--to tensorboard`, `--to tensorboard=logs` or `--to wandb=online`"]
    UnknownTracker { text: String, reason: String, near: Option<&'static str> },
}
