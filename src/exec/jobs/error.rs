use crate::error::Diagnostic;

/// Errors of jobs on a batch system.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "jobs")]
pub enum JobError {
    #[error("executor `{executor}`: `{action}` of its template: {problem}")]
    #[diagnostic(class = usage)]
    #[hint = "`mcprl executors KIND` prints a template of this program to begin with"]
    Template { executor: String, action: &'static str, problem: String },
    #[error("executor `{executor}`: cannot {action}: {problem}")]
    Refused { executor: String, action: &'static str, problem: String },
    #[error("executor `{executor}` can never run this: {problem}")]
    #[diagnostic(class = usage)]
    #[hint = "ask for less in `executors.{executor}.resources`"]
    NoRoom { executor: String, problem: String },
    #[error("job {job} of executor `{executor}` was lost, as were those before it: {how}{}", said_text(said))]
    #[hint("nothing came from the node: the cache's folder, the program and the run file's files need the same paths there \
        (`program` and `setup` of the executor)" if said.is_empty())]
    #[hint = "`mcprl resume` goes on with the episodes that were recorded"]
    Lost { executor: String, job: String, how: String, said: String },
    #[error("the program of job {job} is another one than that of the run")]
    #[hint = "install the same one on the nodes, or name it with `program` of the executor"]
    OtherBuild { job: String },
}

fn said_text(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!("; its log ends: {said}") }
}
