//! What can go wrong with a server, and what a person can do about it.

use std::{fmt, io, net::SocketAddr, time::Duration};

use super::{
    demo::{DatabaseError, KINDS},
    reference::BadReference,
};
use crate::error::{Class, Diagnostic};

#[derive(Debug, thiserror::Error)]
pub enum McpError {
    #[error("the server command is empty")]
    EmptyCommand,
    #[error("cannot start the server `{server}`")]
    Spawn {
        server: String,
        #[source]
        source: io::Error,
    },
    #[error("the server needs the environment variable `{variable}`, which is not set")]
    UnsetVariable { variable: String },
    #[error("a value {0}")]
    Reference(#[from] BadReference),
    #[error("`{url}` is not a server's address: {reason}")]
    Url { url: String, reason: String },
    #[error("the header `{name}` cannot be sent")]
    Header { name: String },
    #[error("cannot set up an HTTP client")]
    Client(#[source] reqwest::Error),
    #[error("the server `{server}` ended before it was ready{said}")]
    DiedAtStart { server: String, said: ServerOutput },
    #[error("the server `{server}` was not ready within {limit:?}{said}")]
    StartTimeout { server: String, limit: Duration, said: ServerOutput },
    #[error("the server `{server}` wants authorization")]
    Unauthorized { server: String },
    #[error("the server `{server}` did not introduce itself: {reason}{said}")]
    Handshake { server: String, reason: String, said: ServerOutput },
    #[error("the server `{server}` speaks MCP revision `{revision}`, which is not known here")]
    Revision { server: String, revision: String },
    #[error("cannot list the {what} of the server `{server}`: {reason}")]
    List { server: String, what: &'static str, reason: String },
    #[error("the server `{server}` is gone: {reason}{said}")]
    Lost { server: String, reason: String, said: ServerOutput },
    #[error("the server `{server}` refused a call with HTTP status {status}")]
    Refused { server: String, status: u16 },
    #[error("the tool `{tool}`, called before every episode to reset the server, failed: {reason}")]
    Reset { tool: String, reason: String },
    #[error("the server `{server}` had to be restarted more than {limit} times within a minute")]
    Restarts { server: String, limit: usize },
    #[error("the pool of sessions is closed")]
    PoolClosed,
    #[error("there is no demo server `{0}`")]
    UnknownDemo(String),
    #[error("the demo server listens on loopback only, not on {0}")]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {address}")]
    Bind {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the demo server failed")]
    Serve(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot build the demo server's database")]
    DemoDatabase(#[source] DatabaseError),
}

impl Diagnostic for McpError {
    fn code(&self) -> &'static str {
        match self {
            Self::EmptyCommand => "mcp::empty_command",
            Self::Spawn { .. } => "mcp::spawn",
            Self::UnsetVariable { .. } => "mcp::unset_variable",
            Self::Reference(_) => "mcp::reference",
            Self::Url { .. } => "mcp::url",
            Self::Header { .. } => "mcp::header",
            Self::Client(_) => "mcp::http_client",
            Self::DiedAtStart { .. } => "mcp::died_at_start",
            Self::StartTimeout { .. } => "mcp::start_timeout",
            Self::Unauthorized { .. } => "mcp::unauthorized",
            Self::Handshake { .. } => "mcp::handshake",
            Self::Revision { .. } => "mcp::revision",
            Self::List { .. } => "mcp::list",
            Self::Lost { .. } => "mcp::lost",
            Self::Refused { .. } => "mcp::refused",
            Self::Reset { .. } => "mcp::reset",
            Self::Restarts { .. } => "mcp::restarts",
            Self::PoolClosed => "mcp::pool_closed",
            Self::UnknownDemo(_) => "mcp::unknown_demo",
            Self::NotLoopback(_) => "mcp::not_loopback",
            Self::Bind { .. } => "mcp::bind",
            Self::Serve(_) => "mcp::serve",
            Self::DemoDatabase(_) => "mcp::demo_database",
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::EmptyCommand => {
                "write the program and its arguments: command = [\"my-server\", \"--stdio\"]"
            }
            Self::Spawn { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "is the program installed and on PATH, and does `cwd` exist? each argument is an item of its own"
            }
            Self::Spawn { .. } => "may this user run the program? `chmod +x` makes a script executable",
            Self::UnsetVariable { variable } => return Some(format!("export {variable}=…")),
            Self::Reference(cause) => return Some(cause.hint()),
            Self::Url { .. } => {
                "write https://host/path; plain http is for this machine, or for servers sent no secret"
            }
            Self::Header { .. } => {
                "header names and values are printable ASCII; MCP's own headers are not yours to set"
            }
            Self::DiedAtStart { .. } => "run the command in a terminal to see all it says",
            Self::StartTimeout { .. } => {
                "is it an MCP server that speaks over standard input and output? a slow one needs a longer start_timeout_s"
            }
            Self::Unauthorized { .. } => {
                "put a token in an environment variable and name it: bearer_env = \"MY_TOKEN\""
            }
            Self::Handshake { .. } => "is it an MCP server, and is the path of the URL right?",
            Self::Revision { .. } => "update mcprl, or ask the server for an older revision",
            Self::Lost { .. } => "resume goes on from the last finished episode",
            Self::Refused { status: 401 | 403 | 407, .. } => {
                "is the token still valid, and may it call tools? bearer_env names the variable that holds it"
            }
            Self::Refused { status: 429, .. } => {
                "the server limits how often it is called; lower `sessions` or `concurrency`"
            }
            Self::Refused { .. } => "is the server, and what stands before it, up?",
            Self::Reset { .. } => "a reset tool takes no arguments and reports no error",
            Self::Restarts { .. } => "the server keeps crashing under these calls; fewer sessions may help",
            Self::UnknownDemo(kind) => return Some(known_demos(kind)),
            Self::NotLoopback(address) => return Some(format!("--http 127.0.0.1:{}", address.port())),
            Self::Bind { .. } => "is another server using the port? port 0 takes a free one",
            Self::DemoDatabase(_) => "is the folder for temporary files (TMPDIR) writable, and not full?",
            Self::Client(_) | Self::List { .. } | Self::PoolClosed | Self::Serve(_) => return None,
        };
        Some(hint.into())
    }

    fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Refused { status: 408 | 429 | 500.., .. }
                | Self::DiedAtStart { .. }
                | Self::StartTimeout { .. }
                | Self::Handshake { .. }
                | Self::List { .. }
                | Self::Lost { .. }
                | Self::Restarts { .. }
        )
    }

    fn class(&self) -> Class {
        match self {
            Self::EmptyCommand
            | Self::UnsetVariable { .. }
            | Self::Reference(_)
            | Self::Url { .. }
            | Self::Header { .. }
            | Self::UnknownDemo(_)
            | Self::NotLoopback(_) => Class::Usage,
            Self::Spawn { source, .. } if is_mistaken(source) => Class::Usage,
            _ => Class::Work,
        }
    }
}

/// Whether another command, or another mode of its file, would mend it.
fn is_mistaken(source: &io::Error) -> bool {
    matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

fn known_demos(wrong: &str) -> String {
    match crate::error::did_you_mean(wrong, KINDS) {
        Some(kind) => format!("did you mean `{kind}`?"),
        None => format!("there is: {}", KINDS.join(", ")),
    }
}

/// How a server process ended and the end of what it wrote to standard error; empty for a remote one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerOutput {
    /// `exit status: 1`, `signal: 9 (SIGKILL)`; `None` while it lives.
    pub status: Option<String>,
    /// The last lines, cleaned.
    pub stderr: String,
}

impl fmt::Display for ServerOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(status) = &self.status {
            write!(f, " ({status})")?;
        }
        match self.stderr.is_empty() {
            true => Ok(()),
            false => write!(f, "; it said: {}", self.stderr),
        }
    }
}

/// An error and its causes on one line, no text twice.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let next = cause.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = cause.source();
    }
    text
}
