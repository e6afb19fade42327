use std::path::PathBuf;

use crate::error::{Class, Diagnostic};

/// Errors of a run as a whole.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "exec::", serialize_all = "snake_case")]
pub enum ExecError {
    #[error("there is no run in {cache}")]
    #[strum(serialize = "no_run")]
    NoRuns { cache: PathBuf },
    #[error("there is no run \"{id}\"")]
    NoRun { id: String, near: Option<String> },
    #[error("run \"{run}\" has no stage \"{stage}\"")]
    NoStage { run: String, stage: String, near: Option<String> },
    #[error("{path} is not a valid run description: {problem}")]
    BadRun { path: PathBuf, problem: String },
    #[error("stage \"{stage}\" crashed: {message}")]
    Crashed { stage: String, message: String },
    #[error("{path} changed since stage \"{stage}\" was planned")]
    FileChanged { stage: String, path: String },
    #[error("{path}, named by the server's command, changed since stage \"{stage}\" was planned")]
    ServerChanged { stage: String, path: String },
    #[error("{trained} trains on a task that {compared} compares policies on{}", task_text(task))]
    TrainsOnHeldOut {
        trained: String,
        compared: String,
        /// Empty if they read the same tasks.
        task: String,
    },
    #[error("cannot start worker threads")]
    Threads(#[source] std::io::Error),
    #[error("the worker gives stage \"{stage}\" another key")]
    OtherKey { stage: String },
}

fn task_text(task: &str) -> String {
    if task.is_empty() { String::new() } else { format!(": \"{task}\"") }
}

impl Diagnostic for ExecError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoRun { near: Some(near), .. } | Self::NoStage { near: Some(near), .. } => {
                format!("did you mean \"{near}\"?")
            }
            Self::NoRuns { .. } => {
                "start one with `mcprl run FILE`, or name another cache with --cache or MCPRL_CACHE".into()
            }
            Self::NoRun { near: None, .. } => "`mcprl runs` lists the runs in this cache".into(),
            Self::NoStage { near: None, run, .. } => format!("`mcprl show {run}` lists its stages"),
            Self::BadRun { .. } => "run the run file again: finished stages are taken from the cache".into(),
            Self::Crashed { .. } => "this is a bug in the stage; results of other stages are kept".into(),
            Self::FileChanged { .. } => "run again to use the file as it is now".into(),
            Self::ServerChanged { .. } => {
                "run again if you edited it; if the server writes to it, pass its path through `server.env`, whose values \
                 count as written"
                    .into()
            }
            Self::TrainsOnHeldOut { .. } => {
                "make both sets with one `scenarios` stage, whose `train` and `heldout` have no task in common; to measure \
                 success on training tasks on purpose, compare on the table that is trained on"
                    .into()
            }
            Self::OtherKey { .. } => {
                "a file or a variable that the run file names is another one there, or has changed since the run began; run again to use \
                 it as it is now"
                    .into()
            }
            Self::Threads(_) => return None,
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::NoRun { .. } | Self::NoRuns { .. } | Self::NoStage { .. } => Class::Usage,
            _ => Class::Work,
        }
    }
}
