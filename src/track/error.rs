use std::path::PathBuf;

use crate::{
    data::DataError,
    error::{Class, Diagnostic},
};

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
    #[error("cannot set up an HTTP client")]
    #[strum(serialize = "http_client")]
    Client(#[source] reqwest::Error),
    #[error("{url} cannot be reached")]
    Unreachable {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{url} answered with status {status}: {body}")]
    Status { url: String, status: u16, body: String },
    #[error("{url} sent a reply that cannot be read")]
    Reply { url: String },
    #[error("the environment variable {variable}, which should contain the token, is not set")]
    NoToken { variable: String },
    #[error("what {variable} contains would be sent unencrypted to {url}")]
    Unencrypted { url: String, variable: String },
    #[error("the header {name} cannot be sent: {problem}")]
    Header { name: String, problem: String },
    #[error("{url} rejected {spans} spans: {problem}")]
    Rejected { url: String, spans: u64, problem: String },
    #[error("cannot read the episodes")]
    Episodes(#[source] Box<DataError>),
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
            Self::Thread(_) | Self::Start { .. } | Self::Client(_) => return None,
            Self::Unreachable { .. } => "check that it is up and that its address is right".into(),
            Self::Status { status: 401 | 403, .. } => "check the token, or the user and password".into(),
            Self::Status { .. } | Self::Reply { .. } => {
                "check that the address is that of this tracker".into()
            }
            Self::NoToken { variable } => format!("export {variable}=…, or name another variable"),
            Self::Unencrypted { .. } => {
                "use https://; plain http is allowed for localhost, and without credentials".into()
            }
            Self::Header { .. } => "`headers` in [track] otlp takes values like \"Bearer ${TOKEN}\"".into(),
            Self::Rejected { .. } => "its own log may say why; they are not sent again".into(),
            Self::Episodes(_) => "`mcprl cache verify` finds damaged artifacts".into(),
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
                "for example `--to tensorboard`, `--to tensorboard=logs` or `--to otlp=http://127.0.0.1:4318`"
                    .into()
            }
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::NoTracker { .. }
            | Self::UnknownTracker { .. }
            | Self::NoToken { .. }
            | Self::Header { .. }
            | Self::Unencrypted { .. } => Class::Usage,
            _ => Class::Work,
        }
    }

    fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Status { status: 408 | 429 | 500.., .. })
    }
}
