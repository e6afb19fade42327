use crate::error::{Class, Diagnostic};

/// Errors of jobs on a batch system.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "jobs::", serialize_all = "snake_case")]
pub enum JobError {
    #[error("executor `{executor}`: `{action}` of its template: {problem}")]
    Template { executor: String, action: &'static str, problem: String },
    #[error("executor `{executor}`: cannot {action}: {problem}")]
    Refused { executor: String, action: &'static str, problem: String },
    #[error("executor `{executor}` can never run this: {problem}")]
    NoRoom { executor: String, problem: String },
    #[error("job {job} of executor `{executor}` was lost, as were those before it: {how}{}", said_text(said))]
    Lost { executor: String, job: String, how: String, said: String },
    #[error("the program of job {job} is another one than that of the run")]
    OtherBuild { job: String },
}

fn said_text(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!("; its log ends: {said}") }
}

impl Diagnostic for JobError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Template { .. } => "`mcprl executors KIND` prints a template of this program to begin with".into(),
            Self::NoRoom { executor, .. } => format!("ask for less in `executors.{executor}.resources`"),
            Self::Lost { said, .. } if said.is_empty() => {
                "nothing came from the node: the cache's folder, the program and the run file's files need the same paths there \
                 (`program` and `setup` of the executor)"
                    .into()
            }
            Self::Lost { .. } => "`mcprl resume` goes on with the episodes that were recorded".into(),
            Self::Refused { .. } => return None,
            Self::OtherBuild { .. } => {
                "install the same one on the nodes, or name it with `program` of the executor".into()
            }
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::Template { .. } | Self::NoRoom { .. } => Class::Usage,
            _ => Class::Work,
        }
    }
}
