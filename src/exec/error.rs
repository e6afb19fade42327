use std::path::PathBuf;

use crate::error::Diagnostic;

/// Errors of a run as a whole.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "exec")]
pub enum ExecError {
    #[error("there is no run in {cache}")]
    #[diagnostic(code = "no_run", class = usage)]
    #[hint = "start one with `mcprl run FILE`, or name another cache with --cache or MCPRL_CACHE"]
    NoRuns { cache: PathBuf },
    #[error("there is no run \"{id}\"")]
    #[diagnostic(class = usage)]
    #[hint("did you mean \"{near}\"?" if let Some(near) = near)]
    #[hint = "`mcprl runs` lists the runs in this cache"]
    NoRun { id: String, near: Option<String> },
    #[error("run \"{run}\" has no stage \"{stage}\"")]
    #[diagnostic(class = usage)]
    #[hint("did you mean \"{near}\"?" if let Some(near) = near)]
    #[hint = "`mcprl show {run}` lists its stages"]
    NoStage { run: String, stage: String, near: Option<String> },
    #[error("{path} is not a valid run description: {problem}")]
    #[hint = "run the run file again: finished stages are taken from the cache"]
    BadRun { path: PathBuf, problem: String },
    #[error("output {artifact} of run \"{run}\" is unusable: {problem}")]
    #[hint = "make it again with `mcprl resume {run}`"]
    Unusable { run: String, artifact: String, problem: String },
    #[error("stage \"{stage}\" crashed: {message}")]
    #[hint = "this is a bug in the stage; results of other stages are kept"]
    Crashed { stage: String, message: String },
    #[error("stage \"{stage}\" waits for one that never runs")]
    #[hint = "this is a bug; results of finished stages are kept"]
    Stuck { stage: String },
    #[error("{path} changed since stage \"{stage}\" was planned")]
    #[hint = "run again to use the file as it is now"]
    FileChanged { stage: String, path: String },
    #[error("{path}, named by the server's command or `env`, changed since stage \"{stage}\" was planned")]
    #[hint = "run again if you edited it; if the server writes to it, name it by a variable, as in \
        `env = {{ NAME = \"${{NAME}}\" }}`: it counts as written"]
    ServerChanged { stage: String, path: String },
    #[error("{path}, which the server reads, has changed since the run began: {}", if *is_counted {
        "stages that use the server run again"
    } else {
        "finished stages keep their tasks, and an exam that is still to run leaves out those that no longer hold"
    })]
    #[hint = "restore the file to go on as the run began; `--resample` with the stage that makes the tasks makes them again"]
    DataChanged { path: String, is_counted: bool },
    #[error("{trained} trains on a task that {compared} compares policies on{}", task_text(task))]
    #[hint = "make both sets with one `scenarios` stage, or name the exam's tasks in the other one, as in \
        `held_out = \"questions.heldout\"`: it asks nothing that they ask; to measure success on training tasks on purpose, \
        compare on the table that is trained on"]
    TrainsOnHeldOut {
        trained: String,
        compared: String,
        /// Empty if they read the same tasks.
        task: String,
    },
    #[error("cannot start worker threads")]
    Threads(#[source] std::io::Error),
    #[error("the worker gives stage \"{stage}\" another key")]
    #[hint = "a file or a variable that the run file names is another one there, or has changed since the run began; run again to use \
        it as it is now"]
    OtherKey { stage: String },
}

fn task_text(task: &str) -> String {
    if task.is_empty() { String::new() } else { format!(": \"{task}\"") }
}
