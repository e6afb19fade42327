//! The client to any MCP server, and the demo server.
//!
//! A [`Session`] is one live connection, over a child process's standard streams or over streamable HTTP; a
//! [`Pool`] lends sessions so that episodes do not see each other's effects. Servers are not trusted: every
//! wait has a limit, every list and text a bound, what a server says is cleaned of characters a reader cannot
//! see, and what it gets wrong in a list or a result is repaired or left out, never passed on.
//!
//! Absent: no shell ever runs a server's command, no reference or link of a server is followed, no request of
//! a server to the client (sampling, elicitation, roots) is granted, and no answer of a server widens what
//! this client does. Nothing here knows of episodes, policies or training.

mod clean;
pub mod demo;
mod error;
mod http;
mod listing;
mod names;
mod outcome;
mod pool;
mod process;
mod program;
mod reference;
pub mod secret;
mod session;
mod tools;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

pub use self::{
    error::{McpError, ServerOutput},
    outcome::Outcome,
    pool::{Pool, PooledSession},
    program::find_program,
    reference::{BadReference, has_reference},
    session::Session,
    tools::{COMPLETE_TASK, tools_digest},
};

/// The MCP server to master, as the run file resolved it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerSpec {
    pub transport: Transport,
    pub state: State,
    pub limits: Limits,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Transport {
    /// A child process that speaks over its standard input and output. `{mcprl}` in the command is this binary.
    ///
    /// The child sees `PATH`, `HOME`, `LANG`, `TMPDIR` and what `env` lists, nothing else. `${NAME}` in a value of `env` is
    /// taken from this process's environment, so that secrets stay out of run files (`reference.rs`).
    Stdio { command: Vec<String>, env: BTreeMap<String, String>, cwd: Option<PathBuf> },
    /// Streamable HTTP. The token is read from the named environment variable, never from the run file; `${NAME}` in the URL
    /// or in a header's value likewise.
    Http { url: String, bearer_env: Option<String>, headers: BTreeMap<String, String> },
}

impl std::fmt::Display for Transport {
    /// The command line without its secrets, or the URL, for messages. References to variables stay as they are.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdio { command, .. } => f.write_str(&secret::hidden(command, |_| "…".into()).join(" ")),
            Self::Http { url, .. } => f.write_str(url),
        }
    }
}

/// What keeps one episode's effects from the next one's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// The server has no state an episode can change: sessions are shared.
    ReadOnly,
    /// Every episode gets its own server process; over HTTP, its own session, which the run file calls `fresh-session`.
    FreshProcess,
    /// This tool is called (without arguments) before every episode.
    ResetTool(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Sessions open at once.
    pub sessions: usize,
    pub start_timeout: Duration,
    pub call_timeout: Duration,
    /// Bytes of a result that are kept, before tokenising.
    pub result_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 4,
            start_timeout: Duration::from_secs(60),
            call_timeout: Duration::from_secs(30),
            result_bytes: 16_384,
        }
    }
}
